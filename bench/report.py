# SPDX-License-Identifier: LGPL-2.1-or-later
"""RESULTS.md, the page of all tables, and the tables of the README, from the JSON that was measured.  No number is written by hand."""

import json
import math
import re
import statistics
import textwrap

from intervals import compare

HEAD = """# Results

Made by `make bench` (bench/run); bench/README.md says how to read it. This page has the results to decide by. bench/results has all of them:
`bench/run --render --publish` makes build/bench/TABLES.md of it, with the processor times, and the same programs beside their files in
single pages. {machine[kernel]}, {machine[cpu]},
{machine[cpus]} processors, {machine[memory]} GiB, {machine[file_system]}, {machine[distribution]}; {machine[versions]}.
Last measured {machine[date]}, load before {machine[load]}{quick}.

The interval is the 95 % one of a bootstrap over the rounds; fewer than six have none. **Bold**: the interval does not contain 1. Where TABLES.md says
"of files" at a baseline, the kernel has put the plain program onto huge pages of the page cache by itself, and the ratio says little.
"""

TOP, END = "<!-- some rows of bench/results by bench/run -->", "<!-- end -->"


def show(value):
    """Four digits that count."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


# The parts of a run that are stored: (name, the base's rounds, the way's rounds) of lists that are compared.
COMPARED = (("result", "pair", "values"), ("cpu_result", "pair_cpu", "cpu"), ("start", "start_pair", "start_values"))
ROUNDS = {"block", *(key for _, *keys in COMPARED for key in keys)}


def to_json(numbers):
    """Five digits that count; null for an unknown number."""
    return [None if math.isnan(number) else float(f"{number:.5g}") for number in numbers]


def summarise(found):
    """FOUND, an experiment, with a summary in the place of its rounds; unchanged if it has one already."""
    by_name = {way["name"]: way for way in found.get("ways", [])}
    ways = []
    for way in by_name.values():
        kept = {key: value for key, value in way.items() if key not in ROUNDS}
        if "values" in way:
            kept["median"], kept["rounds"] = statistics.median(way["values"]), len(way["values"])
            base = by_name.get(way["base"])
            if "pair" in way:
                kept["base_median"] = statistics.median(way["pair"])
                kept["starts"] = len(way["values"]) // way["block"] if "block" in way else None
                for key, pair, values in COMPARED:
                    if values in way:
                        kept[key] = to_json(compare(way[pair], way[values], 1 if key == "start" else way.get("block", 1)))
            elif base:
                kept["result"] = to_json(compare(base["values"], way["values"]))
        ways.append(kept)
    return {**found, "ways": ways} if ways else found


def result_of(way, key="result"):
    """(ratio, low, high, difference, low, high) of WAY and its base, or None: of its time, of its processor time ("cpu_result"), or
    of its start."""
    return tuple(math.nan if number is None else number for number in way[key]) if key in way else None


def interval(low, high, digits):
    return "" if math.isnan(low) else f" [{low:{digits}}, {high:{digits}}]"


def is_clear(result):
    return result is not None and (result[1] > 1 or result[2] < 1)


def signed(result):
    """The difference, with its interval."""
    return f"{result[3]:+.3g}{interval(result[4], result[5], '+.3g')}"


def facts_of(found, way):
    """Cells of the columns that only some experiments have; their heads, if WAY is None."""
    columns = []
    if "memory" in found:
        plain = found["memory"].get("plain")
        mib = found["memory"].get(way["name"]) if way else plain  # 0: it was too short to be seen
        columns.append(f"memory, MiB; plain {show(plain)}" if way is None else show(mib) if mib else "")
    if any("start" in other for other in found["ways"]):
        columns.append("start, ms" if way is None else signed(result_of(way, "start")))
    if any(other.get("needs") for other in found["ways"]):
        columns.append("the program has to be" if way is None else way.get("needs", ""))
    return columns


def with_interval(result):
    """The ratio, bold if it says something."""
    digits = ".3g" if result[0] < 0.1 else ".3f"
    text = f"{result[0]:{digits}}{interval(result[1], result[2], digits)}"
    return f"**{text}**" if is_clear(result) else text


def heading(found):
    """Its title, and the note below it."""
    layout = [f"The plain program's file lies in folios of {show(found['folio_kib'])} KiB."] if "folio_kib" in found else []
    if "frames" in found:
        layout.append(f"The next page is adjacent for {found['adjacent']:.0%} of its pages, which lie in {found['frames']} frames of "
                      f"2 MiB (at least {found['frames_least']}).")
    said = " ".join([*([found["note"]] if found["note"] else []), *layout])
    return [f"### {found['title']}", "", *([said, ""] if said else [])]


def table(found):
    """The table of an experiment whose ways ran at the same time as the way that they are compared with, or in turns."""
    ways, unit = found["ways"], found["unit"]
    paired = any("base_median" in way for way in ways)
    head = ["way", f"median{', ' + unit if unit else ''}", "against", *(["its median"] if paired else []), "difference", "ratio",
            *(["processor time"] if paired else []), "huge pages", *facts_of(found, None)]
    lines = [*heading(found), f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for way in ways:
        result = result_of(way)
        cells = [way["base"], *([show(way["base_median"])] if paired else []), signed(result), with_interval(result),
                 *([with_interval(result_of(way, "cpu_result"))] if paired else [])] if result else ["", "", ""]
        lines.append(f"| {' | '.join([way['name'], show(way['median']), *cells, way['huge'], *facts_of(found, way)])} |")
    for name, why in found.get("absent", {}).items():
        lines.append(f"| {name} | {why} |" + " |" * (len(head) - 2))
    starts = f" of {ways[0]['starts']} starts" if paired and ways[0]["starts"] else ""
    rounds = min(way["rounds"] for way in ways)
    kind = f"pairs each{starts}, at the same time" if paired else "rounds" if rounds > 1 else "round"
    return lines + ["", f"{rounds} {kind}{', ' + found['date'] if 'date' in found else ''}.", ""]


# --- by the state of memory ---

STATE_GROUPS = ("layouts", "model", "mysql")
STATES = {"found": "as after a boot", "large": "just read in order", "contiguous": "in contiguous pages"}
LARGE_PROGRAMS = {"mysql": "MySQL, point selects", "layouts-duckdb": "DuckDB, small queries", "layouts-polars": "Polars, small queries",
                  "layouts-verilator": "a Verilator model", "layouts-clang": "clang, one file", "layouts-rustc": "rustc, one file",
                  "layouts-node": "node, JSON and sorting", "layouts-cc1plus": "gcc's C++ compiler, one file"}


def by_state(groups):
    """{program: {state of its plain file: the experiment}} of those that `hugeld run` starts."""
    found = {e["id"]: e for group in STATE_GROUPS for e in groups.get(group, [])}
    names = {title: {state: f"{name}-{state}" for state in STATES} for name, title in LARGE_PROGRAMS.items()}
    names[LARGE_PROGRAMS["mysql"]] = {"found": "mysql-point-select"}
    rows = {title: {state: found[name] for state, name in row.items() if name in found} for title, row in names.items()}
    return {title: row for title, row in rows.items() if row}


def result_in(found, name, key="result"):
    return next((result_of(way, key) for way in found["ways"] if way["name"] == name), None)


def states_table(groups):
    heads = ["program", "its plain file", "adjacent", "frames (fewest)", "plain again", "read in order", "`hugeld run`", "its processor time"]
    results = ("plain-again", "result"), ("in-order", "result"), ("run", "result"), ("run", "cpu_result")
    return heads, [[title, STATES[state], f"{found['adjacent']:.0%}", f"{found['frames']} ({found['frames_least']})",
                    *(with_interval(result) if result else NOTHING for result in (result_in(found, *which) for which in results))]
                   for title, row in by_state(groups).items() for state, found in row.items()]


def percent_saved(result):
    """0 where the interval of the RESULT contains 1: no difference was seen."""
    return round(100 * (1 - result[0])) if is_clear(result) else 0


def readme_states(groups, runs):
    """What `hugeld run` saves, as a range for each state, and the programs that it makes slower; with the machine of the RUNS, which
    may be another one than the page's."""
    rows = {title.split(",")[0]: row for title, row in by_state(groups).items()}
    if not rows:
        return []
    saved = {(program, state): percent_saved(result_in(found, "run", "cpu_result")) for program, row in rows.items() for state, found in row.items()}
    slower_ones = {(program, state): percent for (program, state), percent in saved.items() if percent < 0}
    faster = [program for program in rows if program not in {program for program, _ in slower_ones}]
    ranges = []
    for state, words in STATES.items():
        gains = {saved[program, state] for program in faster if (program, state) in saved}
        ranges += [f"{' to '.join(map(str, sorted({min(gains), max(gains)})))} % {words}"] if gains else []
    but = "".join(f"; but {program} needs {-percent} % more, its file {STATES[state]}" for (program, state), percent in slower_ones.items())
    machines = " and ".join(sorted({runs[name]["cpu"].replace("(R)", "").removesuffix(" Processor") for name in STATE_GROUPS if name in runs}))
    sentence = (f"By `hugeld run` large programs ({', '.join(faster)}) need less processor time, "
                f"by where their own file lies in memory: {', '.join(ranges)}{but} ({machines}).")
    return [*textwrap.wrap(sentence, 80, break_on_hyphens=False), ""]


