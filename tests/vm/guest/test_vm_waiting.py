# SPDX-License-Identifier: LGPL-2.1-or-later
"""Processes that hold their mmap_lock, as any user can make them by a FUSE: what looks at many processes leaves them out and says so."""

import pathlib
import re
import select
import subprocess

import pytest

import helpers
import vmguest

USER = 65534
SECONDS = 100


def build(builder):
    """The program that holds them."""
    source = pathlib.Path(__file__).with_name("hold.c")
    return builder.once("hold", lambda folder: builder.compile(folder / "hold", "-D_GNU_SOURCE", "-pthread", "-static", source))


@pytest.fixture
def held(builder, tmp_path):
    """The numbers of three processes of a user."""
    if not vmguest.has_file_system("fuse"):
        vmguest.absent("no FUSE")
    folder = tmp_path / "fuse"
    folder.mkdir()
    holder = helpers.start([build(builder), folder, 3, USER])
    try:
        pids = [int(holder.stdout.readline()) for _ in range(3)]
        assert holder.stdout.readline() == "\n", holder.stderr.read()
        yield pids
        holder.terminate()
        assert holder.wait(30) == 0
    finally:
        helpers.end_process(holder)
        helpers.run(["umount", "-l", folder])


def test_their_files_cannot_be_read(held):
    """Else the tests below would prove nothing."""
    for name in "maps", "smaps_rollup", "environ":
        reader = subprocess.Popen(["cat", f"/proc/{held[0]}/{name}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with pytest.raises(subprocess.TimeoutExpired):
            reader.wait(2)
        reader.kill()
        reader.wait()


@pytest.mark.parametrize("arguments", [
    ["status", "--all"], ["status", "held"], ["survey", "--seconds", "8", "--all-users"],
    ["survey", "--seconds", "1", "--exact", "--all-users"]], ids=" ".join)
def test_left_out(held, arguments):
    result = helpers.hugeld(*arguments, timeout=SECONDS)
    assert result.returncode in (0, 1) and re.match(
        rf"hugeld: process ({'|'.join(map(str, held))}) was not [a-z ]+, nor are other processes of user {USER}: ", result.stderr), result


def test_service(held, tmp_path):
    """It observes the others, and ends when it is told to."""
    configuration = tmp_path / "hugeld.conf"
    configuration.write_text("observe = yes\nwindow = 8\ninterval = 16\neligible = /*\n")
    service = helpers.start([helpers.HUGELD, "service", "--config", configuration])
    try:
        assert select.select([service.stderr], [], [], SECONDS)[0]
        line = service.stderr.readline()
        assert re.match(f"hugeld: process ({'|'.join(map(str, held))}) was not observed, nor are other processes of user {USER}: ", line), line
        service.terminate()
        assert service.wait(SECONDS) == 0, service.stderr.read()
    finally:
        helpers.end_process(service)
