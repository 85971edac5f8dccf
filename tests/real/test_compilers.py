# SPDX-License-Identifier: LGPL-2.1-or-later
"""The machine's own compilers on real sources: cc1plus (non-PIE, one large executable) and clang (a small executable
whose text is in libLLVM and libclang-cpp)."""

import os
import shutil

import pytest

import helpers
from installed import find_cc1plus

SOURCE = """
#include <algorithm>
#include <iostream>
#include <map>
#include <regex>
#include <string>
#include <vector>
int main(int argc, char **argv) {
    std::map<std::string, std::vector<int>> map;
    for (int i = 0; i < argc; i++)
        map[argv[i]].push_back(i);
    std::regex word("(a|b)*c");
    for (auto &entry : map) {
        std::sort(entry.second.begin(), entry.second.end());
        std::cout << entry.first << std::regex_match(entry.first, word) << "\\n";
    }
}
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "program.cc"
    path.write_text(SOURCE)
    return path


@pytest.fixture(scope="module")
def cc1plus():
    compiler = find_cc1plus()
    if compiler is None:
        pytest.skip("cc1plus is not installed (g++)")
    return compiler


@pytest.mark.check_all
@pytest.mark.parametrize("by_command", [False, True], ids=["preload", "run"])
def test_cc1plus(prove, pool, cc1plus, source, by_command):
    pool(64)
    preprocessed = source.with_suffix(".ii")
    preprocessed.write_text(helpers.run(["g++", "-E", source]).stdout)
    argv = [cc1plus, "-quiet", "-O1", preprocessed, "-o", "-"]
    proof = prove(argv, {"cc1plus": ("text", "rodata")}, options="backend=hugetlb", by_command=by_command)
    assert proof.moved[0] == 0 and "main:" in proof.moved[1]
    assert proof.plans["cc1plus"].json["plan"]["text_share"] == 1


def test_cc1plus_thp(prove, thp, cc1plus):
    argv = [cc1plus, "-quiet", "-fpreprocessed", "/dev/null", "-o", "-"]
    prove(argv, {"cc1plus": ("text", "rodata")}, options="backend=thp", backend="thp")


@pytest.mark.check_all
def test_gcc_starts_everything(pool, source, tmp_path):
    """The driver, cc1plus, as, collect2 and ld inherit the variables: the program that they make is the same."""
    if not shutil.which("g++"):
        pytest.skip("g++ is not installed")
    pool(64)
    plain, moved = tmp_path / "plain.o", tmp_path / "moved.o"
    helpers.run(["g++", "-c", source, "-o", plain])
    result = helpers.hugeld("run", "--copy", "-o", "backend=hugetlb,verbose=2", "g++", "-c", source, "-o", moved)
    assert "hugeld: cc1plus: text 1" in result.stderr
    assert plain.read_bytes() == moved.read_bytes()


@pytest.mark.check_all
@pytest.mark.parametrize("by_command", [False, pytest.param(True, marks=pytest.mark.check_all)], ids=["preload", "run"])
def test_clang(prove, pool, source, by_command):
    if not shutil.which("clang"):
        pytest.skip("clang is not installed")
    pool(128)
    argv = ["/usr/bin/clang", "-x", "c++", "-O1", "-S", source, "-o", "-"]
    libraries = helpers.run(["ldd", "/usr/bin/clang"]).stdout
    paths = [line.split()[2] for line in libraries.splitlines() if "libLLVM" in line or "libclang-cpp" in line]
    moved = {os.path.basename(os.path.realpath(path)): ("text", "rodata") for path in paths}
    assert len(moved) == 2, libraries
    proof = prove(argv, moved, patterns="main:libLLVM*:libclang-cpp*", options="backend=hugetlb", by_command=by_command)
    assert proof.moved[0] == 0 and "main:" in proof.moved[1]
    for plan in proof.plans.values():
        assert plan.json["plan"]["text_share"] > 0.9