# --- the table by which a user decides ---

DECIDE = ("image", "programs", "more", "servers", "databases")  # of the first, only real programs
WAYS = {"private copy": ("private", "hugetlb"), "image": ("mapped",), "image, executed": ("executed",)}
NAMES = {name: head for head, names in WAYS.items() for name in names}
NOTHING = "–"


def in_short(found):
    """Its title without how it was measured, which the longer table says."""
    return found["title"].partition(": ")[0].partition(", each ")[0]


def memory_of(found, *names):
    """The memory of the first of the ways NAMES of which it is known."""
    return next((show(mib) for mib in (found.get("memory", {}).get(name) for name in names) if mib), NOTHING)


def decides(group, found):
    """Whether FOUND, of GROUP, has a row in the first table. Programs in single pages are left to TABLES.md."""
    return (group != "image" or "program" in found) and not found["id"].endswith("-scattered")


def deciding_rows(groups):
    """A row for each program, with each way of running it that a user of hugeld has."""
    for found in (found for group in DECIDE for found in groups.get(group, []) if decides(group, found)):
        ways = {NAMES[way["name"]]: way for way in found["ways"] if "base_median" in way and way["name"] in NAMES}
        if ways:
            starts = {head: result_of(way, "start") for head, way in ways.items()}
            yield [in_short(found), show(found["folio_kib"]) if "folio_kib" in found else NOTHING,
                   *([f"{found['adjacent']:.0%}", str(found["frames"])] if "frames" in found else [NOTHING, NOTHING]),
                   *(with_interval(result_of(ways[head])) if head in ways else NOTHING for head in WAYS),
                   *(memory_of(found, *names) for names in (("plain",), WAYS["private copy"], WAYS["image"])),
                   *(signed(starts[head]) if starts.get(head) else NOTHING for head in ("private copy", "image"))]


