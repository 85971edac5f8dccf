# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which tests run in which guest (table.toml), by their node IDs.  pytest collects them here: in a guest that would take a minute."""

import os
import pathlib
import re
import subprocess
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
TESTS = HERE.parent
TABLE = tomllib.loads((HERE / "table.toml").read_text())
FINAL = "vm/guest/test_vm_yama.py"  # after it nothing can be traced


class Wrong(Exception):
    """A name is no test's; the message is for the user."""


def files_of(patterns):
    """The files of tests, below tests/, that PATTERNS for node IDs speak of."""
    files = [re.compile(pattern.partition("::")[0]) for pattern in patterns]
    paths = [str(path.relative_to(TESTS)) for path in sorted(TESTS.rglob("*.py"))]
    return [path for path in paths if any(file.fullmatch(path) for file in files)]


def marked_files():
    return [str(path.relative_to(TESTS)) for path in sorted(TESTS.rglob("test_*.py")) if "pytest.mark.guest" in path.read_text()]


def collect(guest, files, options=(), **changes):
    """The node IDs of all tests in FILES, as GUEST will know them."""
    if not files:
        return []
    env = {**os.environ, "T_VM": "1", "T_HUGE_BYTES": str(guest.huge_bytes), "T_SAMPLE": "", **changes,
           "PYTHONPATH": f"{TESTS.parent / 'harness'}:{HERE / 'guest'}"}
    argv = ["/usr/bin/python3", "-B", "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", f"--rootdir={TESTS}", *options, *files]
    result = subprocess.run(argv, env=env, cwd=TESTS, capture_output=True, text=True, check=False)
    if result.returncode not in (0, 5):  # 5: it has found none
        raise Wrong(f"the tests of {guest.name} cannot be collected:\n{result.stdout}{result.stderr}")
    return [line for line in result.stdout.splitlines() if "::" in line and line.partition("::")[0] in files]


def choose(names, patterns):
    for pattern in patterns:
        if not any(re.fullmatch(pattern, name) for name in names):
            raise Wrong(f"table.toml: no test is called {pattern}")
    return [name for name in names if any(re.fullmatch(pattern, name) for pattern in patterns)]


def cases(guest, is_sample, expression):
    """The node IDs that GUEST runs: those of the table for CI if IS_SAMPLE, else all; of them, those that match EXPRESSION, as
    pytest's -k."""
    patterns = TABLE["alone"].get(guest.name, []) if is_sample else TABLE["tests"][guest.tests]
    files = files_of(patterns)
    found = choose(collect(guest, files), patterns)
    if guest.tests == "amd64" and (guest.name == "newest" or not is_sample):
        found += collect(guest, marked_files(), ["-m", "guest"], T_SAMPLE="ci" if is_sample else "")
    if expression:
        matching = collect(guest, sorted({name.partition("::")[0] for name in found}), ["-k", expression])
        found = [name for name in found if name in set(matching)]
    return sorted(dict.fromkeys(found), key=lambda name: name.startswith(FINAL))
