# SPDX-License-Identifier: LGPL-2.1-or-later
"""LD_HUGEPAGES and its options as ld.so reads them: read once, kept as they were, and ignored in secure mode."""

import shutil
import subprocess

import pytest

import helpers
from linkers import NOBODY

# No pool is so large.
STRICT = "backend=hugetlb,strict=on,reserve_pages=99999999"


@pytest.mark.parametrize("patterns, said", [("libbig.so", "libbig.so"), ("libbig-aud*:libbig.so", "libbig.so"),
                                            ("libbig-auditor.so", "libbig-auditor.so: text stays")])
def test_strict_beside_an_auditor(patterns, said, auditor, builder, ldso):
    """An auditor comes by dlopen, but the program has not started: strict=on still holds for its libraries, and for the auditor."""
    app, _ = builder.with_library("dso")
    env = helpers.environment(LD_AUDIT=auditor, LD_HUGEPAGES=patterns, LD_HUGEPAGES_OPTIONS=STRICT)
    done = helpers.run([ldso, app, "one"], env)
    assert (done.returncode, done.stdout) == (127, ""), done
    assert said in done.stderr and "strict=on ends the program" in done.stderr


def test_auditor_by_name(auditor, builder, ldso, thp):
    """An auditor is loaded at startup, though not for the program, so no line complains of its name."""
    app, _ = builder.with_library("dso")
    plain = helpers.run([ldso, app, "one"], helpers.environment(LD_AUDIT=auditor))
    env = helpers.environment(LD_AUDIT=auditor, LD_HUGEPAGES="libbig-auditor.so", LD_HUGEPAGES_OPTIONS="backend=thp,strict=on,verbose=2")
    done = helpers.run([ldso, app, "one"], env)
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout), done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("hugeld: ")]
    assert len(said) == 1 and said[0].startswith("hugeld: libbig-auditor.so: text "), said


@pytest.mark.parametrize("special, kept", [(0o755, True), (0o4755, False)], ids=["ordinary", "set-user-ID"])
def test_secure_mode_removes_them(special, kept, readable_ldso, shared_folder, root):
    """...of any name; children need not be secure any more.  Other variables stay, in their order."""
    program = shared_folder / f"env-{special:o}"
    shutil.copy("/usr/bin/env", program)
    subprocess.run(["patchelf", "--set-interpreter", readable_ldso, program], check=True, timeout=helpers.PATIENCE)
    program.chmod(special)
    variables = {"HL_A": "a", "LD_HUGEPAGES": "main", "HL_B": "b", "LD_HUGEPAGES_OPTIONS": "verbose=2",
                 "LD_HUGEPAGES_MORE": "x", "HL_C": "c"}
    done = helpers.run([*NOBODY, program], {"PATH": "/usr/bin:/bin", **variables})
    said = [line.split("=")[0] for line in done.stdout.splitlines()]
    ours = [name for name in said if name.startswith("LD_HUGEPAGES")]
    assert (len(ours), "hugeld:" in done.stderr) == ((3, True) if kept else (0, False))
    assert [name for name in said if name.startswith("HL_")] == ["HL_A", "HL_B", "HL_C"]


def test_the_program_may_change_them(ldso, builder, thp):
    """dlopen follows the variables as they were at the start."""
    _, [library] = builder.with_library("dso")
    script = ("import ctypes, os, sys\nc = ctypes.CDLL(None)\nc.unsetenv(b'LD_HUGEPAGES')\nc.unsetenv(b'LD_HUGEPAGES_OPTIONS')\n"
              "os.environ.clear()\nctypes.CDLL(sys.argv[1])\n")
    done = helpers.run([ldso, "/usr/bin/python3", "-c", script, library],
                       helpers.environment(LD_HUGEPAGES="libbig*", LD_HUGEPAGES_OPTIONS="backend=thp,verbose=2"))
    assert done.returncode == 0 and "hugeld: libbig.so: text" in done.stderr, done
