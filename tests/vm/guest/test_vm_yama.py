# SPDX-License-Identifier: LGPL-2.1-or-later
"""Yama, whose ptrace_scope restricts tracing: at the exec stop hugeld run asks for its helper (1), and where it may not be
traced the program runs all the same, and verbose=1 says why.  3 cannot be taken back, so this comes last (vm_choice.py)."""

import pathlib
import shutil
import sys

import pytest

import helpers
import vmguest

SCOPE = pathlib.Path("/proc/sys/kernel/yama/ptrace_scope")
USER = 54321
BECOME = [sys.executable, "-c", f"""
import os, sys
os.setgroups([])
os.setresgid({USER}, {USER}, {USER})
os.setresuid({USER}, {USER}, {USER})
os.execvp(sys.argv[1], sys.argv[1:])
"""]


@pytest.fixture
def scope():
    """scope(n): sets it, and afterwards the old value where the kernel allows that."""
    if not SCOPE.exists():
        vmguest.absent("no Yama")
    before = SCOPE.read_text()
    yield lambda n: SCOPE.write_text(str(n))
    if SCOPE.read_text().strip() != "3":
        SCOPE.write_text(before)


@pytest.mark.parametrize("who", ["user", "root"])
@pytest.mark.parametrize("variant", ["nopie", "pie"])
@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_scope(scope, builder, image_store, shared_folder, n, variant, who):
    scope(n)
    prefix = BECOME if who == "user" else []
    app = pathlib.Path(shutil.copy(builder.executable(variant), shared_folder))
    image_store.add(app)
    run = [*prefix, helpers.HUGELD, "run", "-o", f"verbose=2,backend=image,store={image_store.folder}", "--", app]
    result, plain = helpers.run(run), helpers.run([*prefix, app])
    assert (result.returncode, result.stdout) == (plain.returncode, plain.stdout)
    if n < (2 if who == "user" else 3):
        assert "at the exec stop from" in result.stderr, result.stderr
    else:
        assert f"hugeld: {app}: not at the exec stop: it may not be traced" in result.stderr, result.stderr
    app.unlink()
