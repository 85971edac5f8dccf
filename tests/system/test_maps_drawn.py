# SPDX-License-Identifier: LGPL-2.1-or-later
"""The maps that inspect and status draw: each character against smaps and the plan."""

import fcntl
import os
import re
import struct
import termios

import pytest

import helpers
from hugepages import compact_memory
from objects import PF_W, PT_LOAD, read_headers
from smaps import read_smaps

ROW = re.compile(r"^    0x([0-9a-f]{12}) (\S+)$", re.M)
SIMILAR = re.compile(r"^    \.\.\. (\d+) more rows? like this$")


def read_map(text):
    """(mark at each huge page's address, {mark: words}) of the first map in TEXT."""
    cells, legend, rows = {}, {}, 0
    last = None
    for line in text.splitlines():
        row, similar = ROW.match(line), SIMILAR.match(line)
        entry = re.match(r"^      ([A-Za-z-])  (\d+) (pages?|KiB small|KiB not touched yet): (.*)$", line)
        if row:
            last = int(row[1], 16), row[2]
            cells.update({last[0] + i * helpers.HUGE: mark for i, mark in enumerate(last[1])})
            rows += 1
        elif similar:
            for n in range(1, int(similar[1]) + 1):
                start = last[0] + n * len(last[1]) * helpers.HUGE
                cells.update({start + i * helpers.HUGE: mark for i, mark in enumerate(last[1])})
        elif entry:
            legend.setdefault(entry[1], []).append((int(entry[2]), entry[4]))
        elif legend:
            break
    assert rows
    return cells, legend


