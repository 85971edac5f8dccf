# SPDX-License-Identifier: LGPL-2.1-or-later
"""The file of the text is worse than it looks: cut off, on a bad block, on a file system that gives up.  A program that
never touches those pages runs; copying them must not kill it. By every way of copying, pages that cannot be read stay where
they are, and the rest moves."""

import contextlib
import os
import shutil
import subprocess

import pytest

import helpers
from objects import PF_W, PF_X, PT_LOAD, read_headers
from surroundings import ALL, at_end

TAIL = 4 << 20
TAIL_SOURCE = f"""
    .section tail,"FLAGS",@progbits
    .p2align 12
    .fill {TAIL // 8},8,0x1234567
    .section .note.GNU-stack,"",@progbits
"""

# The ways of copying, each with the calls that a policy forbids.
WAYS = {
    "free": [],
    "filtered": ["deny=process_vm_readv"],
}


@pytest.fixture(params=WAYS)
def way(request, confine):
    return confine(*WAYS[request.param])


@pytest.fixture(params=["rodata", "text"])
def kind(request):
    """The kind of the segment that is not touched."""
    return request.param


@pytest.fixture
def program(builder, sum_program, kind):
    """Its last segment, at the end of the file, is 4 MiB that are never touched."""
    source = builder.write(f"tail-{kind}.s", TAIL_SOURCE.replace("FLAGS", {"rodata": "a", "text": "ax"}[kind]))
    return sum_program("nopie", source, "-Wl,--section-start=tail=0x8000000", name=f"sum-{kind}-tail")


def tail_of(path):
    return max((h for h in read_headers(path) if h.type == PT_LOAD), key=lambda h: h.vaddr)


def test_whole_file(surround, pool, way, program):
    """The file is whole, and all of it moves: the programs are as the tests below assume."""
    pool(64)
    header = tail_of(program)
    assert header.vaddr == 0x8000000 and header.file_bytes == TAIL and not header.flags & PF_W
    outcome = surround([program], {program.name: ALL}, prefix=way, options="backend=hugetlb,verbose=1")
    assert outcome.stderr == "" and outcome.pages == 8


def runs_without_tail(surround, way, kind, program, intact):
    """The tail's kind of span stays, the other one moves."""
    moved = [k for k in ALL if k != kind]
    with contextlib.ExitStack() as stack:

        def repair():
            subprocess.run(["mount", "--bind", intact, program], check=True)
            stack.enter_context(at_end('umount "$1"', program))

        outcome = surround([program], {program.name: moved}, prefix=way, options="backend=hugetlb,verbose=1", repair=repair,
                           intact=intact)
    reason = "its file cannot be read to the end"
    assert outcome.stderr.startswith(f"hugeld: {program.name}: {kind} stays: {reason}")
    assert (outcome.returncode, outcome.stdout.count("sum")) == (3, 2)


@pytest.mark.parametrize("left", [0, helpers.PAGE, TAIL // 2 + helpers.PAGE, TAIL - helpers.PAGE])
def test_truncated(surround, root, pool, way, kind, program, tmp_path, left):
    """LEFT bytes of the last segment are there."""
    pool(64)
    copy = tmp_path / program.name
    shutil.copy(program, copy)
    os.truncate(copy, tail_of(program).offset + left)
    runs_without_tail(surround, way, kind, copy, program)


@pytest.fixture
def bad_blocks(root, tool, tmp_path):
    """bad_blocks(file, start, end, how): where a copy of FILE is in which [start, end) cannot be read."""
    if not os.path.exists("/dev/fuse") or subprocess.run(["pkg-config", "fuse3"]).returncode != 0:
        pytest.skip("needs FUSE and libfuse3-dev")
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "fuse3"], capture_output=True, text=True, check=True)
    server = tool("bad-blocks", *flags.stdout.split())
    folder = tmp_path / "mounted"
    folder.mkdir()
    with contextlib.ExitStack() as stack:

        def mount(file, start, end, how):
            stack.enter_context(at_end('umount -l "$1"', folder))
            process = helpers.start([server, file, start, end, how, folder])
            stack.callback(helpers.end_process, process)
            helpers.wait_until(lambda: os.path.ismount(folder) or process.poll() is not None, what="the mount")
            return folder / file.name

        yield mount


