# SPDX-License-Identifier: LGPL-2.1-or-later
"""bench/misses.py and bench/itlb.c: misses that can be counted by hand, and a second, slower model."""

import collections
import json
import platform
import random
import subprocess

import pytest

import helpers
import misses



# First level: entries and ways for small pages, and for huge ones where those have an array of their own; second level;
# small pages that one entry takes of each level if they lie side by side.
PROCESSORS = {
    "zen4": ((64, 64), None, (512, 4), 4, 4),
    "skylake": ((128, 8), (8, 8), (1536, 12), 1, 1),
    "golden-cove": ((256, 8), (32, 8), (2048, 16), 1, 1),
    "neoverse-n1": ((48, 48), None, (1280, 5), 1, 4),
    "neoverse-v2": ((48, 48), None, (2048, 8), 1, 1),
}
every_processor = pytest.mark.parametrize("name", PROCESSORS)
PLAN = "layout small separate\nlayout side contiguous\nlayout huge separate\nhuge huge /o 0 100000000\n"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return misses.build(tmp_path_factory.mktemp("itlb"))


@pytest.fixture
def count(built, tmp_path):
    """The model's counts for a list of lines: {layout: {processor: [first, second]}}."""
    def run(lines, plan=PLAN):
        (tmp_path / "plan").write_text(plan)
        result = subprocess.run([built[0], tmp_path / "plan"], input="".join(f"{line}\n" for line in lines), text=True,
                                capture_output=True, timeout=60)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)
    return run


def visit(pages, shift=12):
    return ["/o", *(f"{page << shift:x} 10" for page in pages)]


