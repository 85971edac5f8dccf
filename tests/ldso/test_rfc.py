# SPDX-License-Identifier: LGPL-2.1-or-later
"""The series for upstream, as far as its text shows it; `make check-rfc` builds it and runs its tests."""

import re
import subprocess

import pytest

import helpers
from installed import cache_folder

RFC = helpers.ROOT / "glibc-patches/rfc"
PATCHES = sorted(RFC.glob("0*.patch"))
SOURCE = cache_folder() / "glibc/2.44-upstream/source"
# Names that glibc writes without a space before the parenthesis.
MACROS = {"ElfW", "GL", "GLRO", "N_", "defined"}


def run(*argv, **options):
    return subprocess.run([str(a) for a in argv], check=True, capture_output=True, text=True, **options).stdout


def message(patch):
    return re.split(r"^---$", patch.read_text(), maxsplit=1, flags=re.M)[0]


def subject(patch):
    return re.search(r"^Subject: \[[^]]*\] ((?:.+\n)(?: .+\n)*)", patch.read_text(), re.M)[1].replace("\n", "").strip()


def added(patch, suffixes):
    """(file, line) for each line that PATCH adds to files with SUFFIXES."""
    for part in re.split(r"^diff --git ", patch.read_text(), flags=re.M)[1:]:
        name = re.search(r"^\+\+\+ b/(.*)$", part, re.M)[1]
        if name.endswith(suffixes):
            body = part[part.index("\n@@ "):]
            for line in re.findall(r"^\+(.*)$", body, re.M):
                yield name, line


def new_files(*patches):
    """The files that PATCHES create, and their contents."""
    files = {}
    for patch in patches:
        for part in re.split(r"^diff --git ", patch.read_text(), flags=re.M)[1:]:
            if "\nnew file mode " in part:
                name = re.search(r"^\+\+\+ b/(.*)$", part, re.M)[1]
                files[name] = "\n".join(re.findall(r"^\+(.*)$", part[part.index("\n@@ "):], re.M)) + "\n"
    return files


def test_numbers():
    assert [patch.name[:4] for patch in PATCHES] == [f"{n:04}" for n in range(len(PATCHES))]
    for number, patch in enumerate(PATCHES):
        assert f"\nSubject: [RFC PATCH {number}/{len(PATCHES) - 1}] " in patch.read_text()
        assert len(subject(patch)) <= 72


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name[:4])
def test_message(patch):
    text = message(patch)
    assert not re.search(r"^(Signed-off|Co-authored|Reviewed|Acked|Tested)-by:", text, re.M | re.I)
    assert not re.search(r"^\s*\* \S+( \(.*\))?: ", text, re.M)  # an entry of a ChangeLog
    body = text.split("\n\n", 1)[1]
    assert [line for line in body.split("\n") if len(line) > 76 or line != line.rstrip() or "\t" in line] == []
    assert not re.search(r"[a-z]\. [A-Z]", body)  # two spaces end a sentence


@pytest.mark.parametrize("patch", PATCHES[1:], ids=lambda patch: patch.name[:4])
def test_style(patch):
    for name, line in added(patch, ""):
        assert line == line.rstrip() and " \t" not in line, (name, line)
        assert len(line.expandtabs(8)) < 80, (name, line)
    for name, line in added(patch, (".c", ".h")):
        if line.endswith("*/") and not line.startswith("#"):
            assert re.search(r"[.?!>]  \*/$", line), (name, line)  # a sentence, and two spaces
        code = re.sub(r'"(\\.|[^"\\])*"', '""', line)
        code = re.sub(r"/\*.*", "", code)
        if re.match(r"\s*#\s*define|   ?[A-Z*]", line):  # a macro, or the middle of a comment
            continue
        assert [call for call in re.findall(r"\b(\w+)\(", code) if call not in MACROS] == [], (name, line)
        assert not re.search(r"\b(if|for|while|switch)\(|\)\{|\S\{$|^\s*//", code), (name, line)


def test_new_files_have_a_notice():
    for name, text in new_files(*PATCHES[1:]).items():
        assert re.match(r"/\* [A-Z].*\.\n   Copyright The GNU Toolchain Authors\.\n"
                        r"   This file is part of the GNU C Library\.\n", text), name
        assert "<https://www.gnu.org/licenses/>.  */\n" in text and "SPDX" not in text


def test_one_continues_the_other():
    """A file is, before a patch, as the last patch that touched it has left it."""
    left = {}
    for patch in PATCHES[1:]:
        for name, before, after in re.findall(
                r"^diff --git a/(\S+) b/.*\n(?:new file.*\n)?index (\w+)\.\.(\w+)", patch.read_text(), re.M):
            assert left.get(name, before) == before, (patch.name, name)
            left[name] = after


def test_applies_to_upstream(tmp_path):
    """The series applies to the source in the cache, where `make check-rfc` has left it; everywhere to the lines of the manual."""
    names = {name for patch in PATCHES[1:] for name in re.findall(r"^--- a/(.*)$", patch.read_text(), re.M)}
    assert "manual/tunables.texi" in names
    (tmp_path / "manual").mkdir()
    (tmp_path / "manual/tunables.texi").write_text((RFC / "manual.texi").read_text())
    run("git", "init", "-q", tmp_path)
    options = ["--include=manual/*"]
    if (SOURCE.parent / "source.made-with").exists():
        options = []
        for name in names - {"manual/tunables.texi"}:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes((SOURCE / name).read_bytes())
    for patch in PATCHES[1:]:
        run("git", "apply", "--whitespace=error-all" if not options else "--whitespace=nowarn", *options, patch,
            cwd=tmp_path)
    assert "need not begin on a huge page" in (tmp_path / "manual/tunables.texi").read_text()


