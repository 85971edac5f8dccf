# SPDX-License-Identifier: LGPL-2.1-or-later
"""A position-independent program is moved before its first instruction, so that its image fits.  All that depends on where it
lies agrees: in the program, in the kernel, and in the tools that look from outside."""

import pathlib
import re
import shutil
import subprocess

import pytest

import helpers
from stores import is_image


HERE = pathlib.Path(__file__).resolve().parent
CHAIN = ["deep_leaf", "deep_three", "deep_two", "deep_one", "main"]
FIXED = ["setarch", "-R"]  # without randomisation


@pytest.fixture
def app(builder, images, tmp_path):
    """The program, which has an image."""

    def link(folder):
        flags = ["-w", "-g", "-O1", "-fPIE", "-pie", "-rdynamic", "-fno-toplevel-reorder"]
        return builder.compile(folder / "moved", HERE / "exec-stop-moved.c", *builder.object(), *flags, "-ldl")

    path = pathlib.Path(shutil.copy(builder.once("exec-stop-moved", link), tmp_path / "moved"))
    images.add(path)
    return path


@pytest.fixture
def start(images):
    """start(app): the command that runs it at the exec stop."""
    return lambda *argv: [helpers.HUGELD, "run", "-o", f"store={images.folder},verbose=2", "--", *argv]


def environment():
    env = helpers.environment()
    env.pop("LD_HUGEPAGES_OPTIONS")
    return env


def run(argv):
    return helpers.run(argv, environment())


def place(result):
    return int(re.search(r"^at (\w+)$", result.stdout, re.M)[1], 16)


def without_place(result):
    return result.returncode, re.sub(r"^at \w+\n", "", result.stdout, flags=re.M)


def check_moved(result, app):
    assert re.match(rf"hugeld: {app.name}: text \d+ pages image, .*at the exec stop from ", result.stderr), result.stderr


@pytest.mark.parametrize("prefix", [[], FIXED, ["sh", "-c", 'ulimit -s unlimited; exec "$@"', "sh"]],
                         ids=["random", "fixed", "legacy"])
def test_itself(app, start, prefix):
    """The program agrees: its vectors, data, heap, dlopen, dladdr, backtrace, and executing itself again."""
    plain, moved = run([*prefix, app]), run([*prefix, *start(app)])
    check_moved(moved, app)
    assert without_place(moved) == without_place(plain) and plain.returncode == 0
    assert place(moved) % helpers.HUGE == 0


def test_place_is_random(app, start):
    """The place has every random bit of the kernel's, from 2 MiB up; and none if the kernel has none."""
    bits = int(pathlib.Path("/proc/sys/vm/mmap_rnd_bits").read_text())
    places = [place(run(start(app))) for _ in range(32)]
    varying = 0
    for one in places:
        varying |= one ^ places[0]
    expected = (1 << (12 + bits)) - helpers.HUGE
    assert varying & expected == expected and len(set(places)) > 28, [hex(one) for one in places]
    assert len({place(run([*FIXED, *start(app)])) for _ in range(3)}) == 1


def test_memory_limit(app, start):
    """RLIMIT_AS suffices for the program and not for twice its extent: it runs where it was."""
    size = 330 << 10  # of which the heap is most
    prefix = ["sh", "-c", f'ulimit -v {size}; exec "$@"', "sh"]
    plain, moved = run([*prefix, app]), run([*prefix, *start(app)])
    assert without_place(moved) == without_place(plain)


def test_gdb(app, start):
    """A breakpoint in moved text is hit, and the chain of calls is right."""
    if not shutil.which("gdb"):
        pytest.skip("gdb is not installed")
    process = helpers.start([*start(app), "work", "20000"], environment())
    try:
        assert "at the exec stop" in process.stderr.readline()
        told = helpers.run(["gdb", "-q", "-nx", "-batch", "-p", process.pid, "-ex", "break deep_leaf", "-ex", "continue",
                            "-ex", "backtrace", "-ex", "print name"])
        frames = re.findall(r"^#\d+ .*?(\w+) \(", told.stdout, re.M)
        assert [frame for frame in frames if frame in CHAIN] == CHAIN and '"relocated"' in told.stdout, told
    finally:
        helpers.end_process(process)


@pytest.mark.check_all(ci=True)
def test_detach(app, start):
    """hugeld detach finds it, and puts it back on its own file, at an address that does not fit its image."""
    process = helpers.start([*start(app), "wait"], environment(), stdin=subprocess.PIPE)
    try:
        assert "at the exec stop" in process.stderr.readline()
        maps = pathlib.Path(f"/proc/{process.pid}/maps")
        huge = re.compile(rf"{app}: [1-9][0-9.]* % of the text on huge pages$", re.M)
        helpers.wait_until(lambda: huge.search(helpers.hugeld("status", process.pid).stdout), what="what hugeld status says")
        helpers.wait_until(lambda: "back on its own file" in helpers.hugeld("detach", process.pid).stdout, what="detach")
        text = [line for line in maps.read_text().splitlines() if " r-xp " in line and line.endswith(f"/{app.name}")]
        assert text and all(line.endswith(str(app)) for line in text), text
        assert not any(is_image(line.split()[-1]) for line in maps.read_text().splitlines()), maps.read_text()
        process.communicate(timeout=helpers.PATIENCE)
        assert process.returncode == 0
    finally:
        helpers.end_process(process)
