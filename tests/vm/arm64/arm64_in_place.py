# SPDX-License-Identifier: LGPL-2.1-or-later
"""`hugeld enable --way=in-place` in the arm64 guests, on xfs: the text that the kernel maps by huge entries afterwards, its later
state, and that programs say the same.  With pages of 16 KiB one entry maps 32 MiB, and a program has to be linked at a multiple of
that."""

import json
import os
import pathlib
import re
import shutil
import tarfile

import pytest

import arm64
import helpers
import vmguest
from arm64 import HUGE, IS_SMALL
from pagecache import scatter

XFS, CALM = pathlib.Path("/hugeld/xfs"), pathlib.Path("/tmp/calm")


@pytest.fixture(scope="module")
def disk():
    """An empty xfs at XFS, on a machine under no pressure: an emulated one waits for its disk all the time."""
    if not vmguest.has_file_system("xfs"):
        vmguest.absent("no xfs")
    covered = [path for path in ("/proc/pressure/io", "/proc/pressure/memory") if os.path.exists(path)]
    CALM.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
    with tarfile.open("/hugeld/test.xfs.tar") as tar:
        tar.extractall("/tmp")
    XFS.mkdir()
    assert helpers.run(["mount", "-t", "xfs", "-o", "loop", "/tmp/test.xfs", XFS]).returncode == 0
    for path in covered:
        assert helpers.run(["mount", "--bind", CALM, path]).returncode == 0
    yield XFS
    for path in [*covered, XFS]:
        assert helpers.run(["umount", path]).returncode == 0
    os.unlink("/tmp/test.xfs")


def generated(builder, _):
    return [builder.executable("nopie" if IS_SMALL else "high")]


def python(_, folder):
    return arm64.python(folder)[0]


class Case:
    """A command whose program, FILE, is on xfs."""

    def __init__(self, argv):
        self.file = XFS / os.path.basename(argv[0])
        self.argv = [self.file, *argv[1:]]
        shutil.copy(argv[0], self.file)
        self.file.chmod(0o755)

    def run(self):
        result = helpers.run(self.argv)
        return result.returncode, result.stdout

    def look(self):
        """Bytes of its text that huge entries map in a process, and bytes in whole huge pages of it; its exit status and output."""
        with arm64.writing(self.argv, os.environ) as process:
            huge, whole = arm64.look(process.pid, self.file)
            return huge, whole, process.finish()[:2]


@pytest.fixture(params=[generated, python] if IS_SMALL else [generated], ids=lambda make: make.__name__)
def case(request, disk, builder, tmp_path):
    made = Case(request.param(builder, tmp_path))
    yield made
    helpers.hugeld("disable", made.file)
    made.file.unlink()


def enable(*arguments):
    """`hugeld enable`, also of files on another disk."""
    os.makedirs("/etc/hugeld", exist_ok=True)
    with open("/etc/hugeld/hugeld.conf", "w", encoding="utf-8") as settings:
        settings.write("any_disk = yes\n")
    return helpers.hugeld("enable", *arguments)


def listed():
    result = helpers.hugeld("list", "--json")
    return json.loads(result.stdout)["stores"][0]["files"][0]["huge_pages"] * HUGE


def test_in_place(case):
    plain = case.run()
    scatter(case.file)
    huge, whole, said = case.look()
    assert huge == 0 and whole >= 2 * HUGE and said == plain and plain[0] in (0, 3), (huge, whole, said)
    result = enable("--way=in-place", case.file)
    assert result.returncode == 0 and "in place" in result.stdout, result
    assert case.look() == (whole, whole, plain) and listed() == whole
    scatter(case.file)  # as the kernel drops it when memory is short
    assert case.look() == (0, whole, plain) and listed() == 0
    result = helpers.hugeld("apply")
    assert result.returncode == 0, result
    assert case.look() == (whole, whole, plain) and listed() == whole


@pytest.mark.skipif(IS_SMALL, reason="n/a: not in this image")
def test_library(disk):
    """glibc puts it at any multiple of its alignment, which is 64 KiB."""
    library = disk / os.path.basename(arm64.LLVM)
    shutil.copy(arm64.LLVM, library)
    library.chmod(0o755)
    result = enable("--way=in-place", library)
    assert result.returncode == 1 and "not congruent" in result.stderr, result
    library.unlink()


@pytest.mark.skipif(not IS_SMALL, reason="n/a: a hundred MiB for each program")
def test_image_of_a_position_independent_program(disk, builder):
    """The exec stop puts it where its image fits, so its image is counted as mapped, and `hugeld run` takes it by itself."""
    app = disk / "app"
    shutil.copy(builder.executable("pie"), app)
    app.chmod(0o755)
    plain = helpers.run([app])
    try:
        result = enable("--way=image", app)
        assert result.returncode == 0 and re.search(r": image, [89]\d\.\d % of its text, \d+ huge pages$", result.stdout, re.M), result
        result = helpers.hugeld("run", "-o", "verbose=2", "--", app)
        assert (result.returncode, result.stdout) == (plain.returncode, plain.stdout) and "at the exec stop" in result.stderr, result
    finally:
        helpers.hugeld("disable", app)
        app.unlink()
