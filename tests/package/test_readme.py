# SPDX-License-Identifier: LGPL-2.1-or-later
"""README.md, and the pages that it sends users to, as a new user would try them, in a clean Debian 12 and 13: each command
that stands there is run.

A command that this file does not know is a failure: add it to RUN, or to ELSEWHERE with the place where it is run."""

import re
import shutil

import pytest

import helpers
from documents import read_blocks, read_unit

DOCUMENTS = ("README.md", "doc/services.md")
PROGRAM = "/usr/bin/python3 -c 'print(40 + 2)'"

# The command as it stands there -> the one that is run (the same if None; words in capitals need something in their
# place), and words that its output must have.  In this order.
RUN = {
    "make && make install && ldconfig": (None, ""),
    # Without hugeld-ldso, which test_packages.py builds: glibc would take minutes.
    "apt-get build-dep ./ && dpkg-buildpackage -b -uc":
        ("export DEB_BUILD_PROFILES=pkg.hugeld.noldso; apt-get -q -y --no-install-recommends build-dep ./ && "
         "dpkg-buildpackage -b -uc && ls ..", "hugeld_.*\\.deb"),
    "hugeld run -- PROGRAM ARGS": (f"hugeld run -- {PROGRAM}", "42"),
    "hugeld run --copy -- PROGRAM ARGS": (f"hugeld run --copy -o verbose=2 -- {PROGRAM}", "hugeld: python3.*\n*42"),
    "LD_PRELOAD=libhugeld.so LD_HUGEPAGES='main:libLLVM*' PROGRAM ARGS":
        (f"LD_PRELOAD=libhugeld.so LD_HUGEPAGES='main:libLLVM*' LD_HUGEPAGES_OPTIONS=verbose=2 {PROGRAM}", "hugeld: python3.*\n*42"),
    "hugeld bench -- PROGRAM ARGS": (f"hugeld bench -n 6 -- {PROGRAM} || [ $? = 1 ]", ""),
    # The pool belongs to other test runs too: it is set to its present size.
    "sysctl vm.nr_hugepages=128": ("sysctl vm.nr_hugepages=$(cat /proc/sys/vm/nr_hugepages)", "vm.nr_hugepages = "),
    "hugeld inspect FILE": ("hugeld inspect /usr/bin/python3", r"text +\d+ pages?"),
    "echo vm.nr_hugepages=128 > /etc/sysctl.d/hugepages.conf":
        ("echo vm.nr_hugepages=128 > /etc/sysctl.d/hugepages.conf && cat /etc/sysctl.d/hugepages.conf", "=128"),
}  # fmt: skip

# Each of the commands of README's first screen that set something up does so on a bare Debian with nothing but make.
SET_UP = ["make demo", "make check"]

ELSEWHERE = {
    "make demo": "test_as_a_new_user, before more than make is installed",
    "make check": "CI, by make check-all, which runs all of it",
    "dpkg -i ../hugeld_*.deb": "the end of test_as_a_new_user",
    "make ldso": "CI, and make check-glibc SUITE=trixie",
    "patchelf --set-interpreter /usr/local/lib/hugeld/ld.so PROGRAM": "tests/surroundings/test_hazards.py, and its path test_install.py",
    "LD_HUGEPAGES=main build/ldso/ld.so PROGRAM ARGS": "tests/ldso/test_identity.py",
    "docker run -v /usr/local/lib/hugeld/libhugeld.so:/libhugeld.so:ro -e LD_PRELOAD=/libhugeld.so IMAGE":
        "test_container below",
    "docker run -v /run/hugeld/KEY/NAME:/usr/bin/NAME:ro IMAGE": "tests/images/test_commands.py, an image that is mounted over its file",
    "volumeMounts: [{name: image, mountPath: /usr/bin/NAME, readOnly: true}]": "the same",
    "volumes: [{name: image, hostPath: {path: /run/hugeld/KEY/NAME, type: File}}]": "the same",
    "hugeld enable --way=in-place /var/lib/containers/storage/overlay/LAYER/diff/usr/bin/NAME":
        "tests/images/test_in_place.py",
    "make": "everything",
    "deploy/container-root build/container": "tests/programs/test_pods.py",
    "podman build -t localhost/hugeld -f deploy/Containerfile build/container": "tests/programs/test_pods.py",
    "kubectl apply -f deploy/hugeld.yaml": "tests/programs/test_pods.py, its container by podman",
    "hugeld enable PROGRAM": "tests/images/test_store.py",
    "hugeld enable NAME.service": "tests/images/test_enable.py",
    "hugeld survey": "tests/survey/test_survey.py",
    "systemctl restart NAME.service": "tests/vm/systemd/test_vm_images.py",
}


