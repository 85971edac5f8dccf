# SPDX-License-Identifier: LGPL-2.1-or-later
"""Our ld.so puts objects on huge pages exactly as planned: the executable that the kernel mapped, the one that it maps itself, and
libraries.  How the core moves them does not depend on the way in: tests/system has every way of linking, faults and the pool."""

import pathlib
import re
import shutil
import tempfile

import pytest

import helpers
import programs
from linked import ALL, by_command, by_run
from objects import find_bias
from smaps import read_smaps

# Objects without read-only data of their own beside the text.
ONLY_TEXT = ("dso-noseparate", "dso-norosegment")


@pytest.mark.parametrize("variant, way", [("nopie", by_run), ("pie", by_run), ("hole", by_run), ("nopie", by_command), ("now", by_command),
                                          ("six", by_command), ("hole-pie", by_command), ("aligned-pie", by_command)])
def test_executable(linked, builder, pool, variant, way):
    pool(64)
    app = builder.executable(variant)
    linked.prove([app], {app.name: ALL}, "main", "backend=hugetlb", way)


@pytest.mark.parametrize("variant", ["dso", "dso-aligned", "dso-hole", "dso-six", *ONLY_TEXT])
def test_library(linked, builder, pool, variant):
    pool(64)
    app, [library] = builder.with_library(variant)
    linked.prove([app], {library.name: ("text",) if variant in ONLY_TEXT else ALL}, "libbig*", "backend=hugetlb")


ADDRESS = 0x700000000000


def test_library_with_an_address_of_its_own(linked, builder, pool):
    """Linked (or prelinked) for an address: it gets that, and with its address taken another one."""
    pool(64)

    def build(folder):
        libraries = [builder.compile(folder / f"lib{name}.so", "-shared", f"-Wl,-soname,lib{name}.so", *builder.object(),
                                     f"-Wl,-Ttext-segment={ADDRESS:#x}") for name in ("big", "big2")]
        app = builder.compile(folder / "small-prelinked", builder.write("main.c", programs.MAIN), "-Wl,--no-as-needed",
                              *libraries, "-Wl,-rpath,$ORIGIN")
        return app, libraries

    app, libraries = builder.once("prelinked", build)
    linked.prove([app], {library.name: ALL for library in libraries}, "libbig*", "backend=hugetlb")
    with linked.paused([app], "libbig*", "backend=hugetlb") as process:
        mappings = read_smaps(process.pid)
        biases = [find_bias(library, [m for m in mappings if m.name == str(library)]) for library in libraries]
        assert biases[0] == 0 and biases[1] != 0


@pytest.mark.parametrize("variant", ["dso", "dso-hole", "dso-noseparate"])
def test_begins_on_a_boundary(linked, builder, pool, variant):
    """Where the kernel maps files anywhere, as those of tmpfs, the object begins on a boundary of huge pages in every start."""
    pool(64)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        copy = pathlib.Path(shutil.copytree(builder.with_library(variant)[0].parent, f"{folder}/copy", symlinks=True))
        library = copy / "libbig.so"
        for _ in range(5):
            with linked.paused([copy / f"small-{variant}"], "libbig*", "segments=text") as process:
                mappings = read_smaps(process.pid)
                assert find_bias(library, [m for m in mappings if m.name == str(library)]) % helpers.HUGE == 0
                assert any(m.is_hugetlb for m in mappings)


SHOW = "import ctypes, sys\nfor path in sys.argv[1:]: ctypes.CDLL(path)\nprint(open('/proc/self/maps').read())"


def read_layout(linked, library, patterns, opened_later):
    """The addresses of LIBRARY's mappings: the first one modulo the size of a huge page, and the others from there."""
    if opened_later:
        argv, variables = ["/usr/bin/python3", "-c", SHOW, library], {}
    else:
        argv, variables = ["/bin/cat", "/proc/self/maps"], {"LD_PRELOAD": library}
    env = dict(helpers.preload(patterns=patterns, options="backend=thp"), **variables)
    result = helpers.run(["setarch", "-R", linked.ldso, *argv], {k: str(v) for k, v in env.items()})
    assert result.returncode == 0, result.stderr
    found = [line.split() for line in result.stdout.splitlines() if line.endswith(f" {library}")]
    starts = [int(words[0].split("-")[0], 16) for words in found]
    assert starts, result.stdout
    return starts[0] % helpers.HUGE, [(int(words[0].split("-")[1], 16) - starts[0], words[1], words[2]) for words in found]


@pytest.mark.parametrize("opened_later", [False, True], ids=["preloaded", "dlopen"])
def test_unselected_object_stays_where_it_was(linked, features, thp, opened_later):
    """Naming one object changes nothing for the others: they lie where the kernel puts them, where offsets and addresses
    are congruent. An exclusion is no selection either, by file name or by soname."""
    unset = read_layout(linked, features(), None, opened_later)
    for patterns in ("no-such-object", "libbig*:!libbig*", "!libbig*:no-such-object"):
        assert read_layout(linked, features(), patterns, opened_later) == unset, patterns
    assert read_layout(linked, features(), "libbig*", opened_later) != unset


EARLY = """
#include <unistd.h>
static void early(void) { write(2, "early\\n", 6); }
__attribute__((section(".preinit_array"), used)) static void (*entry)(void) = early;
int main(void) { return 3; }
"""


def test_preinit(linked, builder, pool, tmp_path):
    """Code in .preinit_array, which runs before any library's constructor, runs after the move."""
    pool(64)
    app = builder.compile(tmp_path / "app-early", "-no-pie", builder.write("early.c", EARLY), *builder.object())
    done = linked.run([app], "main", "verbose=2")
    assert done.returncode == 3 and re.fullmatch(r"hugeld: app-early: text \d+ pages hugetlb.*\nearly\n", done.stderr), done.stderr


def test_strict(linked, builder, pool):
    pool(0)
    app, _ = builder.with_library("dso")
    done = linked.run([app], "libbig.so.1", "backend=hugetlb,strict=on")
    assert done.returncode == 127 and done.stdout == ""
    assert done.stderr == "hugeld: libbig.so.1: text stays: the huge page pool cannot serve it; strict=on ends the program\n"
    assert linked.run([app], "libbig*", "backend=hugetlb,strict=on").returncode == 3


@pytest.mark.parametrize("way", [by_run, by_command])
@pytest.mark.parametrize("patterns", ["nod", "main,libc*"])
def test_names_that_nothing_has(linked, builder, way, patterns):
    """A name that no object has is silent by default, gets a line at verbose=1, and ends the program with strict=on."""
    app, plain = builder.tiny(), (4, "tiny\n")
    runs = [linked.run([app], f"libc.so.6:{patterns}:ld-linux*", options, way)
            for options in ("", "verbose=1,exe=tiny", "strict=on,exe=tiny")]
    assert [(done.returncode, done.stdout) for done in runs] == [plain, plain, (127, "")]
    told = f"hugeld: LD_HUGEPAGES: {patterns}: no object that is loaded at startup has this name"
    assert [done.stderr.count(told) for done in runs] == [0, 1, 1] and runs[0].stderr == ""