def on_terminal(argv, columns, **changes):
    """The output of ARGV on a terminal that is COLUMNS wide."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = helpers.start(argv, helpers.environment(**{"TERM": "xterm", **changes}), stdout=slave)
    os.close(slave)
    output = b""
    try:
        while chunk := os.read(master, 65536):
            output += chunk
    except OSError:  # the other side was closed
        pass
    os.close(master)
    process.wait(timeout=helpers.PATIENCE)
    helpers.end_process(process)
    return output.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("backend", ["hugetlb", "thp"])
def test_status_draws_what_smaps_says(builder, library, pause_library, pool, thp, backend):
    pool(64)
    app = builder.executable("aligned", words=6 * 2**17)
    env = helpers.preload(library, pause_library, options=f"backend={backend},data=off")
    with helpers.paused([app], env, app.name) as process:
        cells, legend = read_map(helpers.hugeld("status", process.pid).stdout)
        mappings = read_smaps(process.pid)
    mark = {"hugetlb": "H", "thp": "T"}[backend]
    moved = [m for m in mappings if (m.hugetlb_bytes or m.thp_bytes) and not m.name.startswith("[")]
    expected = {at for m in moved for at in range(m.start, m.end, helpers.HUGE)}
    assert expected and {at for at, drawn in cells.items() if drawn == mark} == expected
    assert sum(pages for pages, _ in legend[mark]) == len(expected)
    assert any("data=off" in words for letter in legend.values() for _, words in letter)


def test_status_says_when_the_pool_was_short(builder, library, pause_library, pool):
    pool(0)
    app = builder.executable("nopie")
    env = helpers.preload(library, pause_library, options="backend=hugetlb")
    with helpers.paused([app], env, app.name) as process:
        cells, legend = read_map(helpers.hugeld("status", process.pid).stdout)
    assert not set(cells.values()) & set("HTF")
    assert "start it with verbose=1, which says why" in legend[cells[0x400000]][0][1]


def test_inspect_draws_the_plan(builder):
    app = builder.executable("nopie")
    [plan] = helpers.hugeld_json("inspect", app)["files"]
    cells, legend = read_map(helpers.hugeld("inspect", app).stdout)
    planned = {at for s in plan["plan"]["spans"] if s["kind"] in ("text", "rodata")
               for at in range(int(s["start"], 16), int(s["end"], 16), helpers.HUGE)}
    assert {at for at, mark in cells.items() if mark == "H"} == planned
    assert sum(pages for pages, _ in legend["H"]) == len(planned)
    small = sum(kib for mark, lines in legend.items() if mark.islower() for kib, _ in lines)
    total = sum(int(s["end"], 16) - int(s["start"], 16) for s in plan["plan"]["segments"])
    covered = sum(s["covered_bytes"] for s in plan["plan"]["segments"])
    assert 0 <= small - (total - covered) / 1024 < len(legend) + 1  # each line rounds up


def reasons_by_segment(text):
    """[(KiB, words)] of the lines that give the parts of a segment that stay."""
    lines = re.findall(r"^    segment \d+ \S+ \S+ stays: (\d+) KiB: (.*)$", text, re.M)
    return [(kib, re.sub(r" \((set|link) [^)]*\)$", "", words)) for kib, words in lines]


@pytest.mark.parametrize("options", ["segments=text", "edges=small,data=thp", "bss=thp"])
def test_map_and_segments_give_the_same_reasons(builder, options):
    apps = [builder.executable("nopie"), builder.executable("aligned"), builder.tiny(), "/bin/sh", os.path.realpath("/usr/bin/python3")]
    for app in apps:
        text = helpers.hugeld("inspect", "-o", options, app).stdout
        _, legend = read_map(text)
        drawn = {words for mark, lines in legend.items() if mark.islower() for _, words in lines}
        assert drawn == {words for _, words in reasons_by_segment(text)}, text


def test_no_option_is_blamed_for_what_it_would_not_move(builder):
    """Read-only data in which no whole huge page lies stays with each value of segments=."""
    app = builder.tiny()
    for options in ("segments=text", "segments=text+rodata"):
        text = helpers.hugeld("inspect", "-o", options, app).stdout
        assert "segments=text leaves" not in text and "no whole huge page lies inside" in text
        [file] = helpers.hugeld_json("inspect", "-o", options, app)["files"]
        assert {s["reason"] for s in file["plan"]["segments"] if "w" not in s["flags"]} == {"too-small"}


def test_status_and_inspect_give_the_same_reasons(builder, pause_library):
    app = builder.executable("nopie")
    with helpers.paused([app], helpers.environment(LD_PRELOAD=pause_library), app.name) as process:
        told = [helpers.hugeld(*command, process.pid).stdout for command in (("status",), ("inspect", "--pid"))]
    of_status, of_inspect = (read_map(text)[1] for text in told)
    small = [{line for mark, lines in legend.items() if mark.islower() for line in lines} for legend in (of_status, of_inspect)]
    assert small[1] <= small[0], told
    assert all(words.endswith("use hugeld run --copy") for _, words in small[0] - small[1]), told  # the plan


PARTLY = """
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
enum { HUGE = 2 << 20, PAGES = 6 };
static char array[PAGES * HUGE] __attribute__((aligned(HUGE)));
int main(void) {
    if (madvise(array, sizeof array, MADV_HUGEPAGE) != 0)
        return 1;
    array[1 * HUGE] = array[3 * HUGE] = 1;
    printf("%p\\n", (void *)array);
    fflush(stdout);
    return (int)pause();
}
"""


def test_status_draws_no_more_than_is_huge(builder, thp, tmp_path):
    """status draws a mapping of six huge pages of which two were touched."""
    (tmp_path / "partly.c").write_text(PARTLY)
    app = builder.compile(tmp_path / "partly", "-no-pie", tmp_path / "partly.c")
    for _ in range(5):
        process = helpers.start([app])
        try:
            array = int(process.stdout.readline(), 16)
            huge = sum(m.thp_bytes for m in read_smaps(process.pid)) // helpers.HUGE
            cells, legend = read_map(helpers.hugeld("status", process.pid).stdout)
        finally:
            helpers.end_process(process)
        if huge == 2:
            break
        compact_memory()
    if huge != 2:
        pytest.skip("the kernel had no huge pages")
    if "?" in cells.values():  # before Linux 6.7
        assert "T" not in cells.values()
        return
    assert [cells[array + i * helpers.HUGE] for i in range(6)] == list("-T-T--")
    assert legend["T"] == [(2, "bss, thp")] and legend["-"] == [(8192, "bss, thp")]


@pytest.mark.parametrize("options, marks", [("backend=thp", "T"), ("segments=text,data=off,bss=thp", "HT")])
def test_marks_follow_the_options(builder, options, marks):
    app = builder.executable("aligned", words=6 * 2**17)
    cells, _ = read_map(helpers.hugeld("inspect", "-o", options, app).stdout)
    assert set(marks) <= set(cells.values())


def build_sparse(builder, folder, bytes_):
    source = folder / "sparse.s"
    source.write_text(f".globl _start\n_start: nop\n.bss\n.space {bytes_}\n")
    return builder.compile(folder / "sparse", "-nostartfiles", "-Wl,--no-as-needed", "-no-pie", "-mcmodel=large", source)


def test_width_follows_the_window(builder, tmp_path):
    big = build_sparse(builder, tmp_path, 400 << 20)
    for columns in (40, 80, 200):
        text = on_terminal([helpers.HUGELD, "inspect", big], columns, NO_COLOR=1)
        rows = ROW.findall(text)
        assert rows and all(19 + len(marks) <= columns for _, marks in rows)
        assert all(len(marks) % 16 == 0 for _, marks in rows[:-1])
        assert max(len(marks) for _, marks in rows) == min((columns - 19) // 16 * 16, len(read_map(text)[0]))
    wide = helpers.hugeld("inspect", big, env=helpers.environment(COLUMNS=200)).stdout
    assert read_map(wide) == read_map(helpers.hugeld("inspect", big).stdout)


def test_colours(builder):
    command = [helpers.HUGELD, "inspect", builder.executable("nopie")]
    coloured = on_terminal(command, 80)
    assert "\x1b[30;42mH" in coloured
    plain = helpers.run(command).stdout
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    assert on_terminal(command, 80, NO_COLOR=1) == on_terminal(command, 80, TERM="dumb") == plain
    assert on_terminal(command, 80, NO_COLOR="") == coloured


def test_much_of_the_same_is_one_row(builder, tmp_path):
    """64 GiB of .bss, and a file whose header says 2^46 bytes."""
    app = build_sparse(builder, tmp_path, 64 << 30)
    text = helpers.hugeld("inspect", app).stdout
    assert len(text.splitlines()) < 20
    cells, legend = read_map(text)
    assert sum(mark.islower() for mark in cells.values()) >= 64 << 9
    for header in read_headers(app):
        if header.type == PT_LOAD and header.flags & PF_W:
            with open(app, "r+b") as file:
                file.seek(header.position + 40)
                file.write(struct.pack("<Q", 1 << 46))
    result = helpers.hugeld("inspect", app)
    assert result.returncode == 0 and len(result.stdout.splitlines()) < 20
