#!/usr/bin/python3 -B
# SPDX-License-Identifier: LGPL-2.1-or-later
"""The group `upstream`: the series for glibc's list (glibc-patches/rfc) against the same glibc with glibc.elf.thp=0, and against the
release with glibc.elf.thp=1.  As a script, bench/upstream.py FILE prints the table of the series' cover letter from the group's
stored results (build/bench/results/upstream.json)."""

import json
import os
import pathlib
import platform
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / "harness")]
import pagecache  # noqa: E402
import report  # noqa: E402
from helpers import ROOT  # noqa: E402
from installed import cache_folder, find_cc1plus, find_node  # noqa: E402
from measure import OUT, Variant, at_once, compile_c, copy_of, experiment, take_turns, time_run  # noqa: E402

CACHE = cache_folder() / "glibc/2.44-upstream"
LIBRARIES = ("", "math", "nptl", "dlfcn", "rt", "resolv")
SYSTEM = [f"/{folder}/{os.uname().machine}-linux-gnu" for folder in ("lib", "usr/lib")] + ["/lib64", "/usr/lib64"]
# (name, the tree, the tunable); all are compared with the first.
WAYS = (("thp=0", "rfc", 0), ("thp=0-again", "rfc", 0), ("thp=1-released", "plain", 1), ("thp=1", "rfc", 1))
STATES = {"cold": "not in the page cache", "scattered": "read page by page before, in no order", "large": "read in order before"}


def programs():
    """(name, argv) of copies, which no other process has mapped, on the file system of the results."""
    source = OUT / "two-lines.cc"
    source.write_text("int f(int x) { return x; }\nint main() { return f(3); }\n")
    for name, program, words in (("cc1plus", find_cc1plus(), ["-quiet", "-O2", source, "-o", "/dev/null"]),
                                 ("node", find_node(), ["-e", "0"]), ("python3", "/usr/bin/python3", ["-c", "0"])):
        if program and os.path.exists(program):
            yield name, [copy_of(os.path.realpath(program), "upstream"), *words]


def ways_of(argv):
    found = []
    for name, tree, on in WAYS:
        objects = CACHE / tree / "objects"
        path = ":".join([*(str(objects / library) for library in LIBRARIES), *SYSTEM])
        found.append(Variant(name, [objects / "elf/ld.so", "--library-path", path, *argv], "thp=0", GLIBC_TUNABLES=f"glibc.elf.thp={on}"))
    return found


def file_system(path):
    return subprocess.run(["stat", "-f", "-c", "%T", path], capture_output=True, text=True, check=True).stdout.strip()


def prepare(state, file):
    if state == "cold":
        pagecache.evict(file)
    else:
        pagecache.make(file, state)


def huge_kib(way, state, file, reader):
    """KiB on huge pages of text and of other read-only segments, and of both in all, after every page was read."""
    prepare(state, file)
    done = subprocess.run(way.argv, env={**way.env, "LD_PRELOAD": str(reader)}, capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


def measure(plan):
    subprocess.run([ROOT / "glibc-patches/rfc/check", "-b"], check=True, stdout=subprocess.DEVNULL)
    reader = compile_c(OUT / "read-all.so", "-shared", "-fPIC", ROOT / "bench/read-all.c")
    where = f"{platform.system()} {platform.release()}, {file_system(OUT)}"
    for name, argv in programs():
        for state, words in STATES.items():
            ways, file = ways_of(argv), argv[0]
            kib = {way.name: huge_kib(way, state, file, reader) for way in ways}
            huge = {way: f"{text / 1024:.0f} MiB of text, {other / 1024:.0f} of other segments" for way, (text, other, *_) in kib.items()}
            facts = (f"upstream-{name}-{state}", f"{name} by ld.so of glibc 2.44, its file {words}", "ms", ways)
            if state == "cold":
                def run(way, file=file):
                    pagecache.evict(file)
                    return time_run(way)
                yield experiment(*facts, take_turns(ways, plan.short, run), note=f"{where}.", huge=huge, kib=kib)
            else:
                found = pagecache.measure_in(state, [file], lambda ways=ways: at_once(ways, max(12, plan.short), files=[file]))
                yield experiment(*facts, found, note=f"{where}.", huge=huge, kib=kib)


def letter(results):
    """The lines of the cover letter's table."""
    columns = [(0, "thp=0", "patched"), (2, "thp=1", "2.44"), (3, "thp=1", "patched")]
    lines = ["                   " + "".ljust(11) + "".join(head.rjust(10) for _, head, _ in columns),
             "                   " + "text, other".ljust(11) + "".join(head.rjust(10) for _, _, head in columns)]
    for state in STATES:
        lines.append(f"  {state}")
        for found in results:
            _, name, this = found["id"].split("-")
            if this == state:
                rows = [found["kib"][WAYS[column][0]] for column, *_ in columns]
                sizes = f"{rows[0][2] / 1024:.1f}, {rows[0][3] / 1024:.1f}"
                lines.append(f"    {name:<12}{sizes:>14}" + "".join(f"{a / 1024:.0f}, {b / 1024:.0f}".rjust(10) for a, b, *_ in rows))
    return "\n".join([*lines, "", *times(results)])


def times(results):
    """The lines of the letter's second table, 76 columns wide: wall time of rounds in turns, processor time of pairs."""
    lines = [" " * 12 + "  ".join(head.rjust(20) for head in ("thp=0 again", "thp=1, 2.44", "thp=1, patched"))]
    for state in STATES:
        lines.append(f"  {state}")
        for found in results:
            _, name, this = found["id"].split("-")
            if this == state:
                cells = (report.result_of(way, "cpu_result" if "cpu_result" in way else "result") for way in found["ways"] if way["base"])
                lines.append(f"    {name:<8}" + "  ".join(f"{ratio:.3f} [{low:.3f}, {high:.3f}]".rjust(20) for ratio, low, high, *_ in cells))
    return lines


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: bench/upstream.py build/bench/results/upstream.json")
    print(letter(json.loads(pathlib.Path(sys.argv[1]).read_text())))