DECIDING = ["program", "folios, KiB", "adjacent", "frames", *WAYS, "MiB, plain", "MiB, private copy", "MiB, image", "start, private copy", "start, image"]


def alternative_cell(found, name):
    """What was measured of the way NAME, or why it could not be."""
    way = next((way for way in found["ways"] if way["name"] == name), None)
    if way is None:
        return found["absent"].get(name, NOTHING)
    start = result_of(way, "start")
    return f"{with_interval(result_of(way))}, {memory_of(found, name)} MiB, {f'{start[3]:+.2g}' if start else NOTHING} ms"


def alternatives_table(groups):
    """A row for each way, hugeld's and others', with a column for each program."""
    found, needs = groups.get("alternatives", []), {}
    for name, need in ((way["name"], way.get("needs") or "as it is") for one in found for way in one["ways"]):
        if name != "plain-again" and need not in needs.setdefault(name, []):
            needs[name].append(need)
    heads = ["way", *(f"{in_short(one)}; plain {memory_of(one, 'plain')} MiB" for one in found), "the program has to be"]
    return heads, [[NAMES.get(name, name), *(alternative_cell(one, name) for one in found), ", or ".join(need)] for name, need in needs.items()]


def deciding_tables(groups):
    """The ways measured at the same time as the plain program: the page's beginning."""
    lines = []
    for title, (head, rows) in (("By the state of memory", states_table(groups)), ("At a glance", (DECIDING, list(deciding_rows(groups)))),
                                ("Beside others", alternatives_table(groups))):
        if rows:
            lines += [f"## {title}", "", EXPLAINED[title], "", f"| {' | '.join(head)} |", "| --- " * len(head) + "|",
                      *(f"| {' | '.join(row)} |" for row in rows), ""]
    return lines


EXPLAINED = {
    "By the state of memory": """\
Times are ratios to the plain program: below 1 is faster. A plain program is faster the more pages of its file have the next page in
the next frame, and the fewer frames of 2 MiB they lie in. Each state was made on purpose, and looked at before and after. "Read in
order" is a plain copy that was read so, which costs nothing.""",
    "At a glance": """\
Times are ratios to the plain program, which ran at the same time: below 1 is faster. The second column is the mean size of the folios of
the page cache in which the plain program's file lay: 4 KiB are single pages, and a file that was read in order lies in larger ones. Memory
is that of one process at its largest; what is added to a start, in ms, is that of a run that ends at once.""",
    "Beside others": """\
The same for alternatives to hugeld, each as its users would use it.""",
}


