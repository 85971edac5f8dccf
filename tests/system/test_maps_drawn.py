# SPDX-License-Identifier: LGPL-2.1-or-later
"""The maps that inspect and status draw: each character against smaps and the plan."""

import re
import struct

import pytest

import helpers
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


def build_sparse(builder, folder, bytes_):
    source = folder / "sparse.s"
    source.write_text(f".globl _start\n_start: nop\n.bss\n.space {bytes_}\n")
    return builder.compile(folder / "sparse", "-nostartfiles", "-Wl,--no-as-needed", "-no-pie", "-mcmodel=large", source)


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
