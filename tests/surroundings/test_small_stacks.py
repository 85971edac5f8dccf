# SPDX-License-Identifier: LGPL-2.1-or-later
"""A program begins with most of its stack full: the kernel counts arguments and environment against RLIMIT_STACK."""

import ctypes
import errno
import resource
import subprocess

import helpers

STACK = 64 << 10
ADDR_NO_RANDOMIZE = 0x40000  # the stack begins up to 8 KiB lower without it (personality(2))


def confine():
    ctypes.CDLL(None).personality(ADDR_NO_RANDOMIZE)
    resource.setrlimit(resource.RLIMIT_STACK, (STACK, resource.getrlimit(resource.RLIMIT_STACK)[1]))


def most_filled(app, env):
    """How many bytes of its stack can be filled with APP still running."""

    def fits(filled):
        try:
            done = subprocess.run([app], env={**env, "T_FILLED": "x" * filled}, timeout=helpers.PATIENCE, preexec_fn=confine)
        except OSError as error:
            assert error.errno == errno.E2BIG
            return False
        assert done.returncode == 3 or done.returncode < 0, done
        return done.returncode == 3

    low, high = 0, STACK
    assert fits(low) and not fits(high)
    while high - low > 64:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def test_start(builder, library, empty_library, pool, thp):
    """It begins on what is left where it does without hugeld; the dynamic linker takes 200 bytes more for a library with symbols."""
    pool(0)
    source = builder.write("small-start.c", "int main(void) { return 3; }\n")
    app = builder.once("small-start", lambda folder: builder.compile(folder / "small-start", source, "-no-pie", "-Wl,-z,now", *builder.object()))
    options = {"LD_HUGEPAGES": "main", "LD_HUGEPAGES_OPTIONS": "backend=thp"}
    plain, moved = (most_filled(app, {**options, "LD_PRELOAD": str(one)}) for one in (empty_library, library))
    assert moved >= plain - 512, f"{moved} bytes, {plain} without hugeld"
    said = helpers.run([app], helpers.preload(library, options="backend=thp,verbose=2"))
    assert "small-start: text " in said.stderr and " thp" in said.stderr, said
