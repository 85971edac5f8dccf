# SPDX-License-Identifier: LGPL-2.1-or-later
"""deploy/ by podman: the container image and the manifest, in which `hugeld service` observes the programs that run on this
machine; and two pods of one image, which have one file."""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest
import yaml

import helpers
from calls import build_calls
from smaps import read_smaps

pytestmark = pytest.mark.check_all

DEPLOY = helpers.ROOT / "deploy"
SECONDS = 120
CALM = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"


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
        return helpers.run([*self.words, *arguments], self.env, timeout=300)

    def run(self, *arguments):
        result = self.call(*arguments)
        assert result.returncode == 0, (arguments, result.stdout, result.stderr)
        return result.stdout

    def build(self, name, containerfile, folder):
        self.run("build", "-q", "-t", name, "-f", containerfile, folder)

    @contextlib.contextmanager
    def playing(self, manifest):
        path = self.folder / "manifest.yaml"
        path.write_text(manifest)
        try:
            self.run("kube", "play", path)
            yield
        finally:
            self.call("kube", "down", path)

    def pid(self, container):
        return int(self.run("inspect", "-f", "{{.State.Pid}}", container))


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


def read_manifest():
    """The configuration of deploy/hugeld.yaml, and the specification of its DaemonSet's pods."""
    configuration, daemon_set = yaml.safe_load_all((DEPLOY / "hugeld.yaml").read_text())
    return configuration, daemon_set["spec"]["template"]["spec"]


def write_configuration(folder, *lines):
    (folder / "etc").mkdir()
    (folder / "etc/hugeld.conf").write_text("".join(f"{line}\n" for line in lines))
    return folder / "etc"


def words_of(spec, configuration, switch):
    """The options of podman run that make a container as SPEC has it, with the folder CONFIGURATION; SWITCH is /run/hugeld-service."""
    [container] = spec["containers"]
    security, sources = container["securityContext"], {volume["name"]: volume for volume in spec["volumes"]}
    assert spec["hostPID"] and security["seccompProfile"]["type"] == "Unconfined" and security["capabilities"]["drop"] == ["ALL"]
    assert security["readOnlyRootFilesystem"] and security["allowPrivilegeEscalation"] is False and "privileged" not in security
    words = ["--pid", "host", "--network", "host", "--read-only", "--security-opt", "seccomp=unconfined", "--security-opt",
             "no-new-privileges", "--cap-drop", "all", "-m", "512m"]
    for name in security["capabilities"]["add"]:
        words += ["--cap-add", name]
    for mount in container["volumeMounts"]:
        source = sources[mount["name"]]
        path = configuration if "configMap" in source else source["hostPath"]["path"]
        assert mount.get("readOnly") or path == "/run/hugeld-service"
        words += ["-v", f"{switch if path == '/run/hugeld-service' else path}:{mount['mountPath']}{':ro' if mount.get('readOnly') else ''}"]
    return words


@contextlib.contextmanager
def folder_in_opt():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="hugeld-", dir="/opt"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def image(podman, tmp_path):
    made = tmp_path / "container"
    assert helpers.run([DEPLOY / "container-root", made]).returncode == 0
    podman.build("localhost/hugeld", DEPLOY / "Containerfile", made)
    return "localhost/hugeld"


@pytest.fixture
def switch(podman):
    folder = podman.folder / "switch"
    folder.mkdir()
    return folder


CAPABILITIES = sum(1 << number for number in (2, 19, 38, 40))  # DAC_READ_SEARCH, SYS_PTRACE, PERFMON, CHECKPOINT_RESTORE


