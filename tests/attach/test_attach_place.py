# SPDX-License-Identifier: LGPL-2.1-or-later
"""Text that `hugeld attach` puts on huge pages of its own file, where the kernel joins those of the page cache."""

import ctypes
import json
import mmap
import pathlib
import re
import shutil
import tempfile

import helpers
import attaching
import pytest
from pagecache import scatter


libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

# An emulated machine waits for its disk all the time, and a busy one may.
CALMLY = """for file in io memory; do [ ! -e /proc/pressure/$file ] || mount --bind "$0" /proc/pressure/$file; done; exec "$@\""""


@pytest.fixture
def place(root):
    """A folder of root's on a disk."""
    folder = pathlib.Path(tempfile.mkdtemp(dir="/", prefix="hugeld-test-"))
    folder.chmod(0o755)
    (folder / "calm").write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
    yield folder
    shutil.rmtree(folder)


def attach(place, *arguments):
    return helpers.run(["unshare", "--mount", "sh", "-c", CALMLY, place / "calm", helpers.HUGELD, "attach", *arguments])


def is_joined_here(path):
    """Whether the kernel joins the pages of a file like PATH, tried with a copy of it."""
    copy = path.with_name("tried")
    shutil.copy(path, copy)
    scatter(copy)
    with open(copy, "rb") as file:
        room = libc.mmap(None, 2 * helpers.HUGE, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        at = -(-room // helpers.HUGE) * helpers.HUGE
        assert libc.mmap(at, helpers.HUGE, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE | 0x10, file.fileno(), helpers.HUGE) == at
        result = libc.madvise(at, helpers.HUGE, 25)  # MADV_COLLAPSE
        assert libc.munmap(ctypes.c_void_p(room), ctypes.c_size_t(2 * helpers.HUGE)) == 0
    return result == 0


def bytes_by_source(target):
    """The bytes of TARGET's text on huge pages of its own file, and those on an image's."""
    own = sum(m.kb["FilePmdMapped"] for m in target.text() if m.name.startswith(target.path)) * 1024
    return own, target.huge_bytes()


def test_own_file_first(targets, plain_output, place):
    """Whole huge pages of the file are joined, and text that shares one with other segments goes onto an image.  Where the
    kernel joins nothing, all of it does."""
    program = pathlib.Path(shutil.copy(targets["exec"], place / "program"))
    joins = is_joined_here(program)
    scatter(program)
    with attaching.running(program, "futex", 3) as target:
        attaching.wait_in_call(target.pid)
        assert bytes_by_source(target) == (0, 0)
        (would,) = json.loads(attach(place, "--json", "--dry-run", target.pid).stdout)["processes"]
        said = attach(place, "--dry-run", target.pid).stdout
        assert bytes_by_source(target) == (0, 0)
        result = attach(place, "--json", target.pid)
        assert result.returncode == 0, result
        (process,) = json.loads(result.stdout)["processes"]
        (text,) = process["objects"]
        is_slow = text["joined_pages"] < would["objects"][0]["joined_pages"]  # it ended after a pause that was too long, as under TCG
        assert is_slow or (would["objects"] == [text] and would["reason"] == process["reason"])
        assert ("huge pages of its own file" in said) == joins and "would be on" in said
        assert bytes_by_source(target) == (text["joined_pages"] * helpers.HUGE, text["huge_pages"] * helpers.HUGE)
        assert is_slow or (text["joined_pages"] >= 2) == joins
        assert text["joined_pages"] + text["huge_pages"] >= 3
        (main,) = [o for o in helpers.hugeld_json("status", target.pid)["processes"][0]["objects"] if o["is_main"]]
        now = re.search("^    now: (.*)$", helpers.hugeld("status", target.pid).stdout, re.M)[1]
        both = {"cached": text["joined_pages"], "copied": text["huge_pages"]}
        assert set(main["verdict"]["now_parts"]) - {"small"} == {name for name, pages in both.items() if pages}, main["verdict"]
        assert ("page cache" in now, "copy that attach made" in now) == tuple(pages > 0 for pages in both.values()), now
        again = attach(place, target.pid)
        assert again.returncode == 0 and "text stays" not in again.stderr, again
        if joins and not is_slow:
            assert f"on {text['joined_pages']} huge pages of its own file" in again.stdout
        assert bytes_by_source(target) == (text["joined_pages"] * helpers.HUGE, text["huge_pages"] * helpers.HUGE)
        assert helpers.hugeld("detach", target.pid).returncode == (0 if text["huge_pages"] else 1)
        assert bytes_by_source(target)[1] == 0
        assert target.finish() == plain_output
