# SPDX-License-Identifier: LGPL-2.1-or-later
"""`make check` runs a part of what `make check-all` does (conftest.sample): no value of a parameter is left out."""

import pytest

import helpers

CASES = """
import pytest

@pytest.mark.parametrize("one", "abcd")
@pytest.mark.parametrize("two, three", [(1, 2), (1, 3), (2, 3)])
def test_matrix(one, two, three):
    pass

def test_alone():
    pass

@pytest.mark.whole
def test_left_out():
    pass

@pytest.mark.parametrize("one", ["a", pytest.param("b", marks=pytest.mark.whole)])
def test_representative(one):
    pass
"""


@pytest.mark.parametrize("sampled", [False, True])
def test_every_value_occurs(tmp_path, sampled):
    (tmp_path / "test_cases.py").write_text(CASES)
    command = ["/usr/bin/python3", "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", "--rootdir", tmp_path,
               "--confcutdir", tmp_path, "-p", "conftest", tmp_path]
    env = helpers.environment(PYTHONPATH=str(helpers.ROOT / "tests"), T_SAMPLE="1" if sampled else "")
    result = helpers.run(command, env, cwd=tmp_path)
    cases = [line.partition("::")[2] for line in result.stdout.splitlines() if "::" in line]
    matrix = [case[len("test_matrix["):-1].split("-") for case in cases if case.startswith("test_matrix[")]
    others = [case for case in cases if not case.startswith("test_matrix[")]
    assert [set(values) for values in zip(*matrix)] == [{"1", "2"}, {"2", "3"}, {*"abcd"}], result.stdout
    if sampled:
        assert len(matrix) == 4 and others == ["test_alone", "test_representative[a]"]
    else:
        assert len(matrix) == 12 and len(others) == 4
