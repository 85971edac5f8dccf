# SPDX-License-Identifier: LGPL-2.1-or-later
"""Transparent huge pages stand in only where they cannot hurt: not against the administrator's `never`, not against the
process's own setting, not where a memory limit applies, and only if they are really huge."""

import contextlib
import mmap
import os
import pathlib
import re
import shutil

import pytest

import helpers
from smaps import read_smaps
from surroundings import ALL, at_end, setting

THP = pathlib.Path("/sys/kernel/mm/transparent_hugepage")
MIB = 1 << 20
NEVER = "transparent huge pages are switched off by the administrator"
DISABLED = "transparent huge pages are disabled for this process"
FULL = "private copies may take twice its size"

# (backend, free pages, whether it moves to hugetlb)
BACKENDS = [("thp", 64, False), ("auto", 0, False), ("auto", 64, True), ("hugetlb", 64, True), ("hugetlb", 0, False)]


@pytest.mark.check_all
@pytest.mark.parametrize("backend, free, moves", BACKENDS)
@pytest.mark.parametrize("how", [pytest.param("enabled", marks=pytest.mark.guest),
                                 pytest.param("hugepages-2048kB/enabled", marks=pytest.mark.guest), "prctl"])
def test_switched_off(builder, surround, root, pool, thp, confine, how, backend, free, moves):
    """No text, read-only or writable data becomes transparent huge pages."""
    pool(free)
    app = builder.executable("nopie", words=6 * 2**17)
    options = f"backend={backend},verbose=1,data=thp"
    moved = {app.name: ALL} if moves else {}
    if how == "prctl":
        outcome = surround([app], moved, prefix=confine("no-thp"), options=options)
    elif not (THP / how).exists():
        pytest.skip(f"the kernel has no {how}")
    else:
        with setting(THP / how, "never"):
            outcome = surround([app], moved, options=options)
    assert not any(m.thp_bytes for m in outcome.image.mappings)
    reason = DISABLED if how == "prctl" else NEVER
    assert f"{app.name}: data stays: {reason}" in outcome.stderr
    if backend == "thp":
        assert f"{app.name}: text stays: {reason}" in outcome.stderr


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


# --- memory cgroups ---

WIDE = r"""
    .macro wide
    .section big_text, "ax", @progbits
    .p2align 12
    .globl wide_text
wide_text:
    .set i, 0
    .rept 64
    leaq 12345+i*7(%rdi,%rdi,2), %rax
    ret
    .p2align 20, 0xcc
    .set i, i+1
    .endr
    .endm
    wide
    .section .note.GNU-stack,"",@progbits
"""
WIDE_MAIN = r"""
#include <stdint.h>
#include <stdio.h>
extern const unsigned char wide_text[];
int main(void) {
    uint64_t x = 1, sum = 0;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 64; i++)
            x = ((uint64_t(*)(uint64_t))(wide_text + ((uint64_t)i << 20)))(x);
        for (uint64_t i = 0; i < 64u << 20; i += 512)
            sum = sum * 31 + wide_text[i];
    }
    printf("%lx %lx\n", (unsigned long)x, (unsigned long)sum);
    return 5;
}
"""


@pytest.fixture(scope="module")
def wide(builder):
    """A program with 64 MiB of text, which it reads and executes from end to end."""

    def make(folder):
        sources = builder.write("wide.s", WIDE), builder.write("wide-main.c", WIDE_MAIN)
        return builder.compile(folder / "wide", *sources, "-no-pie")

    return builder.once("wide", make)


@pytest.fixture
def memory_group(root):
    """memory_group(bytes, levels): a command prefix that joins a v1 memory cgroup LEVELS below the one that has the limit
    (v2 is proved by tests/unit/test-memory-limit.c)."""
    mount = next((pathlib.Path(m[1]) for m in map(str.split, open("/proc/mounts")) if m[2] == "cgroup" and "memory" in
                  m[3].split(",")), None)
    if mount is None:
        pytest.skip("no memory cgroup (v1) is mounted")
    top = mount / f"hugeld-test-{helpers.MARK_VALUE}"
    inner = top / "a" / "b"

    def limit(limit_bytes, levels):
        inner.mkdir(parents=True)
        (top / "memory.limit_in_bytes").write_text(str(limit_bytes))
        group = (top, top / "a", inner)[levels]
        return ["/bin/sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]

    with at_end('for i in 1 2 3 4 5; do rmdir "$1/a/b" "$1/a" "$1" && exit; sleep 0.2; done', top):
        yield limit


@pytest.mark.parametrize("limit, levels", [(72, 0), (72, 2), (40, 2)])
@pytest.mark.parametrize("backend, free, moves", BACKENDS)
def test_memory_limit(surround, wide, pool, thp, memory_group, backend, free, moves, limit, levels):
    """64 MiB of text under a limit of 8 MiB more, or, as the kernel can drop the file's pages, of less: a private copy
    would be too much, or the end."""
    pool(free)
    prefix = memory_group(limit * MIB, levels)
    moved = {wide.name: ("text",)} if moves else {}
    outcome = surround([wide], moved, prefix=prefix, options=f"backend={backend},verbose=1")
    if backend == "thp":
        assert f"{wide.name}: text stays: {FULL}" in outcome.stderr
    assert outcome.returncode == 5


@pytest.mark.parametrize("backend, moved", [("thp", ("text",)), ("auto", ())])
def test_memory_limit_that_fits(surround, wide, pool, thp, memory_group, backend, moved):
    """The limit is twice the text and some more: it moves if the user has asked for it, as the program may need the
    memory later."""
    pool(0)
    surround([wide], {wide.name: moved} if moved else {}, prefix=memory_group(160 * MIB, 2), options=f"backend={backend}",
             backend="thp")


def test_resource_limits_that_cannot_be_read(builder, surround, pool, thp, confine):
    """A filter of system calls refuses prlimit64: nothing is copied, because a limit may apply (test-memory-limit has the reason)."""
    pool(0)
    app = builder.executable("nopie")
    outcome = surround([app], {}, prefix=confine("deny=prlimit64"), options="verbose=1")
    assert f"{app.name}: text stays: " in outcome.stderr
    assert surround([app], {app.name: ALL}, prefix=confine("deny=acct"), options="verbose=1", backend="thp").stderr == ""
