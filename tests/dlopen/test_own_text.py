# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs that change their own text after it moved: which changes work on which pages, and the marks by which hugeld
knows beforehand.  README.md has the table; a kernel that changes it shows here."""

import itertools
import platform
import re

import pytest

import helpers
from installed import find_node
from tables import HERE, compile_c

SAME = "sum the same"


def act(later, program, what, backend):
    """edges=small: no span begins before the text that the program drops."""
    process = later([program, what], "main", f"backend={backend},verbose=2,data=off,edges=small")
    stdout, stderr = process.communicate(timeout=helpers.PATIENCE)
    helpers.end_process(process)
    assert re.search(rf"text \d pages? {backend}", stderr), stderr
    return process.returncode, stdout


# The change, and whether the kernel refuses it on hugetlb (None: where the ends lie inside a huge page). The program
# sees an error then, and its text is unchanged.
@pytest.mark.parametrize("what, refused", [("protect", True), ("patch", True), ("remap", True), ("dontneed-4k", True),
                                           ("dontunmap", True), ("copy-over", None), ("map-over", False)])
def test_hugetlb_refuses(workshop, later, pool, what, refused):
    pool(16)
    status, stdout = act(later, workshop / "own-text", what, "hugetlb")
    assert status == 0 and SAME in stdout, stdout
    assert refused is None or ("Invalid argument" in stdout) == refused, stdout


# Before the program: memfd_create ends it from here on (PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP).
NO_MEMFD = f"""import ctypes, os, struct, sys
code = [(0x20, 0, 0, 0), (0x15, 0, 1, {279 if platform.machine() == "aarch64" else 319}), (6, 0, 0, 0x80000000), (6, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, struct.pack("@HP", 4, ctypes.addressof(code))) == 0
os.execv(sys.argv[1], sys.argv[1:])"""

ALLOWED = ["protect", "patch", "remap", "copy-over", "map-over", "seal"]
DROPS = ["dontneed", "dontneed-4k", "dontunmap"]


@pytest.mark.parametrize("program, what", [*itertools.product(["own-text", "own-text-by-call"], ALLOWED),
                                           *itertools.product(["own-text"], DROPS)])
def test_thp_allows(workshop, later, thp, program, what):
    """own-text imports mremap, so its text is a memfd's, and what it drops comes back."""
    status, stdout = act(later, workshop / program, what, "thp")
    assert status == 0 and SAME in stdout, stdout
    if what != "seal":  # mseal: Linux 6.10
        assert "refused 0" in stdout


@pytest.mark.parametrize("program, told", [("own-text", "text stays: it may move its own text away"),
                                           ("own-text-by-call", r"text \d pages? thp")])
def test_no_memfd_under_a_filter(workshop, later, thp, program, told):
    command = ["/usr/bin/python3", "-c", NO_MEMFD, workshop / program, "protect"]
    stdout, stderr = later(command, "main", f"backend=thp,verbose=2,data=off,exe={program}").communicate(timeout=helpers.PATIENCE)
    assert SAME in stdout and re.search(told, stderr), (stdout, stderr)


# Before the program: from here on the kernel refuses to make written memory executable.
NO_GAIN = ("import ctypes, os, sys; ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) == 0 or sys.exit(77); "  # PR_SET_MDWE
           "os.execv(sys.argv[1], sys.argv[1:])")


@pytest.mark.parametrize("what", ["dontneed", "dontneed-4k", "dontunmap", "seal"])
def test_text_of_a_memfd_comes_back(workshop, later, pool, what):
    """Where text came by a memfd, dropped pages are read from there again."""
    pool(16)
    command = ["/usr/bin/python3", "-c", NO_GAIN, workshop / "own-text", what]
    process = later(command, "main", "backend=hugetlb,verbose=2,data=off,edges=small,exe=own-text")
    stdout, stderr = process.communicate(timeout=helpers.PATIENCE)
    helpers.end_process(process)
    if process.returncode == 77:
        pytest.skip("the kernel has no PR_SET_MDWE (Linux 6.3)")
    assert re.search(r"text \d pages? hugetlb", stderr), stderr
    assert process.returncode == 0 and SAME in stdout, (process.returncode, stdout)
    assert "allowed 1" in stdout or what != "dontneed"


MARKS = {
    "__patchable_function_entries": ["-fpatchable-function-entry=5"],
    "xray_instr_map": ["-DXRAY"],
    "__mcount_loc": ["-no-pie", "-fno-pie", "-pg", "-mfentry", "-mnop-mcount", "-mrecord-mcount"],
}


def without_hugetlb(later, argv, **changes):
    """ARGV with backend=auto and backend=hugetlb: its text takes thp, then stays, and both times it works."""
    result = []
    for backend, told in (("auto", r"text \d pages? thp"), ("hugetlb", "text stays: it rewrites its own text")):
        process = later(argv, "main", f"backend={backend},verbose=2,data=off", **changes)
        stdout, stderr = process.communicate(timeout=helpers.PATIENCE)
        helpers.end_process(process)
        assert process.returncode == 0 and re.search(told, stderr), stderr
        result.append(stdout)
    return result


@pytest.mark.parametrize("section", MARKS)
def test_marked_text_takes_thp(workshop, later, pool, thp, tmp_path, section):
    pool(16)
    arguments = ["-DNUMBER=1", HERE / "table.S", *MARKS[section]]
    program = compile_c(HERE / "own-text.c", tmp_path / "marked", *arguments)
    inspected, = helpers.hugeld_json("inspect", program)["files"]
    assert inspected["rewrites"]["section"] == section
    assert f"(section {section}): it gets transparent huge pages" in helpers.hugeld("inspect", program).stdout
    for stdout in without_hugetlb(later, [program, "patch"], GMON_OUT_PREFIX=tmp_path / "gmon"):
        assert stdout == "patch allowed 16, refused 0 (none), sum the same\n"


@pytest.mark.parametrize("option", ["--short-builtin-calls", "--use-largepages=on"])
@pytest.mark.parametrize("backend", ["hugetlb", "thp"])
def test_node(later, pool, thp, option, backend):
    node = find_node()
    if not node:
        pytest.skip("node is not installed")
    pool(128)
    script = ("let x = 1; for (let i = 0; i < 3e6; i++) x = Math.imul(x, 31) + (i ^ 7) | 0;"
              "console.log(x, require('crypto').createHash('sha256').update(String(x)).digest('hex'),"
              "[...Array(999).keys()].map(String).sort().join(',').replace(/1/g, 'q').length)")
    plain = helpers.run([node, option, "-e", script])
    process = later([node, option, "-e", script], "main", f"backend={backend},verbose=2")
    stdout, stderr = process.communicate(timeout=helpers.PATIENCE)
    helpers.end_process(process)
    assert (process.returncode, stdout) == (0, plain.stdout) and plain.returncode == 0
    assert re.search(rf"node: text \d+ pages {backend}", stderr), stderr
