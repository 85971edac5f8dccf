# SPDX-License-Identifier: LGPL-2.1-or-later
"""No system call is made that is not needed, because a filter of the program's own may kill for it."""

import os
import re

import pytest

import helpers

NAME = "libcrypto.so.3"


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
