# SPDX-License-Identifier: LGPL-2.1-or-later
"""The abstraction for AppArmor: its parser takes it, and it lets a profile read and map images, and nothing else."""

import shutil

import pytest

import helpers


ABSTRACTION = helpers.ROOT / "data/apparmor-abstraction"


def parse(tmp_path, rules):
    """The output of apparmor_parser for a profile with RULES."""
    profile = tmp_path / "profile"
    profile.write_text(f"profile hugeld-test /usr/bin/hugeld-test {{\n{rules}\n}}\n")
    return helpers.run(["apparmor_parser", "--skip-kernel-load", "--skip-cache", "--debug", profile])


def test_abstraction(tmp_path):
    if not shutil.which("apparmor_parser"):
        pytest.skip("apparmor is not installed")
    result = parse(tmp_path, f'  include "{ABSTRACTION}"')
    assert result.returncode == 0, result
    by_hand = parse(tmp_path, "  /run/hugeld/ r,\n  /run/hugeld/** mr,\n  /usr/{,local/}lib/{,*-linux-gnu*/}hugeld/ld.so mrix,")
    assert [line for line in result.stdout.splitlines() if "hugeld/" in line] == \
        [line for line in by_hand.stdout.splitlines() if "hugeld/" in line] != [], result.stdout
    assert parse(tmp_path, "  /run/hugeld/** nonsense,").returncode != 0
