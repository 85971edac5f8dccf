# SPDX-License-Identifier: LGPL-2.1-or-later
"""The dynamic linkers of these tests, and the way to run a program with another one."""

import pathlib
import re
import subprocess

import helpers

PATCHES = helpers.ROOT / "glibc-patches"
WORK = helpers.BUILD / "ldso-test"  # trees of the tests; kept, so that the next run compiles less

# How the library is linked: its relocations and protections.
LINKED = {
    "lazy": ["-Wl,-z,lazy"],
    "now": ["-Wl,-z,now,-z,relro"],
    "partial-relro": ["-Wl,-z,lazy,-z,relro"],
    "no-relro": ["-Wl,-z,norelro"],
    "nodelete": ["-Wl,-z,nodelete"],
    "execstack": ["-Wl,-z,execstack"],
    "both-hashes": ["-Wl,--hash-style=both"],
    "static-tls": ["-ftls-model=initial-exec", "-Wl,-z,now"],
    "initfirst": ["-Wl,-z,initfirst"],
}

# sh -c OVER FILE TARGET PROGRAM..., in a mount namespace of its own
OVER = 'mount --bind "$0" "$1" && shift && exec "$@"'
BY_ROOT = ["unshare", "-m"]
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


def run_script(name, *arguments, limit=1800):
    """A script of glibc-patches/.  The first one on a machine builds glibc: minutes."""
    return subprocess.run([PATCHES / name, *map(str, arguments)], capture_output=True, text=True, timeout=limit)


def build_linker():
    """Ours, as `make ldso` leaves it."""
    done = run_script("build", "-d", helpers.BUILD / "ldso")
    assert done.returncode == 0, done.stderr
    return helpers.BUILD / "ldso/ld.so"


def interpreter(program="/usr/bin/env"):
    """The dynamic linker that PROGRAM asks for, or None."""
    headers = subprocess.run(["readelf", "-lW", program], capture_output=True, text=True).stdout
    found = re.search(r"interpreter: (\S+)]", headers)
    return found and pathlib.Path(found[1])


def over_interpreter(namespace, file, target):
    """A command prefix: FILE lies over the dynamic linker (or the libc) TARGET for the program that follows."""
    return [*namespace, "sh", "-c", OVER, file, target]


def change_build_id(source, target):
    """TARGET is SOURCE as another build would be."""
    notes = subprocess.run(["readelf", "-n", source], check=True, capture_output=True, text=True).stdout
    build_id = bytes.fromhex(re.search(r"Build ID: (\w+)", notes)[1])
    content = source.read_bytes()
    assert content.count(build_id) == 1
    target.write_bytes(content.replace(build_id, bytes(255 - b for b in build_id)))
    target.chmod(0o755)
