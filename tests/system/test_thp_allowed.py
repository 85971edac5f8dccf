# SPDX-License-Identifier: LGPL-2.1-or-later
"""Transparent huge pages stand in only where they may: not against the administrator's or the process's word;
elsewhere the program stays as it is and verbose=1 says why.  Memory limits: test_memory_limits.py."""

import pathlib

import pytest

import helpers
from proof import same_but_stderr

SETTING = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")


def stays_because(prove, prefix, app, sentence, backend="thp"):
    proof = prove([*prefix, app], {}, options=f"backend={backend},verbose=1", name=app.name, same=same_but_stderr)
    assert f"hugeld: {app.name}: text stays: {sentence}" in proof.moved[2]
    assert f"hugeld: {app.name}: rodata stays: " in proof.moved[2]


def test_switched_off(builder, prove, root, thp, tmp_path):
    """The setting as this process sees it, in a mount namespace of its own."""
    if helpers.run(["unshare", "-m", "true"]).returncode != 0:
        pytest.skip("unshare -m is not allowed")
    never = tmp_path / "enabled"
    never.write_text("always madvise [never]\n")
    script = f'mount --make-rprivate / && mount --bind {never} {SETTING} && exec "$@"'
    prefix = ["unshare", "-m", "/bin/sh", "-c", script, "sh"]
    sentence = "transparent huge pages are switched off by the administrator"
    stays_because(prove, prefix, builder.executable("nopie"), sentence)


def test_disabled_for_the_process(builder, prove, thp):
    script = "import ctypes, os, sys; ctypes.CDLL(None).prctl(41, 1, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])"
    prefix = ["/usr/bin/python3", "-c", script]  # 41: PR_SET_THP_DISABLE
    sentence = "transparent huge pages are disabled for this process (PR_SET_THP_DISABLE)"
    stays_because(prove, prefix, builder.executable("nopie"), sentence)
