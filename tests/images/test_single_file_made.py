# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs that carry their data in their own file, as their makers' tools build them (test_single_file.py has stand-ins for
those that cannot be had).  With hugeld they print the same as without it, by each of its ways."""

import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

import helpers
from installed import cache_folder, find_node
from stores import make_images
from test_single_file import REFUSED, attach, outcome

pytestmark = pytest.mark.check_all

TOOLS = cache_folder() / "single-file"
TEXT = "what it carries, " * 1000
SMALL = "no whole huge page lies inside"
SCRIPT = "is a script"


def make(*argv, **options):
    result = subprocess.run([str(word) for word in argv], capture_output=True, text=True, timeout=300, **options)
    assert result.returncode == 0, result


def need(path, group="programs"):
    found = shutil.which(str(path))
    return found or pytest.skip(f"{path} is not installed (tools/install-packages {group})")


def by_makeself(folder):
    (folder / "tree").mkdir()
    (folder / "tree/text").write_text(TEXT)
    (folder / "tree/start").write_text('#!/bin/sh\nif [ "$1" = wait ]; then echo waits; read -r line; fi\ncat text\nexit 5\n')
    (folder / "tree/start").chmod(0o755)
    make(need("makeself"), "--nox11", folder / "tree", folder / "app", "label", "./start")
    return [folder / "app", "--quiet", "--"]


def by_unzipsfx(folder):
    shutil.copy(need("unzipsfx"), folder / "app")
    with zipfile.ZipFile(folder / "app", "a") as archive:
        archive.writestr("text", TEXT)
    return [folder / "app", "-p"]


def by_sbcl(folder):
    lisp = f'''(progn (when (rest sb-ext:*posix-argv*) (format t "waits~%") (finish-output) (read-line))
        (format t "~a~%" {'"' + TEXT + '"'}) (finish-output) (sb-ext:exit :code 5 :abort t))'''
    make(need("sbcl"), "--non-interactive", "--no-userinit", "--eval",
         f'(sb-ext:save-lisp-and-die "{folder}/app" :executable t :save-runtime-options t :toplevel (lambda () {lisp}))')
    return [folder / "app"]


PYTHON = f"""
import sys
if len(sys.argv) > 1:
    print("waits", flush=True)
    sys.stdin.readline()
import numbers, json
print(json.dumps({TEXT!r}))
sys.exit(5)
"""


def by_pyinstaller(folder):
    if not (TOOLS / "python/PyInstaller").exists():
        pytest.skip("PyInstaller is not there (tools/install-packages programs)")
    (folder / "app.py").write_text(PYTHON)
    make(sys.executable, "-m", "PyInstaller", "--onefile", "--log-level=ERROR", "--distpath", folder, "--workpath", folder / "work",
         "--specpath", folder, folder / "app.py", env={**os.environ, "PYTHONPATH": str(TOOLS / "python"), "HOME": str(folder)})
    return [folder / "app"]


SCRIPT_OF_NODE = f"""
const fs = require("node:fs");
if (process.argv.length > 2) {{
    console.log("waits");
    fs.readSync(0, Buffer.alloc(1));
}}
console.log({TEXT!r});
process.exitCode = 5;
"""


def by_node(folder):
    postject = TOOLS / "node_modules/postject/dist/cli.js"
    node = find_node()
    if not node or not postject.exists():
        pytest.skip("node as one large executable, or postject, is not there (tools/install-packages programs)")
    (folder / "app.js").write_text(SCRIPT_OF_NODE)
    (folder / "config").write_text('{"main": "app.js", "output": "blob", "disableExperimentalSEAWarning": true}')
    make(node, "--experimental-sea-config", "config", cwd=folder)
    shutil.copy(node, folder / "app")
    make(node, postject, folder / "app", "NODE_SEA_BLOB", folder / "blob", "--sentinel-fuse",
         "NODE_SEA_FUSE_fce680ab2cc467b6e072b8b5df1996b2")
    return [folder / "app"]


def by_bun(folder):
    bun = need(TOOLS / "node_modules/@oven/bun-linux-x64/bin/bun")
    (folder / "app.js").write_text(SCRIPT_OF_NODE)
    make(bun, "build", "--compile", "app.js", "--outfile", "app", cwd=folder, env={**os.environ, "HOME": str(folder)})
    return [folder / "app"]


# Its maker; the reason of `hugeld apply`, or None where it has an image; and whether it has text for a huge page.
MADE = {
    "makeself": (by_makeself, SCRIPT, False),
    "unzipsfx": (by_unzipsfx, SMALL, False),
    "sbcl": (by_sbcl, SMALL, False),
    "pyinstaller": (by_pyinstaller, REFUSED, False),
    "node": (by_node, REFUSED, True),
    "bun": (by_bun, None, True),  # in a segment
}


@pytest.mark.parametrize("kind", MADE)
def test_finds_what_it_carries(own_store, tmp_path, kind):
    maker, words, has_text = MADE[kind]
    argv = maker(tmp_path)
    app = pathlib.Path(argv[0])
    plain = outcome(helpers.run(argv, timeout=120))
    assert TEXT in plain[1], plain
    options = f"store={own_store},verbose=2"

    def run(*arguments):
        result = helpers.run([helpers.HUGELD, "run", "-o", options, *arguments, "--", *argv], timeout=120)
        assert outcome(result) == plain, (arguments, result)
        return result.stderr

    run()
    added = make_images(own_store, app, timeout=120)
    assert (added.returncode == 0) if words is None else words in added.stderr, added
    assert (" image, at the exec stop" in run()) == (words is None)
    run("--copy", "--via=preload", "-o", "backend=thp")
    if kind != "unzipsfx":  # which waits for nothing
        attached, result = attach(argv)
        assert (attached.returncode == 0) == has_text, attached
        assert result == plain, attached
