# SPDX-License-Identifier: LGPL-2.1-or-later
"""Builds a program with as much text as a test wants."""

import pathlib
import subprocess

from pagecache import on_small_pages

HERE = pathlib.Path(__file__).resolve().parent


def build_calls(output, *flags, mib=16):
    """calls.c: executes MIB of text at random as often as its argument says, and hardly any other text."""
    subprocess.run(["gcc", "-O2", "-D_GNU_SOURCE", f"-DTEXT_MIB={mib}", *flags, "-o", output, HERE / "calls.c",
                    HERE / "text.S"], check=True)
    on_small_pages(output)
    return str(output)
