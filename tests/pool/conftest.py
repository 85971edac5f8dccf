# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs that compete for the pool."""

import pathlib

import pytest

HERE = pathlib.Path(__file__).resolve().parent


def build(builder, name):
    return builder.once(name, lambda folder: builder.compile(folder / name, "-D_GNU_SOURCE", HERE / f"{name}.c"))


@pytest.fixture
def gate(builder):
    """Runs its arguments, with $T_PRELOAD preloaded, when its standard input ends."""
    return build(builder, "gate")


@pytest.fixture
def thief(builder):
    """Takes huge pages: `thief N hold` until its standard input ends, `thief N loop` again and again."""
    return build(builder, "thief")

