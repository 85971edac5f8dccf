# SPDX-License-Identifier: LGPL-2.1-or-later
"""Locks that all test runs of this machine share, by flock(2) on files of the kernel that every user can read."""

import contextlib
import fcntl

# Each is the lock, and the gate before it.
SETTINGS = "/proc/sys/vm/overcommit_memory", "/proc/sys/vm/overcommit_ratio"  # all settings of the machine but the pool's
CACHE = "/proc/sys/vm/vfs_cache_pressure", "/proc/sys/vm/page-cluster"  # clean pages of the page cache


@contextlib.contextmanager
def locked(lock, alone):
    """A process that wants LOCK alone shuts the gate too: else others that share it, each beginning before the last has ended,
    would starve it."""
    with open(lock[0]) as file, open(lock[1]) as gate:
        fcntl.flock(gate, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        if not alone:
            fcntl.flock(gate, fcntl.LOCK_UN)
        yield
