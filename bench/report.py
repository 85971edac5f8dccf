# SPDX-License-Identifier: LGPL-2.1-or-later
"""RESULTS.md, its plots, and the table of the README, from the JSON that was measured.  No number is written by hand."""

import json
import math
import re
import statistics

import matplotlib
import matplotlib.pyplot as pyplot

import misses
from measure import compare, compare_pairs

matplotlib.use("Agg")
matplotlib.rcParams.update({"svg.hashsalt": "hugeld", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False,
                            "axes.spines.right": False, "figure.constrained_layout.use": True})

HEAD = """# Results

Made by `make bench` (bench/run); bench/README.md says how to read it. {machine[kernel]}, {machine[cpu]},
{machine[cpus]} processors, {machine[memory]} GiB, {machine[file_system]}, {machine[distribution]}; {machine[versions]}.
Last measured {machine[date]}, load before {machine[load]}{quick}.

The interval is the 95 % one of a bootstrap over the rounds; fewer than six have none. **Bold**: the interval does not contain 1. Where a baseline is marked
"PMD-mapped", the kernel has put the plain program onto huge pages of the page cache by itself, and the ratio says little.
"""

TOP, BEGIN, END = "<!-- six rows of bench/results by bench/run -->", "<!-- from bench/results by bench/run -->", "<!-- end -->"


def show(value):
    """Four digits that count."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def compare_way(way, base="pair", values="values"):
    """compare_pairs of WAY: of its time, or of "pair_cpu" and "cpu"."""
    return compare_pairs(way[base], way[values], way.get("block"))


def compared(found):
    """(way, its base or None, compare(...) or None) of an experiment, in order."""
    by_name = {way["name"]: way for way in found["ways"]}
    for way in found["ways"]:
        base = by_name.get(way["base"])
        if "pair" in way:
            yield way, {"name": way["base"]}, compare_way(way)
        else:
            yield way, base, compare(base["values"], way["values"]) if base else None


def interval(low, high, digits):
    return "" if math.isnan(low) else f" [{low:{digits}}, {high:{digits}}]"


def is_clear(result):
    return result is not None and (result[1] > 1 or result[2] < 1)


# What a way is in the group misses.
LAYOUTS = {"plain-again": "plain", "hugetlb": "private", "private": "private", "thp": "private", "rodata": "image",
           "mapped": "image", "executed": "image", "linked": "linked", "libhugetlbfs": "linked", "iodlr": "keep"}
MODELLED = "zen4"


def misses_of(way, model):
    """The cell of a column that is there if misses of the program were modelled, of this run or another; the column's head, if WAY is None."""
    if model is None:
        return []
    if way is None:
        return [f"modelled misses ({MODELLED}; {model['title']}), plain {misses.in_thousand(model, 'plain', MODELLED)}"]
    return [misses.in_thousand(model, LAYOUTS[way], MODELLED) if way in LAYOUTS else ""]


def start_of(way):
    """What compare_pairs says of its start, or None."""
    return compare_pairs(way["start_pair"], way["start_values"]) if "start_values" in way else None


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
    if any("start_values" in other for other in found["ways"]):
        columns.append("start, ms" if way is None else signed(start_of(way)))
    if any(other.get("needs") for other in found["ways"]):
        columns.append("the program has to be" if way is None else way.get("needs", ""))
    return columns


def with_interval(result):
    """The ratio, bold if it says something."""
    text = f"{result[0]:.3f}{interval(result[1], result[2], '.3f')}"
    return f"**{text}**" if is_clear(result) else text


