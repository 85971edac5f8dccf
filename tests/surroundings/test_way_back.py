# SPDX-License-Identifier: LGPL-2.1-or-later
"""Earlier constructors' changes to the object's mappings: many of them, sealed ones, ones with another protection or
advice. It moves as a whole, or the maps are unchanged."""

import collections
import re

import pytest

import helpers
from objects import PF_X, PT_LOAD, page_down, page_up, read_headers
from surroundings import ALL

# Relative to the first page of a program like app-nopie: a page in the middle of the text's first whole huge page, one
# in the middle of the read-only data that is merged into the text's last one, and one in the read-only data's own.
IN_TEXT, IN_MERGED, IN_RODATA = 0x300000, 0x980000, 0xB00000
MAP_COUNT = "vm.max_map_count is nearly reached"
NO_MEMORY = "no address space or memory for the copy"


@pytest.fixture(params=[("hugetlb", []), ("hugetlb", ["mdwe"]), ("thp", [])], ids=["hugetlb", "memfd", "thp"])
def route(request, pool, thp, confine):
    """(backend, prefix): every way into place."""
    pool(64)
    backend, rules = request.param
    return backend, confine(*rules)


@pytest.mark.parametrize("before", ["", "threads:2,"], ids=["alone", "threads"])
@pytest.mark.parametrize("at", [0, 0x1000, IN_TEXT, IN_MERGED, IN_RODATA], ids=hex)
def test_sealed(sum_program, surround, first, route, at, before):
    """One page is sealed (mseal): nothing of the object moves, also if the page is in the last span, and threads execute the
    first one."""
    backend, prefix = route
    app = sum_program()
    outcome = surround([app], {}, first=[first], prefix=prefix, options=f"backend={backend},verbose=1", backend=backend,
                       T_FIRST=f"{before}seal:{at:x}:1000")
    assert f"{app.name}: text stays: one of its mappings is sealed" in outcome.stderr
    assert "rolled back, but" not in outcome.stderr


def test_sealed_executable_and_its_library(builder, surround, pool, first):
    """The executable, small and sealed, stays; its library moves."""
    pool(64)
    app, [library] = builder.with_library("dso-aligned")
    outcome = surround([app], {library.name: ALL}, first=[first], patterns="main:libbig*", options="backend=hugetlb,verbose=1",
                       T_FIRST="seal:1000:1000")
    assert outcome.stderr == ""


SPECIAL = "it is locked or mapped in a special way (mlock, madvise, userfaultfd, a protection key); preload hugeld as the last object"
CHANGES = {
    # Harmless changes.
    "dropped": (f"advise:{IN_TEXT:x}:100000:4", None),
    "there and back": (f"protect:{IN_TEXT:x}:1000:1,protect:{IN_TEXT:x}:1000:5", None),
    # What a copy would not have.
    "random": (f"advise:{IN_TEXT:x}:5000:1", SPECIAL),
    "dontdump": (f"advise:{IN_RODATA:x}:3000:10", SPECIAL),
    "dontfork": (f"advise:{IN_MERGED:x}:1000:a", SPECIAL),
    "locked": (f"lock:{IN_TEXT:x}:200000", SPECIAL),
    # Mappings that the core must not copy over.
    "less": (f"protect:{IN_TEXT:x}:1000:1", "its mappings do not match its program headers"),
    "more": (f"protect:{IN_RODATA:x}:1000:5", "its mappings do not match its program headers"),
    "shared": (f"share:{IN_TEXT:x}:2000", "its mappings do not match its program headers"),
    "written": (f"write:{IN_TEXT:x}", "it was changed in memory"),
}


