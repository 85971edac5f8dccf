# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reading perf maps, and the moved text of a process, by the tests themselves."""

import collections
import pathlib
import re
import subprocess

from objects import read_objects
from smaps import read_smaps

NOBODY = 65534

Line = collections.namedtuple("Line", "start end name")


MARK = "0 1 hugeld\n"

# Objects that another user may have put in the place of a process's map: shell commands for a shell that becomes it.
PLANTED = {
    "file": "echo precious > /tmp/perf-$$.map",
    "symlink": "echo precious > /tmp/victim; chmod 666 /tmp/victim; ln -s victim /tmp/perf-$$.map",
    "hard-link": "echo precious > /tmp/victim; chmod 666 /tmp/victim; ln /tmp/victim /tmp/perf-$$.map",
    "folder": "mkdir /tmp/perf-$$.map; chmod 777 /tmp/perf-$$.map",
    "fifo": "mkfifo -m 666 /tmp/perf-$$.map",
}


def read_map(text):
    """The lines of a map, but for the marks."""
    lines = []
    for line in text.splitlines():
        if line + "\n" == MARK or not line:
            continue
        start, size, name = re.fullmatch(r"([0-9a-f]+) ([0-9a-f]+) (.+)", line).groups()
        lines.append(Line(int(start, 16), int(start, 16) + int(size, 16), name))
    return lines


def text_ranges(pid, path):
    """The moved text of PATH in PID: the executable mappings inside it that are not the file's."""
    mappings = read_smaps(pid)
    found = next(o for o in read_objects(pid, mappings) if o.path == str(path))
    ranges = []
    for m in mappings:
        if "x" in m.permissions and found.start <= m.start < found.end and m.name != str(path):
            if ranges and ranges[-1][1] == m.start:
                ranges[-1] = (ranges[-1][0], m.end)
            else:
                ranges.append((m.start, m.end))
    return found.bias, ranges


def functions(path):
    """(start, size, name) of the functions in .symtab of PATH, else in .dynsym, by readelf."""
    found = {}
    text = subprocess.run(["readelf", "-sW", path], check=True, capture_output=True, text=True).stdout
    for table in re.split(r"^Symbol table ", text, flags=re.M)[1:]:
        rows = re.findall(r"^ *\d+: ([0-9a-f]+) +(\w+) (?:FUNC|IFUNC) .* ([0-9]+) (\S+)(?: \(\d+\))?$", table, re.M)
        found[table.split("'")[1]] = [(int(start, 16), int(size, 0), name.split("@")[0]) for start, size, _, name in rows]
    return found.get(".symtab") or found[".dynsym"]


def names_by_start(path):
    """All names of the symbols that begin at each address, by nm."""
    names = {}
    for options in ([], ["-D"]):
        text = subprocess.run(["nm", "--defined-only", *options, path], capture_output=True, text=True).stdout
        for start, name in re.findall(r"^([0-9a-f]{16}) [tTwWiVvu] (.+)$", text, re.M):
            names.setdefault(int(start, 16), set()).add(name.split("@")[0])
    return names


def map_path(process):
    """The path of the map of PROCESS, also when it has another /tmp."""
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    number = re.search(r"^NSpid:.*?(\d+)$", status, re.M)[1]
    return pathlib.Path(f"/proc/{process.pid}/root/tmp/perf-{number}.map")


def leftovers(folder, pid=""):
    """Unfinished maps; those of one process where others may be writing theirs."""
    return [path.name for path in pathlib.Path(folder).glob(f".perf-{pid}*")]
