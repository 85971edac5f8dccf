# SPDX-License-Identifier: LGPL-2.1-or-later
"""Debuggers write breakpoints into read-only text.  Linux 6.1 to 6.12 allow no such writes into hugetlb pages: a program
that is traced when it starts has its text on thp, and `doctor` tells the effect of attaching later."""

import pytest

import helpers
from smaps import read_smaps

TEXT, RODATA = 5, 1  # app-nopie's huge pages
ADDRESS = f"{0x400000 + 2 * helpers.HUGE + 0x100010:x}"  # between two functions
REASON = "hugeld: {}: text is on thp: it is traced, and Linux 6.1 to 6.12 let no debugger set breakpoints in hugetlb text"


def text_bytes(pid):
    """(hugetlb, thp) bytes of executable mappings."""
    text = [m for m in read_smaps(pid) if "x" in m.permissions]
    return sum(m.hugetlb_bytes for m in text), sum(m.thp_bytes for m in text)


@pytest.mark.parametrize("options", ["", "backend=hugetlb"])
def test_traced_from_the_start(builder, library, pause_library, pool, thp, tmp_path, options):
    pool(64)
    app, said = builder.executable("nopie"), tmp_path / "said"
    plain = helpers.run([app])
    to_hugetlb = bool(options)
    env = helpers.preload(library, pause_library, options=f"verbose=2,{options}")
    with helpers.paused([builder.poke(), said, ADDRESS, app], env, app.name) as process:
        text = TEXT * helpers.HUGE
        assert text_bytes(process.pid) == ((text, 0) if to_hugetlb else (0, text))
        status, stdout, stderr = process.finish()
    assert (REASON.format(app.name) in stderr) != to_hugetlb, stderr
    if not to_hugetlb:
        assert f"{app.name}: text {TEXT} pages thp, rodata {RODATA} page hugetlb" in stderr
        assert said.read_text() == "read\nwritten\n"
    assert (status, stdout) == (plain.returncode, plain.stdout)


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
