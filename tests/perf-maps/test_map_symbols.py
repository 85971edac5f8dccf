# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which lines a file gives: the same as a slow implementation of the rules for made-up files, and as nm and objdump for
linked ones."""

import os
import platform
import re
import struct
import subprocess

import hypothesis
import pytest
from hypothesis import strategies as st

from installed import find_node
from perfmaps import functions, names_by_start, read_map


BASE, SECTION = 0x1000, 0x200
BIAS = 0x7F0000000000
FUNC, NOTYPE, OBJECT, IFUNC = 2, 0, 1, 10
LOCAL, GLOBAL, WEAK = 0, 1, 2


# --- made-up files ---


def make_elf(symbols, table_type=2):
    """An ELF file with two executable sections side by side and SYMBOLS: (name, value, size, binding, type)."""
    machine = struct.unpack_from("<H", open("/proc/self/exe", "rb").read(20), 18)[0]
    strings, table = b"\0", bytes(24)
    for name, value, size, binding, kind in symbols:
        table += struct.pack("<IBBHQQ", len(strings), binding << 4 | kind, 0, 1, value, size)
        strings += name.encode() + b"\0"
    offset = 64 + 5 * 64
    sections = [
        bytes(64),
        struct.pack("<IIQQQQIIQQ", 0, 1, 6, BASE, 0, SECTION, 0, 0, 1, 0),
        struct.pack("<IIQQQQIIQQ", 0, 1, 6, BASE + SECTION, 0, SECTION, 0, 0, 1, 0),
        struct.pack("<IIQQQQIIQQ", 0, table_type, 0, 0, offset, len(table), 4, 0, 8, 24),
        struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, offset + len(table), len(strings), 0, 0, 1, 0),
    ]
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = ident + struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 0, 64, 0, 64, 0, 0, 64, 5, 0)
    return header + b"".join(sections) + table + strings


def prefer(a, b):
    """perf's choice of two symbols at the same address, A standing before B: (name, value, size, binding, type)."""
    def rank(symbol):
        name, _, size, binding, kind = symbol
        underscores = len(name) - len(name.lstrip("_"))
        return (size > 0, kind != NOTYPE, binding != WEAK, binding == GLOBAL, -underscores, len(name.encode()))

    return b if rank(b) > rank(a) else a


def slow_map(symbols, ranges):
    """The map by the rules, byte by byte."""
    kept = [s for s in symbols if s[4] in (FUNC, NOTYPE, IFUNC) and s[0] and BASE <= s[1] < BASE + 2 * SECTION
            and not (s[4] == NOTYPE and re.match(r"\.L|\$[xdat](\.|$)", s[0]))]
    kept.sort(key=lambda s: s[1])  # stable
    sized = []
    for i, (name, value, size, binding, kind) in enumerate(kept):
        section_end = BASE + SECTION if value < BASE + SECTION else BASE + 2 * SECTION
        following = kept[i + 1][1] if i + 1 < len(kept) else section_end
        size = min(size or following - value, section_end - value)
        sized.append((name, value, size, binding, kind))
    chosen = {}
    for symbol in sized:
        value = symbol[1]
        chosen[value] = prefer(chosen[value], symbol) if value in chosen else symbol
    owner = {}
    for name, value, size, _, kind in chosen.values():
        if kind != NOTYPE or value not in owner:
            owner.update(dict.fromkeys(range(value, value + size), (value, name)))
    lines = []
    for start, end in ranges:
        for at in range(start, end):
            if at not in owner:
                continue
            if lines and lines[-1][1] == at and lines[-1][2] == owner[at] and at != start:
                lines[-1][1] = at + 1
            else:
                lines.append([at, at + 1, owner[at]])
    return "".join(f"{BIAS + a:x} {b - a:x} {name:3}\n" for a, b, (_, name) in lines)


