# SPDX-License-Identifier: LGPL-2.1-or-later
"""Processes whose memory map cannot be read: what reads it waits without end, as for one that holds its mmap_lock while a FUSE does not
answer (tests/vm/guest/hold.c).  Here pipes lie over their files in /proc, in one mount namespace alone, so nothing else waits."""

import contextlib
import os
import re

FILES = ("maps", "smaps", "smaps_rollup", "numa_maps", "environ", "clear_refs")


@contextlib.contextmanager
def pipe(folder, at="read"):
    """A pipe that is waited for AT "read" or "open"."""
    path = folder / "pipe"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR | os.O_CLOEXEC) if at == "read" else None
    try:
        yield path
    finally:
        if writer is not None:
            os.close(writer)


def covers(path, *pids):
    """Pairs: what is to be mounted over which file."""
    return [(path, f"/proc/{pid}/{name}") for pid in pids for name in FILES]


def beside(path, *pids):
    """What is put before a command that has to wait for PIDS."""
    mounts = "".join(f"mount --bind {pipe} {file} && " for pipe, file in covers(path, *pids))
    return ["unshare", "-m", "sh", "-c", f'{mounts}exec "$@"', "sh", "timeout", "-s", "KILL", "30"]


def is_said(result, done, pids, user=0, more=0):
    """Whether all that RESULT says on stderr is that one of PIDS was not DONE."""
    others = f", nor are other processes of user {user}" if user else ""
    pattern = f"hugeld: process (\\d+){f' .and {more} more.' if more else ''} was not {done}{others}: whatever reads its memory map has to wait; .*\n"
    found = re.fullmatch(pattern, result.stderr)
    return found is not None and int(found[1]) in pids