OTHERS = ("libhugetlbfs", "-again", "iodlr", "glibc-thp", "bolt")  # ways that are not hugeld's


SLOWER_MAX = 5


def slower(groups):
    """The programs that hugeld made slower, beyond their interval: the worst of them."""
    rows = []
    for found in (found for group in groups.values() for found in group):
        for way in found.get("ways", []):
            result = result_of(way)
            if is_clear(result) and result[1] > 1 and not any(other in way["name"] for other in OTHERS):
                rows.append((result[0], f"| {found['title']} | {way['name']} | {with_interval(result)} | {result[3]:+.3g} {found['unit']} |"))
    if not rows:
        return ["Nothing was.", ""]
    rows.sort(reverse=True)
    more = [f"{len(rows) - SLOWER_MAX} more were slower by less.", ""] if len(rows) > SLOWER_MAX else []
    return ["| program | way | ratio | difference |", "| --- | --- | --- | --- |", *(line for _, line in rows[:SLOWER_MAX]), "", *more]


# --- the pages ---


def tlb_lines(tlb):
    """The measurement of `hugeld doctor` stands before every ratio; results of before it could have none."""
    if not tlb:
        return []
    bound = " This limits all gains, and some programs get slower (doc/limits.md)." if tlb["answer"] in ("in pieces", "no") else ""
    return [f"**On this machine {tlb['sentence']}.**{bound} (`hugeld doctor`)", ""]


def elsewhere(data):
    """The groups that were measured on another machine than the page's; the page must name them."""
    others = {}
    for name in data["groups"]:
        run = data["runs"].get(name, data["machine"])
        if run["cpu"] != data["machine"]["cpu"]:
            others.setdefault(f"{run['kernel']}, {run['cpu']}", []).append(name)
    return [f"On another machine ({where}): {', '.join(names)}." for where, names in others.items()]


def render(data, path):
    """Writes RESULTS.md to PATH."""
    groups, machine = data["groups"], data["machine"]
    quick = ", quick: few rounds" if data["quick"] else ""
    lines = HEAD.format(machine=machine, quick=quick).split("\n") + tlb_lines(machine.get("tlb"))
    lines += [*elsewhere(data), "", *deciding_tables(groups), *more_figures(groups), "## Slower than the plain program", "", *slower(groups)]
    path.write_text("\n".join(lines).rstrip() + "\n")


def render_tables(data, path):
    """Writes every table to PATH."""
    lines = ["# Every table", "", *elsewhere(data), ""]
    for name, found in data["groups"].items():
        lines += [f"## {name}", ""]
        for e in found:
            lines += table(e)
    path.write_text("\n".join(lines).rstrip() + "\n")


def find(groups, identifier, name, key="result"):
    """The result of the way NAME of the experiment IDENTIFIER, or None."""
    return next((result_in(found, name, key) for group in groups.values() for found in group if found["id"] == identifier), None)


def in_words(result, of="the time"):
    ratio, low, high = result[:3]
    digits = ".2g" if ratio < 0.1 else ".2f"
    if math.isnan(low):
        return f"{ratio:{digits}} of {of}"
    words = f"{ratio:{digits}} of {of}{interval(low, high, digits)}"
    return words if is_clear(result) else f"no difference seen: {words}"


MORE_ROWS = [
    ("the C++ compiler on two lines, in place", "in-place-cc1plus-large", "in-place"),
    ("twenty small C files compiled, in place", "in-place-build-large", "in-place"),
    ("the C++ compiler from an image, by `hugeld run`", "run-cc1plus-large", "run"),
    ("`git --version` by `hugeld run`, which has no image, over an empty preloaded library", "run-git", "run"),
    ("Chromium `--dump-dom`, image executed", "image-chromium", "executed"),
    ("eight `cc1plus` at once on two processors, from an image", "image-many", "mapped"),
    ("the same, with the image executed", "image-many", "executed"),
    ("the same, with private copies", "image-many", "private"),
    ("random calls over 128 MiB of text, from an image", "image-calls", "mapped"),
    ("the same, with a private copy", "calls-128-disk", "hugetlb"),
    ("random reads over 1 GiB of `.bss`, `bss=thp`", "arrays-walk", "bss-thp"),
    ("memory of ten processes with 32 MiB of text, from an image", "image-memory", "mapped"),
    ("128 MiB of text from a cold page cache, until all was touched", "cold", "hugetlb"),
    ("99.9th percentile of a request under memory pressure", "pressure-tail", "hugetlb"),
]
MORE_ADDED = [
    ("start of a small program with nothing to move, over an empty preloaded library", "image-nothing", "hugeld"),
    ("start with 128 MiB of text, from an image", "image-start-128", "mapped"),
    ("start with 512 MiB of text, from an image", "image-start-512", "mapped"),
    ("start with 128 MiB of text", "start-128-disk", "hugetlb"),
    ("start with 128 MiB of text linked at 2 MiB, `backend=hugetlb`", "start-128-disk", "linked-hugetlb"),
    ("the same by libhugetlbfs", "start-128-disk", "linked-libhugetlbfs"),
]


