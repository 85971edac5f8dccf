# SPDX-License-Identifier: LGPL-2.1-or-later
"""Debuggers write breakpoints into read-only text.  Linux 6.1 to 6.12 allow no such writes into hugetlb pages: a program
that is traced when it starts has its text on thp there, and `doctor` tells the effect of attaching later."""

import ctypes
import mmap

import pytest

import helpers
from smaps import read_smaps

TEXT, RODATA = 5, 1  # app-nopie's huge pages
ADDRESS = f"{0x400000 + 2 * helpers.HUGE + 0x100010:x}"  # between two functions
MAP_HUGETLB = 0x40000
REASON = "hugeld: {}: text is on thp: its tracer could not set breakpoints in hugetlb text"


def forces_writes():
    """Whether a process can write to its own read-only hugetlb page through /proc/self/mem."""
    with mmap.mmap(-1, helpers.HUGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_HUGETLB) as memory:
        memory[0] = 1
        byte = ctypes.c_char.from_buffer(memory)
        address = ctypes.addressof(byte)
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(helpers.HUGE), mmap.PROT_READ) == 0
        try:
            with open("/proc/self/mem", "r+b", buffering=0) as file:
                file.seek(address)
                return file.write(b"\1") == 1
        except OSError:
            return False
        finally:
            del byte


def text_bytes(pid):
    """(hugetlb, thp) bytes of executable mappings."""
    text = [m for m in read_smaps(pid) if "x" in m.permissions]
    return sum(m.hugetlb_bytes for m in text), sum(m.thp_bytes for m in text)


@pytest.mark.parametrize("options", ["", "backend=hugetlb"])
def test_traced_from_the_start(builder, library, pause_library, pool, thp, tmp_path, options):
    pool(64)
    app, said = builder.executable("nopie"), tmp_path / "said"
    plain = helpers.run([app])
    to_hugetlb = options or forces_writes()
    env = helpers.preload(library, pause_library, options=f"verbose=2,{options}")
    with helpers.paused([builder.poke(), said, ADDRESS, app], env, app.name) as process:
        text = TEXT * helpers.HUGE
        assert text_bytes(process.pid) == ((text, 0) if to_hugetlb else (0, text))
        status, stdout, stderr = process.finish()
    assert (REASON.format(app.name) in stderr) != bool(to_hugetlb), stderr
    if not options:
        assert said.read_text() == "read\nwritten\n"
    assert (status, stdout) == (plain.returncode, plain.stdout)


def test_own_write_fails(builder, library, pool, thp, strace):
    """The same on every kernel: strace traces, and lets the try fail."""
    pool(64)
    app = builder.executable("nopie")
    env = helpers.preload(library, options="verbose=2")
    told = helpers.run([*strace("pwrite64", "EIO", "1+"), app], env).stderr
    assert REASON.format(app.name) in told and f"{app.name}: text {TEXT} pages thp, rodata {RODATA} page hugetlb" in told
    env = helpers.preload(library, options="verbose=2,backend=hugetlb")
    told = helpers.run([*strace("pwrite64", "EIO", "1+"), app], env).stderr
    assert f"{app.name}: text {TEXT} pages hugetlb" in told


def test_attached_later(builder, library, pause_library, pool):
    """The write works or fails, as doctor says; the program goes on."""
    pool(64)
    app = builder.executable("nopie")
    plain = helpers.run([app])
    told = helpers.hugeld_json("doctor")
    with helpers.paused([app], helpers.preload(library, pause_library), app.name) as process:
        assert text_bytes(process.pid) == (TEXT * helpers.HUGE, 0)
        said = helpers.run([builder.poke(), process.pid, ADDRESS]).stdout
        assert process.finish() == (plain.returncode, plain.stdout, plain.stderr)
    assert said == ("read\nwritten\n" if told["breakpoints"] else "read\nInput/output error\n")
    [finding] = [f for f in told["findings"] if f["name"] == "breakpoints"]
    assert finding["state"] == ("ok" if told["breakpoints"] else "warn")
    assert "attaches later can" + ("" if told["breakpoints"] else "not") + " set breakpoints" in finding["sentence"]


def test_doctor_cannot_try(pool):
    pool(0)
    result = helpers.hugeld("doctor", "--json")
    assert '"breakpoints": null' in result.stdout and "was not tried" in result.stdout
