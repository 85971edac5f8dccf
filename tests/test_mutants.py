# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lines that tools/mutants breaks are still in the sources, and the tests that it names are there."""

import pathlib
import shlex
import tomllib

import pytest

TOP = pathlib.Path(__file__).resolve().parent.parent
LISTED = tomllib.loads((TOP / "tests" / "mutants.toml").read_text())
MUTANTS = [{**mutant, "name": name, "file": file} for file, found in LISTED.items() for name, mutant in found.items()]


def test_names_are_unique():
    assert len({m["name"] for m in MUTANTS}) == len(MUTANTS) > 30


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m["name"])
def test_is_up_to_date(mutant):
    assert (TOP / mutant["file"]).read_text().count(mutant["old"]) == 1
    words = shlex.split(mutant["test"])
    assert (TOP / words[0]).exists() and words[1:2] in ([], ["-k"])