# (program, how hugeld runs it, experiment, way) of README's table.
README_ROWS = [
    ("Chromium, processor time", "image, mounted", "image-chromium", "executed"),
    ("clang on seven files", "image", "more-clang-tree", "mapped"),
    ("PostgreSQL, `pgbench -S`", "image, mounted", "postgres", "executed"),
    ("MariaDB, point selects", "image, mounted", "mariadb", "executed"),
    ("`git --version`", "nothing, by `hugeld run`", "run-git", "run"),
    ("memory of ten processes", "image", "image-memory", "mapped"),
    ("rustc of one function", "copies", "image-rustc", "private"),
]
README_HEAD = ["| program | on huge pages | time or memory, without hugeld: 1 [95 %] |", "| --- | --- | --- |"]


def cell_of(result, identifier):
    """RESULT in words; a loss is marked."""
    of = "the memory" if "memory" in identifier else "the time"
    return ("**slower:** " if of == "the time" and is_clear(result) and result[0] > 1 else "") + in_words(result, of) if result else ""


def more_figures(groups):
    """Single figures of programs that were written for them, and of starts."""
    lines = []
    for what, identifier, name in MORE_ROWS:
        result = find(groups, identifier, name)
        lines += [f"| {what} | {cell_of(result, identifier)} |"] if result else []
    for what, identifier, name in MORE_ADDED:
        result = find(groups, identifier, name)
        lines += [f"| {what} | {result[3]:+.3g} ms{interval(result[4], result[5], '+.3g')} |"] if result else []
    return ["## More figures", "", "| measured | of the plain program, or added to it |", "| --- | --- |", *lines, ""] if lines else []


def already_huge(groups, identifier):
    """A remark, if the kernel has put the plain program of the experiment IDENTIFIER onto huge pages by itself."""
    ways = next(found["ways"] for group in groups.values() for found in group if found["id"] == identifier)
    return " (huge already)" if any("of files" in way["huge"] and way["name"] in ("plain", "plain-again") for way in ways) else ""


def readme_table(groups, runs):
    """The gains by state of memory; then all rows, the largest gain first, the largest loss last."""
    rows = []
    for program, uses, identifier, name in README_ROWS:
        result = find(groups, identifier, name, "cpu_result" if "processor time" in program else "result")
        if result:
            rows.append((result[0], f"| {program}{already_huge(groups, identifier)} | {uses} | {with_interval(result)} |"))
    return [*readme_states(groups, runs), *README_HEAD, *(row for _, row in sorted(rows))]


def write_readme(data, path):
    """The table between comments; the page stays as it is where there are none."""
    block = re.compile(re.escape(TOP) + ".*?" + re.escape(END), re.S)
    path.write_text(block.sub(lambda _: "\n".join([TOP, *readme_table(data["groups"], data["runs"]), END]), path.read_text()))


def not_yet_measured(names, runs, this):
    """Those of NAMES whose last run, of RUNS, differs from THIS one in one of: hugeld, the machine and the number of rounds."""
    return [name for name in names if {key: runs.get(name, {}).get(key) for key in this} != this]


def in_minutes(seconds):
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:.{0 if seconds >= 600 else 1}f} minutes"


def load(folder):
    data = json.loads((folder / "machine.json").read_text())
    names = data.pop("names")
    data.setdefault("runs", {})
    data["groups"] = {name: [summarise(found) for found in json.loads((folder / f"{name}.json").read_text())] for name in names}
    return data


def store_raw(name, found, folder):
    """Every round of the group NAME, which is not published."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(found) + "\n")


def store(data, folder):
    """A file for each group, one way a line."""
    folder.mkdir(parents=True, exist_ok=True)
    head = {"machine": data["machine"], "quick": data["quick"], "names": list(data["groups"]), "runs": data["runs"]}
    (folder / "machine.json").write_text(json.dumps(head, indent=1) + "\n")
    for name, found in data["groups"].items():
        text = json.dumps(found, separators=(", ", ": ")).replace('{"name"', '\n {"name"').replace('{"id"', '\n{"id"')
        (folder / f"{name}.json").write_text(text + "\n")
