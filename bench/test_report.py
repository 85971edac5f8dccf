# SPDX-License-Identifier: LGPL-2.1-or-later
"""bench/report.py: the groups that are measured again, and the tables' contents."""

import pytest

import helpers
import report


THIS = {"hugeld": "0123", "kernel": "Linux 6.18", "cpu": "EPYC", "quick": False}


def test_what_was_measured_is_left_out():
    runs = {"image": {**THIS, "seconds": 300}, "start": {**THIS, "hugeld": "4567", "seconds": 20},
            "calls": {**THIS, "quick": True, "seconds": 5}}
    assert report.not_yet_measured(["image", "start", "calls", "cold"], runs, THIS) == ["start", "calls", "cold"]
    assert report.not_yet_measured(["image"], runs, {**THIS, "kernel": "Linux 7.0"}) == ["image"]


def test_what_is_stored_says_the_same(tmp_path):
    """Rounds are not published: their summary is, and it is not lost when it is stored, loaded and stored again."""
    alone = {"name": "fast", "base": "slow", "values": [2.0] * 8, "huge": ""}
    found = [experiment("cc1plus", way("mapped", 0.9)), {"id": "start", "title": "Start", "unit": "ms", "note": "",
             "ways": [{"name": "slow", "base": None, "values": [4.0] * 8, "huge": ""}, alone]},
             experiment("few", {**way("mapped", 0.9), **{key: [1.0] * 3 for key in ("pair", "values", "cpu", "pair_cpu")}})]
    runs = {"image": {**THIS, "seconds": 300}}
    report.store({"machine": {}, "quick": False, "groups": {"image": [report.summarise(one) for one in found]}, "runs": runs}, tmp_path)
    stored = report.load(tmp_path)["groups"]["image"]
    assert report.load(tmp_path)["runs"] == runs
    tables = [report.table(one) for one in stored]
    assert "| mapped | 90.85 | plain | 101 |" in tables[0][4] and "**0.900 [" in tables[0][4] and tables[0][6].startswith("20 pairs each")
    assert "| fast | 2 | slow | -2 [-2, -2] | **0.500 [0.500, 0.500]** |" in tables[1][5] and tables[1][7] == "8 rounds."
    assert "| 1.000 |" in tables[2][4]  # three rounds have no interval
    assert not any("values" in way for one in stored for way in one["ways"])
    assert [report.summarise(one) for one in stored] == stored


def test_the_worst_of_what_was_slower():
    ways = [way(f"w{i}", 1 + i / 10) for i in range(1, 25)] + [way("mapped", 0.9), way("libhugetlbfs", 9)]
    lines = report.slower({"more": [experiment("a", *ways)]})
    assert [cells(line)[1] for line in lines[2:-3]] == [f"w{i}" for i in range(24, 19, -1)]
    assert lines[-2] == "19 more were slower by less." and report.slower({"more": [experiment("a", way("mapped", 0.9))]})[0] == "Nothing was."


@pytest.mark.parametrize("seconds, words", [(0.4, "0 s"), (59, "59 s"), (90, "1.5 minutes"), (5400, "90 minutes")])
def test_times_in_words(seconds, words):
    assert report.in_minutes(seconds) == words


def way(name, ratio, **more):
    """Twenty pairs at RATIO, some thousandths more or less."""
    pair = [100 + i % 3 for i in range(20)]
    values = [ratio * p * (1 + (i % 5 - 2) / 1000) for i, p in enumerate(pair)]
    return {"name": name, "base": "plain", "values": values, "pair": pair, "cpu": values, "pair_cpu": pair, "huge": "", **more}


