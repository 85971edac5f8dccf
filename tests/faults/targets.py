# SPDX-License-Identifier: LGPL-2.1-or-later
"""The program whose system calls fail, linked for both ways in, and every setting in which it runs."""

import pathlib
import re
import subprocess

import helpers
import programs
from sweep import Setting

HERE = pathlib.Path(__file__).resolve().parent
DATA_WORDS = 9 * 2**16

# Half the text and data of tests/system, as there are thousands of runs.
TEXT = programs.TEXT.replace("4096", "1536").replace("640*1024", "384*1024").replace("DATA_WORDS", str(DATA_WORDS))


class Targets:
    """target has the large part inside, host opens libtarget.so, needs is linked against it."""

    def __init__(self, builder, folder):
        self.folder = folder
        main = HERE / "target.c"
        text = folder / "text.s"
        text.write_text(TEXT)
        big, large = folder / "big.o", folder / "text.o"
        self.compile(big, "-c", "-fPIC", "-DBIG", f"-DDATA_WORDS={DATA_WORDS}", main)
        self.compile(large, "-c", text)
        script = builder.linker_script("faults.ld", programs.HOLES)
        shared = builder.linker_script("faults-shared.ld", programs.HOLES, "-shared")
        self.compile(folder / "libtarget.so", "-shared", large, big, f"-Wl,-T,{shared}")
        self.compile(folder / "early.so", "-shared", "-fPIC", "-DEARLY", main, "-Wl,-z,initfirst")
        self.programs = {
            "target": ["-no-pie", "-rdynamic", main, large, big, f"-Wl,-T,{script}"],
            "whole-target": ["-no-pie", "-rdynamic", main, large, big],
            "host": [main],
            "needs": [main, "-Wl,--no-as-needed", folder / "libtarget.so", "-Wl,-rpath,$ORIGIN"],
        }
        for name, arguments in self.programs.items():
            self.compile(folder / name, *arguments)

    def compile(self, output, *arguments):
        subprocess.run(["gcc", "-std=gnu11", "-O2", "-o", output, *arguments], check=True, timeout=helpers.PATIENCE)

    def with_linker(self, ldso):
        """The same programs with LDSO as their dynamic linker."""
        for name, arguments in self.programs.items():
            self.compile(self.folder / f"{name}-ldso", *arguments, f"-Wl,--dynamic-linker={ldso}")


def find_core(ldso):
    """The ranges in LDSO of the functions of the core and of its glue."""
    listing = subprocess.run(["readelf", "-sW", ldso], check=True, capture_output=True, text=True).stdout
    sources = {"dl-hugepages.c", *(p.name for f in ("elf", "perf-maps") for p in (helpers.ROOT / f).glob("*.c"))}
    file, functions = "", []
    for words in map(str.split, listing.splitlines()):
        if len(words) == 8 and words[3] == "FILE":
            file = words[7]
        elif len(words) == 8 and words[3] == "FUNC":
            is_ours = words[7].startswith(("hl_", "_dl_hugepages_")) or file in sources
            functions.append((int(words[1], 16), int(words[2], 0), is_ours))
    ranges = [(start, start + size) for start, size, is_ours in functions if is_ours and size]
    assert len(ranges) > 100
    return join(sorted(ranges), {start for start, _, is_ours in functions if not is_ours})


def join(ranges, others):
    """"from-to,..." of RANGES, as few as there can be with none of OTHERS inside."""
    joined = ranges[:1]
    for start, end in ranges[1:]:
        if any(joined[-1][0] <= other < start for other in others):
            joined.append((start, end))
        else:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
    return ",".join(f"{start:x}-{end:x}" for start, end in joined)


# name -> (way in, program and arguments, pattern, options)
SETTINGS = {
    "start": ("preload", ["target"], "main", ""),
    "start-threads": ("early", ["target"], "main", ""),
    "begin": ("preload", ["whole-target"], "main", ",data=off"),  # no holes: it is mapped over, and its file is the way back
    "dlopen": ("preload", ["host", "libtarget.so"], "libtarget*", ""),
    "dlopen-threads": ("preload", ["host", "libtarget.so", "threads"], "libtarget*", ""),
    "ldso-start": ("ldso", ["target-ldso"], "main", ""),
    "ldso-command": ("command", ["target"], "main", ""),
    "ldso-needed": ("ldso", ["needs-ldso"], "libtarget*", ""),
    "ldso-dlopen": ("ldso", ["host-ldso", "libtarget.so"], "libtarget*", ""),
    "ldso-dlopen-threads": ("ldso", ["host-ldso", "libtarget.so", "threads"], "libtarget*", ""),
}
SETTINGS = {f"{name}-{backend}": (*setting[:3], f"backend={backend}{setting[3]}") for name, setting in SETTINGS.items()
            for backend in ("hugetlb", "thp")}
SETTINGS |= {f"{name}-image": (*SETTINGS[f"{name}-thp"][:3], "backend=image")
             for name in ("start", "start-threads", "dlopen", "dlopen-threads")}
SETTINGS |= {
    "start-map": ("preload", ["target"], "main", "backend=hugetlb,perf_map=on"),
    "start-memfd": ("mdwe", ["target"], "main", "backend=hugetlb"),
    "start-memfd-threads": ("early mdwe", ["target"], "main", "backend=hugetlb"),
}


def make_setting(get, targets, name):
    """GET gives fixtures by name: library, ldso."""
    way, argv, pattern, options = SETTINGS[name]
    library = get("library")
    preloaded, module, ranges = [], helpers.LIBRARY.name, "0-ffffffff"
    if "ldso" in way or "command" in way:
        ldso = get("ldso")
        module, ranges = ldso.name, find_core(ldso)
    else:
        preloaded = [library, targets.folder / "early.so"] if "early" in way else [library]
    argv = [argv[0], *(targets.folder / a if a.endswith(".so") else a for a in argv[1:])]
    argv[0] = targets.folder / argv[0]
    if "command" in way:
        argv.insert(0, ldso)

    def environment(patterns, more=""):
        return helpers.preload(*preloaded, patterns=patterns, options=f"data=thp,{options}{more},verbose=3")

    if "backend=image" in options:
        store = get("image_store")
        store.add(targets.folder / ("libtarget.so" if "dlopen" in name else "target"))
        options = store.options()

    # As long as the other environment, so that the stack is the same.
    good, plain = environment(pattern), environment(re.sub("^.", "X", pattern))
    if way == "ldso":
        # ld.so puts only selected objects where their text is well on huge pages.  There it is, and stays: no pool is so large.
        good = environment(pattern, f",data=thp,reserve_pages=0000000000,{options:,<15}")
        plain = environment(pattern, ",data=off,reserve_pages=4294967295,backend=hugetlb")
    return Setting(name, argv, good, plain, module, ranges, "mdwe" in way, "early" in way)
