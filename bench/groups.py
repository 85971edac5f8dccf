# SPDX-License-Identifier: LGPL-2.1-or-later
"""The groups of measurements, in order. Each group is a function of a Plan (workloads.Plan) that yields experiments
(measure.experiment)."""

import time

import attach
import databases
import mysql
import upstream
from images import group_image
from intervals import compare
from measure import Variant, at_once_precisely, pairs, time_run
from memory import group_arrays, group_calls, group_faults, group_memory, group_pressure, group_stalls, group_threads
from programs import group_alternatives, group_defaults, group_layouts, group_many, group_misses, group_more, group_programs
from servers import group_databases, group_servers
from starts import group_cold, group_dsos, group_later, group_ldso, group_perf_map, group_run, group_start
from workloads import pairs_for, programs, with_own_output

Skipped = databases.pytest.skip.Exception

GROUPS = {
    "image": group_image, "start": group_start, "calls": group_calls, "cold": group_cold, "programs": group_programs,
    "layouts": group_layouts, "more": group_more, "alternatives": group_alternatives, "defaults": group_defaults, "many": group_many,
    "servers": group_servers, "databases": group_databases, "mysql": mysql.group_mysql, "arrays": group_arrays, "memory": group_memory, "pressure": group_pressure,
    "faults": group_faults, "stalls": group_stalls, "threads": group_threads,
    "dsos": group_dsos, "later": group_later, "perf-map": group_perf_map, "ldso": group_ldso,
    "run": group_run, "misses": group_misses, "attach": attach.measure, "upstream": upstream.measure,
}


def measure_self(plan):
    """(what, method, pairs, seconds, result) of plain runs against plain runs: each method's noise."""
    for name, argv, *_ in programs():
        ways = with_own_output([Variant("plain", argv), Variant("plain-again", argv)])
        rounds = pairs_for(plan, time_run(ways[0]) / 1000)
        start = time.monotonic()
        found = at_once_precisely(ways, rounds)["plain-again"]
        middle = time.monotonic()
        turns = pairs(ways, rounds)
        yield name, "at once", len(found["values"]), middle - start, compare(found["pair"], found["values"])
        yield name, "in turns", rounds, time.monotonic() - middle, compare(turns["plain"], turns["plain-again"])
    for group in group_many, group_databases, mysql.group_mysql:
        start = time.monotonic()
        for found in group(plan, only_plain=True):
            [way] = found["ways"]
            for what, base, values in ("", "pair", "values"), (", processor time", "pair_cpu", "cpu"):
                yield (found["id"] + what, "at once", len(way["values"]), time.monotonic() - start,
                       compare(way[base], way[values], way.get("block", 1)))
