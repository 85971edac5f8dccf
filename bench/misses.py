#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""A program's misses in the instruction TLBs of named processors, modelled: plain, and with its text on huge pages in several
ways.  Prints misses of the first and of the second level in a thousand instructions.  Needs qemu-user; bench/README.md describes
the model and its limits."""

import argparse
import fnmatch
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("B", ROOT / "build")).resolve()
HUGE_BYTES = 2 << 20

LAYOUTS = {
    "plain": "small pages, scattered in memory",
    "contiguous": "small pages that lie in memory side by side, which some processors coalesce",
    "private": "hugeld's private copy, by default",
    "edges=small": "the same with edges=small",
    "image": "from an image",
    "linked": "all text of the same objects on huge pages, as if it were relinked at 2 MiB",
}


def build(folder):
    """(the model, reading a trace; the same as QEMU's plugin), compiled into FOLDER."""
    here = ROOT / "bench"
    command = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-D_GNU_SOURCE", "-o"]
    model, plugin = folder / "itlb", folder / "itlb-qemu.so"
    subprocess.run([*command, model, here / "itlb.c"], check=True)
    subprocess.run([*command, plugin, "-fPIC", "-shared", "-fvisibility=hidden", here / "itlb-qemu.c", here / "itlb.c"], check=True)
    return model, plugin


def find_qemu():
    return shutil.which(f"qemu-{platform.machine()}")


def objects_of(program, patterns):
    """Files of PROGRAM and of the libraries it is linked with that LD_HUGEPAGES=PATTERNS names."""
    lines = subprocess.run(["ldd", program], capture_output=True, text=True).stdout.splitlines()
    libraries = [line.split("=>")[1].split()[0] for line in lines if "=>" in line and "/" in line]
    wanted = patterns.split(":")
    named = [lib for lib in libraries if any(fnmatch.fnmatch(os.path.basename(lib), pattern) for pattern in wanted)]
    return [os.path.realpath(path) for path in [program] * ("main" in wanted) + named]


def inspect(path, options=""):
    """hugeld's plan for PATH, at the address that it was linked at."""
    result = subprocess.run([BUILD / "hugeld", "inspect", "--json", *(["-o", options] if options else []), path],
                            capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"hugeld inspect: {result.stderr.strip()}")
    [found] = json.loads(result.stdout)["files"]
    if int(found["plan"]["load_bias"], 16) % HUGE_BYTES:
        raise RuntimeError(f"hugeld inspect: {path} is planned at {found['plan']['load_bias']}, which is no multiple of 2 MiB")
    return found


def ranges(found, rows):
    """(start, end) of the executable ones among ROWS, spans or segments at the load address that FOUND has."""
    bias = int(found["plan"]["load_bias"], 16)
    return [(int(r["start"], 16) - bias, int(r["end"], 16) - bias) for r in rows if "x" in r["flags"]]


def make_plan(objects):
    """(lines for the model; {file name: {layout: share of its text on huge pages}})."""
    lines = [f"layout {name} {'contiguous' if name == 'contiguous' else 'separate'}" for name in LAYOUTS]
    shares = {}
    for path in objects:
        found = inspect(path, "backend=hugetlb")
        plans = {"private": found["plan"], "edges=small": inspect(path, "backend=hugetlb,edges=small")["plan"], "image": found["image"]}
        on_huge = {layout: ranges(found, plan["spans"]) for layout, plan in plans.items()}
        on_huge["linked"] = ranges(found, found["plan"]["segments"])
        lines += [f"huge {layout} {path} {start:x} {end:x}" for layout, rows in on_huge.items() for start, end in rows]
        shares[os.path.basename(path)] = {layout: plan["text_share"] for layout, plan in plans.items()}
        spread = found.get("range")
        if spread:
            shares[os.path.basename(path)]["anywhere"] = [spread["text_share_min"], spread["text_share_max"]]
    return lines, shares


def trace(argv, patterns, folder, plugin, timeout=300):
    """{instructions, misses: {layout: {processor: [first level, second level]}}, shares} of a run of ARGV; files
    in between go to FOLDER."""
    if not find_qemu():
        raise RuntimeError("qemu-user is not installed")
    plan, out = folder / "plan", folder / "misses.json"
    lines, shares = make_plan(objects_of(argv[0], patterns or "main"))
    plan.write_text("".join(line + "\n" for line in lines))
    out.unlink(missing_ok=True)
    # Nothing that differs between machines: addresses, processors, environment, the kernel's name, seeds of hashes.
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "PYTHONHASHSEED": "0", "PERL_HASH_SEED": "0"}
    first = str(min(os.sched_getaffinity(0)))
    command = ["taskset", "-c", first, "setarch", "-R", find_qemu(), "-seed", "1", "-r", "6.1.0", "-plugin",
               f"{plugin},plan={plan},out={out}", *map(str, argv)]
    try:
        result = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{argv[0]} takes more than {timeout} s in QEMU") from None
    if result.returncode != 0 or not out.exists():
        raise RuntimeError(f"{argv[0]} ended with {result.returncode} in QEMU: {result.stderr.strip()[-300:]}")
    return {**json.loads(out.read_text()), "shares": shares}


def show(value):
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}" if value >= 0.0005 or value == 0 else "<0.001"


def in_thousand(found, layout, processor):
    """ "3.65; 0.001": misses of the first and of the second level in a thousand instructions."""
    return "; ".join(show(misses * 1000 / found["instructions"]) for misses in found["misses"][layout][processor])


def table(found):
    """Lines in Markdown."""
    processors = list(found["misses"]["plain"])
    lines = ["| misses in 1000 instructions: first level; second level | " + " | ".join(processors) + " |", "| --- |" + " --- |" * len(processors)]
    for layout in found["misses"]:
        lines.append(f"| {layout} | " + " | ".join(in_thousand(found, layout, name) for name in processors) + " |")
    shares = []
    for name, share in found["shares"].items():
        words = [f"{layout} {share[layout]:.0%}" for layout in ("private", "edges=small", "image")]
        if "anywhere" in share:
            low, high = share["anywhere"]
            words[0] += f" ({low:.0%} to {high:.0%}, wherever it is loaded)" if low != high else ""
        shares.append(f"{name} {', '.join(words)}")
    millions = found["instructions"] / 1e6
    return lines + ["", f"{millions:,.{0 if millions >= 10 else 1}f} million instructions. Text on huge pages: {'; '.join(shares)}.", ""]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-p", "--patterns", default="main", help="which objects are on huge pages, as in LD_HUGEPAGES")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    program = shutil.which(arguments.program)
    if not program:
        sys.exit(f"misses: {arguments.program} was not found")
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        try:
            found = trace([os.path.realpath(program), *arguments.arguments], arguments.patterns, folder, build(folder)[1])
        except RuntimeError as error:
            sys.exit(f"misses: {error}")
    print(json.dumps(found) if arguments.json else "\n".join(table(found)))


if __name__ == "__main__":
    main()
