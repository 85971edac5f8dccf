# SPDX-License-Identifier: LGPL-2.1-or-later
"""Large programs by `hugeld run`, beside the plain program in each state in which its file may lie in memory: as found after a boot
(evicted, then executed), as it lies after it was read in order, and in single pages that lie together.  The states are made on
purpose, and looked at before and after.  Reading a file in order costs nothing, so a plain copy that was read so is a way of its own."""

import collections
import os
import pathlib
import shutil
import subprocess

import pagecache
from alternatives import CACHE
from helpers import HUGELD, ROOT
from installed import find_cc1plus, find_node
from measure import OUT, Variant, at_once, copy_of, experiment, time_run, watch
from workloads import JAVASCRIPT, STORE, find_rustc, libraries_of, share, with_own_output, write_sources

STATES = {"found": "as after a boot", "large": "read in order", "contiguous": "in contiguous single pages"}
WHEELS = CACHE / "wheels"
LARGE = 8 << 20  # bytes; how a smaller file lies decides little

# files: {file: the folder of its copy}; argv(folder) and variables(folder): those of the copies below FOLDER; words: run's options.
Program = collections.namedtuple("Program", "name files argv variables words")


def compilers():
    source, rust = write_sources()
    if find_cc1plus():
        yield Program("cc1plus", {os.path.realpath(find_cc1plus()): "."},
                      lambda folder: [folder / "cc1plus", "-quiet", "-O1", source, "-o", "/dev/null"], None, [])
    if shutil.which("clang"):
        clang = os.path.realpath(shutil.which("clang"))
        resources = subprocess.run([clang, "-print-resource-dir"], capture_output=True, text=True, check=True).stdout.strip()
        yield Program("clang", {file: "clang" for file in (clang, *libraries_of(clang, "libLLVM", "libclang"))},
                      lambda folder: [folder / "clang" / os.path.basename(clang), "-resource-dir", resources, "-O1", "-c", OUT / "source.cc",
                                      "-o", "/dev/null"],
                      lambda folder: {"LD_LIBRARY_PATH": folder / "clang"}, ["-p", "main:libLLVM*:libclang*"])
    if find_rustc():
        root = pathlib.Path(find_rustc()).parents[1]
        files = {root / "bin/rustc": "rust/bin"} | {file: "rust/lib" for file in (root / "lib").glob("*.so*")}
        yield Program("rustc", files, lambda folder: [folder / "rust/bin/rustc", "--sysroot", root, "-O", "--emit=obj", "-o", OUT / "@.o", rust],
                      None, ["-p", "main:librustc_driver*:libLLVM*"])


def interpreters():
    for name, rounds in ("duckdb", 12), ("polars", 40):
        modules = {file: f"wheels/{file.parent.relative_to(WHEELS)}" for file in WHEELS.glob(f"_{name}*/**/*") if file.is_file()}
        modules |= {file: "wheels" for file in WHEELS.glob(f"_{name}*.so")}
        if modules:
            yield Program(name, modules, lambda _, name=name, rounds=rounds: ["/usr/bin/python3", ROOT / "bench/queries.py", name, rounds],
                          lambda folder: {"PYTHONPATH": f"{folder}/wheels:{WHEELS}", "PYTHONDONTWRITEBYTECODE": 1},
                          ["-p", f"_{name}*.so"])
    if find_node():
        yield Program("node", {os.path.realpath(find_node()): "."}, lambda folder: [folder / "node", "-e", JAVASCRIPT], None, [])


def model():
    """A Verilator model of many processor cores: the text is executed from its beginning to its end, again and again."""
    if (CACHE / "verilator/Vtop").exists():
        yield Program("verilator", {CACHE / "verilator/Vtop": "."}, lambda folder: [folder / "Vtop", 500], None, [])


def make_way(name, program, kind, *before):
    """The WAY that runs the copies of this KIND, and the large ones of these, the largest first."""
    copies = [copy_of(file, f"{kind}/{folder}") for file, folder in program.files.items()]
    folder = OUT / "copies" / kind
    way = Variant(name, [*before, *program.argv(folder)], **(program.variables(folder) if program.variables else {}))
    return way, sorted({copy for copy in copies if copy.stat().st_size >= LARGE}, key=os.path.getsize, reverse=True)


def measure_programs(plan, programs):
    for program in programs:
        if plan.quick and program.name not in ("duckdb", "cc1plus"):
            continue
        plain, files = make_way("plain", program, "plain")
        again, _ = make_way("plain-again", program, "plain")
        in_order, files_in_order = make_way("in-order", program, "in-order")
        run, shared = make_way("run", program, "run", HUGELD, "run", "-o", f"store={STORE}", *program.words, "--")
        share(*shared)
        ways = with_own_output([plain, again, in_order, run])
        seconds = time_run(plain) / 1000
        watched = {way.name: watch(way) for way in ways}
        if "of tmpfs" not in watched["run"][1]:
            raise RuntimeError(f"{program.name}: hugeld run did not use the image")
        for state, words in STATES.items():
            for file in files_in_order:
                pagecache.make(file, "large")

            def measure(ways=ways, seconds=seconds, files=files):
                return at_once(ways, 12 if plan.quick else max(16, min(40, int(12 / seconds))), files=files)

            found = pagecache.measure_in(state, files, measure, execute=lambda plain=plain: time_run(plain))
            yield experiment(f"layouts-{program.name}-{state}", f"{program.name}, its plain file {words}, a run of {seconds:.1f} s",
                             "ms", ways, found, watched=watched)


def group_layouts(plan):
    yield from measure_programs(plan, (*interpreters(), *compilers()))


def group_model(plan):
    yield from measure_programs(plan, model())
