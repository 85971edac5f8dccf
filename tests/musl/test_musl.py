# SPDX-License-Identifier: LGPL-2.1-or-later
"""libhugeld.so in programs of musl, whose dynamic linker is its libc: no constructor gets arguments, LD_PRELOAD knows no
$LIB, and a library that cannot be preloaded is left out without a word."""

import os
import re
import signal
import subprocess

import pytest

import helpers
from proof import check_plans

MOVED = r"hugeld: (\S+): text [1-9]\d* pages hugetlb.*"


def names(path, *arguments):
    listing = subprocess.run(["nm", "-D", *arguments, path], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1].partition("@")[0] for line in listing.splitlines()}


def test_needs_only_what_musl_has(musl):
    """musl takes libc.so.6 for itself; any other name it would look for. Of each libc's place for debuggers, a weak symbol, the
    other one has none."""
    wanted = names(helpers.LIBRARY, "--undefined-only") - {"_r_debug"}
    assert {"getauxval", "_dl_debug_addr"} < wanted
    assert wanted <= names(musl.linker(), "--defined-only")
    dynamic = subprocess.run(["readelf", "-dW", helpers.LIBRARY], check=True, capture_output=True, text=True).stdout
    assert re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic) == ["libc.so.6"]


@pytest.mark.parametrize("backend", ["hugetlb", "thp"])
@pytest.mark.parametrize("variant", ["pie", "no-pie"])
def test_moves(musl, prove, pool, thp, variant, backend):
    """Threads that map, unmap and take signals, and forks, run as without hugeld; nothing but the program has moved."""
    pool(64)
    app = musl.program(f"musl-{variant}", f"-{variant}")
    proof = prove([app], {app.name: ["text", "rodata"]}, options=f"backend={backend}", backend=backend,
                  T_CONSTRUCTED="yes")
    assert proof.pages >= 5
    assert proof.plain[0] == 3 and "constructed yes" in proof.plain[1] and "forks 20" in proof.plain[1]


def test_libc_never(musl, library, pool):
    """With any patterns: libc is the dynamic linker, and runs while objects move."""
    pool(64)
    app = musl.program("musl-pie", "-pie")
    result = helpers.run_preloaded([app], patterns="*", options="verbose=3,edges=merge", library=library)
    assert result.returncode == 3
    assert set(re.findall(r"^hugeld: ([^:]+):", result.stderr, re.M)) == {app.name}, result.stderr


def test_by_command(musl, prove, pool):
    pool(64)
    app = musl.program("musl-pie", "-pie")
    prove([app], {app.name: ["text", "rodata"]}, by_command=True)


def test_tiny(musl, library):
    """A tiny program ended with 127 once: __register_atfork: symbol not found."""
    source = musl.builder.write("tiny.c", '#include <stdio.h>\nint main(void) { puts("tiny"); return 4; }\n')
    tiny = musl.builder.compile(musl.builder.folder / "musl-tiny", source, compiler="musl-gcc")
    result = helpers.run_preloaded([tiny], library=library)
    assert (result.returncode, result.stdout, result.stderr) == (4, "tiny\n", "")


def test_own_environ(musl, library, pool):
    """A program may have an `environ` that is not libc's."""
    pool(64)
    app = musl.program("musl-environ", "-no-pie", "-DOWN_ENVIRON")
    plain = helpers.run([app])
    moved = helpers.run_preloaded([app], options="verbose=2", library=library)
    assert (moved.returncode, moved.stdout) == (plain.returncode, plain.stdout)
    assert re.fullmatch(MOVED + "\n", moved.stderr), moved.stderr


def test_nothing_said_of_what_is_not_there(musl):
    """musl says nothing of a missing library, so LD_PRELOAD for glibc's programs harms none of musl's."""
    app = musl.program("musl-pie", "-pie")
    plain = helpers.run([app])
    for name in ("libnot-there.so", "/nowhere/libhugeld.so", "/nowhere/$LIB/libhugeld.so"):
        result = helpers.run([app], helpers.preload(name, options="verbose=3"))
        assert (result.returncode, result.stdout, result.stderr) == (plain.returncode, plain.stdout, "")


@pytest.mark.parametrize("by", ["command", "path"])
@pytest.mark.parametrize("parent, child", [("musl", "glibc"), ("glibc", "musl"), ("musl", "musl")])
def test_parents_and_children(musl, pool, parent, child, by):
    """Both move, and neither prints another line."""
    pool(64)
    app = {"musl": musl.program("musl-pie", "-pie"),
           "glibc": musl.program("glibc-pie", "-pie", "-pthread", compiler="gcc")}
    argv = [app[parent], app[child]]
    plain = helpers.run(argv)
    assert plain.returncode == 3 and plain.stdout.endswith("child 3\n")
    if by == "command":
        result = helpers.run([helpers.HUGELD, "run", "--copy", "-o", "verbose=2", "--", *argv])
    else:
        result = helpers.run_preloaded(argv, options="verbose=2")
    assert (result.returncode, result.stdout) == (plain.returncode, plain.stdout)
    assert [re.fullmatch(MOVED, line)[1] for line in result.stderr.splitlines()] == [a.name for a in argv]


def test_linker_as_command(musl, library, pool):
    """ld-musl-x86_64.so.1 PROGRAM: /proc/self/exe is musl, but the program moves, under its own name."""
    pool(64)
    app = musl.program("musl-pie", "-pie")
    plain = helpers.run([musl.linker(), app])
    for only, moves in ((app.name, True), (str(app), True), (musl.linker().name, False)):
        result = helpers.run_preloaded([musl.linker(), app], options=f"verbose=2,exe={only}", library=library)
        assert (result.returncode, result.stdout) == (plain.returncode, plain.stdout)
        assert re.findall(MOVED, result.stderr) == ([app.name] if moves else []), result.stderr


def stopped(argv, env, look=lambda process: None):
    """The output of ARGV, which stops itself; LOOK sees it while it is stopped."""
    process = helpers.start(argv, env)
    try:
        helpers.wait_until(lambda: helpers.state_of(process.pid) in ("T", "Z"), what=f"{argv[0]} stopping")
        look(process)
        os.kill(process.pid, signal.SIGCONT)
        stdout, stderr = process.communicate(timeout=helpers.PATIENCE)
    finally:
        helpers.end_process(process)
    assert process.returncode == 0, stderr
    return stdout, stderr


def test_opened_later(musl, library, empty_library, pool):
    """A library that is opened later moves, also after an object that was mapped and could not be linked, and beside
    threads.  dlclose unloads nothing in musl."""
    pool(64)
    argv = [musl.host("opener"), musl.libraries()]
    paths = [musl.libraries() / "libone.so", musl.libraries() / "libtwo.so"]
    plain, _ = stopped(argv, helpers.preload(empty_library))
    assert len(set(re.findall("libone.so: (.*)", plain))) == 2 and plain.count("libmissing.so: 0000000000000000\n") == 2
    pages = []
    moved, told = stopped(argv, helpers.preload(library, patterns="lib*", options="verbose=2"),
                          lambda process: pages.append(check_plans(process.pid, paths)))
    assert moved == plain
    assert re.findall(MOVED, told) == ["libone.so", "libtwo.so"] and pages[0] >= 10, told
