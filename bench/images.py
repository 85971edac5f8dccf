# SPDX-License-Identifier: LGPL-2.1-or-later
"""Text from an image, of which there is one for all processes: programs, starts, calls and memory; and text in place."""

import os
import subprocess
import time

import helpers
import pagecache
from installed import find_cc1plus
from smaps import read_smaps
from stores import list_images, make_images
from measure import OUT, Variant, at_once, compile_c, copy_of, experiment, find_libhugetlbfs, hugeld, libhugetlbfs, pages_moved, pairs, watch
from workloads import (STORE, calls, image_of, make_empty_library, mapped, namespace_with, pairs_for, put_large, share,
                       short_programs, where, with_own_output, write_nothing, write_short_source)


def image_programs(plan):
    for name, what, argv, objects, files, executed, seconds in short_programs():
        share(*files)
        ways = [Variant("plain", argv), Variant("plain-again", argv), mapped("mapped", argv, objects)]
        if executed:
            ways.append(Variant("executed", [image_of(argv[0]), *argv[1:]]))
        ways.append(hugeld("private", argv, "backend=hugetlb", objects))
        with_own_output(ways)
        watched = {way.name: watch(way) for way in ways}
        huge = {way.name: pages_moved(way) or watched[way.name][1] for way in ways}
        for state in pagecache.STATES:
            found = pagecache.measure_in(state, files, lambda ways=ways: at_once(ways, pairs_for(plan, seconds), files=files))
            suffix = "" if state == "large" else f"-{state}"
            yield experiment(f"image-{name}{suffix}", f"{name} {what}", "ms", ways, found, huge=huge,
                             program=name, watched=watched)


def image_chromium(plan):
    """Chromium finds its files by /proc/self/exe, and is a PIE: so its image is mounted over it."""
    chromium = "/usr/lib/chromium/chromium"
    if not os.path.exists(chromium) or os.getuid() != 0:
        return
    share(chromium)
    document = OUT / "document.html"
    document.write_text("<p id=p></p><script>p.textContent = 6 * 7</script>")
    argv = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--user-data-dir=/nonexistent", "--dump-dom", f"file://{document}"]
    with namespace_with() as inside, namespace_with(chromium) as inside_with:
        ways = [Variant("plain", [*inside, *argv]), Variant("plain-again", [*inside, *argv]), Variant("executed", [*inside_with, *argv])]
        for way, name in zip(ways, ("a", "b", "c")):
            folder = OUT / f"chromium-{name}"
            way.argv = [word.replace("/nonexistent", str(folder)) for word in way.argv]
        put_large(ways)
        huge = {way.name: watch(way)[1] for way in ways}
        yield experiment("image-chromium", "Chromium `--dump-dom`", "ms", ways, at_once(ways, 6 if plan.quick else 40),
                         huge=huge)


def image_starts(plan):
    nothing, empty = compile_c(OUT / "nothing", write_nothing()), make_empty_library()
    ways = [Variant("empty", [nothing], LD_PRELOAD=empty), Variant("empty-again", [nothing], "empty", LD_PRELOAD=empty),
            hugeld("hugeld", [nothing], base="empty")]
    yield experiment("image-nothing", "Start of a small program, nothing to move, over an empty preloaded library",
                     "ms", ways, at_once(ways, plan.tiny), note="The goal for the difference is 0.03 ms.")
    for size in [128] if plan.quick else [128, 512]:
        stock, linked = [calls(size, pie=False), "0"], [calls(size, aligned=True), "0"]
        share(stock[0])
        ways = [Variant("plain", stock), Variant("plain-again", stock), mapped("mapped", stock), Variant("executed", [image_of(stock[0]), "0"]),
                hugeld("private", stock, "backend=hugetlb"), Variant("linked", linked, None)]
        put_large(ways)
        if find_libhugetlbfs():
            ways.append(libhugetlbfs("linked-libhugetlbfs", linked, base="linked"))
        yield experiment(f"image-start-{size}", f"Start with {size} MiB of text", "ms", ways,
                         at_once(ways, max(12, plan.short * (8 if size == 128 else 1))), huge=where(ways),
                         note="What counts is the difference; the goal is 0.5 ms.")


def image_calls(plan):
    stock, linked = [calls(128, pie=False), "1000000"], [calls(128, aligned=True), "1000000"]
    share(stock[0])
    rounds = 12 if plan.quick else 100
    ways = [Variant("plain", stock), Variant("plain-again", stock), mapped("mapped", stock), hugeld("private", stock, "backend=hugetlb"),
            Variant("linked", linked)]
    put_large(ways)
    yield experiment("image-calls", "Random calls over 128 MiB of text", "ns", ways, at_once(ways, rounds, prints=True),
                     huge=where(ways))


