# SPDX-License-Identifier: LGPL-2.1-or-later
"""The series for upstream: its first patch is elf/, with another layout.  `make check-rfc` builds it."""

import re
import subprocess

import pytest

import helpers

RFC = helpers.ROOT / "glibc-patches/rfc"
ELF = helpers.ROOT / "elf"
FILES = sorted(path for path in ELF.rglob("*") if path.suffix in (".c", ".h", ".def"))


def run(*argv, **options):
    return subprocess.run([str(a) for a in argv], check=True, capture_output=True, text=True, **options).stdout


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    folder = tmp_path_factory.mktemp("core")
    run(RFC / "core", folder)
    return folder


def name_there(path):
    """What a file of elf/ is called in glibc, where all are in one folder."""
    return "hl-" + str(path).replace("/", "-")


def code(path):
    """PATH without comments, white space and broken lines; strings in pieces are joined."""
    text = run("gcc", "-x", "c", "-fpreprocessed", "-dD", "-E", "-P", path)
    return re.sub(r"\\\n|\s", "", text).replace('""', "")


def test_code_is_the_same(core):
    for path in FILES:
        there = re.sub(r'#include"([^"]+)"', lambda found: f'#include"{name_there(found[1])}"', code(path))
        assert code(core / name_there(path.relative_to(ELF))) == there


def test_layout(core):
    assert sorted(path.name for path in core.iterdir()) == \
        sorted(["Makefile"] + [name_there(path.relative_to(ELF)) for path in FILES])
    for path in core.glob("hl-*"):
        text = path.read_text()
        assert "   This file is part of the GNU C Library.\n" in text and "SPDX" not in text, path
        assert not re.search(r"[^.]\. \*/", text), path  # two spaces end a sentence
        # What stands in a comment may be a picture.
        for line in run("gcc", "-x", "c", "-fpreprocessed", "-dD", "-E", "-C", "-P", path).split("\n"):
            assert len(line.expandtabs(8)) < 80 or not re.search(r"[;{}]$", line), (path, line)


def test_core_compiles(core):
    for path in core.glob("*.c"):
        run("gcc", "-std=gnu11", "-Wall", "-Werror", "-Wundef", "-ffreestanding", "-fsyntax-only", path)


def test_series(core, tmp_path):
    run(RFC / "series", tmp_path / "series")
    patches = sorted((tmp_path / "series").iterdir())
    assert [patch.name[:4] for patch in patches] == ["0000", "0001", "0002", "0003", "0004", "0005"]
    for number, patch in enumerate(patches):
        assert f"\nSubject: [RFC PATCH {number}/5] " in patch.read_text()
    tree = tmp_path / "tree"
    run("git", "init", "-q", tree)
    run("git", "apply", patches[1], cwd=tree)
    place = tree / "sysdeps/unix/sysv/linux/hugepages"
    assert {path.name: path.read_text() for path in place.iterdir()} == \
        {path.name: path.read_text() for path in core.iterdir()}
    # The others fit to it where they can without glibc.
    run("git", "apply", "--include=sysdeps/unix/sysv/linux/hugepages/*", patches[3], cwd=tree)
    run("git", "apply", patches[4], cwd=tree)
    for patch in patches[1:]:
        for path in run("git", "apply", "--numstat", patch, cwd=tree).split("\n")[:-1]:
            assert f" {path.split()[2]} " in patches[0].read_text()


def test_what_the_series_calls_is_there(core):
    [patch] = RFC.glob("0003-*.patch")
    headers = "".join(path.read_text() for path in core.glob("*.h"))
    names = set(re.findall(r"^\+.*?\b(hl_\w+) ?\(", patch.read_text(), re.M))
    assert len(names) > 10
    assert [name for name in sorted(names) if not re.search(rf"\b{name} ?\(", headers)] == []


def test_manual_has_every_tunable(core):
    """And every value that hl-option.def knows."""
    [tunables], [manual] = RFC.glob("0003-*.patch"), RFC.glob("0005-*.patch")
    names = re.findall(r"^\+    (hugepages\w*) \{$", tunables.read_text(), re.M)
    added = "".join(re.findall(r"^\+(.*\n)", manual.read_text(), re.M))
    assert len(names) == 8 and re.findall(r"^glibc\.elf\.(\w+):", added, re.M) == names
    described = dict(re.findall(r"^@deftp Tunable glibc\.elf\.(\w+)\n(.*?)^@end deftp$", added, re.M | re.S))
    assert list(described) == names
    choices = dict(re.findall(r"^CHOICE \((\w+),(.*?)\)$", (core / "hl-option.def").read_text(), re.M | re.S))
    for name in names[1:-1]:
        text = described[name if name != "hugepages_bss" else "hugepages_data"]  # "the same"
        _, *values = re.findall(r'"([\w+]+)"', choices[name.removeprefix("hugepages_")])
        assert len(values) > 1 and [v for v in values if f"@samp{{{v}}}" not in text and f"@item {v}\n" not in text] == []
