# SPDX-License-Identifier: LGPL-2.1-or-later
"""`hugeld status` names the node of every moved range, as the kernel's move_pages(2) knows it."""

import collections
import ctypes
import json
import os
import pathlib
import re

import pytest

import helpers

MOVE_PAGES = {"x86_64": 279, "aarch64": 239}[os.uname().machine]


def ask_kernel(pid, start, end):
    """{node: bytes} of the huge pages in [start, end)."""
    addresses = range(start, end, helpers.HUGE)
    n = len(addresses)
    status = (ctypes.c_int * n)()
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(MOVE_PAGES, pid, ctypes.c_ulong(n), (ctypes.c_void_p * n)(*addresses), None, status, 0)
    assert result == 0, os.strerror(ctypes.get_errno())
    assert all(node >= 0 for node in status), list(status)
    return {node: count * helpers.HUGE for node, count in collections.Counter(status).items()}


def ranges_of(pid, *prefix):
    """The ranges of the executable, and the words of `status`."""
    told = helpers.run([*prefix, helpers.HUGELD, "status", "--json", pid])
    words = helpers.run([*prefix, helpers.HUGELD, "status", pid])
    assert (told.returncode, words.returncode) == (0, 0), told.stderr + words.stderr
    [process] = json.loads(told.stdout)["processes"]
    return process["objects"][0], words.stdout


def to_dict(nodes):
    return {n["node"]: n["bytes"] for n in nodes}


def format_nodes(nodes):
    return ", ".join(f"node {node}: {size // 1024} KiB" for node, size in sorted(nodes.items()))


@pytest.mark.parametrize("options", ["backend=hugetlb", "backend=thp", "backend=hugetlb,numa=local",
                                     "backend=hugetlb,numa=interleave"])
def test_nodes_of_ranges(builder, library, pause_library, pool, thp, root, options):
    pool(64)
    app = builder.executable("nopie")
    with helpers.paused([app], helpers.preload(library, pause_library, options=options), app.name) as process:
        told, words = ranges_of(process.pid)
        total = collections.Counter()
        assert {r["kind"] for r in told["ranges"]} >= {"text", "rodata"}
        for range_ in told["ranges"]:
            nodes = ask_kernel(process.pid, int(range_["start"], 16), int(range_["end"], 16))
            assert to_dict(range_["nodes"]) == nodes and sum(nodes.values()) == range_["huge_bytes"]
            line = next(s for s in words.splitlines() if s.strip().startswith(f"0x{int(range_['start'], 16):012x}-"))
            assert line.endswith(f"  {format_nodes(nodes)}"), line
            total.update(nodes)
    assert to_dict(told["nodes"]) == dict(total)
    assert f"\n    {format_nodes(total)}\n" in words


def test_several_nodes(builder, library, pause_library, pool, root, tmp_path):
    """A made-up numa_maps: the text on three nodes, one with a large number, the data on another."""
    pool(64)
    app = builder.executable("nopie")
    env = helpers.preload(library, pause_library, options="backend=hugetlb")
    with helpers.paused([app], env, app.name) as process:
        maps = pathlib.Path(f"/proc/{process.pid}/numa_maps")
        text = maps.read_text()
        made_up, n = re.subn(r"^(00400000 .*) N0=5 ", r"\1 N1=2 N7=2 N1023=1 ", text, flags=re.M)
        made_up, m = re.subn(r"^(00e00000 .*) N0=1 ", r"\1 N3=1 ", made_up, flags=re.M)
        assert (n, m) == (1, 1), text
        fake = tmp_path / "numa_maps"
        fake.write_text(made_up)
        mount = f'mount --bind {fake} {maps} && exec "$@"'
        told, words = ranges_of(process.pid, "unshare", "-m", "sh", "-c", mount, "sh")
    page = helpers.HUGE
    text, rodata = told["ranges"]
    assert to_dict(text["nodes"]) == {1: 2 * page, 7: 2 * page, 1023: page} and to_dict(rodata["nodes"]) == {3: page}
    assert to_dict(told["nodes"]) == {**to_dict(text["nodes"]), **to_dict(rodata["nodes"])}
    assert "  node 1: 4096 KiB, node 7: 4096 KiB, node 1023: 2048 KiB\n" in words


def test_without_numa_maps(builder, library, pause_library, pool, root, tmp_path):
    """A kernel without NUMA has none: no node is named, and all else is told."""
    pool(64)
    app = builder.executable("nopie")
    env = helpers.preload(library, pause_library, options="backend=hugetlb")
    with helpers.paused([app], env, app.name) as process:
        empty = tmp_path / "numa_maps"
        empty.touch()
        mount = f'mount --bind {empty} /proc/{process.pid}/numa_maps && exec "$@"'
        told, words = ranges_of(process.pid, "unshare", "-m", "sh", "-c", mount, "sh")
    assert told["pages"] == 6 and told["nodes"] == [] and all(r["nodes"] == [] for r in told["ranges"])
    assert "node" not in words
