# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs and libraries whose headers are wrong or unusual in one place: with hugeld the kernel and the dynamic linker
do the same with them as without it.  The fuzzers beside this test how hugeld reads the numbers."""

import os
import shutil
import struct
import sys

import pytest

import helpers
import hostile


OPTIONS = "bss=thp"
WORKED = 3  # the programs' exit status


def variants(path, one_field):
    data = path.read_bytes()
    yield "plain", data
    yield from hostile.shapes(data)
    yield "65535-headers", hostile.many_headers(data)
    if one_field:
        yield from hostile.one_field(data)


def outcome(way, selected, argv):
    result = helpers.run(*way(selected, argv), timeout=helpers.PATIENCE)
    return result.returncode, result.stdout


def compare(folder, original, argv_for, ways, one_field):
    """Runs each variant of ORIGINAL in all WAYS, with nothing selected and with everything.  If a program does not work
    even so, its address decides how it fails.  Returns the number of those that worked."""
    different, worked = [], 0
    copy = folder / original.name
    for what, data in variants(original, one_field):
        if hostile.reaches_out(data):
            continue  # the fuzzers have these
        copy.unlink(missing_ok=True)
        copy.write_bytes(data)
        copy.chmod(0o755)
        for name, way in ways.items():
            plain = outcome(way, False, argv_for(copy))
            changed = outcome(way, True, argv_for(copy))
            worked += plain[0] == WORKED
            if changed == plain or WORKED not in (plain[0], changed[0]):
                continue
            # With some of these the address decides whether it works at all.
            both = [{outcome(way, selected, argv_for(copy)) for _ in range(20)} | {first}
                    for selected, first in ((False, plain), (True, changed))]
            if not both[0] & both[1]:
                different.append((what, name, plain, changed))
        inspected = helpers.hugeld("inspect", copy)
        if inspected.returncode not in (0, 1, 2) or not inspected.stderr + inspected.stdout:
            different.append((what, "inspect", inspected))
    assert not different, f"{len(different)} differ: {different[:3]}"
    return worked


@pytest.fixture
def ways(library, empty_library):
    """Functions of (selected, argv) that give a command and its environment; ld.so where it is built."""

    def preloaded(selected, argv):
        return argv, helpers.preload(library if selected else empty_library, patterns="*", options=OPTIONS)

    def by_ldso(selected, argv):
        patterns = "*" if selected else "no-such-object"
        return [helpers.HUGELD, "run", "--ld-so", ldso, "-p", patterns, "-o", OPTIONS, "--", *argv], None

    ldso = helpers.BUILD / "ldso" / "ld.so"
    return {"preload": preloaded, **({"ldso": by_ldso} if ldso.exists() else {})}


@pytest.mark.parametrize("variant, one_field", [
    ("nopie", False), pytest.param("pie", True, marks=pytest.mark.check_all), pytest.param("aligned", False, marks=pytest.mark.check_all)])
def test_executables(builder, pool, tmp_path, ways, variant, one_field):
    pool(64)
    # env: a program that the kernel refuses to start ends with 126.
    program = builder.executable(variant)
    worked = compare(tmp_path, program, lambda copy: ["/usr/bin/env", copy], ways, one_field)
    assert worked > 10  # some of it is harmless


@pytest.mark.parametrize("variant, one_field", [pytest.param("dso", True, marks=pytest.mark.check_all), ("dso-aligned", False)])
def test_libraries(builder, pool, tmp_path, ways, variant, one_field):
    pool(64)
    app, [library] = builder.with_library(variant)
    program = shutil.copy(app, tmp_path)
    os.symlink(f"{library.name}", tmp_path / f"{library.name}.1")
    worked = compare(tmp_path, library, lambda copy: [program], ways, one_field)
    assert worked > 10


# Prints on its standard error how much memory a command took at most, and its processor time: after a vfork by pytest that of pytest
# would count.
MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_maxrss, used.ru_utime + used.ru_stime, file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize("what", ["dynamic", "sections", "text"])
def test_much_that_is_not_there(builder, tmp_path, what):
    """A sparse file may say that it has gigabytes of dynamic section or of section headers, or terabytes of text, and end with
    terabytes that no header names."""
    elf = hostile.Elf(builder.executable("nopie" if what == "text" else "pie").read_bytes())
    sections = 1 << 33
    if what == "dynamic":
        next(ph for ph in elf.phdr if ph["type"] == 2)["filesz"] = 1 << 30
    elif what == "sections":
        elf.header[6], elf.header[12] = sections, 0  # the first one has their number
    else:
        last = elf.loads()[-1]
        last.update(flags=hostile.R | hostile.X, offset=helpers.HUGE + last["vaddr"] % helpers.HUGE, filesz=1 << 42, memsz=1 << 42)
    sparse = tmp_path / "sparse"
    with open(sparse, "wb") as file:
        file.write(elf.pack())
        file.seek(sections + 32)
        file.write(struct.pack("<Q", 1 << 24))
        file.truncate(1 << 43)
    result = helpers.run([sys.executable, "-c", MEASURED, helpers.HUGELD, "inspect", sparse])
    assert result.returncode in (0, 1) and str(sparse) in result.stdout, result
    kib, seconds = result.stderr.split()[-2:]
    assert int(kib) < 200_000 and float(seconds) < 5, result
