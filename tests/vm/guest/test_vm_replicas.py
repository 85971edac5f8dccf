# SPDX-License-Identifier: LGPL-2.1-or-later
"""hugeld share add --per-node: each node has a replica on its own memory, and a process maps that of the node it starts on."""

import pathlib
import re
import shutil

import pytest

import helpers
from stores import is_image


@pytest.fixture
def replicas(tmp_path, builder):
    """(store, program): the system's store, on a tmpfs of its own, with a replica for each of the two nodes."""
    store = tmp_path / "store"
    store.mkdir(mode=0o755)
    app = pathlib.Path("/hugeld/replicated")  # on the disk: no image is made of a program on tmpfs
    shutil.copy(builder.executable("nopie"), app)
    app.chmod(0o755)
    result = helpers.hugeld("share", "add", "--per-node", "--size=256M", "--store", store, app, timeout=120)
    with helpers.at_end('umount -l "$1"', store):
        assert result.returncode == 0, result.stderr
        yield store, app
    app.unlink()


def pages_of_text(pid):
    """{node: pages} of an image's mappings, by numa_maps; and the files."""
    pages, files = {}, set()
    with open(f"/proc/{pid}/numa_maps") as lines:
        for line in lines:
            match = re.search(r" file=(\S+)", line)
            if match and is_image(match[1]):
                files.add(match[1])
                for node, number in re.findall(r" N(\d+)=(\d+)", line):
                    pages[int(node)] = pages.get(int(node), 0) + int(number)
    return pages, files


@pytest.mark.parametrize("node", [0, 1])
def test_own_node(replicas, under, library, node):
    store, app = replicas
    listed = helpers.hugeld_json("share", "list", "--store", store)
    assert [image["replicas"] for image in listed["stores"][0]["images"]] == [2], listed
    env = helpers.preload(library, patterns="main", options=f"backend=image,store={store},data=off")
    process = helpers.start([*under(f"cpu={node}"), app, "wait", "x"], env)
    try:
        helpers.wait_until(lambda: "break" in process.stdout.readline(), what="its last line")
        pages, files = pages_of_text(process.pid)
    finally:
        helpers.end_process(process)
    assert files and all(f"/node{node}/" in name for name in files), files
    assert set(pages) == {node} and pages[node] > 0, pages
