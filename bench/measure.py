# SPDX-License-Identifier: LGPL-2.1-or-later
"""How it is measured: several ways of running one thing take turns, so that the machine's other load falls on all alike; `hugeld
bench` runs them and compares the rounds."""

import collections
import contextlib
import glob
import os
import pathlib
import re
import subprocess
import time

import pagecache
from helpers import BUILD, HUGELD, LIBRARY

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


def hugeld(name, argv, options="", objects=None, base="plain", **more):
    return Variant(name, argv, base, LD_PRELOAD=LIBRARY, LD_HUGEPAGES_OPTIONS=options or None, LD_HUGEPAGES=objects, **more)


def find_libhugetlbfs():
    found = glob.glob("/usr/lib/*/libhugetlbfs.so.0") + glob.glob("/usr/lib/*/libhugetlbfs.so")
    return found[0] if found and os.getuid() == 0 else None


def libhugetlbfs(name, argv, elfmap="R", base="plain"):
    return Variant(name, argv, base, LD_PRELOAD=find_libhugetlbfs(), HUGETLB_ELFMAP=elfmap)


def compile_c(output, *arguments):
    subprocess.run(["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-D_GNU_SOURCE", "-o", output, *map(str, arguments)],
                   check=True)
    return output


class Measured(dict):
    """{name: that way's measurements}; and the mean size in KiB of the folios of the plain program's file meanwhile, or None."""

    folio_kib = None


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
        found, kib = pagecache.measure_unchanged(plain_files(ways) if files is None else files, lambda: measure(ways, *arguments, **more))
        found = Measured(found)
        found.folio_kib = kib
        return found
    return inner


def time_commands(rounds, ways, prints, *flags):
    """{name: ms, or the number that the program prints first; name:cpu: ms; name:ratio} from `hugeld bench`, of {name: way}."""
    words = []
    for name, way in ways.items():
        variables = [f"{k}={v}" for k, v in way.variables.items()]
        words += ["--", "@" * (prints or way.prints) + name, *variables, *way.argv]
    result = subprocess.run([HUGELD, "bench", *flags, "--commands", str(rounds), *words], env=environment(), capture_output=True, text=True)
    if result.returncode != 0:
        last = (result.stderr.strip().splitlines() or ["hugeld bench failed"])[-1]
        raise RuntimeError(f"{last} ({' '.join(way.argv)[:200]})")
    return {name: [float(n) for n in numbers] for name, *numbers in map(str.split, result.stdout.splitlines())}


@unchanged
def pairs(ways, rounds, prints=False):
    """{name: values}, all in turns: ms, or the number that the program prints first."""
    found = time_commands(rounds, {way.name: way for way in ways}, prints)
    return {way.name: found[way.name] for way in ways}


@unchanged
def at_once(ways, rounds, prints=False):
    """{name: {values, pair, cpu, pair_cpu}} of each way that has a base: both run at the same time, on two processors that
    they swap each round; pair is the base's value of the same round.  The number of ROUNDS is for each pair."""
    by_name, found = {way.name: way for way in ways}, {}
    for way in ways:
        base = by_name.get(way.base)
        if base is not None and base is not way:
            lines = time_commands(rounds, {"pair": base, "values": way}, prints, "--at-once")
            found[way.name] = {"values": lines["values"], "pair": lines["pair"],
                               "cpu": lines["values:cpu"], "pair_cpu": lines["pair:cpu"]}
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


def time_run(way, **options):
    """ms from start to end."""
    start = time.monotonic()
    subprocess.run(way.argv, env=way.env, check=True, stdout=subprocess.DEVNULL, **options)
    return (time.monotonic() - start) * 1e3


def pages_moved(way, **options):
    """The sums of verbose=2 for WAY: "43 hugetlb, 2 thp", of the program and its children."""
    if "LD_PRELOAD" not in way.variables or "HUGETLB_ELFMAP" in way.variables:
        return ""
    said = ",".join(filter(None, [way.variables.get("LD_HUGEPAGES_OPTIONS"), "verbose=2"]))
    result = subprocess.run(way.argv, env={**way.env, "LD_HUGEPAGES_OPTIONS": said}, capture_output=True, **options)
    sums = {}
    for pages, backend in re.findall(r" (\d+) pages? (hugetlb|thp|file|image)\b(?! \()", result.stderr.decode(errors="replace")):
        sums[backend] = sums.get(backend, 0) + int(pages)
    already = "the page cache has it on huge pages already" in result.stderr.decode(errors="replace")
    return ", ".join([f"{n} {backend}" for backend, n in sums.items()] + ["left: page cache has it"] * already) or "nothing"


def page_cache_bytes(pid):
    """Bytes that PID and its children have mapped from huge pages of the page cache."""
    total = 0
    with contextlib.suppress(OSError):
        for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(("FilePmdMapped:", "ShmemPmdMapped:")):
                total += int(line.split()[1]) * 1024
        for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            total += page_cache_bytes(child)
    return total


def plain_pages(way, **options):
    """Whether the plain run is on huge pages already, as kernels since 6.18 manage by themselves."""
    process = subprocess.Popen(way.argv, env=way.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    most = 0
    while process.poll() is None:
        most = max(most, page_cache_bytes(process.pid))
        time.sleep(0.01)
    return f"PMD-mapped: {most >> 20} MiB of files" if most else ""


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


def round_numbers(values):
    return [float(f"{v:.5g}") for v in values]


def paired_experiment(name, title, unit, ways, found, note="", huge=None, start=None, **more):
    """The same of the results of at_once, FOUND: with each way its base's values, and the processor time of both.  START has its
    results for a start alone; MORE may have "memory", {way: MiB}, and "absent", {way: why it was not measured}."""
    rows = []
    for way in ways:
        if way.name in found:
            numbers = {key: round_numbers(values) for key, values in found[way.name].items()}
            if start:
                numbers |= {f"start_{key}": round_numbers(start[way.name][key]) for key in ("values", "pair")}
            rows.append({"name": way.name, "base": way.base, **numbers, "huge": (huge or {}).get(way.name, ""),
                         **({"needs": way.needs} if way.needs else {})})
    return described(name, title, unit, note, found, rows, more)


def described(name, title, unit, note, found, rows, more):
    folios = {"folio_kib": found.folio_kib} if getattr(found, "folio_kib", None) else {}
    return {"id": name, "title": title, "unit": unit, "note": note, "date": time.strftime("%Y-%m-%d"), "ways": rows, **folios, **more}


def experiment(name, title, unit, ways, values, note="", base=None, huge=None, **more):
    """One as bench/results keeps it: the ways in order, each with its base and all its values."""
    rows = []
    for way in ways:
        if way.name in values:
            numbers = round_numbers(values[way.name])
            rows.append({"name": way.name, "base": None if way.name == ways[0].name else base or way.base,
                         "values": numbers, "huge": (huge or {}).get(way.name, "")})
    return described(name, title, unit, note, values, rows, more)


# --- statistics ---

def compare(base, values, block=1):
    """(ratio, low, high, difference, low, high) of VALUES to those of BASE in the same round, as `hugeld bench` finds them: means of the
    middle half, with 95 % intervals; NaN for an unknown number.  BLOCK rounds one after the other are of the same processes."""
    pairs = "".join(f"{a!r} {b!r}\n" for a, b in zip(base, values))
    result = subprocess.run([HUGELD, "bench", "--compare", str(block)], input=pairs, capture_output=True, text=True, check=True)
    return tuple(map(float, result.stdout.split()))


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
