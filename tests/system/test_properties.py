# SPDX-License-Identifier: LGPL-2.1-or-later
"""libhugeld.so is marked for CET (x86-64) and BTI (AArch64): where libc enforces them, one object that is not marked
switches them off for the whole process."""

import os
import re
import shutil
import subprocess

import pytest

import helpers


MARKS = {"x86_64": "x86 feature: IBT, SHSTK", "aarch64": "AArch64 feature: BTI, PAC"}


def marks(library):
    """The features in the notes of LIBRARY, without the processor's needed level."""
    notes = subprocess.run(["readelf", "-nW", library], check=True, capture_output=True, text=True).stdout
    return re.findall(r"(?:x86|AArch64) feature: \w+(?:, \w+)*", notes)


def cross_build(machine, folder):
    compiler = f"{machine}-linux-gnu-gcc"
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    for command in (["./configure", f"--output={folder}/config.mk", f"CC={compiler}", "LDFLAGS=", "--disable-command"],
                    ["make", f"B={folder}", f"CONFIG={folder}/config.mk", f"{folder}/libhugeld.so"]):
        result = subprocess.run(command, cwd=helpers.ROOT, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, result.stderr
    return folder / "libhugeld.so"


@pytest.mark.parametrize("machine", ["x86_64", pytest.param("aarch64", marks=pytest.mark.check_all)])
def test_marked(machine, tmp_path):
    library = helpers.LIBRARY if machine == os.uname().machine else cross_build(machine, tmp_path)
    assert marks(library) == [MARKS[machine]]


def test_empty_libraries_are_marked():
    """32-bit children preload these instead."""
    empty = [path for path in (helpers.BUILD / "preload").glob("**/libhugeld.so") if not path.is_symlink()]
    if not empty:
        pytest.skip("the compiler makes no 32-bit libraries here")
    for library in empty:
        assert marks(library) == [MARKS["x86_64"]], library