def experiment(name, *ways, **more):
    return report.summarise({"id": f"program-{name}", "title": f"{name}, a run of 0.1 s", "unit": "ms", "note": "", "ways": list(ways),
                             "program": name, **more})


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_program_and_its_ways():
    start = {"start_values": [9.0] * 12, "start_pair": [7.0] * 12}
    found = experiment("cc1plus", way("plain-again", 1), way("hugetlb", 1.2, **start), way("mapped", 0.9, **start),
                       way("rodata", 1), memory={"plain": 50, "plain-again": 50, "hugetlb": 74, "mapped": 52, "rodata": 80}, folio_kib=131.7, adjacent=0.43, frames=990, frames_least=5)
    alone = experiment("redis", way("executed", 1))
    assert report.deciding_tables({"dsos": []}) == []
    lines = report.deciding_tables({"programs": [found], "servers": [alone]})
    assert lines[0] == "## At a glance" and "## Beside others" not in lines
    [head, _, row, other] = [cells(line) for line in lines if line.startswith("|")]
    of = dict(zip(head, row, strict=True))
    assert (of["program"], of["folios, KiB"], of["adjacent"], of["frames"]) == ("cc1plus, a run of 0.1 s", "131.7", "43%", "990")
    assert of["private copy"].startswith("**1.200 [") and of["image"].startswith("**0.900 [") and of["image, executed"] == "–"
    assert (of["MiB, plain"], of["MiB, private copy"], of["MiB, image"]) == ("50", "74", "52")
    assert (of["start, private copy"], of["start, image"]) == ("+2 [+2, +2]", "+2 [+2, +2]")
    assert other[6].startswith("1.000 [") and {*other[1:6], *other[7:]} == {"–"}
    assert report.heading(found)[2] == ("The plain program's file lies in folios of 131.7 KiB. The next page is adjacent for 43% of its "
                                        "pages, which lie in 990 frames of 2 MiB (at least 5).")


def test_what_others_do_and_what_cannot_be_done():
    start = {"start_values": [9.0] * 12, "start_pair": [7.0] * 12}
    found = experiment("calls", way("plain-again", 1), way("mapped", 0.8), way("libhugetlbfs", 0.7, needs="relinked", **start),
                       absent={}, memory={"plain": 32, "libhugetlbfs": 66})
    stock = experiment("stock", way("mapped", 0.9, **start), way("libhugetlbfs", 1.1, **start), absent={"bolt": "cannot rewrite the stock binary"})
    other = experiment("other", way("bolt", 0.7, needs="a profile", **start), absent={})
    lines = report.deciding_tables({"alternatives": [found, stock, other]})
    [head, _, *rows] = [cells(line) for line in lines if line.startswith("|")]
    rows = {row[0]: row[1:] for row in rows}
    assert head[1] == "calls, a run of 0.1 s; plain 32 MiB" and list(rows) == ["image", "libhugetlbfs", "bolt"]
    assert rows["libhugetlbfs"][0].startswith("**0.700 [") and rows["libhugetlbfs"][0].endswith("**, 66 MiB, +2 ms")
    assert rows["image"][0].endswith("**, – MiB, – ms")
    assert (rows["image"][-1], rows["libhugetlbfs"][-1]) == ("as it is", "relinked, or as it is")
    assert rows["bolt"][:2] == ["–", "cannot rewrite the stock binary"] and rows["bolt"][-1] == "a profile"
    table = report.table(stock)
    assert {len(cells(line)) for line in table if line.startswith("|")} == {len(cells(table[2]))}
    assert any(line.startswith("| bolt | cannot") for line in table)


def test_single_pages_are_left_to_the_long_page():
    one, twin = ({**experiment("cc1plus", way("mapped", 0.9)), "id": f"more-cc1plus-{state}"} for state in ("large", "scattered"))
    lines = report.deciding_tables({"more": [twin, one]})
    assert sum(line.startswith("| cc1plus") for line in lines) == 1


