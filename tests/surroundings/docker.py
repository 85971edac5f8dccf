# SPDX-License-Identifier: LGPL-2.1-or-later
"""Docker's default seccomp profile, as Debian's package of its source has it, as the filter that Docker makes of it."""

import json
import os
import pathlib
import platform
import sys

import pytest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "vm"))

import archive  # noqa: E402  (its folder has just been added)

PACKAGE = "golang-github-docker-docker-dev"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# The capabilities that a container has by default and a rule may ask for; others may be added by --cap-add.
CAPABILITIES = {"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
                "CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID",
                "CAP_SYS_CHROOT"}


def read_profile():
    architecture = ARCHITECTURES[platform.machine()]
    try:
        with archive.Archive(architecture, ["bookworm", "bookworm-security"]).packages([PACKAGE]) as folder:
            [path] = folder.rglob("profiles/seccomp/default.json")
            return json.loads(path.read_text())
    except archive.Unavailable as error:
        pytest.skip(f"needs {PACKAGE}: {error}")


def numbers(version):
    return [int(part) for part in version.split("-")[0].split(".")[:2]]


def applies(rule):
    """Whether a RULE is for this machine and an ordinary container."""
    wanted, unwanted = rule.get("includes") or {}, rule.get("excludes") or {}
    architecture = ARCHITECTURES[platform.machine()]
    if architecture not in wanted.get("arches", [architecture]) or architecture in unwanted.get("arches", []):
        return False
    if not CAPABILITIES.issuperset(wanted.get("caps", [])) or CAPABILITIES.intersection(unwanted.get("caps", [])):
        return False
    return numbers(wanted.get("minKernel", "0.0")) <= numbers(os.uname().release)


def make_filter(path):
    """Writes the filter to PATH, as the kernel takes it."""
    seccomp = pytest.importorskip("seccomp", reason="needs python3-seccomp")
    profile = read_profile()
    actions = {"SCMP_ACT_ALLOW": lambda number: seccomp.ALLOW, "SCMP_ACT_ERRNO": seccomp.ERRNO}
    found = seccomp.SyscallFilter(actions[profile["defaultAction"]](profile.get("defaultErrnoRet") or 1))
    for rule in filter(applies, profile["syscalls"]):
        action = actions[rule["action"]](rule.get("errnoRet") or 1)
        arguments = []
        for argument in rule.get("args") or []:
            values = [argument["value"], *([argument.get("valueTwo", 0)] if "MASKED" in argument["op"] else [])]
            compare = getattr(seccomp, argument["op"].replace("SCMP_CMP_", ""))
            arguments.append(seccomp.Arg(argument["index"], compare, *values))
        for name in rule["names"]:
            try:
                found.add_rule(action, name, *arguments)
            except RuntimeError:
                pass  # this libseccomp does not know it, nor does Docker's then
    with open(path, "wb") as file:
        found.export_bpf(file)
    return path