def test_cover_letter():
    """It has the subjects of the following patches and their numbers of lines."""
    cover = PATCHES[0].read_text()
    for patch in PATCHES[1:]:
        assert f"\n  {subject(patch)}\n" in cover
    lines = {}
    for patch in PATCHES[1:]:
        for line in run("git", "apply", "--numstat", patch).split("\n")[:-1]:
            plus, minus, name = line.split("\t")
            old = lines.get(name, (0, 0))
            lines[name] = old[0] + int(plus), old[1] + int(minus)
    for name, (plus, minus) in lines.items():
        assert re.search(rf"^ {re.escape(name)} +\| +{plus} \+, {minus} -$", cover, re.M), (name, plus, minus)
    assert re.search(r"Linux \d+\.\d+", cover) and re.search(r"20\d\d-\d\d-\d\d", cover)


def test_mode_never():
    """The manual's rule is the code's, and that by which the tests expect something."""
    code, manual, tests = (patch.read_text() for patch in PATCHES[1:])
    assert re.search(r"^\+      && __get_thp_mode \(\) == thp_mode_never\)$", code, re.M)
    assert re.search(r"^\+.*Nothing is advised if\n\+@file\{\S*/enabled\} says @code\{never\}, nor,$", manual, re.M)
    assert re.search(r"^\+  if \(mode == thp_mode_never ", tests, re.M)


def test_every_test_is_in_the_makefile():
    files = new_files(*PATCHES[1:])
    makefile = "\n".join(line for patch in PATCHES[1:] for _, line in added(patch, "/Makefile"))
    tests = re.search(r"^tests \+= \\\n((?:  .*\n)*)", makefile, re.M)[1].replace("\\", "").split()
    static = re.search(r"^tests-static \+= \\\n((?:  .*\n)*)", makefile, re.M)[1].replace("\\", "").split()
    assert static and not set(static) - set(tests)
    modules = re.search(r"^modules-names \+= \\\n((?:  .*\n)*)", makefile, re.M)[1].replace("\\", "").split()
    place = "sysdeps/unix/sysv/linux/"
    there = {re.sub(r"\.[cS]$", "", name.removeprefix(place)) for name in files if name.endswith((".c", ".S"))}
    assert there == set(tests + modules)
    for test in tests:
        assert f"\n{test}-ENV = GLIBC_TUNABLES=glibc.elf.thp=" in makefile
        assert "FAIL_UNSUPPORTED" not in files[f"{place}{test}.c"]


PROGRAM = r"""
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#define ElfW(type) Elf##type
typedef uint%(bits)d_t ElfAddr, ElfOff;
#define ALIGN_DOWN(base, size) ((base) & -((__typeof__ (base)) (size)))
#define ALIGN_UP(base, size) ALIGN_DOWN ((base) + (size) - 1, (size))
%(function)s
int main (int argc, char **argv)
{
  ElfAddr start = strtoull (argv[1], NULL, 0), end = strtoull (argv[2], NULL, 0);
  bool inside = _dl_thp_inner_range (&start, &end, strtoull (argv[3], NULL, 0), 0x200000);
  printf ("%%d %%llx %%llx", inside, (unsigned long long) start, (unsigned long long) end);
}
"""


@pytest.mark.parametrize("bits", [32, 64])
def test_inner_range(tmp_path, bits):
    """The rule itself, on addresses as they occur."""
    text = PATCHES[1].read_text()
    function = re.search(r"^\+static inline bool\n\+_dl_thp_inner_range.*?^\+}$", text, re.M | re.S)[0]
    program = tmp_path / "inner"
    source = PROGRAM % {"bits": bits, "function": re.sub(r"^\+", "", function, flags=re.M)}
    run("gcc", "-Wall", "-Werror", "-x", "c", "-o", program, "-", input=source)

    def inner(start, end, offset):
        inside, *range_ = run(program, hex(start), hex(end), hex(offset)).split()
        assert inside == "1" or range_ == [f"{start:x}", f"{end:x}"]  # unchanged
        return [int(word, 16) for word in range_] if inside == "1" else None

    assert inner(0x658000, 0x1b8b000, 0x258000) == [0x800000, 0x1a00000]  # Debian 12's cc1plus
    assert inner(0x41f000, 0x6cf000, 0x1f000) is None  # python3.11: large enough, but no whole one
    assert inner(0x400000, 0x600000, 0) == [0x400000, 0x600000]
    assert inner(0x400000, 0x5ff000, 0) is None
    assert inner(0x401000, 0x800000, 0x1000) == [0x600000, 0x800000]
    assert inner(0x401000, 0x800000, 0x2000) is None  # address and offset differ
    assert inner(0x401000, 0x800000, 0x801000) == [0x600000, 0x800000]
    top = 1 << bits
    assert inner(top - 0x100000, top - 0x1000, 0x100000) is None  # rounding up overflows