def test_by_the_state_of_memory():
    """A row for each state, and in the README what is saved, as a range of all programs."""
    layout = {"adjacent": 0.43, "frames": 990, "frames_least": 5}
    groups = {"layouts": [{**experiment("x", way("plain-again", 1), way("in-order", 0.95), way("run", ratio), **layout), "id": f"layouts-{name}-{state}"}
                          for name, state, ratio in (("clang", "found", 0.9), ("clang", "large", 1), ("rustc", "found", 0.8))],
              "mysql": [{**experiment("y", way("run", 0.85), **layout), "id": "mysql-point-select"}]}
    lines = report.deciding_tables(groups)
    rows = [cells(line) for line in lines if line.startswith("|")]
    assert [row[:4] for row in rows[2:]] == [[program, words, "43%", "990 (5)"] for program, words in (
        ("MySQL, point selects", "as after a boot"), ("clang, one file", "as after a boot"), ("clang, one file", "just read in order"),
        ("rustc, one file", "as after a boot"))]
    assert [row[6][:7] for row in rows[2:]] == ["**0.850", "**0.900", "1.000 [", "**0.800"] and rows[2][5] == "–"
    said = report.readme_states(groups, {"layouts": THIS, "mysql": {"cpu": "Intel(R) Xeon(R) Processor"}})
    assert " ".join(said) == ("By `hugeld run` large programs (MySQL, clang, rustc) need less processor time, by where their own file lies in "
                              "memory: 10 to 20 % as after a boot, 0 % just read in order (EPYC and Intel Xeon). ")
    assert max(map(len, said)) <= 80 and report.readme_states({}, {}) == []
    groups["mysql"][0]["ways"][0]["cpu_result"] = groups["mysql"][0]["ways"][0]["result"] = [1.07, 1.05, 1.09, 1, 1, 1]
    assert " ".join(report.readme_states(groups, {"mysql": THIS})) == (
        "By `hugeld run` large programs (clang, rustc) need less processor time, by where their own file lies in memory: 10 to 20 % as after "
        "a boot, 0 % just read in order; but MySQL needs 7 % more, its file as after a boot (EPYC). ")
    assert [report.percent_saved(result) for result in ((0.97, 0.93, 1.01), (0.96, 0.95, 0.97), (1.03, 1.02, 1.04))] == [0, 4, -3]


def test_the_table_of_the_readme(tmp_path):
    """The largest gain first, whatever the order of the rows says."""
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{report.TOP}\nold\n{report.END}\nafter\n")
    groups = {"image": [{**experiment("chromium", way("executed", 1.1)), "id": "image-chromium"},
                        {**experiment("rustc", way("private", 0.9)), "id": "image-rustc"}],
              "more": [{**experiment("clang", {**way("plain-again", 1), "huge": "9 MiB of files"}, way("mapped", 1)), "id": "more-clang-tree"}]}
    report.write_readme({"groups": groups, "runs": {}}, readme)
    before, rows = readme.read_text().split("| --- | --- | --- |\n")
    assert "old" not in before and before.startswith("before\n") and rows.endswith("\nafter\n")
    rows = [cells(line) for line in rows.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows] == ["rustc of one function", "clang on seven files (huge already)", "Chromium, processor time"]
    assert rows[0][1:] == ["copies", report.with_interval(report.find(groups, "image-rustc", "private"))]
    assert "| Chromium `--dump-dom`, image executed | **slower:** 1.10 of the time [" in "\n".join(report.more_figures(groups))


def test_the_readme_is_its_output(tmp_path):
    """Nothing in the tables was written by hand, and every row of theirs was measured."""
    readme = tmp_path / "README.md"
    readme.write_text((helpers.ROOT / "README.md").read_text())
    data = report.load(helpers.ROOT / "bench/results")
    assert [row for row in report.README_ROWS if report.find(data["groups"], *row[2:]) is None] == []
    report.write_readme(data, readme)
    assert readme.read_text() == (helpers.ROOT / "README.md").read_text()
    report.render(data, tmp_path / "RESULTS.md")
    assert (tmp_path / "RESULTS.md").read_text() == (helpers.ROOT / "bench/RESULTS.md").read_text()