def in_circle(pages, rounds, array):
    """Misses of an array with LRU: a set that has too few ways for its pages misses each time, any other one once."""
    entries, ways = array
    sets = collections.Counter(page % (entries // ways) for page in pages)
    return sum(n * (rounds if n > ways else 1) for n in sets.values())


@every_processor
def test_pages_that_fit_are_missed_once(count, name):
    entries = PROCESSORS[name][0][0]
    found = count(visit(list(range(entries)) * 7))
    assert found["misses"]["small"][name] == [entries, entries]
    assert found["instructions"] == entries * 7 * 10


@every_processor
@pytest.mark.parametrize("more", [1, 2, 5, 8])
def test_a_circle_of_too_many_pages(count, name, more):
    first, _, second, *_ = PROCESSORS[name]
    pages = list(range(first[0] + more))
    assert count(visit(pages * 7))["misses"]["small"][name] == [in_circle(pages, 7, first), len(pages)]
    pages = list(range(second[0] + more * second[0] // second[1]))  # each set has too many
    assert count(visit(pages * 3))["misses"]["small"][name] == [3 * len(pages)] * 2


@every_processor
def test_ways(count, name):
    """Pages that all want the same set of the second level, and so of the first."""
    first, _, (entries, ways), *_ = PROCESSORS[name]
    for n in ways, ways + 1:
        pages = [i * entries // ways for i in range(n)]
        assert count(visit(pages * 9))["misses"]["small"][name][0] == in_circle(pages, 9, first)
        others = [entries // ways // 2 + i * entries // ways for i in range(first[0])]  # throw them out of the first level, not of the second
        found = count(visit((pages + others) * 2))["misses"]["small"][name]
        assert found[1] == in_circle(pages, 2, (entries, ways)) + in_circle(others, 2, (entries, ways))


@every_processor
def test_neighbours(count, name):
    *_, first, second = PROCESSORS[name]
    pages = list(range(40))
    assert count(visit(pages * 5))["misses"]["side"][name] == [40 // first, 40 // second]
    assert count(visit(pages * 5))["misses"]["small"][name] == [40, 40]
    scattered = [4 * i for i in range(32)]  # no neighbour is ever executed
    assert count(visit(scattered * 5))["misses"]["side"][name] == [32, 32]


@every_processor
def test_huge_pages(count, name):
    first = PROCESSORS[name][1] or PROCESSORS[name][0]
    inside = [512 * huge + small for huge in range(first[0]) for small in (0, 3, 511)]
    assert count(visit(inside * 4))["misses"]["huge"][name] == [first[0]] * 2
    more = [512 * huge for huge in range(first[0] + 1)]
    assert count(visit(more * 4))["misses"]["huge"][name] == [in_circle(range(first[0] + 1), 4, first), first[0] + 1]


@every_processor
def test_huge_pages_have_entries_of_their_own_or_not(count, name):
    small, huge, *_ = PROCESSORS[name]
    plan = PLAN + "layout half separate\nhuge half /o 40000000 100000000\n"
    lines = visit([*range(small[0]), *(0x40000 + 512 * i for i in range(8))] * 5)
    first = count(lines, plan)["misses"]["half"][name][0]
    assert first == (small[0] + 8 if huge else (small[0] + 8) * 5)


def test_objects_lie_apart(count):
    assert count(["/a", "1000 1", "/b", "1000 1", "/a", "1000 1"])["misses"]["small"]["zen4"] == [2, 2]
    huge = "huge huge /a 0 200000\nhuge huge /b 0 200000\n"
    assert count(["/a", "1000 1", "/b", "1000 1", "/a", "2000 1"], PLAN + huge)["misses"]["huge"]["zen4"] == [2, 2]


class Array:
    def __init__(self, array):
        self.ways, self.sets = array[1], [[] for _ in range(array[0] // array[1])]

    def misses(self, number, kind):
        entries = self.sets[number % len(self.sets)]
        hit = (number, kind) in entries
        if hit:
            entries.remove((number, kind))
        entries.append((number, kind))
        del entries[:-self.ways]
        return not hit


def model(trace, name, side=False):
    """[first, second] of (page, whether it is huge)..."""
    small, huge, second, *coalesced = PROCESSORS[name]
    arrays, found, last = [Array(small), Array(huge) if huge else None, Array(second)], [0, 0], None
    for page, is_huge in trace:
        if page == last:
            continue
        last = page
        for level, group in enumerate(coalesced):
            number = page // 512 if is_huge else page // group if side else page
            array = arrays[2] if level else arrays[1] or arrays[0] if is_huge else arrays[0]
            if not array.misses(number, "huge" if is_huge else "small"):
                break
            found[level] += 1
    return found


@pytest.mark.parametrize("seed", range(4))
def test_a_second_model(count, seed):
    """Random walks that stay near for a while, half of them in huge pages."""
    draw, pages = random.Random(seed), []
    for _ in range(150):
        near = draw.randrange(3000)
        pages += [max(0, near + draw.randrange(-60, 60)) for _ in range(draw.randrange(1, 80))]
    plan = PLAN + "layout half separate\nhuge half /o 0 600000\n"
    found = count(visit(pages), plan)["misses"]
    for name in PROCESSORS:
        assert found["small"][name] == model([(page, False) for page in pages], name)
        assert found["side"][name] == model([(page, False) for page in pages], name, side=True)
        assert found["huge"][name] == model([(page, True) for page in pages], name)
        assert found["half"][name] == model([(page, page < 0x600) for page in pages], name)


@pytest.mark.parametrize("plan, trace, said", [
    ("layout a sideways\n", "", "no line of a plan"), ("huge a /o 0 1000\n", "", "no line of a plan"),
    ("layout a separate\nhuge a /o 0\n", "", "no line of a plan"), ("layout a separate\n", "1000\n", "no line of a trace"),
    ("layout a separate\n", "where 5\n", "no line of a trace"), ("".join(f"layout l{i} separate\n" for i in range(17)), "", "no line")])
def test_bad_input(built, tmp_path, plan, trace, said):
    (tmp_path / "plan").write_text(plan)
    result = subprocess.run([built[0], tmp_path / "plan"], input=trace, text=True, capture_output=True, timeout=60)
    assert result.returncode == 1 and said in result.stderr and not result.stdout


# --- a real program, in QEMU ---

PAGES, ROUNDS = 1500, 20
needs_qemu = pytest.mark.skipif(not misses.find_qemu(), reason="needs qemu-user")
needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the program is written for x86-64")


@pytest.fixture(scope="module")
def circle(tmp_path_factory):
    """A program that walks a circle of PAGES of its own, ROUNDS times; on the way out a single instruction repeats itself
    4096 times."""
    folder = tmp_path_factory.mktemp("circle")
    lines = [".globl _start", "_start: mov $%d, %%ebx" % ROUNDS, "jmp page0", ".p2align 12"]
    for i in range(PAGES - 1):
        lines += [f"page{i}: jmp page{i + 1}", ".p2align 12"]
    lines += [f"page{PAGES - 1}: dec %ebx", "jnz page0", "mov $4096, %ecx", "lea room, %rdi", "rep stosb", "mov $60, %eax",
              "xor %edi, %edi", "syscall", ".bss", "room: .skip 4096"]
    (folder / "circle.S").write_text("\n".join(lines) + "\n")
    program = folder / "circle"
    subprocess.run(["gcc", "-nostdlib", "-static", "-no-pie", "-o", program, folder / "circle.S"], check=True, timeout=60)
    return program


@needs_qemu
@needs_x86
def test_a_real_program(circle, built, tmp_path):
    found = misses.trace([circle], None, tmp_path, built[1])
    assert found["instructions"] == 2 + ROUNDS * (PAGES + 1) + 6
    start = int(subprocess.run(["nm", circle], capture_output=True, text=True, check=True).stdout.split(" T _start")[0].split()[-1], 16)
    first = start // 4096  # _start has a page of its own before the circle
    visited = [first, *list(range(first + 1, first + 1 + PAGES)) * ROUNDS]
    plan = misses.inspect(circle)["plan"]
    spans = [(int(s["start"], 16) // 4096, int(s["end"], 16) // 4096) for s in plan["spans"] if "x" in s["flags"]]
    assert spans and 0 < plan["text_share"]
    for name, (small, _, second, *_) in PROCESSORS.items():
        by_hand = 1 + in_circle(range(first + 1, first + 1 + PAGES), ROUNDS, small)
        assert found["misses"]["plain"][name] == model([(page, False) for page in visited], name)
        assert found["misses"]["plain"][name][0] == by_hand == 1 + PAGES * ROUNDS
        assert found["misses"]["contiguous"][name] == model([(page, False) for page in visited], name, side=True)
        huge = [(page, any(low <= page < high for low, high in spans)) for page in visited]
        assert found["misses"]["private"][name] == model(huge, name)
        assert found["misses"]["linked"][name] == [len({page // 512 for page in visited})] * 2


@pytest.fixture(scope="module")
def lottery(tmp_path_factory):
    """A program that executes as many instructions as the kernel's random bytes for it say."""
    program = tmp_path_factory.mktemp("lottery") / "lottery"
    source = b"#include <sys/auxv.h>\nint main() { for (volatile unsigned n = *(unsigned short *)getauxval(AT_RANDOM); n > 0; n--); }"
    subprocess.run(["gcc", "-x", "c", "-o", program, "-"], input=source, check=True, timeout=60)
    return [program]


@needs_qemu
@pytest.mark.check_all
@pytest.mark.parametrize("what", ["perl", "python3", "lottery"])
def test_the_same_each_time(what, built, tmp_path, request, monkeypatch):
    """The trace is the same with any environment, and at any address that the kernel chooses."""
    argv = {"perl": ["/usr/bin/perl", "-e", "my %h; $h{$_ * 7 % 101} .= $_ for 1 .. 5000; print sort values %h"],
            "python3": ["/usr/bin/python3", "-S", "-c", "for name in {str(i) for i in range(5000)}: hash(name)"]}.get(what)
    argv = argv or request.getfixturevalue("lottery")
    found = [misses.trace(argv, "main", tmp_path, built[1]) for _ in range(2)]
    monkeypatch.setenv("SOMETHING", "x" * 5000)
    found.append(misses.trace(argv, "main", tmp_path, built[1]))
    assert found[0] == found[1] == found[2] and found[0]["misses"]["plain"]["zen4"][0] > 10


@needs_qemu
@pytest.mark.check_all
def test_a_program_that_fails_or_takes_too_long_is_no_result(built, tmp_path):
    with pytest.raises(RuntimeError, match="ended with 1"):
        misses.trace(["/bin/false"], None, tmp_path, built[1])
    with pytest.raises(RuntimeError, match="more than 1 s"):
        misses.trace(["/bin/sleep", "30"], None, tmp_path, built[1], timeout=1)


@needs_qemu
@pytest.mark.check_all
def test_command():
    result = helpers.run(["/usr/bin/python3", "-B", helpers.ROOT / "bench/misses.py", "/bin/true"])
    assert result.returncode == 0, result.stderr
    assert "| plain |" in result.stdout and "million instructions" in result.stdout
    result = helpers.run(["/usr/bin/python3", "-B", helpers.ROOT / "bench/misses.py", "no-such-program"])
    assert result.returncode == 1 and "was not found" in result.stderr
