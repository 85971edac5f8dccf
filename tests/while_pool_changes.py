# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tests that test_pool_watch.py runs while another process takes huge pages: collected only when it names this file."""

import ctypes
import os
import pathlib

import helpers
from hugepages import free_pages

SIZE = 5 * helpers.HUGE
FLAGS = 0o1600 | 0o4000  # IPC_CREAT and its owner's, SHM_HUGETLB


def test_counters(pool):
    pool(16)
    act("counters")
    assert free_pages() == 16


def test_leak(pool):
    """A loss that only the counters show: pages without a process."""
    pool(16)
    act("leak")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    segment = libc.shmget(0, ctypes.c_size_t(SIZE), FLAGS)
    assert segment >= 0, os.strerror(ctypes.get_errno())
    pathlib.Path(os.environ["T_LEAK"]).write_text(str(segment))


def act(what):
    """Tells test_pool_watch.py, and waits until it has done something."""
    folder = pathlib.Path(os.environ["T_ACT"])
    (folder / "now").write_text(what)
    helpers.wait_until(lambda: not (folder / "waiting").exists(), what="the other process")
