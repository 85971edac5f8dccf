# SPDX-License-Identifier: LGPL-2.1-or-later
"""Settings of the machine that are put back whatever happens, and names that several tests use."""

import collections
import contextlib
import pathlib
import subprocess

ALL = ("text", "rodata")
# app-nopie and all that is linked like it: text on 5 pages, read-only data on 1.
TEXT, RODATA = 5, 1

Outcome = collections.namedtuple("Outcome", "pages image plain_image plain returncode stdout stderr")


@contextlib.contextmanager
def at_end(command, *arguments):
    """Runs a shell COMMAND when the block ends, and also when this process is killed inside it."""
    guard = subprocess.Popen(
        ["sh", "-c", f"cat > /dev/null; {command}", "at_end", *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True, text=True,
    )
    try:
        yield
    finally:
        _, stderr = guard.communicate(timeout=30)
    assert guard.returncode == 0, stderr


@contextlib.contextmanager
def setting(path, value):
    """The file of /proc/sys or /sys at PATH has VALUE inside the block."""
    before = pathlib.Path(path).read_text()
    before = before.partition("[")[2].partition("]")[0] or before  # "always [madvise] never"
    with at_end('printf %s "$2" > "$1"', path, before):
        pathlib.Path(path).write_text(value)
        yield


def same_result(plain, moved):
    return plain[:2] == moved[:2]
