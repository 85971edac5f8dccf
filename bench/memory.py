# SPDX-License-Identifier: LGPL-2.1-or-later
"""Memory: the time of a call over much text and of a walk over large arrays; and delays when memory is scarce."""

import contextlib
import os
import pathlib
import subprocess
import time

import alternatives
import helpers
import pagecache
from helpers import HUGELD, ROOT
from measure import (LINKER, OUT, Variant, compile_c, experiment, find_libhugetlbfs, hugeld, libhugetlbfs, pairs,
                     take_turns)
from workloads import calls, calls_ways, image_of, put_large, share, where

# --- random calls ---


def group_calls(plan):
    for size, place in plan.texts:
        ways = calls_ways(size, place, ["1000000" if plan.quick else "2000000"])
        put_large(ways)
        huge = where(ways)
        if LINKER.exists():
            ways.append(Variant("ldso", [HUGELD, "run", "--via=ldso", "-o", "backend=hugetlb", *ways[0].argv]))
        yield experiment(f"calls-{size}-{place}", f"Random calls over {size} MiB of text, {place}", "ns", ways,
                         pairs(ways, 5 if plan.quick else 9, prints=True), base="plain", huge=huge, size=size, place=place)


# --- large static arrays ---


def group_arrays(plan):
    arrays, linked = OUT / "arrays", OUT / "arrays-2m"
    compile_c(arrays, ROOT / "bench/arrays.c")
    # libhugetlbfs remaps three segments at most.
    compile_c(linked, *alternatives.ALIGNED, "-Wl,-z,noseparate-code", ROOT / "bench/arrays.c")
    for what, title in (("walk", "Random walk over 1 GiB of .bss, one read"),
                        ("data", "Random walk over 64 MiB of .data, one read"))[:1 if plan.quick else 2]:
        ways = [Variant("plain", [arrays, what]), hugeld("data-thp", [arrays, what]), hugeld("bss-thp", [arrays, what], "bss=thp")]
        if find_libhugetlbfs():
            ways.append(libhugetlbfs("linked-libhugetlbfs", [linked, what], "RW"))
        yield experiment(f"arrays-{what}", title, "ns", ways, pairs(ways, 3 if plan.quick else 6, prints=True))


# --- memory pressure ---


@contextlib.contextmanager
def memory_limit(megabytes):
    """A memory cgroup's folder with this limit, version 1 or 2."""
    root = pathlib.Path("/sys/fs/cgroup")
    first = (root / "memory").is_dir()
    group = (root / "memory" if first else root) / f"hugeld-bench-{os.getpid()}"
    group.mkdir()
    try:
        (group / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(megabytes << 20))
        yield group
    finally:
        for _ in range(100):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.05)


HOG = """
import mmap, sys, time
memory = mmap.mmap(-1, int(sys.argv[1]) << 20)
while True:
    for at in range(0, len(memory), 4096):
        memory[at] = 1
    time.sleep(0.05)
"""


def group_pressure(plan):
    """A server's requests while other programs in its group want the memory: text that was dropped comes back by a major
    fault; text on hugetlb is never dropped."""
    if os.getuid() != 0:
        return
    program, requests = calls(64), 1000 if plan.quick else 2000
    argv = [program, str(requests), "requests"]
    share(program)
    ways = [Variant("plain", argv), hugeld("hugetlb", argv, "backend=hugetlb"), Variant("executed", [image_of(program), *argv[1:]])]
    rows = {way.name: [] for way in ways}
    with memory_limit(128) as group:
        join = ["/bin/sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]

        def run(way):
            pagecache.evict(program)
            hog = helpers.start([*join, "/usr/bin/python3", "-c", HOG, "80"])
            try:
                time.sleep(1)
                result = subprocess.run([*join, *map(str, way.argv)], env=way.env, capture_output=True, text=True)
            finally:
                helpers.end_process(hog)
            if result.returncode != 0:
                raise RuntimeError(f"pressure: {way.name} ended with {result.returncode}: {result.stderr}")
            longest, tail, middle, faults = map(float, result.stdout.split())
            rows[way.name].append((longest, tail, middle, faults))
            return tail

        take_turns(ways, 2 if plan.quick else 7, run)
    pagecache.make(program, "large")
    for i, name, title, unit in ((1, "tail", "99.9th percentile of a request's time", "us"), (2, "median", "its median", "us"),
                                 (3, "faults", "major faults of the program while it serves", "")):
        yield experiment(f"pressure-{name}", f"Memory pressure (64 MiB of text, 80 MiB of another's, a limit of 128 MiB): {title}",
                         unit, ways, {way: [row[i] for row in found[1:]] for way, found in rows.items()})
