# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lines that tools/mutants breaks are still in the sources, and the tests that it names are there."""

import pathlib
import shlex
import subprocess
import tomllib

import pytest

TOP = pathlib.Path(__file__).resolve().parent.parent
LISTED = tomllib.loads((TOP / "tests" / "mutants.toml").read_text())
MUTANTS = [{**mutant, "file": file} for file, found in LISTED.items() for mutant in found]


def test_names_are_unique():
    assert len({m["name"] for m in MUTANTS}) == len(MUTANTS) > 30


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m["name"])
def test_is_up_to_date(mutant):
    assert (TOP / mutant["file"]).read_text().count(mutant["old"]) == 1
    words = shlex.split(mutant["test"])
    assert (TOP / words[0]).exists() and words[1:2] in ([], ["-k"])


@pytest.mark.parametrize("argument, status, said", [("no such mutant", 2, "no name or file contains"), ("--part=3/2", 2, "invalid part"),
                                                    ("--help", 0, "--all-tests")])
def test_arguments(argument, status, said):
    done = subprocess.run([TOP / "tools" / "mutants", argument], capture_output=True, text=True, timeout=60)
    assert done.returncode == status and said in done.stdout + done.stderr
