#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""tests/stress/stress.py [--seconds=N] [--way=preload|ldso] [--backend=hugetlb|thp] WORKSHOP CLASS...: stress-ng's
verdict on each of its stressors of a class, while a thread in each of the stressing processes opens and closes a large
DSO (opener.c).  WORKSHOP is the folder where the test built opener.so and libtable1.so.

A stressor has passed, failed or was skipped, or was ended by a signal, as its log says; without hugeld and on huge
pages it is the same.  Not among them are `icache`, which protects 4 KiB of its own text (doc/limits.md), `zombie`,
which fails on a busy machine even without hugeld, and `forkheavy`, `bigheap` and `mmapfork`, which take all of the disk
or of the memory."""

import argparse
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import typing

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "harness")]

import helpers  # noqa: E402

AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
# Some of stress-ng's take all memory that they can have.
LIMITED = ["prlimit", "--data=1073741824"]


class Stressors(typing.NamedTuple):
    short: str
    more: str
    options: str
    prefix: list
    generations: int  # of processes that open and close (opener.c)


CLASSES = {
    # Stressors of memory work in a child, which may be killed for memory.
    "vm": Stressors(
        "brk madvise mmap mprotect mremap munmap pagemove userfaultfd vm",
        "bad-altstack env malloc mlock mmapaddr mmapfixed mmapmany msync msyncmany shm stack stackmmap vm-addr vm-rw "
        "vm-segv vm-splice",
        "--brk-notouch --malloc-bytes 32M --mmap-bytes 32M --mremap-bytes 32M --userfaultfd-bytes 16M --vm-bytes 32M "
        "--msync-bytes 16M --shm-bytes 16M",
        LIMITED, 2),
    "fork": Stressors(
        "clone daemon exec fork spawn vfork vforkmany",
        "exit-group kill nice pthread resched session wait",
        "--clone-max 64",
        [*LIMITED, *AS_NOBODY], 1),
    "signal": Stressors(
        "alarm itimer sigabrt sigchld sigfd sigfpe signal signest sigpending sigpipe sigq sigrt sigsegv sigsuspend "
        "sigtrap timer",
        "bad-altstack clock fault kill nanosleep pidfd sigio timerfd",
        "",
        [*LIMITED, *AS_NOBODY], 1),
}


class Result(typing.NamedTuple):
    verdicts: str  # a line for each stressor, and the exit status
    opened: int
    processes: int
    moved: int  # of these, where the text of the DSO was not in its file any more
    log: str


def judge(log, names):
    lines = []
    for name in names:
        process = rf"process \[\d+\] \((?:stress-ng-)?{name}\)"
        if ended := re.search(rf"{process} terminated (on signal: \d+|with an error.*)", log):
            lines.append(f"{name} {ended[1]}")
        elif re.search(rf"fail: +\[\d+\] {name}: ", log):
            lines.append(f"{name} failed")
        elif re.search(rf"\b{name}:? .*skip", log):
            lines.append(f"{name} skipped")
        else:
            lines.append(f"{name} " + ("passed" if re.search(rf"\b{name}: exited \[", log) else "did not run"))
    return lines


def run_stressors(names, stressors, workshop, folder, over, way, seconds):
    here = pathlib.Path(tempfile.mkdtemp(dir=folder))
    here.chmod(0o777)
    counts = here / "counts"
    counts.write_bytes(bytes(24))
    counts.chmod(0o666)
    argv = [*over, *stressors.prefix, *way[0], "stress-ng", "--verify", "-v", "--timeout", f"{seconds}s",
            *stressors.options.split(), *(word for name in names for word in (f"--{name}", "1"))]
    env = helpers.environment(T_OPENER="stress-ng", T_LIBRARY=workshop / "libtable1.so", T_COUNTS=counts,
                              T_GENERATIONS=stressors.generations)
    env.update(way[1], LD_PRELOAD=" ".join([way[1].get("LD_PRELOAD", ""), f"{workshop}/opener.so"]))
    try:
        done = helpers.run(argv, env, 120 + 10 * seconds, stderr=subprocess.STDOUT, cwd=here)
        numbers = struct.unpack("QQQ", counts.read_bytes())
    finally:
        shutil.rmtree(here, ignore_errors=True)
    verdicts = [*judge(done.stdout, names), f"exit {done.returncode}"]
    return Result("\n".join(verdicts), *numbers, done.stdout)


def run_class(name, workshop, folder, over, way, seconds=0):
    """Runs the class NAME under the command prefix OVER by WAY, of ways(): its short form, all at once for two seconds, or
    all of it, one stressor after the other, in SECONDS."""
    stressors = CLASSES[name]
    if not seconds:
        return run_stressors(stressors.short.split(), stressors, workshop, folder, over, way, 2)
    names = f"{stressors.short} {stressors.more}".split()
    each = max(seconds // len(names), 1)
    results = [run_stressors([n], stressors, workshop, folder, over, way, each) for n in names]
    return Result("\n".join(r.verdicts for r in results), *(sum(r[i] for r in results) for i in (1, 2, 3)),
                  "".join(r.log for r in results))


def ways(way, backend, library):
    """(how stress-ng is started, variables) for a WAY in.  LIBRARY lies where every user can read it, and so does what else is
    needed."""
    options = f"{helpers.ALL_SEGMENTS},backend={backend}"
    if way == "preload":
        return [], {"LD_PRELOAD": str(library), "LD_HUGEPAGES": "*", "LD_HUGEPAGES_OPTIONS": options}
    if way == "ldso":
        folder = pathlib.Path(library).parent
        linker = shutil.copy(helpers.BUILD / "ldso/ld.so", folder)
        return [folder / "hugeld", "run", "--ld-so", linker, "-p", "*", "-o", options, "--"], {}
    return [], {}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=0)
    parser.add_argument("--way")
    parser.add_argument("--backend", default="hugetlb")
    parser.add_argument("--log")
    parser.add_argument("workshop", type=lambda path: pathlib.Path(path).absolute())
    parser.add_argument("name", nargs="*", default=list(CLASSES))
    arguments = parser.parse_args()
    for name in arguments.name:
        way = ways(arguments.way, arguments.backend, helpers.LIBRARY)
        result = run_class(name, arguments.workshop, tempfile.gettempdir(), [], way, arguments.seconds)
        print(f"{name}: opened {result.opened} times by {result.processes} processes, {result.moved} moved\n"
              f"{result.verdicts}", flush=True)
        if arguments.log:
            pathlib.Path(arguments.log).write_text(result.log)


if __name__ == "__main__":
    main()
