# SPDX-License-Identifier: LGPL-2.1-or-later
"""Text that the page cache has on huge pages already is left alone by backend=auto, and by nothing else: a copy would take memory
and time without a gain."""

import os
import re

import pytest

import helpers
from hugepages import free_pages, put_memory_together
from smaps import parse_smaps, read_smaps

REASON = "the page cache has it on huge pages already"


@pytest.fixture
def on_huge_tmpfs(root, tmp_path):
    """on_huge_tmpfs(program): (a command prefix, the program's path) where a tmpfs of huge pages holds it."""

    def put(program):
        put_memory_together()
        script = (f'mount -t tmpfs -o huge=always,size=64m none {tmp_path} && cp {program} {tmp_path}/ && '
                  'LD_PRELOAD=$T_PRELOAD exec "$@"')
        prefix = ["unshare", "--mount", "/bin/sh", "-c", script, "sh"]
        result = helpers.run([*prefix, "true"])
        if result.returncode != 0:
            pytest.skip(f"no tmpfs with huge=always here: {result.stderr}")
        return prefix, tmp_path / os.path.basename(program)

    return put


@pytest.fixture
def text_in_huge(on_huge_tmpfs, library, pause_library):
    """text_in_huge(program, options): (text bytes, those on the page cache's huge pages, pool pages taken, stderr)."""

    def run(program, options, status=None):
        prefix, path = on_huge_tmpfs(program)
        env = helpers.environment(T_PRELOAD=f"{library}:{pause_library}", LD_HUGEPAGES="main", LD_HUGEPAGES_OPTIONS=options)
        free = free_pages()
        with helpers.paused([*prefix, path], env, path.name) as process:
            text = [m for m in read_smaps(process.pid) if m.permissions == "r-xp" and m.start < 0x7F << 40
                    and (m.name == str(path) or m.is_hugetlb)]
            taken = free - free_pages()
            code, _, stderr = process.finish()
        assert code == helpers.run([program]).returncode
        huge = sum(m.kb["FilePmdMapped"] + m.kb["ShmemPmdMapped"] for m in text) * 1024
        return sum(m.bytes for m in text), huge, taken, stderr

    return run


def test_huge_already_is_left_alone(pool, builder, text_in_huge):
    """Its text is on the page cache's huge pages, the reason is given from verbose=2, and the pool keeps its pages.  strict=on forbids
    small pages, and these are none."""
    pool(64)
    app = builder.executable("aligned")
    text, huge, taken, stderr = text_in_huge(app, "verbose=2,data=off,segments=text")
    assert taken == 0 and huge >= 0.75 * text - helpers.HUGE, (text, huge)
    assert stderr == f"hugeld: {app.name}: text stays: {REASON}; use backend=hugetlb to move it anyway\n"
    for options in "verbose=1", "strict=on":
        assert text_in_huge(app, f"{options},data=off,segments=text")[2:] == (0, "")


def test_read_only_data_stays_with_its_text(pool, builder, text_in_huge):
    pool(64)
    app = builder.executable("aligned")
    _, _, taken, stderr = text_in_huge(app, "verbose=2,data=off")
    assert taken == 0 and {line.split(";")[0] for line in stderr.splitlines()} == {
        f"hugeld: {app.name}: {kind} stays: {REASON}" for kind in ("text", "rodata")}


def test_huge_already_moves_when_told(pool, builder, text_in_huge):
    pool(64)
    text, huge, taken, stderr = text_in_huge(builder.executable("aligned"), "backend=hugetlb,verbose=2,data=off,segments=text")
    assert taken == text // helpers.HUGE and huge == 0 and re.search(r"text \d+ pages hugetlb", stderr)


def test_what_is_linked_at_small_pages(pool, builder, text_in_huge):
    """A non-PIE's addresses go with its offsets, so the kernel maps the whole pages of its text huge, and they stay.  A PIE's do in
    one of 512 starts."""
    pool(64)
    options = "verbose=2,data=off,segments=text,edges=small"
    text, huge, taken, stderr = text_in_huge(builder.executable("nopie"), options)
    assert taken == 0 and huge >= text - 2 * helpers.HUGE and REASON in stderr, (text, huge, stderr)
    _, huge, taken, stderr = text_in_huge(builder.executable("pie"), options)
    assert (taken > 0) == (huge == 0) and (taken > 0) == bool(re.search(r"text \d+ pages hugetlb", stderr)), (huge, stderr)


def test_a_library_stays(pool, on_huge_tmpfs, library, tmp_path_factory):
    """The kernel puts a large library, whose addresses go with its offsets, onto a multiple of a huge page (Linux 6.7)."""
    pool(64)
    folder = tmp_path_factory.mktemp("large")
    source = folder / "large.s"
    source.write_text(".text\n.globl f\nf: .fill 16 << 20, 1, 0xc3\n.section .note.GNU-stack,\"\",@progbits\n")
    assert helpers.run(["gcc", "-shared", "-o", folder / "liblarge.so", source]).returncode == 0
    prefix, path = on_huge_tmpfs(folder / "liblarge.so")
    env = helpers.environment(T_PRELOAD=library, LD_HUGEPAGES="liblarge.so", LD_HUGEPAGES_OPTIONS="verbose=2")
    script = (f"import ctypes; at = ctypes.cast(ctypes.CDLL('{path}').f, ctypes.c_void_p).value;"
              "print(hex(at), open('/proc/self/smaps').read())")
    result = helpers.run([*prefix, "/usr/bin/python3", "-c", script], env)
    at, smaps = result.stdout.split(" ", 1)
    text = next(m for m in parse_smaps(smaps) if m.start <= int(at, 16) < m.end)
    if (text.start - text.offset) % helpers.HUGE != 0:
        pytest.skip("this kernel does not align libraries")
    assert REASON in result.stderr and text.kb["ShmemPmdMapped"] * 1024 >= text.bytes - 2 * helpers.HUGE, (result.stderr, text)