def test_service(podman, image, switch, tmp_path):
    """With the manifest's rights and mounts, it sees which file of this machine runs, and tries to put it in place; the kill switch
    is the machine's."""
    def look():
        with contextlib.suppress(OSError, ValueError):
            observed = json.loads((switch / "observed.json").read_text())
            return next(((observed["acts"], file) for file in observed["files"] if file["path"] == str(program)), None)
        return None

    def acted():
        found = look()
        return found is not None and found[0]["huge"] + found[0]["failed"] + found[0]["put_off"] > 0

    with folder_in_opt() as folder:
        program = folder / "calls"
        build_calls(program, "-no-pie", mib=8)
        configuration = write_configuration(tmp_path, "observe = yes", "window = 1", "interval = 2", "act = yes", "delay = 0",
                                            f"eligible = {folder}/*")
        podman.run("run", "-d", "--name", "hugeld", *words_of(read_manifest()[1], configuration, switch), image)
        process = helpers.start([program, 10**12], stdout=subprocess.DEVNULL)
        try:
            helpers.wait_until(look, SECONDS, "what it observed")
            assert look()[1]["obstacle"] is None
            helpers.wait_until(acted, SECONDS, "an act")
        finally:
            helpers.end_process(process)
        assert f"CapEff:\t{CAPABILITIES:016x}\n" in pathlib.Path(f"/proc/{podman.pid('hugeld')}/status").read_text()
        second = podman.call("run", "--rm", *words_of(read_manifest()[1], configuration, switch), image)
        assert second.returncode == 1 and "another one runs already" in second.stderr
        podman.run("stop", "-t", "20", "hugeld")
        assert podman.run("inspect", "-f", "{{.State.ExitCode}}", "hugeld") == "0\n" and not (switch / "observed.json").exists()


def test_manifest(podman, image, switch):
    """podman plays it as a pod, but for hostPID and the seccomp profile, which this version does not know; the service says what is
    missing."""
    configuration, spec = read_manifest()
    [volume] = [volume for volume in spec["volumes"] if volume["name"] == "switch"]
    assert volume["hostPath"]["path"] == "/run/hugeld-service"
    volume["hostPath"]["path"] = str(switch)
    spec["hostNetwork"] = True
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "hugeld"}, "spec": spec}
    with podman.playing(yaml.safe_dump_all([configuration, pod])):
        helpers.wait_until(lambda: (switch / "lock").exists(), SECONDS, "the service")
        status = pathlib.Path(f"/proc/{podman.pid('hugeld-hugeld')}/status").read_text()
        mounts = pathlib.Path(f"/proc/{podman.pid('hugeld-hugeld')}/mounts").read_text()
        assert f"CapEff:\t{CAPABILITIES:016x}\n" in status and " /run/hugeld " not in mounts
        helpers.wait_until(lambda: "observed" in podman.call("logs", "hugeld-hugeld").stderr or (switch / "observed.json").exists(),
                           SECONDS, "what it says")


PODS = """apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  hostNetwork: true
  containers:
    - name: calls
      image: localhost/calls:latest
      imagePullPolicy: Never
      stdin: true
      args: ["1000000000000"]
"""


def test_two_pods(podman, tmp_path):
    """The parts of the layer's file that are in place are so in both, and take no memory again."""
    context = tmp_path / "context"
    context.mkdir()
    build_calls(context / "calls", "-no-pie", "-static", mib=8)
    (context / "Containerfile").write_text('FROM scratch\nCOPY calls /usr/bin/calls\nENTRYPOINT ["/usr/bin/calls"]\n')
    podman.build("localhost/calls", context / "Containerfile", context)
    [file] = podman.folder.glob("storage/overlay/*/diff/usr/bin/calls")
    calm = tmp_path / "calm"
    calm.write_text(CALM)
    covered = "".join(f"mount --bind {calm} /proc/pressure/{name} && " for name in ("io", "memory") if os.path.exists("/proc/pressure"))
    listed = tmp_path / "list"
    listed.write_text(f"{file} way=in-place\n")
    script = f'mount -t tmpfs -o mode=0755 none /run && {covered} exec "$@"'
    added = helpers.run(["unshare", "-m", "sh", "-c", script, "sh", helpers.HUGELD, "apply", "--any-disk", f"--list={listed}", "--store=/run/hugeld"])
    if "keeps files on small pages" in added.stderr:
        pytest.skip("this file system and kernel have no large folios")
    assert added.returncode == 0, added
    names = ("one", "two")
    with podman.playing("---\n".join(PODS.format(name=name) for name in names)):
        for name in names:
            pid = podman.pid(f"{name}-calls")
            helpers.wait_until(lambda pid=pid: huge_text(pid) >= 3 * helpers.HUGE, SECONDS, "its text in place")


def huge_text(pid):
    return 1024 * sum(m.kb["FilePmdMapped"] for m in read_smaps(pid) if m.name == "/usr/bin/calls")
