# SPDX-License-Identifier: LGPL-2.1-or-later
"""bench/alternatives.py: a tool that is not installed, or refuses a program, has a reason in the place of a time."""

import pathlib

import pytest

import alternatives


TOOLS = {"iodlr", "linked", "libhugetlbfs", "glibc-thp", "bolt-hugify"}


@pytest.fixture
def nothing_installed(monkeypatch):
    for name in "find_iodlr", "find_libhugetlbfs", "make_glibc", "find_bolt":
        monkeypatch.setattr(alternatives, name, lambda: None)


def test_nothing_is_left_out(nothing_installed):
    ways, absent = alternatives.ways_of_others(pathlib.Path("/bin/true"), [])
    assert ways == [] and set(absent) == TOOLS
    assert all(absent.values())


def test_what_is_there_runs_what_it_needs(nothing_installed, monkeypatch, tmp_path):
    monkeypatch.setattr(alternatives, "find_iodlr", lambda: tmp_path / "liblppreload.so")
    stock, linked, rewritten = (tmp_path / name for name in ("stock", "linked", "rewritten"))
    ways, absent = alternatives.ways_of_others(stock, ["word"], linked, {"bolt-hugify": rewritten})
    found = {way.name: (way.argv, bool(way.needs)) for way in ways}
    assert found == {"iodlr": ([str(stock), "word"], False), "linked": ([str(linked), "word"], True),
                     "bolt-hugify": ([str(rewritten), "word"], True)}
    assert set(absent) == {"libhugetlbfs", "glibc-thp"}


def test_a_refusal_is_quoted(nothing_installed, monkeypatch, tmp_path):
    bolt = tmp_path / "llvm-bolt"
    bolt.write_text("#!/bin/sh\necho BOLT-INFO: begins\necho BOLT-ERROR: stripped binaries are not supported >&2\nexit 1\n")
    bolt.chmod(0o755)
    monkeypatch.setattr(alternatives, "find_bolt", lambda: bolt)
    monkeypatch.setattr(alternatives, "OUT", tmp_path)
    ways, absent = alternatives.ways_of_others(pathlib.Path("/bin/true"), [])
    assert ways == [] and absent["bolt-hugify"] == 'cannot rewrite the stock binary: "stripped binaries are not supported"'


def test_the_newest_bolt_that_can_hugify(monkeypatch):
    monkeypatch.setattr(alternatives.glob, "glob", lambda _: [f"/usr/lib/llvm-{n}/bin/llvm-bolt" for n in (9, 19, 22)])
    monkeypatch.setattr(alternatives.os.path, "exists", lambda path: "llvm-22" not in path)
    assert alternatives.find_bolt() == "/usr/lib/llvm-19/bin/llvm-bolt"


@pytest.mark.parametrize("setting, words", [("always [madvise] never", ""), ("always madvise [never]", "switched off"),
                                            (None, "no transparent")])
def test_a_kernel_without_transparent_huge_pages(monkeypatch, tmp_path, setting, words):
    monkeypatch.setattr(alternatives, "THP", tmp_path / "enabled")
    if setting:
        alternatives.THP.write_text(setting + "\n")
    assert words in alternatives.missing_in_kernel() and bool(words) == bool(alternatives.missing_in_kernel())
