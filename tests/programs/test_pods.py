# SPDX-License-Identifier: LGPL-2.1-or-later
"""deploy/ by podman: the container image, in which `hugeld apply` runs, with a store of the machine's and without."""

import json
import pathlib
import shutil
import subprocess
import tempfile

import pytest
import yaml

import helpers
from calls import build_calls
from pagecache import scatter
from smaps import read_smaps

pytestmark = pytest.mark.check_all

DEPLOY = helpers.ROOT / "deploy"


class Podman:
    """podman with images and containers of its own."""

    def __init__(self, folder):
        self.words = ["podman", "--root", folder / "storage", "--runroot", folder / "run", "--tmpdir", folder / "tmp",
                      "--storage-driver", "overlay", "--cgroup-manager", "cgroupfs", "--events-backend", "file", "--runtime", "runc"]
        self.folder = folder
        # Its own limits may be above this machine's.
        (folder / "containers.conf").write_text("[containers]\ndefault_ulimits = []\n")
        self.env = helpers.environment(CONTAINERS_CONF=folder / "containers.conf")

    def call(self, *arguments):
        return helpers.run([*self.words, *arguments], self.env, timeout=helpers.PATIENCE)

    def run(self, *arguments):
        result = self.call(*arguments)
        assert result.returncode == 0, (arguments, result.stdout, result.stderr)
        return result.stdout

    def build(self, name, containerfile, folder):
        self.run("build", "-q", "-t", name, "-f", containerfile, folder)


@pytest.fixture
def podman(root, tmp_path):
    for program in ("podman", "runc"):
        if not shutil.which(program):
            pytest.skip(f"{program} is not installed")
    # Its paths must be short, in a folder that root alone can write.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="hugeld-", dir="/var/lib"))
    try:
        one = Podman(folder)
        yield one
        one.call("system", "reset", "--force")
    finally:
        helpers.run(["umount", "-l", folder / "storage/overlay"])
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def image(podman, tmp_path):
    made = tmp_path / "container"
    assert helpers.run([DEPLOY / "container-root", made]).returncode == 0
    podman.build("localhost/hugeld", DEPLOY / "Containerfile", made)
    return "localhost/hugeld"


def test_apply(podman, image, tmp_path):
    """Without a store of the machine's nothing can be mounted, so entries that need an image are pending; and the manifest's container
    may not mount either.  With its capabilities a file of a volume is put in place, also for processes outside; without SYS_ADMIN the
    kernel does not tell whether any process maps the file, so that is pending, too."""
    [container] = list(yaml.safe_load_all((DEPLOY / "hugeld.yaml").read_text()))[1]["spec"]["template"]["spec"]["containers"]
    security = container["securityContext"]
    rights = security["capabilities"]
    assert rights["drop"] == ["ALL"] and security["allowPrivilegeEscalation"] is False and "privileged" not in security
    calls = podman.folder / "programs/calls"
    calls.parent.mkdir()
    shutil.copy(build_calls(tmp_path / "calls", "-no-pie", "-static", mib=8), calls)
    scatter(calls)
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists").chmod(0o755)

    def apply(*lines, without=()):
        (tmp_path / "lists/some.list").write_text("".join(f"{line}\n" for line in lines))
        added = ",".join(right for right in rights["add"] if right not in without)
        result = podman.call("run", "--rm", "--network", "host", "--pid", "host", "--cap-drop", "all", "--cap-add", added,
                             "-v", f"{tmp_path}/lists:/etc/hugeld/enabled.d:ro", "-v", "/usr:/usr:ro", "-v", f"{calls.parent}:/programs:ro",
                             image, "apply", "--boot", "--any-disk", "--json")
        return result, {file["path"]: file for file in json.loads(result.stdout)["files"]}

    result, files = apply("/usr/bin/gdb way=image", "/programs/calls way=in-place", without=["SYS_ADMIN"])
    assert result.returncode == 3, result
    assert files["/usr/bin/gdb"]["sentence"] == "there is no store in this container"
    assert (files["/programs/calls"]["result"], files["/programs/calls"]["reason"]) == ("pending", "unknown")
    result, files = apply("/programs/calls way=in-place")
    if "keeps files on small pages" in result.stderr:
        pytest.skip("this file system and kernel have no large folios")
    assert result.returncode == 0 and files["/programs/calls"]["way"] == "in-place", result
    process = helpers.start([calls, 0, "wait"], stdin=subprocess.PIPE)
    try:
        assert process.stdout.readline() and huge_text(process.pid, str(calls)) >= 3 * helpers.HUGE
    finally:
        helpers.end_process(process)


def huge_text(pid, path="/usr/bin/calls"):
    return 1024 * sum(m.kb["FilePmdMapped"] for m in read_smaps(pid) if m.name == path)
