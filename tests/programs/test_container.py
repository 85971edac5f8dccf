# SPDX-License-Identifier: LGPL-2.1-or-later
"""A program of Debian 13 in a container, as doc/services.md says it for docker: without hugeld, with libhugeld.so of this
machine, and with the patched dynamic linker that was built for its libc.  The suite and its linker are those of
tests/ldso/suite."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest

import helpers
from smaps import read_smaps

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "vm"))

import archive  # noqa: E402  (its folder has just been added)

pytestmark = pytest.mark.check_all

ROOT = archive.cache_folder("suites") / "trixie"
LINKER = helpers.ROOT / "build/suites/trixie/ldso/ld.so"
TEXT = "some words\n" * 1000


def bind(source, destination):
    return {"type": "bind", "source": str(source), "destination": str(destination), "options": ["bind", "ro"]}


def ways():
    """Each one's additions to a container: variables, and mounts in it."""
    [interpreter] = ROOT.glob("usr/lib/*/ld-linux-*.so.*")
    return {
        "plain": ([], []),
        "preload": (["LD_PRELOAD=/run/libhugeld.so"], [bind(helpers.LIBRARY, "/run/libhugeld.so")]),
        "ldso": ([], [bind(LINKER, "/" / interpreter.relative_to(ROOT))]),
    }


def write_bundle(folder, way):
    """sha256sum, which takes its text from libcrypto."""
    subprocess.run(["runc", "spec"], cwd=folder, check=True, timeout=60)
    config = json.loads((folder / "config.json").read_text())
    variables, mounts = ways()[way]
    config["process"].update(terminal=False, args=["sha256sum"])
    config["process"]["env"] += [*variables, "LD_HUGEPAGES=main:libcrypto.so.3",
                                 "LD_HUGEPAGES_OPTIONS=verbose=1,strict=on", f"{helpers.MARK}={helpers.MARK_VALUE}"]
    config["root"] = {"path": str(ROOT), "readonly": True}
    config["mounts"] += [{"type": "tmpfs", "source": "tmpfs", "destination": "/run"}, *mounts]
    (folder / "config.json").write_text(json.dumps(config))


def text_pages(pid):
    mappings = read_smaps(pid)
    return sum(m.hugetlb_bytes for m in mappings if m.is_hugetlb and m.permissions == "r-xp") // helpers.HUGE


def run_container(folder, way, wanted):
    """Its output, after its text was on as many pages as one of WANTED.  runc's own warnings, about cgroups that it removes
    too early, go to a file."""
    folder.mkdir()
    write_bundle(folder, way)
    argv = ["runc", "--root", folder / "state", "--log", folder / "log", "run", "--pid-file", folder / "pid", "hugeld-test"]
    process = helpers.start(argv, cwd=folder, stdin=subprocess.PIPE)
    try:
        helpers.wait_until(lambda: (folder / "pid").exists() or process.poll() is not None, what="the container")
        if process.poll() is None:
            pid = int((folder / "pid").read_text())
            helpers.wait_until(lambda: text_pages(pid) in wanted, what="its text on huge pages")
        stdout, stderr = process.communicate(TEXT, timeout=60)
        return process.returncode, stdout, stderr
    finally:
        helpers.end_process(process)
        subprocess.run(["runc", "--root", folder / "state", "delete", "--force", "hugeld-test"], stderr=subprocess.DEVNULL,
                       check=False, timeout=60)


@pytest.mark.parametrize("way", ["preload", "ldso"])
def test_container(root, pool, tmp_path, way):
    if not shutil.which("runc"):
        pytest.skip("runc is not installed")
    if not LINKER.exists():
        pytest.skip("needs Debian 13 with its patched linker: tests/ldso/suite trixie")
    pool(16)
    [library] = ROOT.glob("usr/lib/*/libcrypto.so.3")
    pages = helpers.hugeld_json("inspect", "-o", "segments=text", library)["files"][0]["range"]
    plain = run_container(tmp_path / "plain", "plain", [0])
    moved = run_container(tmp_path / "moved", way, range(max(pages["pages_min"], 1), pages["pages_max"] + 1))
    assert plain[0] == 0 and moved == plain
