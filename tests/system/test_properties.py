# SPDX-License-Identifier: LGPL-2.1-or-later
"""libhugeld.so is marked for CET (x86-64) and BTI (AArch64): where libc enforces them, one object that is not marked
switches them off for the whole process."""

import os
import re
import subprocess

import pytest

import helpers


MARKS = {"x86_64": "x86 feature: IBT, SHSTK", "aarch64": "AArch64 feature: BTI, PAC"}


def marks(library):
    """The features in the notes of LIBRARY, without the processor's needed level."""
    notes = subprocess.run(["readelf", "-nW", library], check=True, capture_output=True, text=True).stdout
    return re.findall(r"(?:x86|AArch64) feature: \w+(?:, \w+)*", notes)


def test_marked():
    assert marks(helpers.LIBRARY) == [MARKS[os.uname().machine]]


def test_empty_libraries_are_marked():
    """32-bit children preload these instead."""
    empty = [path for path in (helpers.BUILD / "preload").glob("**/libhugeld.so") if not path.is_symlink()]
    if not empty:
        pytest.skip("the compiler makes no 32-bit libraries here")
    for library in empty:
        assert marks(library) == [MARKS["x86_64"]], library
