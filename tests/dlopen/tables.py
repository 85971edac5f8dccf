# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compiles the C programs and the large tables of functions beside this file."""

import pathlib
import subprocess

from pagecache import on_small_pages

HERE = pathlib.Path(__file__).resolve().parent


def compile_c(source, output, *arguments):
    subprocess.run(["gcc", "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-g", "-Wall", "-Wextra", "-o", output, source,
                    *arguments], check=True)
    on_small_pages(output)
    return output


def link_table(output, number, *arguments):
    """A DSO with 4 MiB of text and 4 MiB of read-only data."""
    return compile_c(HERE / "table.S", output, "-shared", f"-DNUMBER={number}", *arguments)