@pytest.mark.parametrize("how", ["eio", "exit"])
def test_bad_block(surround, pool, way, kind, program, bad_blocks, how):
    """A block in the middle gives EIO; or asking for it ends the file system."""
    pool(64)
    start = tail_of(program).offset + TAIL // 2
    copy = bad_blocks(program, start, start + helpers.PAGE, how)
    runs_without_tail(surround, way, kind, copy, program)


def test_bad_block_among_names(library, thp, builder, sum_program, bad_blocks):
    """The dynamic linker reads few names of symbols; hugeld looks for mremap among them all."""
    symbols = [f"{'n' * 99}{i:04}" for i in range(3000)]
    source = "".join(f".globl {symbol}\n{symbol}:\n" for symbol in symbols) + '.section .note.GNU-stack,"",@progbits\n'
    program = sum_program("nopie", builder.write("names.s", source), name="sum-names")
    start = program.read_bytes().index(symbols[1500].encode()) & -helpers.PAGE
    copy = bad_blocks(program, start, start + helpers.PAGE, "eio")
    result = helpers.run([copy], helpers.preload(library, options="backend=thp,verbose=1"))
    assert (result.returncode, result.stdout) == (3, helpers.run([program]).stdout), result
    assert result.stderr.startswith("hugeld: sum-names: text stays: its file cannot be read to the end"), result


@pytest.mark.parametrize("other", ["file", "place"])
@pytest.mark.parametrize("backend", ["hugetlb", "thp"])
def test_not_what_the_executable_is(surround, pool, thp, sum_program, first, tmp_path, backend, other):
    """An earlier constructor has mapped another file over a part of the text, or another part of the same one: the text that
    the program runs moves."""
    pool(64)
    program, copy = sum_program("nopie"), tmp_path / "copy"
    text = max((h for h in read_headers(program) if h.flags & PF_X), key=lambda h: h.file_bytes)
    base = min(h.vaddr for h in read_headers(program) if h.type == PT_LOAD)
    at, offset = text.vaddr + helpers.HUGE & -helpers.PAGE, text.offset + helpers.HUGE & -helpers.PAGE
    image = bytearray(program.read_bytes())
    distance = helpers.PAGE if other == "place" else 1024  # each function is its neighbour's
    image[offset:offset + helpers.HUGE] = image[offset + distance:offset + distance + helpers.HUGE]
    copy.write_bytes(image)
    action = f"file:{at - base:x}:{helpers.HUGE:x}:{offset + (helpers.PAGE if other == 'place' else 0):x}"
    outcome = surround([program], {program.name: ALL}, first=[first], options=f"backend={backend},verbose=1", backend=backend,
                       contents=copy, T_FIRST=action, T_FILE=copy if other == "file" else program)
    assert outcome.stderr == "" and outcome.stdout != helpers.run([program]).stdout


@pytest.mark.parametrize("where", ["data", "text"])
def test_guard_page(library, tool, thp, where):
    """What cannot be read because the program wants it so says nothing about its file."""
    program = tool("guard", "-no-pie", "-Wl,-z,now", f"-DIN={where}")
    result = helpers.run([program], helpers.preload(library, options="backend=thp,data=thp,verbose=1"))
    if result.returncode == 77:
        pytest.skip("this kernel has no guard pages")
    assert result.returncode == 0 and f"{where} stays: the program has put a guard page into it" in result.stderr, result.stderr
    assert "disk" not in result.stderr and "probe" not in result.stderr, result.stderr


@pytest.mark.parametrize("backend", ["hugetlb", "thp"])
def test_reprotected(library, tool, pool, thp, backend):
    """The mappings of an executable that begins are not read before its text is copied, but before it moves."""
    pool(16)
    program = tool("guard", "-no-pie", "-Wl,-z,now", "-DIN=text", "-DPROTECT")
    result = helpers.run([program], helpers.preload(library, options=f"backend={backend},verbose=1"))
    assert result.returncode == 0 and "text stays: its mappings do not match its program headers" in result.stderr, result.stderr
