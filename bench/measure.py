# SPDX-License-Identifier: LGPL-2.1-or-later
"""How it is measured: several ways of running one thing take turns, so that the machine's other load falls on all alike."""

import collections
import contextlib
import glob
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

import pagecache
from helpers import BUILD, LIBRARY
from intervals import compare

OUT = BUILD / "bench"
LINKER = BUILD / "ldso/ld.so"


def environment(**changes):
    """This process's, without the dynamic linker's variables; None leaves a variable out."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LD_", "HUGETLB_"))}
    env.update({k: str(v) for k, v in changes.items() if v is not None}, LC_ALL="C")
    return env


class Variant:
    """One way of running something: NAME, the way that it is compared with, variables, words; whether it prints its ms itself."""

    prints = False
    needs = ""  # the change that the program as installed needs

    def __init__(self, name, argv, base="plain", **variables):
        self.name, self.argv, self.base = name, [str(a) for a in argv], base
        self.variables = {k: str(v) for k, v in variables.items() if v is not None}

    @property
    def env(self):
        return environment(**self.variables)


def hugeld(name, argv, options="", objects=None, base="plain"):
    return Variant(name, argv, base, LD_PRELOAD=LIBRARY, LD_HUGEPAGES_OPTIONS=options or None, LD_HUGEPAGES=objects)


def find_libhugetlbfs():
    found = glob.glob("/usr/lib/*/libhugetlbfs.so.0") + glob.glob("/usr/lib/*/libhugetlbfs.so")
    return found[0] if found and os.getuid() == 0 else None


def libhugetlbfs(name, argv, elfmap="R", base="plain"):
    return Variant(name, argv, base, LD_PRELOAD=find_libhugetlbfs(), HUGETLB_ELFMAP=elfmap)


def compile_c(output, *arguments):
    subprocess.run(["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-D_GNU_SOURCE", "-o", output, *map(str, arguments)],
                   check=True)
    return output


def copy_of(file, kind, parent=OUT / "copies"):
    """The copy of FILE of this KIND, below PARENT, which no other process maps."""
    copy = parent / kind / os.path.basename(file)
    copy.parent.mkdir(parents=True, exist_ok=True)
    if not copy.exists() or copy.stat().st_mtime != os.stat(file).st_mtime:
        shutil.copy2(file, copy)
    return copy


class Measured(dict):
    """{name: that way's measurements}; and the pagecache.Layout of the plain program's file meanwhile, or None."""

    layout = None


FILE_MIN = 1 << 20  # bytes; how a smaller file lies in the page cache decides little


def plain_files(ways):
    """The ELF files that the first of WAYS names: a shell that calls it is too small to count."""
    found = []
    for word in ways[0].argv:
        path = pathlib.Path(os.path.realpath(word))
        if os.path.isabs(word) and path.is_file() and path.stat().st_size >= FILE_MIN and path.open("rb").read(4) == b"\x7fELF":
            found.append(path)
    return found


def unchanged(measure):
    """MEASURE(ways, rounds, ...), done again if the plain program's files lie in the page cache otherwise than before.  FILES:
    those files, if its words do not name them."""
    def inner(ways, *arguments, files=None, **more):
        found, layout = pagecache.measure_unchanged(plain_files(ways) if files is None else files, lambda: measure(ways, *arguments, **more))
        found = Measured(found)
        found.layout = layout
        return found
    return inner


def run_way(way, prints):
    """(ms from just before the program is started to its end, or with PRINTS the number that it prints first; ms of processor time with
    its children's)."""
    with tempfile.TemporaryFile() as output:
        actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, output.fileno(), 1),
                   (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)]
        start = time.monotonic()
        _, status, usage = os.wait4(os.posix_spawnp(way.argv[0], way.argv, way.env, file_actions=actions), 0)
        value = (time.monotonic() - start) * 1e3
        code = os.waitstatus_to_exitcode(status)
        if code != 0:
            how = f"exit status {code}" if code > 0 else f"signal {-code}"
            raise RuntimeError(f"{way.name}: {how} ({' '.join(way.argv)[:200]})")
        if prints or way.prints:
            output.seek(0)
            found = re.match(rb"\s*([-+0-9.eE]+)", output.read())
            if found is None:
                raise RuntimeError(f"{way.name}: it printed no number")
            value = float(found[1])
    return value, (usage.ru_utime + usage.ru_stime) * 1e3