@pytest.mark.parametrize("backend", ["hugetlb", "thp"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("before", ["", "threads:2,"], ids=["alone", "threads"])
def test_changed_before(sum_program, surround, pool, thp, first, change, backend, before):
    pool(64)
    action, reason = CHANGES[change]
    app = sum_program()
    moved = {} if reason else {app.name: ALL}
    outcome = surround([app], moved, first=[first], options=f"backend={backend},verbose=1", backend=backend,
                       T_FIRST=before + action)
    assert (f"text stays: {reason}" in outcome.stderr) if reason else outcome.stderr == ""


def test_written_under_a_filter(sum_program, surround, pool, first, confine):
    """A filter may kill for ioctl(2), so pagemap is read instead, as before Linux 6.7."""
    pool(64)
    action, reason = CHANGES["written"]
    outcome = surround([sum_program()], {}, first=[first], prefix=confine("deny=acct"), options="backend=hugetlb,verbose=1",
                       T_FIRST=action)
    assert f"text stays: {reason}" in outcome.stderr


def test_gaps_under_a_filter(sum_program, surround, pool, confine):
    """The gaps between segments are filled by other calls there."""
    pool(64)
    app = sum_program("hole")
    outcome = surround([app], {app.name: ALL}, prefix=confine("deny=acct"), options="backend=hugetlb,verbose=1")
    assert outcome.stderr == ""


@pytest.mark.parametrize("action", ["advise:{:x}:2000:10", "advise:{:x}:2000:a", "lock:{:x}:2000"],
                         ids=["dontdump", "dontfork", "locked"])
def test_special_data(builder, surround, pool, thp, first, action):
    """A secret among the data stays out of cores, children or swap, as a constructor has asked for; the rest moves."""
    pool(64)
    app = builder.executable("nopie", words=6 * 2**17)
    loads = [h for h in read_headers(app) if h.type == PT_LOAD]
    at = page_down(loads[-1].vaddr + loads[-1].file_bytes // 2) - page_down(loads[0].vaddr)
    outcome = surround([app], {app.name: ALL}, first=[first], options="backend=hugetlb,verbose=1,data=thp", T_FIRST=action.format(at))
    assert outcome.stderr == f"hugeld: {app.name}: data stays: {SPECIAL}\n"


def test_special_by_auditor(builder, surround, pool, thp, tool):
    """An auditor runs before every constructor, and no constructor but hugeld's has run."""
    pool(64)
    app = builder.executable("nopie", words=6 * 2**17)
    outcome = surround([app], {app.name: ALL}, options="backend=hugetlb,verbose=1,data=thp", LD_AUDIT=str(tool("auditor", shared=True)))
    assert outcome.stderr == f"hugeld: {app.name}: data stays: {SPECIAL}\n"


@pytest.mark.parametrize("before", ["", "threads:2,"], ids=["alone", "threads"])
@pytest.mark.parametrize("variant", ["six", "hole"])
def test_hole_in_use(sum_program, surround, first, route, variant, before):
    """A page was mapped between two segments, where the kernel had left a hole.  edges=small leaves a small hole out,
    but not the beginning of a large one."""
    backend, prefix = route
    app = sum_program(variant)
    loads = [h for h in read_headers(app) if h.type == PT_LOAD]
    holes = [page_up(a.vaddr + a.memory_bytes) for a, b in zip(loads, loads[1:])
             if a.flags & b.flags & PF_X and b.vaddr - a.vaddr - a.memory_bytes > 2 * helpers.PAGE]
    at = holes[0] + helpers.PAGE - page_down(loads[0].vaddr)
    outcome = surround([app], {}, first=[first], prefix=prefix, options=f"backend={backend},verbose=1",
                       T_FIRST=f"{before}fill:{at:x}:1000")
    assert f"{app.name}: text stays: something else is mapped between its segments; try edges=small\n" in outcome.stderr
    kept = surround([app], {app.name: ALL} if variant == "six" else {}, first=[first], prefix=prefix,
                    options=f"backend={backend},verbose=1,edges=small", backend=backend, T_FIRST=f"{before}fill:{at:x}:1000")
    assert ("text stays" in kept.stderr) == (variant == "hole")


# --- vm.max_map_count ---


def object_maps(pid, end):
    """The lines of /proc/PID/maps below END: smaps of 65530 mappings takes seconds."""
    with open(f"/proc/{pid}/maps") as file:
        lines = [line.split() for line in file]
    return [tuple(line) for line in lines if int(line[0].split("-")[0], 16) < end]


def run_occupied(app, env, name):
    with helpers.paused([app], env, name) as process:
        maps = object_maps(process.pid, 0x10000000)
        with open(f"/proc/{process.pid}/status") as file:
            huge = int(re.search(r"HugetlbPages:\s+(\d+)", file.read())[1]) // 2048
        return maps, huge, process.finish()


@pytest.mark.check_all
def test_nearly_no_mapping_left(sum_program, library, empty_library, pause_library, pool, first):
    """Every step of commit is once the one that fails, and the ballast brings everything back."""
    pool(64)
    app = sum_program("six")
    spans = plan_pages(app)

    def environment(hugeld, left):
        options = "backend=hugetlb,verbose=1"
        return helpers.preload(pause_library, hugeld, first, options=options, T_FIRST=f"occupy:{left:x}")

    seen = collections.Counter()
    plain_maps, _, plain = run_occupied(app, environment(empty_library, 60), app.name)
    # With the ballast the steps fail from some 50 mappings left downwards, without it they'd do so below 25.
    for left in (*range(53, 29, -2), *range(15, -1, -2)):
        maps, huge, (status, stdout, stderr) = run_occupied(app, environment(library, left), app.name)
        assert (status, stdout) == plain[:2], f"{left} left: {stderr}"
        assert "rolled back, but" not in stderr
        assert huge in (0, spans), f"{left} left: half of it moved"
        reasons = set(re.findall(r" stays: (.*);", stderr))
        assert bool(huge) == (not stderr), f"{left} left: moved {huge} pages: {stderr}"
        assert reasons <= {MAP_COUNT, NO_MEMORY}, f"{left} left: {stderr}"
        if not huge:
            assert maps == plain_maps, f"{left} left: {stderr}"
        seen.update(reasons or {"moved"})
    assert seen["moved"] and seen[MAP_COUNT] >= 5, seen


def plan_pages(app):
    [found] = helpers.hugeld_json("inspect", app)["files"]
    return found["plan"]["pages"]