def paired_table(found, model=None):
    """Of ways that each ran at the same time as what they are compared with."""
    unit = found["unit"]
    head = ["way", f"median{', ' + unit if unit else ''}", "against", "its median", "difference", "ratio", "processor time",
            "huge pages", *misses_of(None, model), *facts_of(found, None)]
    lines = [f"### {found['title']}", "", *([found["note"], ""] if found["note"] else []),
             f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for way, base, result in compared(found):
        cpu = compare_way(way, "pair_cpu", "cpu")
        words = [with_interval(r) for r in (result, cpu)]
        lines.append("| " + " | ".join([
            way["name"], show(statistics.median(way["values"])), base["name"], show(statistics.median(way["pair"])),
            signed(result), *words, way["huge"],
            *misses_of(way["name"], model), *facts_of(found, way)]) + " |")
    for name, why in found.get("absent", {}).items():
        lines.append(f"| {name} | {why} |" + " |" * (len(head) - 2))
    rounds, blocks = min(len(way["values"]) for way in found["ways"]), ""
    if "block" in found["ways"][0]:
        blocks = f" of {rounds // found['ways'][0]['block']} starts"
    return lines + ["", f"{rounds} pairs each{blocks}, at the same time{', ' + found['date'] if 'date' in found else ''}.", ""]


def table(found, model=None):
    if "misses" in found:
        return [f"### {found['title']}", "", *misses.table(found)]
    if any("pair" in way for way in found["ways"]):
        return paired_table(found, model)
    unit = found["unit"]
    lines = [f"### {found['title']}", ""]
    if found["note"]:
        lines += [found["note"], ""]
    lines += [f"| way | median{', ' + unit if unit else ''} | against | difference | ratio | huge pages |",
              "| --- | --- | --- | --- | --- | --- |"]
    for way, base, result in compared(found):
        cells = [way["name"], show(statistics.median(way["values"])), "", "", "", way["huge"]]
        if result:
            ratio, low, high, difference, less, more = result
            digits = ".3g" if ratio < 0.1 else ".3f"
            text = f"{ratio:{digits}}{interval(low, high, digits)}"
            cells[2:5] = [base["name"], f"{difference:+.3g}{interval(less, more, '+.3g')}",
                          f"**{text}**" if is_clear(result) else text]
        lines.append("| " + " | ".join(cells) + " |")
    rounds = min(len(way["values"]) for way in found["ways"])
    when = f", {found['date']}" if "date" in found else ""
    return lines + ["", f"{rounds} round{'s' if rounds > 1 else ''}{when}.", ""]


# --- the table by which a user decides ---

DECIDE = ("shared", "programs", "more", "servers", "databases")  # of the first, only real programs
WAYS = {"hugetlb": "private copy", "private": "private copy", "mapped": "image", "executed": "image, executed"}


def of_plain(value, plain):
    """What it is, and what the plain program has."""
    return f"{value} ({plain})" if value and plain else ""


def modelled(way, model):
    """Misses of a first and of a second level."""
    return misses.in_thousand(model, LAYOUTS[way], MODELLED) if model and way in LAYOUTS else ""


def in_short(found):
    """Its title without how it was measured, which the longer table says."""
    return found["title"].partition(": ")[0].partition(", each ")[0]


def deciding_row(found, way, name, model):
    memory, start = found.get("memory", {}), start_of(way)
    return [in_short(found), name, with_interval(compare_way(way)),
            with_interval(compare_way(way, "pair_cpu", "cpu")),
            of_plain(modelled(way["name"], model), modelled("plain-again", model)),
            of_plain(show(memory[way["name"]]), show(memory["plain"])) if memory.get(way["name"]) else "",
            signed(start) if start else ""]


def deciding_rows(groups, models):
    """Each program, and each way of running it that a user of hugeld has."""
    for found in (found for group in DECIDE for found in groups.get(group, []) if group != "shared" or "program" in found):
        for way in found["ways"]:
            if "pair" in way and way["name"] in WAYS:
                yield deciding_row(found, way, WAYS[way["name"]], models.get(found.get("program")))


def peer_rows(groups, models):
    """What others do, and what could not be done."""
    for found in groups.get("peers", []):
        for way in found["ways"]:
            if way["name"] != "plain-again":
                yield deciding_row(found, way, WAYS.get(way["name"], way["name"]), models.get(found["program"])) + [
                    way.get("needs") or "as it is"]
        for name, why in found["absent"].items():
            yield [in_short(found), name, why, *[""] * 5]


DECIDING = ["program", "way", "time", "processor time", f"misses, {MODELLED}", "memory, MiB", "start, ms"]


def deciding_tables(groups, models):
    """What was measured at the same time as the plain program: the page's beginning."""
    lines = []
    for title, rows, head in (("At a glance", list(deciding_rows(groups, models)), DECIDING),
                              ("Beside others", list(peer_rows(groups, models)), [*DECIDING, "the program has to be"])):
        if rows:
            lines += [f"## {title}", "", EXPLAINED[title], "", f"| {' | '.join(head)} |", "| --- " * len(head) + "|",
                      *(f"| {' | '.join(row)} |" for row in rows), ""]
    return lines


def estimates(found):
    """What hugeld survey said before, beside what was measured."""
    if not found:
        return []
    lines = ["| program | estimate | measured, processor time |", "| --- | --- | --- |"]
    for e in found:
        [way] = [way for way in e["ways"] if way["name"] == "image"]
        lines.append(f"| {e['program']} | {e['estimate']:.3f} | {with_interval(compare_way(way, 'pair_cpu', 'cpu'))} |")
    return [*lines, ""]


EXPLAINED = {
    "At a glance": """\
Ratios are to the plain program, which ran at the same time: below 1 is faster, and what is bold is beyond doubt. In
parentheses is what the plain program has. Misses are modelled: those of the first and of the second level in a thousand
instructions, of a short run of the program (group misses). Memory is that of one process at its largest. The last column is
what is added to a run that ends at once.""",
    "Beside others": """\
The same for others' ways, each as its users would use it. What says why in the place of a time could not be measured.""",
}

OTHERS = ("libhugetlbfs", "floor", "nm-", "-again", "iodlr", "glibc-thp", "bolt", "cp")  # ways that are not hugeld's


def slower(groups):
    """What hugeld made slower, beyond its interval."""
    lines = []
    for group in groups.values():
        for found in group:
            for way, base, result in compared(found):
                if is_clear(result) and result[1] > 1 and not any(other in way["name"] for other in OTHERS):
                    lines.append(f"| {found['title']} | {way['name']} | {result[0]:.3f} [{result[1]:.3f}, {result[2]:.3f}] | "
                                 f"{result[3]:+.3g} {found['unit']} |")
    if not lines:
        return ["Nothing was.", ""]
    return ["| what | way | ratio | difference |", "| --- | --- | --- | --- |", *lines, ""]


# --- plots ---


def save(figure, path):
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path.name


def plot_sizes(groups, group, ylabel, difference, folder):
    """One line for each way over the size of text, from disk."""
    found = [e for e in groups.get(group, []) if e.get("place") == "disk"]
    if len(found) < 2:
        return None
    figure, axes = pyplot.subplots(figsize=(7, 3.4))
    lines = {}
    for e in found:
        for way, base, result in compared(e):
            if difference and result is None or way["name"].startswith("floor-nothing"):
                continue
            y = result[3] if difference else statistics.median(way["values"])
            lines.setdefault(way["name"], []).append((e["size"], y))
    for name, points in lines.items():
        axes.plot(*zip(*points), marker="o", markersize=3, linewidth=1, label=name)
    axes.set(xscale="log", xlabel="MiB of text", ylabel=ylabel)
    axes.set_xticks([e["size"] for e in found], [str(e["size"]) for e in found])
    if difference:
        axes.set_yscale("log")
    axes.legend(fontsize=7, ncols=2, frameon=False)
    return save(figure, folder / f"{group}.svg")


def plot_ratios(groups, names, folder):
    """Ratios and intervals of the programs that everybody has, and of the databases."""
    rows = [(f"{e['id'].replace('program-', '')}: {way['name']}", result) for group in names for e in groups.get(group, [])
            for way, _, result in compared(e) if result]
    if not rows:
        return None
    figure, axes = pyplot.subplots(figsize=(7, 0.6 + 0.19 * len(rows)))
    for i, (name, (ratio, low, high, *_)) in enumerate(reversed(rows)):
        colour = "C2" if high < 1 else "C3" if low > 1 else "0.5"
        axes.plot([low, high], [i, i], color=colour, linewidth=2)
        axes.plot([ratio], [i], "o", color=colour, markersize=4)
    axes.axvline(1, color="k", linewidth=0.7)
    axes.set_yticks(range(len(rows)), [name for name, _ in reversed(rows)], fontsize=7)
    axes.set(xlabel="time, ratio to plain", ylim=(-1, len(rows)))
    return save(figure, folder / "programs.svg")


def plot_growth(groups, folder):
    found = groups.get("dsos", [])
    if len(found) < 2:
        return None
    figure, axes = pyplot.subplots(figsize=(5, 2.8))
    for name in ("main", "all"):
        points = [(e["dsos"], result[3]) for e in found for way, _, result in compared(e) if way["name"] == name]
        axes.plot(*zip(*points), marker="o", markersize=3, linewidth=1, label={"main": "LD_HUGEPAGES=main", "all": "='*'"}[name])
    axes.set(xscale="log", yscale="symlog", xlabel="DSOs", ylabel="added to the start, ms")
    axes.legend(fontsize=7, frameon=False)
    return save(figure, folder / "dsos.svg")


# --- the pages ---


def tlb_lines(tlb):
    """What `hugeld doctor` measured stands before every ratio; results of before it could have none."""
    if not tlb:
        return []
    bound = " Every ratio here is a lower bound." if tlb["verdict"] in ("pieces", "some") else ""
    return [f"**On this machine {tlb['sentence']}.**{bound} (`hugeld doctor`)", ""]


def render(data, folder, path):
    """Writes RESULTS.md to PATH and its plots into FOLDER, which is beside it."""
    groups, machine = data["groups"], data["machine"]
    pictures = {
        "start": plot_sizes(groups, "start", "added to the start, ms", True, folder),
        "calls": plot_sizes(groups, "calls", "ns for one call", False, folder),
        "programs": plot_ratios(groups, ["programs", "many", "databases"], folder),
        "dsos": plot_growth(groups, folder),
    }
    models = {found["program"]: found for found in groups.get("misses", [])}
    quick = ", quick: few rounds" if data["quick"] else ""
    lines = HEAD.format(machine=machine, quick=quick).split("\n") + tlb_lines(machine.get("tlb"))
    lines += [*deciding_tables(groups, models), "## What was slower", "", *slower(groups)]
    for name, found in groups.items():
        lines += [f"## {name}", ""]
        if pictures.get(name):
            lines += [f"![{name}]({folder.name}/{pictures[name]})", ""]
        lines += estimates(found) if name == "survey" else []
        for e in found:
            lines += table(e, models.get(e.get("program")))
    path.write_text("\n".join(lines).rstrip() + "\n")


def find(groups, identifier, name):
    """What is said of the way NAME; IDENTIFIER ends with :cpu where processor time is meant."""
    identifier, _, kind = identifier.partition(":")
    for found in (e for group in groups.values() for e in group if e["id"] == identifier):
        for way, _, result in compared(found):
            if way["name"] == name and result:
                return compare_way(way, "pair_cpu", "cpu") if kind else result
    return None


def in_words(result, of="the time"):
    ratio, low, high = result[:3]
    digits = ".2g" if ratio < 0.1 else ".2f"
    if math.isnan(low):
        return f"{ratio:{digits}} of {of}"
    words = f"{ratio:{digits}} of {of}{interval(low, high, digits)}"
    return words if is_clear(result) else f"no difference seen: {words}"


README_ROWS = [
    ("`cc1plus` of two lines, from an image", "shared-cc1plus", "mapped"),
    ("the same, with the image executed", "shared-cc1plus", "executed"),
    ("the same, with a private copy", "shared-cc1plus", "private"),
    ("`node -e 0`, from an image", "shared-node", "mapped"),
    ("`clang -c`, its libraries from images", "shared-clang", "mapped"),
    ("`java -version`, `libjvm.so` from an image", "shared-java", "mapped"),
    ("`rustc` of one function, its libraries from images", "shared-rustc", "mapped"),
    ("`git --version`, image executed", "shared-git", "executed"),
    ("Chromium `--dump-dom`, image executed", "shared-chromium", "executed"),
    ("eight `cc1plus` at once on two processors, from an image", "shared-many", "mapped"),
    ("the same, with the image executed", "shared-many", "executed"),
    ("random calls over 128 MiB of text, from an image", "shared-calls", "mapped"),
    ("memory of ten processes with 32 MiB of text, from an image", "shared-memory", "mapped"),
    ("random calls over 128 MiB of text", "calls-128-disk", "hugetlb"),
    ("random reads over 1 GiB of `.bss`, `bss=thp`", "arrays-walk", "bss-thp"),
    ("`cc1plus -O1`, 22 MiB of text", "program-cc1plus", "hugetlb"),
    ("`node`, 37 MiB of text", "program-node", "hugetlb"),
    ("eight `cc1plus` at once on two processors", "many", "hugetlb"),
    ("MariaDB, point selects: the server's processor time", "mariadb:cpu", "hugetlb"),
    ("the same, with its image executed", "mariadb:cpu", "executed"),
    ("PostgreSQL, `pgbench -S`: the server's processor time", "postgres:cpu", "hugetlb"),
    ("the same, with its image executed", "postgres:cpu", "executed"),
    ("128 MiB of text from a cold page cache, until all was touched", "cold", "hugetlb"),
    ("99.9th percentile of a request under memory pressure", "pressure-tail", "hugetlb"),
]
README_ADDED = [
    ("start of a small program with nothing to move, over an empty preloaded library", "shared-nothing", "hugeld"),
    ("start with 128 MiB of text, from an image", "shared-start-128", "mapped"),
    ("start with 512 MiB of text, from an image", "shared-start-512", "mapped"),
    ("start with 128 MiB of text", "start-128-disk", "hugetlb"),
    ("start with 128 MiB of text linked at 2 MiB, `backend=hugetlb`", "start-128-disk", "linked-hugetlb"),
    ("the same by libhugetlbfs", "start-128-disk", "linked-libhugetlbfs"),
]


README_TOP = [
    ("the C++ compiler (`cc1plus`) on two lines, from an image", "shared-cc1plus", "mapped"),
    ("`rustc` of one function, its libraries from images", "shared-rustc", "mapped"),
    ("PostgreSQL, `pgbench -S`, its image executed: the server's processor time", "postgres:cpu", "executed"),
    ("memory of ten processes with 32 MiB of text, from an image", "shared-memory", "mapped"),
    ("eight C++ compilers at once on two processors, from an image", "shared-many", "mapped"),
    ("the same with a private copy in each process", "many", "hugetlb"),
]


def top_rows(groups):
    """The six rows that README begins with; those that lose are marked."""
    lines = []
    for what, identifier, name in README_TOP:
        result = find(groups, identifier, name)
        if result:
            of = "the memory" if "memory" in identifier else "the time"
            slower_ = "**slower:** " if of == "the time" and is_clear(result) and result[0] > 1 else ""
            lines.append(f"| {what} | {slower_}{in_words(result, of)} |")
    return ["| measured | ratio to the plain program |", "| --- | --- |", *lines]


def between(text, begin, lines):
    """TEXT with LINES between the comment BEGIN and the next END; as it is where there is no such comment."""
    block = re.compile(re.escape(begin) + ".*?" + re.escape(END), re.S)
    return block.sub(lambda _: "\n".join([begin, *lines, END]), text)


def write_readme(data, path):
    """The tables between comments."""
    lines = ["| what | ratio to the plain program |", "| --- | --- |"]
    for what, identifier, name in README_ROWS:
        result = find(data["groups"], identifier, name)
        of = "the memory" if "memory" in identifier else "the time"
        lines += [f"| {what} | {in_words(result, of)} |"] if result else []
    for what, identifier, name in README_ADDED:
        result = find(data["groups"], identifier, name)
        lines += [f"| {what} | {result[3]:+.3g} ms{interval(result[4], result[5], '+.3g')} |"] if result else []
    path.write_text(between(between(path.read_text(), TOP, top_rows(data["groups"])), BEGIN, lines))


def not_yet_measured(names, runs, this):
    """Those of NAMES whose last run, of RUNS, was not of what THIS one is of: the same hugeld, machine and number of rounds."""
    return [name for name in names if {key: runs.get(name, {}).get(key) for key in this} != this]


def in_minutes(seconds):
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:.{0 if seconds >= 600 else 1}f} minutes"


def load(folder):
    data = json.loads((folder / "machine.json").read_text())
    names = data.pop("names")
    data.setdefault("runs", {})
    data["groups"] = {name: json.loads((folder / f"{name}.json").read_text()) for name in names}
    return data


def store(data, folder):
    """A file for each group, one way a line."""
    folder.mkdir(parents=True, exist_ok=True)
    head = {"machine": data["machine"], "quick": data["quick"], "names": list(data["groups"]), "runs": data["runs"]}
    (folder / "machine.json").write_text(json.dumps(head, indent=1) + "\n")
    for name, found in data["groups"].items():
        text = json.dumps(found, separators=(", ", ": ")).replace('{"name"', '\n {"name"').replace('{"id"', '\n{"id"')
        (folder / f"{name}.json").write_text(text + "\n")
