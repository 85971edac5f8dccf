# SPDX-License-Identifier: LGPL-2.1-or-later
"""../prebuild.py for the arm64 guests: `gcc` is the cross compiler there (../guest_arm64.py), and $T_HUGE_BYTES the
size of the huge page that the programs are built for."""

import os
import pathlib
import shutil
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).resolve().parent))

import arm64  # noqa: E402  (its folder has just been added)
import arm64_exec_stop  # noqa: E402

first, tool, opens = arm64.first, arm64.tool, arm64.opens


@pytest.fixture(autouse=True)
def nothing_left():
    """Nothing here runs on huge pages, and others may while it is built."""


def test_build(builder, pause_library, empty_library, first, opens, tmp_path_factory):
    for variant in arm64.VARIANTS:
        builder.executable(variant)
    if arm64.IS_SMALL:
        for variant in arm64.LATER:
            opens(variant)
        builder.executable("nopie", arm64.WORDS)
        for variant in arm64_exec_stop.BARE:
            arm64_exec_stop.build_bare(builder, variant)
        for variant in arm64_exec_stop.exec_stop.VARIANTS:
            arm64_exec_stop.exec_stop.build(builder, variant)
        arm64_exec_stop.exec_stop.build_meddle(builder)
    shutil.copytree(tmp_path_factory.getbasetemp(), os.environ["T_PREBUILT"], symlinks=True, dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("*.c", "*.s", "*.o", "*.ld", "*current"))
