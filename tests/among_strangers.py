# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tests that test_strangers.py runs while a stranger takes huge pages: collected only when it names this file."""

import ctypes
import os
import pathlib

import pytest

import helpers
from hugepages import free_pages

SIZE = 5 * helpers.HUGE
FLAGS = 0o1600 | 0o4000  # IPC_CREAT and its owner's, SHM_HUGETLB


@pytest.mark.parametrize("again", range(4))
def test_proof(builder, prove, pool, again):
    pool(16)
    app = builder.executable("nopie")
    prove([app], {app.name: ("text", "rodata")}, options="backend=hugetlb", work=let_it_act)


def let_it_act(process):
    """The stranger does what it does while the program has its pages, and before the pool is looked at again."""
    act("proof")
    return process.finish()


def test_counters(pool):
    pool(16)
    act("counters")
    assert free_pages() == 16


def test_nothing_of_ours():
    act("nothing")


def test_leak(pool):
    """What only the counters show: pages without a process."""
    pool(16)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    segment = libc.shmget(0, ctypes.c_size_t(SIZE), FLAGS)
    assert segment >= 0, os.strerror(ctypes.get_errno())
    pathlib.Path(os.environ["T_LEAK"]).write_text(str(segment))


def act(what):
    """Tells test_strangers.py, if it waits for that, and waits until it has done something."""
    folder = pathlib.Path(os.environ["T_ACT"])
    if (folder / "waiting").exists():
        (folder / "now").write_text(what)
        helpers.wait_until(lambda: not (folder / "waiting").exists(), what="the stranger")