names = st.text("ab_.$xL@Z", min_size=1, max_size=9)
addresses = st.one_of(st.integers(BASE - 8, BASE + 2 * SECTION + 8), st.sampled_from([BASE, BASE + 16, BASE + SECTION]))
sizes = st.one_of(st.just(0), st.integers(1, 40), st.integers(1, SECTION * 3), st.just(2**64 - 1))
symbol_lists = st.lists(st.tuples(names, addresses, sizes, st.sampled_from([LOCAL, GLOBAL, WEAK]),
                                  st.sampled_from([FUNC, FUNC, FUNC, NOTYPE, OBJECT, IFUNC])), max_size=24)


@st.composite
def range_lists(draw):
    cuts = sorted(draw(st.sets(st.integers(BASE - 16, BASE + 2 * SECTION + 16), min_size=2, max_size=8)))
    return list(zip(cuts[::2], cuts[1::2]))


@hypothesis.settings(max_examples=400, deadline=None, database=None, derandomize=True,
                     suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(symbol_lists, range_lists())
def test_like_the_slow_one(map_file, tmp_path, symbols, ranges):
    path = tmp_path / "file"
    path.write_bytes(make_elf(symbols))
    moved = [(BIAS + start, BIAS + end) for start, end in ranges]
    assert map_file(path, BIAS, moved) == slow_map(symbols, ranges)


# --- linked files ---


def is_of_plt(line):
    return line.name.endswith("@plt") or re.fullmatch(r"\.i?plt(\.\w+)?", line.name)


def check_map(lines, path):
    """Each function that readelf knows begins a line, with a name that nm has there, and nothing else does; sorted."""
    assert all(a.end <= b.start for a, b in zip(lines, lines[1:]))
    names = names_by_start(path)
    begun = {line.start: line for line in lines}
    known = functions(path)
    assert [row for row in known if row[1] > 0 and row[0] not in begun] == []
    sizes = {}
    for start, size, _ in known:
        sizes.setdefault(start, set()).add(size)
    ends = {start + size for start, size, _ in known}
    for line in lines:
        if is_of_plt(line):
            continue
        if line.start in names:
            assert line.name.rstrip() in names[line.start], line
        else:
            assert line.start in ends, f"{line} neither begins a function nor goes on behind one"
    own = [line for line in lines if not is_of_plt(line)]
    return sum(line.end - line.start in sizes.get(line.start, ()) for line in own) / len(own)


@pytest.mark.parametrize("flags", [[], ["-no-pie"], ["-fuse-ld=lld"], ["-s", "-rdynamic"]], ids=" ".join)
def test_functions(map_file, named, flags):
    app = named("names" + "".join(flags), *flags)
    assert len(functions(app)) >= 12
    check_map(read_map(map_file(app)), app)


STUBS = r"""
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int argc, char **argv) {
    void (*pointer)(void *) = argc > 3 ? free : 0;
    char *copy = malloc(strlen(argv[0]) + 1);
    strcpy(copy, argv[0]);
    puts(copy);
    printf("%f %f\n", pow(argc, 1.5), cos(argc));
    free(copy);
    return pointer != 0;
}
"""


@pytest.mark.parametrize("flags", [
    ["-Wl,-z,lazy", "-fcf-protection=none", "-Wl,-z,noibtplt"], ["-Wl,-z,lazy", "-fcf-protection=full", "-Wl,-z,ibtplt"],
    ["-Wl,-z,now", "-fcf-protection=full", "-Wl,-z,ibtplt"], ["-Wl,-z,now"], ["-no-pie", "-Wl,-z,lazy"],
    ["-fuse-ld=lld"], ["-fuse-ld=lld", "-Wl,-z,now"], ["-Wl,-z,lazy", "-s"],
], ids=" ".join)
def test_stubs(map_file, builder, flags):
    """Each stub has the name that objdump finds for it by other means."""
    name = "stubs" + re.sub(r"\W", "", "".join(flags))
    source = builder.write("stubs.c", STUBS)
    app = builder.once(name, lambda folder: builder.compile(folder / name, source, "-fno-builtin", "-lm", *flags))
    listing = subprocess.run(["objdump", "-d", app], check=True, capture_output=True, text=True).stdout
    wanted = {int(start, 16): called for start, called in re.findall(r"^([0-9a-f]+) <([^>]+@plt)>:", listing, re.M)}
    found = {line.start - BIAS: line.name for line in read_map(map_file(app, BIAS)) if line.name.endswith("@plt")}
    assert len(wanted) >= 6
    assert found == wanted


def make_stubs(count, sections):
    """An ELF file with COUNT stubs that jump through one slot, of a function with a name of 4 KiB; SECTIONS are made of them."""
    code, slot, first_section = 0x20000000, 0x10000000, 6
    plt = b"".join(struct.pack("<BBiH", 0xff, 0x25, slot - (code + 8 * i + 6), 0x9090) for i in range(count))
    parts = [(plt, 8), (b"\0" + b"A" * 4090 + b"\0", 0), (b"\0" * 24 + struct.pack("<IBBHQQ", 1, 0x12, 0, 0, 0, 0), 24),
             (struct.pack("<QQq", slot, 1 << 32 | 7, 0), 24),
             (b"\0f\0", 0), (b"\0" * 24 + struct.pack("<IBBHQQ", 1, 0x12, 0, first_section, 0x400000, 16), 24), (b"\0.plt\0", 0)]
    at = [64]
    for content, _ in parts:
        at.append(at[-1] + -(-len(content) // 8) * 8)

    def header(name, type_, flags, address, part, link=0):
        return struct.pack("<IIQQQQIIQQ", name, type_, flags, address, at[part], len(parts[part][0]), link, 0, 8, parts[part][1])

    table = [bytes(64), header(0, 11, 2, 0, 2, 2), header(0, 3, 2, 0, 1), header(0, 4, 2, 0, 3, 1), header(0, 2, 0, 0, 5, 5),
             header(0, 3, 0, 0, 4), struct.pack("<IIQQQQIIQQ", 0, 1, 6, 0x400000, 0, 4096, 0, 0, 8, 0), header(0, 3, 0, 0, 6),
             *[header(1, 1, 6, code, 0)] * sections]
    body = b"".join(content + bytes(-len(content) % 8) for content, _ in parts)
    start = b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, at[-1], 0, 64, 56, 0, 64, len(table), 7)
    return start + body + b"".join(table)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the stubs are of x86-64")
def test_memory_is_bounded_by_the_file(map_file, tmp_path):
    """Stubs that share a name take no memory for it, sections of stubs that overlap are refused, and a map with the name for each
    of the stubs is not written."""
    path, memory = tmp_path / "hostile", 100 << 20
    path.write_bytes(make_stubs(1 << 18, 1))
    assert path.stat().st_size < 3 << 20
    assert map_file(path, 0, [(0x400000, 0x401000)], memory) == "400000 10 f  \n"
    assert map_file(path, 0, [(0x400000, 0x401000), (0x20000000, 0x20200000)], memory) is None
    path.write_bytes(make_stubs(64, 1))
    assert map_file(path).count("A" * 4090 + "@plt\n") == 64
    path.write_bytes(make_stubs(1 << 18, 32))
    assert map_file(path, 0, [(0x400000, 0x401000)], memory) is None


def test_stub_of_an_ifunc(map_file, named):
    """A function that is chosen at run time is called through a stub without a dynamic symbol: the name is the one that
    stands at the address of the choosing function."""
    app = named("names-no-pie", "-no-pie")
    names = [line.name for line in read_map(map_file(app))]
    assert ("choose_one@plt" in names) and ("choose_one" in names)
    stripped = app.with_name("stripped")
    subprocess.run(["strip", "-o", stripped, app], check=True)
    assert re.search(r" \*ABS\*\+0x[0-9a-f]+@plt\n", map_file(stripped))


@pytest.mark.parametrize("name", [pytest.param("node", marks=pytest.mark.check_all), "python3", "gdb", "cc1plus"])
def test_real_files(map_file, name):
    """The maps of installed programs, stripped or not."""
    path = find_node() if name == "node" else f"/usr/bin/{name}"
    if name == "cc1plus":
        path = subprocess.run(["g++", "-print-prog-name=cc1plus"], capture_output=True, text=True).stdout.strip()
    if not path or not os.path.exists(path):
        pytest.skip(f"{name} is not installed")
    lines = read_map(map_file(path))
    assert len(lines) > 100
    assert check_map(lines, path) > 0.9
