# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where a memory limit applies, or the machine is short, a private copy of the text may get the program killed later:
that is unknown at its start.  So by default transparent huge pages do not stand in there, and data, which has no
other place, stays; an explicit backend=thp is followed."""

import pathlib

import pytest

import helpers
from proof import same_but_stderr

HERE = pathlib.Path(__file__).resolve().parent
MIB = 1 << 20
LIMIT = "private copies count against its memory limit"
FULL = "private copies may take twice its size"
POOL = "the huge page pool cannot serve it"
NO_POOL = "data=thp,reserve_pages=100000,verbose=1"
WORDS = 6 * 2**17  # 6 MiB of data
ALL = ("text", "rodata", "data")


@pytest.fixture
def memory_group(cgroup):
    """memory_group(bytes): a command prefix that joins a cgroup with this memory limit."""
    return lambda wanted: cgroup("memory", ("memory.max", wanted), ("memory.limit_in_bytes", wanted))


@pytest.fixture(scope="session")
def heap(builder):
    """heap.c with 8 MiB of text and 5 MiB of read-only data."""
    return builder.once("heap", lambda folder: builder.compile(folder / "heap", HERE / "heap.c", "-no-pie", "-rdynamic",
                                                               *builder.object()))


def test_heap_that_just_fits(heap, library, prove, thp, memory_group):
    """24 MiB of heap under 32 MiB: the text's pages of the page cache can go for it, copies could not."""
    argv = [*memory_group(32 * MIB), heap, "24"]
    assert helpers.run(argv).returncode == 5
    assert helpers.run(argv, helpers.preload(library, options=NO_POOL)).returncode == 5
    proof = prove(argv, {}, options=NO_POOL, name=heap.name, same=same_but_stderr)
    assert f"{heap.name}: text stays: {POOL}" in proof.moved[2]


@pytest.fixture
def wide_limit(memory_group):
    """A command prefix with a limit that is never reached."""
    return memory_group(1 << 30)


@pytest.mark.parametrize("limit", ["--as", "--data"])
def test_resource_limits(builder, prove, thp, limit):
    """A copy takes nothing more of them than what it replaces, once it is in place."""
    app = builder.executable("nopie", WORDS)
    prove(["/usr/bin/prlimit", f"{limit}={1 << 40}:", app], {app.name: ALL}, options=NO_POOL, name=app.name, backend="thp")


def test_gaps_under_a_limit_of_addresses(builder, prove, pool, thp):
    """A copy that fills gaps between segments takes these addresses for good."""
    pool(64)
    app = builder.executable("aligned", WORDS)
    proof = prove(["/usr/bin/prlimit", f"--as={1 << 40}:", app], {}, options="data=off,verbose=1", name=app.name, same=same_but_stderr)
    assert f"{app.name}: text stays: {LIMIT}" in proof.moved[2]


def test_limit(builder, prove, thp, wide_limit):
    """With any limit the text stays, as the pool cannot serve it, and so does data, which is for thp alone."""
    app = builder.executable("nopie", WORDS)
    proof = prove([*wide_limit, app], {}, options=NO_POOL, name=app.name, same=same_but_stderr)
    assert f"{app.name}: text stays: {POOL}" in proof.moved[2]
    assert f"{app.name}: data stays: {LIMIT}" in proof.moved[2]


def test_limit_does_not_concern_hugetlb(builder, prove, pool, thp, wide_limit):
    pool(64)
    app = builder.executable("nopie", WORDS)
    for backend in ("auto", "hugetlb"):
        proof = prove([*wide_limit, app], {app.name: ("text", "rodata")}, options=f"backend={backend},verbose=1,data=thp",
                      name=app.name, same=same_but_stderr)
        assert f"{app.name}: data stays: {LIMIT}" in proof.moved[2]


def test_asked_for(builder, prove, thp, wide_limit):
    """backend=thp moves all planned text where twice the bytes fit."""
    app = builder.executable("nopie", WORDS)
    prove([*wide_limit, app], {app.name: ALL}, options="backend=thp,data=thp", name=app.name, backend="thp")


def test_asked_for_in_vain(builder, prove, thp, memory_group):
    """Eight MiB of text: twice that does not fit under 16 MiB, and the program, whose file pages can go, runs."""
    prefix = memory_group(16 * MIB)
    app = builder.executable("nopie")
    proof = prove([*prefix, app], {app.name: ("rodata",)}, options="backend=thp,verbose=1", name=app.name,
                  backend="thp", same=same_but_stderr)
    assert proof.moved[2].startswith(f"hugeld: {app.name}: text stays: {FULL}")


def test_doctor(memory_group, thp):
    """Its answer about thp agrees with a program's default."""
    told = helpers.hugeld_json("doctor")
    limited = helpers.run([*memory_group(1 << 30), helpers.HUGELD, "doctor"])
    assert told["thp_reason"] is None and told["usable"]["thp"]
    assert LIMIT in limited.stdout and limited.stdout.rstrip().endswith("transparent huge pages no")