def is_shown(block):
    """A unit of systemd, or a task of Ansible: nothing to type."""
    return block[0].startswith(("[", "- ansible"))


def test_every_command_is_known():
    blocks = [block for name in DOCUMENTS for block in read_blocks(name)]
    commands = [line for block in blocks if not is_shown(block) for line in block if line.strip()]
    assert len(commands) > 10
    assert [line for line in commands if line not in RUN and line not in ELSEWHERE] == []
    assert [line for line in [*RUN, *ELSEWHERE] if line not in commands] == []


def test_two_commands_set_everything_up():
    """The first screen, which ends where the requirements begin, tells the user to type no third one, neither in a block nor in a sentence."""
    screen = (helpers.ROOT / "README.md").read_text().partition("\n## ")[0]
    commands = [line for block in read_blocks("README.md") for line in block if f"    {line}" in screen]
    assert [line for line in commands if not line.startswith("hugeld ")] == SET_UP
    said = re.findall(r"`([^`\n]+)`", re.sub(r"^(?:    |\|).*", "", screen, flags=re.M))
    assert [word for word in said if word != "make" and not word.startswith("hugeld")] == []


# CI's own machine is Debian 12.
@pytest.mark.parametrize("suite", [pytest.param("bookworm", marks=pytest.mark.check_all),
                                   pytest.param("trixie", marks=pytest.mark.check_all(ci=True))])
def test_as_a_new_user(clean_debian, source_copy, suite):
    debian = clean_debian(suite)
    debian.put(source_copy, "/hugeld")
    debian.install("make")
    assert "== demo: ok" in debian.do("cd /hugeld; make demo")
    # A full installation, and the needs of each section.
    debian.install("procps", "dpkg-dev", "python3-minimal")
    for line, (command, expected) in RUN.items():
        said = debian.do(f"cd /hugeld; {command or line}")
        assert re.search(expected, said), f"{line}: {said}"
    assert "hugeld" in debian.do("dpkg -i /hugeld_*.deb && /usr/bin/hugeld --version && dpkg --purge hugeld")


@pytest.mark.check_all
def test_container(clean_debian):
    """A container's contents: another Debian's libc, the library alone, /proc, no userfaultfd or mbind."""
    debian = clean_debian("trixie")
    debian.put(helpers.LIBRARY, "/libhugeld.so")
    said = debian.do("LD_PRELOAD=/libhugeld.so LD_HUGEPAGES_OPTIONS=verbose=2 /usr/bin/perl -e 'print qq(fine\\n)'")
    assert "fine\n" in said and "hugeld: perl: " in said
    undefined = helpers.run(["nm", "-D", "--undefined-only", helpers.LIBRARY]).stdout
    assert max(int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", undefined)) <= 16


def test_drop_in_is_valid(tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    folder = tmp_path / "demo.service.d"
    folder.mkdir()
    (tmp_path / "demo.service").write_text("[Service]\nExecStart=/bin/true\nMemoryDenyWriteExecute=yes\n")
    (folder / "hugeld.conf").write_text("\n".join(read_unit("verbose=1", "doc/services.md")) + "\n")
    result = helpers.run(["systemd-analyze", "verify", "--man=no", tmp_path / "demo.service"],
                         helpers.environment(SYSTEMD_UNIT_PATH=f"{tmp_path}:"))
    assert "hugeld.conf" not in result.stderr and "demo.service" not in result.stderr, result.stderr
