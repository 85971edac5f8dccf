# SPDX-License-Identifier: LGPL-2.1-or-later
"""Standard error to which a write fails with a signal: a pipe or a socket that nothing reads any more, a file beyond RLIMIT_FSIZE."""

import os
import socket
import subprocess

import pytest

import helpers


def become_deaf(kind, tmp_path):
    """A descriptor where a write sends a signal, and a command prefix for that."""
    if kind == "file":
        return os.open(tmp_path / "said", os.O_WRONLY | os.O_CREAT), ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh"]
    if kind == "socket":
        ours, theirs = socket.socketpair()
        theirs.close()
        return ours.detach(), []
    read_end, write_end = os.pipe()
    os.close(read_end)
    return write_end, []


@pytest.mark.parametrize("words", [[], ["run", "-o", "verbose=1", "--"]], ids=["library", "run"])
@pytest.mark.parametrize("kind", ["pipe", "socket", "file"])
@pytest.mark.parametrize("is_filtered", [False, True])
def test_no_signal_comes_of_a_line(builder, confine, docker_filter, tmp_path, words, kind, is_filtered):
    """The program has the same signals pending, blocked and handled as without hugeld."""
    (tmp_path / "pending.c").write_text("""
        #include <signal.h>
        #include <stdio.h>
        int main(void) {
            sigset_t pending, blocked;
            sigpending(&pending);
            sigprocmask(SIG_BLOCK, NULL, &blocked);
            for (int i = 1; i < 32; i++)
                if (sigismember(&pending, i) || sigismember(&blocked, i))
                    return i;
            return puts("none") < 0;
        }""")
    program = builder.compile(tmp_path / "pending", tmp_path / "pending.c")
    command = [helpers.HUGELD, *words, program] if words else [program]
    env = helpers.environment() if words else helpers.preload(helpers.LIBRARY, options="verbose=2")
    deaf, prefix = become_deaf(kind, tmp_path)
    prefix += confine(docker_filter) if is_filtered else []
    with open(deaf, "wb") as stderr:
        result = subprocess.run([str(w) for w in [*prefix, *command]], env=env, stdout=subprocess.PIPE, stderr=stderr, timeout=helpers.PATIENCE)
    assert (result.returncode, result.stdout) == (0, b"none\n")