def image_many(plan):
    """Both processors are taken, so these take turns."""
    if not find_cc1plus():
        return
    source, cc1plus = write_short_source(), os.path.realpath(find_cc1plus())
    share(cc1plus)

    def eight(program):
        script = 'for i in 1 2 3 4 5 6 7 8; do "$@" & done; wait'
        return ["/bin/sh", "-c", script, "sh", program, "-quiet", "-O2", source, "-o", "/dev/null"]

    ways = [Variant("plain", eight(cc1plus)), mapped("mapped", eight(cc1plus)), Variant("executed", eight(image_of(cc1plus))),
            hugeld("private", eight(cc1plus), "backend=hugetlb,exe=cc1plus")]
    put_large(ways)
    yield experiment("image-many", f"Eight cc1plus at once on {os.cpu_count()} processors", "ms", ways,
                     pairs(ways, 6 if plan.quick else 31), huge={way.name: pages_moved(way) for way in ways})


def image_memory(plan):
    program, values = calls(32, pie=False), {}
    share(program)
    store_kib = os.stat(image_of(program)).st_blocks / 2
    ways = [Variant("plain", [program, "0", "wait"]), mapped("mapped", [program, "0", "wait"]),
            Variant("executed", [image_of(program), "0", "wait"]), hugeld("private", [program, "0", "wait"], "backend=hugetlb")]
    for way in ways:
        running = [helpers.start(way.argv, way.env, stdin=subprocess.PIPE) for _ in range(10)]
        try:
            for process in running:
                process.stdout.readline()
            kib = sum(mapping.kb[field] for p in running for mapping in read_smaps(p.pid) if str(STORE) not in mapping.name
                      for field in ("Pss", "Private_Hugetlb", "Shared_Hugetlb"))
            values[way.name] = [(kib + (store_kib if way.name in ("mapped", "executed") else 0)) / 1024]
        finally:
            for process in running:
                helpers.end_process(process)
    yield experiment("image-memory", "Memory of ten processes with 32 MiB of text, all touched", "MiB", ways, values,
                     note="One reading each, with the whole image in the store; shared pages count by their share.")


# --- in place ---

IN_PLACE = OUT / "huge-tmpfs/in-place"  # the store that knows what is
PENDING = 3  # exit status of hugeld apply


def put_in_place(file, state):
    """The text of FILE is on huge pages of its own page cache; the rest lies as STATE says."""
    pagecache.make(file, state)
    IN_PLACE.mkdir(mode=0o700, exist_ok=True)
    for _ in range(12):
        result = make_images(IN_PLACE, file, way="in-place")
        if result.returncode != PENDING:
            break
        time.sleep(5)  # until programs do not wait for the disk
    if result.returncode != 0:
        raise RuntimeError(f"{file} cannot be put in place now: {result.returncode}, {result.stdout} {result.stderr}")


def short_compiles():
    """(name, title, compiler, its words): C++ once, and small C files one after the other."""
    source, folder = OUT / "two-lines.cc", OUT / "small"
    source.write_text("int f(int x) { return x; }\nint main() { return f(3); }\n")
    folder.mkdir(exist_ok=True)
    for i in range(20):
        text = f"#include <stdio.h>\nint f{i}(int x) {{ return printf(\"%d\", x + {i}); }}\n"
        subprocess.run(["gcc", "-E", "-x", "c", "-o", folder / f"{i}.i", "-"], input=text, text=True, check=True)
    script = f'for i in {folder}/*.i; do "$1" -fpreprocessed -quiet -O1 "$i" -o /dev/null || exit 1; done'
    yield "cc1plus", "cc1plus of two lines", find_cc1plus(), lambda compiler: [compiler, "-quiet", "-O2", source, "-o", "/dev/null"]
    cc1 = subprocess.run(["gcc", "-print-prog-name=cc1"], capture_output=True, text=True, check=True).stdout.strip()
    yield "build", "Twenty small C files compiled", cc1, lambda compiler: ["/bin/sh", "-c", script, "sh", compiler]


def group_in_place(plan):
    """Copies of a compiler, since a file that a process maps cannot be put in place by every kernel."""
    for name, title, compiler, argv in short_compiles():
        for state in pagecache.STATES if compiler else ():
            plain, other = (copy_of(compiler, kind) for kind in ("plain", "in-place"))
            put_in_place(other, state)
            ways = [Variant("plain", argv(plain)), Variant("plain-again", argv(plain)), Variant("in-place", argv(other))]
            found = pagecache.measure_in(state, [plain], lambda ways=ways, plain=plain: at_once(ways, max(12, plan.short), files=[plain]))
            if any(one["path"] == str(other) and one["state"] != "fresh" for one in list_images(IN_PLACE)):
                raise RuntimeError(f"{other} did not stay in place")
            yield experiment(f"in-place-{name}-{state}", f"{title}, in place, beside its file {state} in the page cache", "ms", ways, found)


# --- all of them ---


def group_image(plan):
    """Text from an image, of which there is one for all processes; the same pair of rounds at the same time.  "plain-again" is
    the method's noise."""
    for part in (image_programs, image_chromium, image_starts, image_calls, image_many, image_memory):
        yield from part(plan)
