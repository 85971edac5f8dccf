# SPDX-License-Identifier: LGPL-2.1-or-later
"""Linux's security modules where they refuse executable memory.  AppArmor knows only files that may be mapped executable
("m"), but takes hugetlb memory, anonymous too, for a file called "/"; SELinux has `execmem`.  The program does the same
as without hugeld, moves by allowed ways, and the text that stays has its reason."""

import pathlib

import pytest

import helpers
from smaps import read_smaps
from vmguest import ALL, absent

SECURITY = pathlib.Path("/sys/kernel/security")
SELINUX = pathlib.Path("/sys/fs/selinux")
POLICY = pathlib.Path("/hugeld/execmem.policy")
EXEC_DENIED = "a policy forbids making written memory executable"
HUGETLB_DENIED = "a policy forbids hugetlb pages"
NO_PROC = "/proc/self/maps or pagemap cannot be read"

# Everything but the rules for files.
PROFILE = """
profile hugeld-test FLAGS {
  capability, network, mount, umount, remount, pivot_root, ptrace, signal, dbus, unix,
  FILES
}
"""
ATTACHED = "flags=(attach_disconnected)"

# name -> FILES, FLAGS, the segments that move onto hugetlb pages, why the text stays, the segments that move onto thp
PROFILES = {
    "all files": ("file,", ATTACHED, ALL, None, ALL),
    "their rule": ("/** mrwlkix, / mrw,", ATTACHED, ALL, None, ALL),
    "not executable": ("/** mrwlkix, / rw,", ATTACHED, ("rodata",), EXEC_DENIED, ALL),
    "no rule": ("/** mrwlkix,", ATTACHED, (), HUGETLB_DENIED, ALL),
    "not attached": ("file,", "", (), HUGETLB_DENIED, ALL),
    "no pagemap": ("file, deny /proc/*/pagemap r,", ATTACHED, (), NO_PROC, ()),
}


def confine(name):
    """Loads a profile; the rule of under.c by which a program is confined by it."""
    if not (SECURITY / "lsm").exists():
        assert helpers.run(["mount", "-t", "securityfs", "none", SECURITY]).returncode == 0
    if "apparmor" not in (SECURITY / "lsm").read_text().split(","):
        absent("this kernel was not started with AppArmor")
    files, flags = PROFILES[name][:2]
    text = PROFILE.replace("FLAGS", flags).replace("FILES", files)
    result = helpers.run(["apparmor_parser", "-rKq"], input=text)
    assert result.returncode == 0, result.stderr
    return "label=exec hugeld-test"


@pytest.mark.parametrize("name", PROFILES)
def test_apparmor(builder, row, nodes, under, name):
    nodes(64, 0)
    _, _, moved, reason, _ = PROFILES[name]
    app = builder.executable("nopie")
    found = row([app], {app.name: moved} if moved else {}, "backend=hugetlb", under(confine(name)))
    assert f"text stays: {reason}" in found.stderr if reason else not found.stderr, found.stderr


@pytest.mark.parametrize("name", ["no rule", "no pagemap"])
def test_apparmor_auto(builder, row, nodes, thp, under, name):
    """thp stands in, or not even that."""
    nodes(64, 0)
    moved = PROFILES[name][-1]
    app = builder.executable("nopie")
    row([app], {app.name: moved} if moved else {}, "backend=auto", under(confine(name)), backend="thp")


@pytest.fixture
def selinux():
    """Enforces execmem.cil; the rule of under.c by which a program is confined by it."""
    if not SELINUX.exists():
        absent("this kernel was not started with SELinux")
    if not (SELINUX / "load").exists():
        assert helpers.run(["mount", "-t", "selinuxfs", "none", SELINUX]).returncode == 0
        (SELINUX / "load").write_bytes(POLICY.read_bytes())
    (SELINUX / "enforce").write_text("1")
    yield "label=u:r:confined"
    (SELINUX / "enforce").write_text("0")


@pytest.mark.parametrize("backend", ["hugetlb", "thp"])
def test_selinux(builder, prove, nodes, thp, under, selinux, backend):
    """Without execmem text is on hugetlb, which Linux 6.12 does not count as anonymous, or by a memfd; and not on thp."""
    nodes(64, 0)
    app = builder.executable("nopie")
    names = set()

    def work(process):
        names.update(m.name for m in read_smaps(process.pid) if m.is_hugetlb and "x" in m.permissions)
        return process.finish()[:2]

    moved = ALL if backend == "hugetlb" else ("rodata",)
    prove([*under(selinux), app], {app.name: moved}, options=f"backend={backend}", name=app.name, work=work, backend=backend)
    assert names in ([{"/anon_hugepage (deleted)"}, {"/memfd:hugeld (deleted)"}] if backend == "hugetlb" else [set()])
    result = helpers.run([*under(selinux), app], helpers.preload(helpers.LIBRARY, options=f"backend={backend},verbose=1"))
    assert (f"text stays: {EXEC_DENIED}" in result.stderr) == (backend == "thp"), result.stderr
