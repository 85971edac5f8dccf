# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs the programs of this folder without hugeld and by both ways in, and builds them."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import helpers
from installed import cache_folder
from pagecache import on_small_pages
from rounds import HERE

sys.path.append(str(HERE.parent / "dlopen"))

from tables import compile_c, link_table  # noqa: E402  (its folder has just been added)

ALIGNED = "-Wl,-z,max-page-size=0x200000"


@pytest.fixture(scope="session")
def workshop(tmp_path_factory):
    """A folder with the DSOs that are opened, and the programs that need nothing else to be installed."""
    folder = tmp_path_factory.mktemp("stress")
    folder.chmod(0o755)
    for number in (1, 2):
        link_table(folder / f"libtable{number}.so", number)
    # The text fills its last huge page by a few bytes: the rest is a gap.
    link_table(folder / "libgap.so", 3, ALIGNED)
    compile_c(HERE / "opener.c", folder / "opener.so", "-shared", "-fPIC")
    compile_c(HERE / "stacks.c", folder / "stacks")
    compile_c(HERE / "forks.c", folder / "forks", "-no-pie", ALIGNED, "-DNUMBER=1", HERE.parent / "dlopen/table.S")
    for path in folder.iterdir():
        on_small_pages(path)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def collected(workshop):
    if not pathlib.Path("/usr/include/gc.h").exists():
        pytest.skip("libgc-dev is not installed")
    return compile_c(HERE / "collected.c", workshop / "collected", "-lgc", "-lpthread")


@pytest.fixture(scope="session")
def goroutines(workshop):
    if not shutil.which("go"):
        pytest.skip("go is not installed (golang-go)")
    program = workshop / "goroutines"
    # Go compiles its own library when it is first used.
    env = helpers.environment(GOCACHE=cache_folder() / "go", GOPROXY="off", GOTOOLCHAIN="local", GOFLAGS=None)
    subprocess.run(["go", "build", "-o", program, "."], cwd=HERE / "goroutines", env=env, check=True, timeout=600)
    return program


@pytest.fixture(params=["preload", "ldso"])
def way(request):
    if request.param == "ldso":
        if os.getuid() != 0:
            pytest.skip("needs root")
        if not (helpers.BUILD / "ldso/ld.so").exists():
            pytest.skip("needs build/ldso/ld.so: make ldso")
    return request.param


@pytest.fixture
def run_side(library):
    """run_side(argv, way, options, ...): runs ARGV without hugeld if WAY is None, else with all objects selected by it."""

    def run(argv, way=None, options="", preloaded=(), patterns="*", timeout=120, **changes):
        env = helpers.preload(*preloaded, **changes)
        if way == "preload":
            env = helpers.preload(library, *preloaded, patterns=patterns, options=options, **changes)
        elif way == "ldso":
            argv = [helpers.HUGELD, "run", "--ld-so", helpers.BUILD / "ldso/ld.so", "-p", patterns, "-o",
                    f"{helpers.ALL_SEGMENTS},{options}", "--", *argv]
        return helpers.run(argv, env, timeout)

    return run


@pytest.fixture(scope="session")
def count_moves():
    """How often the text of the DSO NAME moved, from the lines of verbose=2 on standard error."""
    return lambda stderr, name, backend: len(re.findall(rf"hugeld: {name}: text \d+ pages? {backend}", stderr))
