# SPDX-License-Identifier: LGPL-2.1-or-later
"""Transparent huge pages stand in only if they are really huge, and nobody else can write to them.  Settings and limits:
../system/test_memory_limits.py, ../writable/test_limits.py."""

import contextlib
import mmap
import os
import pathlib
import re
import shutil

import pytest

import helpers
from smaps import read_smaps
from surroundings import ALL

THP = pathlib.Path("/sys/kernel/mm/transparent_hugepage")


@pytest.mark.parametrize("rule", ["pretend=madvise", "one-huge-page"])
def test_the_kernel_gives_small_pages(builder, surround, pool, thp, confine, rule):
    """madvise(2) says yes to everything and does nothing, or only the first page becomes huge: only smaps tells."""
    pool(0)
    app = builder.executable("nopie")
    if "[always]" in (THP / "enabled").read_text():
        pytest.skip("THP are for everybody here: set it to madvise")
    outcome = surround([app], {}, prefix=confine(rule), options="backend=thp,verbose=1,segments=text")
    assert f"{app.name}: text stays: the kernel gave small pages" in outcome.stderr


def test_memory_that_may_be_merged(builder, surround, pool, thp, confine):
    """ksmd splits the huge pages of memory that it may merge; what PR_SET_MEMORY_MERGE says of the copies is taken back."""
    pool(0)
    if helpers.run([*confine("merge"), "/bin/true"]).returncode != 0:
        pytest.skip("the kernel has no PR_SET_MEMORY_MERGE")
    app = builder.executable("nopie", words=6 * 2**17)
    outcome = surround([app], {app.name: (*ALL, "data")}, prefix=confine("merge"), options="backend=thp,data=thp,verbose=1",
                       backend="thp")
    assert outcome.stderr == ""
    copies = [m for m in outcome.image.mappings if m.thp_bytes]
    assert copies and not any("mg" in m.flags for m in copies)
    assert all("mg" in m.flags for m in outcome.plain_image.mappings if m.permissions == "r-xp" and m.name.endswith(app.name))


def test_nothing_is_copied_to_small_pages(builder, library, pool, thp, confine, tmp_path):
    """The first page shows that the kernel gives small ones, before any text is read for a copy."""
    pool(0)
    app = builder.executable("nopie")
    if "[always]" in (THP / "enabled").read_text():
        pytest.skip("THP are for everybody here: set it to madvise")
    log = tmp_path / "strace"
    env = helpers.preload(library, options="backend=thp,verbose=1,segments=text")
    preload = env.pop("LD_PRELOAD")
    result = helpers.run([*confine("pretend=madvise"), shutil.which("strace") or pytest.skip("needs strace"), "-o", log, "-e", "trace=openat,pread64,process_vm_readv", "-E",
                          f"LD_PRELOAD={preload}", app], env)
    assert f"{app.name}: text stays: the kernel gave small pages" in result.stderr, result.stderr
    copied = [int(n) for n in re.findall(r"(?:pread64|process_vm_readv)\(.* = (\d+)$", log.read_text(), re.M)]
    assert "/proc/self/smaps" in log.read_text() and max(copied, default=0) < 1 << 16, log.read_text()


def test_nobody_writes_to_text_in_a_memfd(sum_program, builder, library, pause_library, root, pool, thp):
    """A child that another thread forked while the text was filled has the memfd open for writing, as map_files has."""
    pool(0)
    moves = builder.write("moves.c", "#define _GNU_SOURCE\n#include <sys/mman.h>\nvoid *volatile moves = (void *)mremap;\n")
    app = sum_program("nopie", moves, name="sum-moves")
    plain = helpers.run([app])
    with helpers.paused([app], helpers.preload(pause_library, library, options="backend=thp"), app.name) as process:
        [text] = [m for m in read_smaps(process.pid) if m.name.startswith("/memfd:hugeld")]
        memfd = os.open(f"/proc/{process.pid}/map_files/{text.start:x}-{text.end:x}", os.O_RDWR)
        with contextlib.closing(os.fdopen(memfd, "r+b", buffering=0)) as file:
            for change in (lambda: file.write(b"x"), lambda: file.truncate(0), lambda: mmap.mmap(memfd, helpers.HUGE)):
                with pytest.raises(PermissionError):
                    change()
        assert process.finish()[:2] == (plain.returncode, plain.stdout)


def test_resource_limits_that_cannot_be_read(sum_program, surround, first, pool, thp, confine):
    """A filter of system calls refuses prlimit64: nothing is copied beside threads, because a limit may apply (test-memory-limit has
    the reason)."""
    pool(0)
    app = sum_program()
    more = {"first": [first], "options": "verbose=1", "T_FIRST": "threads:2"}
    outcome = surround([app], {}, prefix=confine("deny=prlimit64"), **more)
    assert f"{app.name}: text stays: " in outcome.stderr
    assert surround([app], {app.name: ALL}, prefix=confine("deny=acct"), backend="thp", **more).stderr == ""