def start_runner(way, prints, processor, gate):
    """A process that runs WAY on PROCESSOR once the pipe GATE has ended: (its ID, the end of a pipe with its answer)."""
    answer, own = os.pipe()
    pid = os.fork()
    if pid != 0:
        os.close(own)
        return pid, answer
    try:
        os.sched_setaffinity(0, {processor})
        os.close(gate[1])
        os.write(own, b"\n")  # it is ready
        os.read(gate[0], 1)
        os.write(own, json.dumps(run_way(way, prints)).encode())
    except (OSError, RuntimeError) as error:
        os.write(own, json.dumps(str(error)).encode())
    os._exit(0)


def run_both(ways, prints, turn):
    """[run_way's answer] of two WAYS at the same time, each on a processor of its own, and with a process of its own that waits for it
    there: one that waited for both would push the other program aside first.  They swap the processors in each TURN, and the start
    every second time."""
    processors = sorted(os.sched_getaffinity(0))[:2]
    if len(processors) < 2:
        raise RuntimeError("two runs at the same time need two processors")
    gate, runners = os.pipe(), {}
    for i in ((0, 1), (1, 0))[turn // 2 % 2]:
        runners[i] = start_runner(ways[i], prints, processors[(turn + i) % 2], gate)
    for _, answer in runners.values():
        os.read(answer, 1)
    for end in gate:
        os.close(end)
    found = []
    for i in (0, 1):
        with open(runners[i][1], "rb") as answer:
            found.append(json.loads(answer.read() or '"its runner has ended"'))
        os.waitpid(runners[i][0], 0)
    for problem in found:
        if isinstance(problem, str):
            raise RuntimeError(problem)
    return found


def time_rounds(ways, rounds, prints=False, together=False):
    """[(values, ms of processor time), one for each round] of each of WAYS.  Every round runs each once, beginning with another one
    each time; with TOGETHER there are two, which run at the same time.  The first tenth of the rounds is warm-up and does not count."""
    warm_up, found = rounds // 10 + 1, [([], []) for _ in ways]
    for turn in range(warm_up + rounds):
        if together:
            answers = dict(enumerate(run_both(ways, prints, turn)))
        else:
            answers = {i % len(ways): run_way(ways[i % len(ways)], prints) for i in range(turn, turn + len(ways))}
        for i in answers if turn >= warm_up else ():
            for values, value in zip(found[i], answers[i]):
                values.append(value)
    return found


@unchanged
def pairs(ways, rounds, prints=False):
    """{name: values}, all in turns: ms, or the number that the program prints first."""
    return {way.name: values for way, (values, _) in zip(ways, time_rounds(ways, rounds, prints))}


@unchanged
def at_once(ways, rounds, prints=False):
    """{name: {values, pair, cpu, pair_cpu}} of each way that has a base: both run at the same time, on two processors that
    they swap each round; pair is the base's value of the same round.  The number of ROUNDS is for each pair."""
    by_name, found = {way.name: way for way in ways}, {}
    for way in ways:
        base = by_name.get(way.base)
        if base is not None and base is not way:
            (pair, pair_cpu), (values, cpu) = time_rounds([base, way], rounds, prints, together=True)
            found[way.name] = {"values": values, "pair": pair, "cpu": cpu, "pair_cpu": pair_cpu}
    return found


def take_turns(ways, rounds, run):
    """{name: values} of run(way), for runs that pairs cannot time; the first round doesn't count."""
    values = {way.name: [] for way in ways}
    for i in range(-1, rounds):
        for j in range(len(ways)):
            way = ways[(i + j) % len(ways)]
            value = run(way)
            if i >= 0:
                values[way.name].append(value)
    return values


def time_run(way):
    """ms from start to end."""
    start = time.monotonic()
    subprocess.run(way.argv, env=way.env, check=True, stdout=subprocess.DEVNULL)
    return (time.monotonic() - start) * 1e3


def pages_moved(way):
    """The sums of verbose=2 for WAY: "43 hugetlb, 2 thp", of the program and its children."""
    if "LD_PRELOAD" not in way.variables or "HUGETLB_ELFMAP" in way.variables:
        return ""
    said = ",".join(filter(None, [way.variables.get("LD_HUGEPAGES_OPTIONS"), "verbose=2"]))
    result = subprocess.run(way.argv, env={**way.env, "LD_HUGEPAGES_OPTIONS": said}, capture_output=True)
    sums = {}
    for pages, backend in re.findall(r" (\d+) pages? (hugetlb|thp|file|image)\b(?! \()", result.stderr.decode(errors="replace")):
        sums[backend] = sums.get(backend, 0) + int(pages)
    already = "the page cache has it on huge pages already" in result.stderr.decode(errors="replace")
    return ", ".join([f"{n} {backend}" for backend, n in sums.items()] + ["left: page cache has it"] * already) or "nothing"


ROLLUP = {"Pss": None, "Private_Hugetlb": "hugetlb", "Shared_Hugetlb": "hugetlb", "AnonHugePages": "anonymous",
          "FilePmdMapped": "of files", "ShmemPmdMapped": "of tmpfs"}  # the fields, and their kind of huge pages


def read_rollup(pid):
    """{field: KiB} of PID and its children."""
    sums = collections.Counter()
    with contextlib.suppress(OSError):
        for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name = line.partition(":")[0]
            if name in ROLLUP:
                sums[name] += int(line.split()[1])
        for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            sums.update(read_rollup(child))
    return sums


def watch(way):
    """(MiB, the sizes on huge pages) of a run at its largest: shared memory by its share, pool pages as a whole."""
    most, memory = collections.Counter(), 0
    process = subprocess.Popen(way.argv, env=way.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        now = read_rollup(process.pid)
        memory = max(memory, now["Pss"] + now["Private_Hugetlb"] + now["Shared_Hugetlb"])
        most |= now
        time.sleep(0.002)
    if process.returncode != 0:
        raise RuntimeError(f"{way.name}: {way.argv[0]} ended with {process.returncode}")
    huge = [f"{most[name] >> 10} MiB {words}" for name, words in ROLLUP.items() if words and most[name] >> 10]
    return round(memory / 1024, 1), ", ".join(huge)


def describe_layout(layout):
    """How the plain program's file lies in memory, as bench/results keeps it."""
    if layout is None:
        return {}
    return {"folio_kib": round(layout.pages_per_folio * pagecache.PAGE / 1024, 1), "adjacent": round(layout.adjacent, 2),
            "frames": layout.frames, "frames_least": layout.fewest}


def experiment(name, title, unit, ways, found, note="", base=None, huge=None, watched=None, start=None, **more):
    """One as bench/results keeps it: the ways in order, each with its base and all that was FOUND of it: its values, or what at_once
    gives.  WATCHED: {way: its memory and huge pages, as watch() saw them}; START has the results of at_once for a start alone; MORE may
    have "absent", {way: why it was not measured}."""
    rows = []
    if watched:
        more["memory"] = {name: memory for name, (memory, _) in watched.items()}
        huge = huge or {name: sizes for name, (_, sizes) in watched.items()}
    for way in ways:
        if way.name in found:
            numbers = found[way.name] if isinstance(found[way.name], dict) else {"values": found[way.name]}
            if start:
                numbers = numbers | {f"start_{key}": start[way.name][key] for key in ("values", "pair")}
            rows.append({"name": way.name, "base": None if way is ways[0] else base or way.base, "huge": (huge or {}).get(way.name, ""),
                         **{key: [float(f"{v:.5g}") for v in values] for key, values in numbers.items()}, **({"needs": way.needs} if way.needs else {})})
    return {"id": name, "title": title, "unit": unit, "note": note, "date": time.strftime("%Y-%m-%d"), "ways": rows,
            **describe_layout(getattr(found, "layout", None)), **more}


# --- precision ---

# Half the width of an interval, as a part of the ratio, that plain against plain should have at most.
PRECISION = 0.01


def pairs_missing(pair, values, block=1):
    """How many pairs more it takes until the interval of plain against plain is as narrow as that, which it gets with their
    square root; some more than just enough."""
    ratio, low, high, *_ = compare(pair, values, block)
    half = (high - low) / 2 / ratio
    return max(0, round(len(values) * ((half / PRECISION) ** 2 * 1.1 - 1))) if half > PRECISION else 0


def at_once_precisely(ways, rounds, files=None):
    """at_once, with up to twice as many ROUNDS if "plain-again" shows that they are needed."""
    found = at_once(ways, rounds, files=files)
    more = min(rounds, pairs_missing(found["plain-again"]["pair"], found["plain-again"]["values"]))
    for name, numbers in at_once(ways, more, files=files).items() if more else ():
        for key, values in numbers.items():
            found[name][key] += values
    return found
