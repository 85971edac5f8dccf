# SPDX-License-Identifier: LGPL-2.1-or-later
"""Descriptors 0 to 2 that are closed, a data file or deaf: no file of the program's gets a byte of hugeld's, and no signal comes of
a line.  And other libraries that are preloaded too."""

import os
import pathlib
import pty
import socket
import subprocess

import pytest

import helpers
from surroundings import DOCKER, RODATA, TEXT

MOVED = f"text {TEXT} pages hugetlb, rodata {RODATA} page hugetlb"
def in_bash(script):
    return ["bash", "-c", f'{script}; exec "$@"', "bash"]


def preloaded(library, options):
    """Sets LD_PRELOAD for the program alone: the commands that make the surroundings do without it."""
    return ["env", f"LD_PRELOAD={library}", f"LD_HUGEPAGES_OPTIONS={helpers.ALL_SEGMENTS},{options}"]


def linked(options):
    linker = helpers.BUILD / "ldso" / "ld.so"
    if not linker.exists():
        pytest.skip("needs build/ldso/ld.so: make ldso")
    return [helpers.HUGELD, "run", "--ld-so", linker, "-o", options, "--"]


@pytest.fixture(params=["preload", "ldso"])
def way(request, library):
    """way(options): a command prefix."""
    return (lambda options: preloaded(library, options)) if request.param == "preload" else linked


def take_map(pid):
    """The contents of the map of PID, which has ended.  It is removed."""
    path = pathlib.Path(f"/tmp/perf-{pid}.map")
    text = path.read_text()
    path.unlink()
    return text


CLOSED = ["0", "1", "2", "01", "02", "12", "012"]


@pytest.mark.parametrize("closed", CLOSED)
def test_closed_descriptors(builder, pool, way, closed, tmp_path):
    """A file that hugeld opens has one of these numbers for a while: none stays open, and the program's own files are
    whole.  So is its map for perf."""
    pool(64)
    source = builder.write("open.c", r"""
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
unsigned long big_sum(unsigned long x);
int main(int argc, char **argv) {
    FILE *out = fopen(argv[1], "w");
    DIR *folder = opendir("/proc/self/fd");
    struct dirent *entry;
    fprintf(out, "%d %lx", argc, big_sum(1));
    while ((entry = readdir(folder)) != NULL)
        fprintf(out, " %s", entry->d_name);
    return fclose(out) != 0 ? 1 : 3;
}
""")
    app = builder.once("open", lambda folder: builder.compile(folder / "open", source, *builder.object(), "-no-pie",
                                                              "-s"))
    closing = " ".join(f"{n}{'<' if n == '0' else '>'}&-" for n in closed)
    prefix = in_bash(f"echo $$ > {tmp_path}/pid; exec {closing}")
    options = "verbose=3,perf_map=on,exe=*/open"
    for way_prefix, out in (([], "plain"), (way(options), "moved")):
        result = helpers.run([*prefix, *way_prefix, app, tmp_path / out])
        assert result.returncode == 3, result
    assert (tmp_path / "moved").read_text() == (tmp_path / "plain").read_text()
    assert " opendir@plt\n" in take_map((tmp_path / "pid").read_text().strip())


OTHERS = {
    "libasan": ("libasan.so.8", {"ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0"}),
    "jemalloc": ("libjemalloc.so.2", {}),
    "faketime": ("faketime/libfaketime.so.1", {"FAKETIME": "2001-02-03 04:05:06", "FAKETIME_DONT_RESET": "1"}),
    "libhugetlbfs": ("libhugetlbfs.so.0", {"HUGETLB_MORECORE": "yes", "HUGETLB_VERBOSE": "0"}),
    "libhugetlbfs by THP": ("libhugetlbfs.so.0", {"HUGETLB_MORECORE": "thp", "HUGETLB_VERBOSE": "0"}),
}


@pytest.mark.parametrize("order", ["before", "behind", "ldso"])
@pytest.mark.parametrize("other", OTHERS)
def test_other_libraries(builder, pool, library, other, order):
    """Another library is preloaded too: the program does the same with both as with that one, and moves."""
    name, changes = OTHERS[other]
    path = next((p for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu")
                 for p in [pathlib.Path(folder, name)] if p.exists()), None)
    if path is None:
        pytest.skip(f"{name} is not installed")
    pool(128)
    app = builder.executable("nopie")
    options = f"verbose=2,exe=*/{app.name},backend=hugetlb"
    variables = [f"{key}={value}" for key, value in changes.items()]
    plain = helpers.run(["env", *variables, f"LD_PRELOAD={path}", app, "one"])
    preload = {"before": f"{library}:{path}", "behind": f"{path}:{library}", "ldso": f"{path}"}[order]
    prefix = linked(options) if order == "ldso" else []
    if order != "ldso":
        variables.append(f"LD_HUGEPAGES_OPTIONS={helpers.ALL_SEGMENTS},{options}")
    result = helpers.run(["env", *variables, f"LD_PRELOAD={preload}", *prefix, app, "one"])
    assert (result.returncode, result.stdout) == (plain.returncode, plain.stdout), result.stderr
    assert plain.returncode == 3 and MOVED in result.stderr, result.stderr


def become_deaf(kind, tmp_path):
    """A descriptor where a write sends a signal, and a command prefix for that."""
    if kind == "file":
        return os.open(tmp_path / "said", os.O_WRONLY | os.O_CREAT), ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh"]
    if kind == "socket":
        ours, theirs = socket.socketpair()
        theirs.close()
        return ours.detach(), []
    if kind == "terminal":  # the program is a job in its background
        _, terminal = pty.openpty()
        return terminal, ["sh", "-c", 'exec setsid -wc "$@" <&2', "sh", "bash", "-mc", 'stty tostop; "$@" & wait $!', "bash"]
    read_end, write_end = os.pipe()
    os.close(read_end)
    return write_end, []


@pytest.mark.parametrize("words", [[], ["run", "-o", "verbose=1", "--"], ["run", "--children", "--"]], ids=["library", "run", "children"])
@pytest.mark.parametrize("kind", ["pipe", "socket", "file", "terminal"])
@pytest.mark.parametrize("is_filtered", [False, True])
def test_no_signal_comes_of_a_line(builder, confine, tmp_path, words, kind, is_filtered):
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
            return !sigismember(&blocked, SIGRTMIN) || puts("none") < 0;
        }""")
    program = builder.compile(tmp_path / "pending", tmp_path / "pending.c")
    command = [helpers.HUGELD, *words, program] if words else [program]
    env = helpers.environment() if words else helpers.preload(helpers.LIBRARY, options="verbose=2")
    deaf, prefix = become_deaf(kind, tmp_path)
    prefix += ["env", "--block-signal=RTMIN", *(confine(DOCKER) if is_filtered else [])]
    with open(deaf, "wb") as stderr:
        result = subprocess.run([str(w) for w in [*prefix, *command]], env=env, stdout=subprocess.PIPE, stderr=stderr, timeout=helpers.PATIENCE)
    assert (result.returncode, result.stdout) == (0, b"none\n")
