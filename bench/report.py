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

BEGIN, END = "<!-- from bench/results by bench/run -->", "<!-- end -->"


def show(value):
    """Four digits that count."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def compared(found):
    """(way, its base or None, compare(...) or None) of an experiment, in order."""
    by_name = {way["name"]: way for way in found["ways"]}
    for way in found["ways"]:
        base = by_name.get(way["base"])
        if "pair" in way:
            yield way, {"name": way["base"]}, compare_pairs(way["pair"], way["values"])
        else:
            yield way, base, compare(base["values"], way["values"]) if base else None


def interval(low, high, digits):
    return "" if math.isnan(low) else f" [{low:{digits}}, {high:{digits}}]"


def is_clear(result):
    return result is not None and (result[1] > 1 or result[2] < 1)


LAYOUTS = {"plain-again": "plain", "hugetlb": "private", "private": "private", "thp": "private", "rodata": "image",
           "mapped": "image", "executed": "image"}  # what a way is in the group misses
MODELLED = "zen4"


def misses_of(way, model):
    """The cell of a column that is there if misses of the program were modelled, of this run or another; the column's head, if WAY is None."""
    if model is None:
        return []
    if way is None:
        return [f"modelled misses ({MODELLED}; {model['title']}), plain {misses.in_thousand(model, 'plain', MODELLED)}"]
    return [misses.in_thousand(model, LAYOUTS[way], MODELLED) if way in LAYOUTS else ""]


def paired_table(found, model=None):
    """Of ways that each ran at the same time as what they are compared with."""
    unit = found["unit"]
    head = ["way", f"median{', ' + unit if unit else ''}", "against", "its median", "difference", "ratio", "processor time",
            "huge pages", *misses_of(None, model)]
    lines = [f"### {found['title']}", "", *([found["note"], ""] if found["note"] else []),
             f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for way, base, result in compared(found):
        cpu = compare_pairs(way["pair_cpu"], way["cpu"])
        words = [f"{r[0]:.3f}{interval(r[1], r[2], '.3f')}" for r in (result, cpu)]
        words = [f"**{text}**" if is_clear(r) else text for text, r in zip(words, (result, cpu))]
        lines.append("| " + " | ".join([
            way["name"], show(statistics.median(way["values"])), base["name"], show(statistics.median(way["pair"])),
            f"{result[3]:+.3g}{interval(result[4], result[5], '+.3g')}", *words, way["huge"],
            *misses_of(way["name"], model)]) + " |")
    rounds = min(len(way["values"]) for way in found["ways"])
    return lines + ["", f"{rounds} pairs each, at the same time{', ' + found['date'] if 'date' in found else ''}.", ""]


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


OTHERS = ("libhugetlbfs", "floor", "nm-", "-again")  # ways that are not hugeld's


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
    lines += ["## What was slower", "", *slower(groups)]
    for name, found in groups.items():
        lines += [f"## {name}", ""]
        if pictures.get(name):
            lines += [f"![{name}]({folder.name}/{pictures[name]})", ""]
        for e in found:
            lines += table(e, models.get(e.get("program")))
    path.write_text("\n".join(lines).rstrip() + "\n")


def find(groups, identifier, name):
    """What is said of the way NAME; IDENTIFIER ends with :cpu where processor time is meant."""
    identifier, _, kind = identifier.partition(":")
    for found in (e for group in groups.values() for e in group if e["id"] == identifier):
        for way, _, result in compared(found):
            if way["name"] == name and result:
                return compare_pairs(way["pair_cpu"], way["cpu"]) if kind else result
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
    ("the same, from an image", "mariadb:cpu", "mapped"),
    ("PostgreSQL, `pgbench -S`: the server's processor time", "postgres:cpu", "hugetlb"),
    ("the same, from an image", "postgres:cpu", "mapped"),
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


def write_readme(data, path):
    """The table between two comments."""
    lines = [BEGIN, "| what | ratio to the plain program |", "| --- | --- |"]
    for what, identifier, name in README_ROWS:
        result = find(data["groups"], identifier, name)
        of = "the memory" if "memory" in identifier else "the time"
        lines += [f"| {what} | {in_words(result, of)} |"] if result else []
    for what, identifier, name in README_ADDED:
        result = find(data["groups"], identifier, name)
        lines += [f"| {what} | {result[3]:+.3g} ms{interval(result[4], result[5], '+.3g')} |"] if result else []
    text = path.read_text()
    block = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.S)
    if block.search(text):
        path.write_text(block.sub(lambda _: "\n".join([*lines, END]), text))


def not_yet_measured(names, runs, this):
    """Those of NAMES whose last run, of RUNS, was not of what THIS one is of: the same hugeld, machine and number of rounds."""
    return [name for name in names if {key: runs.get(name, {}).get(key) for key in this} != this]


def in_minutes(seconds):
    return f"{seconds / 60:.0f} minutes" if seconds >= 600 else f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{seconds:.0f} s"


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
