# SPDX-License-Identifier: LGPL-2.1-or-later
"""Helpers of this folder's tests: pools of single nodes, control groups, policies, and a proof like `prove` that
says on which nodes the pages are."""

import contextlib
import os
import pathlib
import time

import pytest

import helpers
from vmguest import NODES, Row, absent, node_counts, node_file, pages_by_node

HERE = pathlib.Path(__file__).resolve().parent


# --- programs ---


@pytest.fixture(scope="session")
def under(builder):
    """under(rules...): a command prefix under which these rules of under.c hold."""
    program = builder.once("under", lambda folder: builder.compile(folder / "under", "-Wall", "-Wextra", "-static",
                                                                   HERE / "under.c"))
    return lambda *rules: [program, *rules, "--"]


@pytest.fixture(scope="session")
def first(builder):
    """A library whose constructor runs before libhugeld.so's and follows T_FIRST."""
    source = HERE.parents[1] / "surroundings" / "first.c"
    return builder.once("first", lambda folder: builder.compile(
        folder / "first.so", source, "-shared", "-fPIC", "-Wl,-z,initfirst", "-pthread"))


# --- nodes ---


@pytest.fixture
def nodes():
    """nodes(a, b): node 0 has exactly A huge pages and node 1 B, all free; and so again at the end of the test."""
    before = node_counts("nr_hugepages")
    wanted = []

    def set_pages(*pages):
        wanted[:] = pages
        for node, count in zip(NODES, pages):
            node_file(node, "nr_hugepages").write_text(str(count))
        assert node_counts("free_hugepages") == node_counts("nr_hugepages") == pages

    yield set_pages
    if wanted:
        with contextlib.suppress(AssertionError):
            helpers.wait_until(lambda: node_counts("free_hugepages") == tuple(wanted))
        assert node_counts("free_hugepages") == node_counts("nr_hugepages") == tuple(wanted), "pages were lost"
        assert node_counts("surplus_hugepages") == (0, 0)
    for node, count in zip(NODES, before):
        node_file(node, "nr_hugepages").write_text(str(count))


@pytest.fixture
def overcommit():
    """overcommit(n): the pool may grow by N surplus pages."""
    file = pathlib.Path("/proc/sys/vm/nr_overcommit_hugepages")
    yield lambda n: file.write_text(str(n))
    file.write_text("0")


@pytest.fixture
def row(prove):
    """row(argv, moved, ...): prove(), which compares memory, output and status with the plain run, and says on which
    nodes the program's huge pages were.  PREFIX becomes ARGV."""

    def run(argv, moved, options="", prefix=(), **more):
        seen = []

        def work(process):
            seen.append(pages_by_node(process.pid))
            return process.finish()

        name = os.path.basename(os.path.realpath(argv[0]))
        proof = prove([*prefix, *argv], moved, options=f"verbose=1,{options}", name=name, work=work,
                      same=lambda plain, moved: plain[:2] == moved[:2], **more)
        plain, found = seen
        assert not any(huge for huge, _ in plain), "the plain run has huge pages"
        return Row(proof.pages, tuple(found[True, node] for node in NODES), proof.moved[2], proof.plans)

    return run


# --- control groups ---


V2 = pathlib.Path("/sys/fs/cgroup")


def has_controller(name):
    return name in (V2 / "cgroup.controllers").read_text().split()


def mount_v1(controller, folder):
    """Version 1 of CONTROLLER at FOLDER, once version 2 has let go of it; False if this kernel has none."""
    folder.mkdir(exist_ok=True)
    (V2 / "cgroup.subtree_control").write_text(f"-{controller}")
    end = time.monotonic() + 30
    while True:
        result = helpers.run(["mount", "-t", "cgroup", "-o", controller, "none", folder])
        if result.returncode == 0:
            return True
        if "busy" not in result.stderr or time.monotonic() > end:
            return False
        time.sleep(0.1)


def unmount_v1(controller, folder):
    """Gives CONTROLLER back to version 2.  A group that was removed just now keeps the hierarchy alive even without a
    mount, and then it takes another one to end it."""
    for _ in range(50):
        assert helpers.run(["umount", folder]).returncode == 0
        time.sleep(0.1)
        if has_controller(controller):
            return
        assert mount_v1(controller, folder)
    raise AssertionError(f"{controller} stays in version 1")


def remove_groups(folder):
    """FOLDER and all below it; members that have just ended may still be there."""
    for group in sorted([folder, *folder.glob("**/*/")], reverse=True):
        helpers.wait_until(lambda: not (group / "cgroup.procs").read_text(), what=f"{group} becoming empty")
        group.rmdir()


@pytest.fixture
def group():
    """group(controller, version): the folder of a new control group."""
    with contextlib.ExitStack() as stack:

        def make(controller, version):
            assert has_controller(controller), controller
            if version == 1:
                top = pathlib.Path("/run", controller)
                if not mount_v1(controller, top):
                    absent(f"no version 1 of the {controller} controller")
                stack.callback(unmount_v1, controller, top)
            else:
                top = V2
                (V2 / "cgroup.subtree_control").write_text(f"+{controller}")
            folder = top / "test"
            folder.mkdir()
            stack.callback(remove_groups, folder)
            return folder

        yield make
