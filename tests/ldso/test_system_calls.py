# SPDX-License-Identifier: LGPL-2.1-or-later
"""How many system calls one selected object costs, and which: none is made that is not needed, because a filter of the program's
own may kill for it."""

import collections
import os
import re

import pytest

import helpers

NAME = "libcrypto.so.3"
WAYS = {
    # (program, its environment, the pattern of the run that is compared with, how many calls more there may be)
    "needed": (["/bin/true"], {"LD_PRELOAD": NAME}, None, 36),
    "dlopen": (["/usr/bin/python3", "-ISc", f"import ctypes; ctypes.CDLL('{NAME}')"], {}, "no-such-object.so", 36),
}


OPTIONS = "segments=text,backend=hugetlb"


def count_calls(argv, out, **variables):
    done = helpers.run(["strace", "-o", out, *argv], helpers.environment(PYTHONHASHSEED="0", **variables))
    assert done.returncode == 0, done.stderr
    return collections.Counter(re.findall(r"^(\w+)\(", out.read_text(), re.M))


@pytest.mark.parametrize("way", WAYS)
def test_number_of_calls(linked, strace, pool, tmp_path, way):
    pool(64)
    program, variables, other, more = WAYS[way]
    argv = [linked.ldso, *program]
    selected = dict(variables, LD_HUGEPAGES=NAME)
    said = helpers.run(argv, helpers.environment(LD_HUGEPAGES_OPTIONS=f"{OPTIONS},verbose=2", **selected)).stderr
    if "cannot" in said:
        pytest.skip(f"{NAME} is not installed")
    assert re.search(rf"^hugeld: {NAME}: text \d pages hugetlb$", said, re.M), said
    for _ in range(2):  # first into the page cache
        unset = count_calls(argv, tmp_path / "unset", LD_HUGEPAGES=other, **variables)
        calls = count_calls(argv, tmp_path / "selected", LD_HUGEPAGES_OPTIONS=OPTIONS, **selected)
    assert sum((calls - unset).values()) - sum((unset - calls).values()) <= more, calls - unset
    assert not {"userfaultfd", "memfd_create", "process_vm_readv", "get_mempolicy", "mbind"} & set(calls), calls
    assert calls["mremap"] == 2  # one is the trial


@pytest.mark.parametrize("patterns", [None, "main:no-such-object", "/usr/bin/*", "no-such-object.so"])
def test_what_is_not_selected(linked, installed, strace, tmp_path, patterns):
    """dlopen opens and reads the same for it as the installed linker; without LD_HUGEPAGES, ours makes the same calls from the start."""
    def trace(linker, **variables):
        out = tmp_path / "trace"
        argv = [linker, "/usr/bin/python3", "-ISc", f"import ctypes; ctypes.CDLL('{NAME}')"]
        calls = "openat,readlinkat,pread64" if patterns else "!read,execve,brk,munmap"
        done = helpers.run(["strace", "-e", f"trace={calls}", "-o", out, *argv], helpers.environment(PYTHONHASHSEED="0", **variables))
        assert done.returncode == 0, done.stderr
        lines = out.read_text().splitlines()
        if not patterns:
            return re.findall(r"^(\w+)\(", out.read_text(), re.M)
        return lines[next(i for i, line in enumerate(lines) if f"/{NAME}\"" in line):]

    assert trace(linked.ldso, LD_HUGEPAGES=patterns) == trace(installed)


@pytest.mark.parametrize("way", ["needed", "dlopen"])
def test_filter_that_was_there_before(linked, features, loads, pool, way):
    """A filter kills for any of these calls, as one that knows only a program's own calls may; the object moves without them."""
    pool(64)
    library = features()
    argv = [linked.ldso, *(["--preload", library] if way == "needed" else []), loads, "once", library]
    script = (helpers.forbid_calls("userfaultfd", "memfd_create", "process_vm_readv", "get_mempolicy", "getcpu") +
              f"import os\nos.execv({str(argv[0])!r}, {[str(a) for a in argv]!r})\n")
    plain = helpers.run(argv, helpers.environment())
    done = helpers.run(["/usr/bin/python3", "-c", script],
                       linked.environment("libbig*", "backend=hugetlb,verbose=2", LANG=os.environ.get("LANG", "C")))
    assert (done.returncode, done.stdout) == (0, plain.stdout), done
    assert re.fullmatch(r"hugeld: libbig-now\.so: text 5 pages hugetlb.*\n", done.stderr), done.stderr
