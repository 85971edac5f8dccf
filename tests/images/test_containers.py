# SPDX-License-Identifier: LGPL-2.1-or-later
"""Images in containers, as doc/services.md says: bind-mounted over the program's file; and where a container finds an image in
the host's store, and where it does not."""

import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

import helpers


SOURCE = r"""
#include <stdio.h>
#include <string.h>
#include <unistd.h>
unsigned long big_sum(unsigned long x);
int main(void) {
    char self[4096] = "", line[4096];
    unsigned long huge = 0, kib;
    int ours = 0;
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        return 2;
    printf("exe %s\nsum %lx\n", self, big_sum(1));
    FILE *smaps = fopen("/proc/self/smaps", "r");
    while (smaps != NULL && fgets(line, sizeof line, smaps) != NULL) {
        if (strstr(line, " r-xp ") != NULL || strstr(line, "-p ") != NULL)
            ours = strstr(line, " r-xp ") != NULL && strstr(line, self) != NULL;
        if (ours && sscanf(line, "ShmemPmdMapped: %lu", &kib) == 1)
            huge += kib;
    }
    printf("huge %lu\n", huge / 2048);
    return 0;
}
"""


@pytest.fixture
def program(builder, tmp_path):
    def link(folder):
        return builder.compile(folder / "contained", builder.write("contained.c", SOURCE), "-static", "-w", *builder.object())

    return pathlib.Path(shutil.copy(builder.once("contained", link), tmp_path))


def run_container(folder, rootfs, mounts):
    """/contained in a container of runc with these MOUNTS."""
    folder.mkdir()
    subprocess.run(["runc", "spec"], cwd=folder, check=True, timeout=60)
    config = json.loads((folder / "config.json").read_text())
    config["process"].update(terminal=False, args=["/contained"])
    config["process"]["env"].append(f"{helpers.MARK}={helpers.MARK_VALUE}")
    config["root"] = {"path": str(rootfs), "readonly": True}
    config["mounts"] += [{"type": "bind", "source": str(source), "destination": to, "options": ["bind", "ro"]}
                         for source, to in mounts]
    (folder / "config.json").write_text(json.dumps(config))
    try:
        return helpers.run(["runc", "--root", folder / "state", "run", "hugeld-image-test"], cwd=folder)
    finally:
        subprocess.run(["runc", "--root", folder / "state", "delete", "--force", "hugeld-image-test"],
                       stderr=subprocess.DEVNULL, check=False, timeout=60)


def test_image_over_the_file(images, program, tmp_path):
    """docker run -v IMAGE:FILE:ro: nothing of hugeld is in the container, and its text is on huge pages."""
    if not shutil.which("runc"):
        pytest.skip("runc is not installed")
    rootfs = tmp_path / "rootfs"
    rootfs.mkdir()
    shutil.copy(program, rootfs)
    for name in ("proc", "dev", "sys"):
        (rootfs / name).mkdir()
    image = images.add(rootfs / "contained")
    plain = run_container(tmp_path / "plain", rootfs, [])
    assert plain.returncode == 0 and plain.stdout.endswith("huge 0\n"), plain.stderr
    result = run_container(tmp_path / "image", rootfs, [(image, "/contained")])
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(plain.stdout.replace("huge 0\n", "")) and "exe /contained\n" in result.stdout
    assert int(re.search(r"huge (\d+)", result.stdout)[1]) >= 3


@pytest.mark.parametrize("way", ["bind", "overlay"])
def test_hosts_store(images, program, tmp_path, way):
    """A file that is bind-mounted from the host is the host's, and has its image; through overlayfs, as in the layers of
    containers, the same file is another one, and has none."""
    image = images.add(program)
    inside = tmp_path / "inside"
    for name in ("inside", "lower", "upper", "work"):
        (tmp_path / name).mkdir()
    if way == "bind":
        mount = f"touch {inside}/contained; mount --bind {program} {inside}/contained"
    else:
        os.link(program, tmp_path / "lower/contained")  # changes ctime
        image = images.add(program)
        mount = (f"mount -t overlay -o lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work overlay "
                 f"{inside}")
    run = f"{helpers.HUGELD} run -o verbose=2,store={images.folder} -- {inside}/contained"
    result = helpers.run(["unshare", "--mount", "sh", "-euc", f"{mount}\n{run}"])
    assert result.returncode == 0, result.stderr
    assert (str(image) in result.stderr) == (way == "bind"), result.stderr
    assert ("started as it is" in result.stderr) == (way == "overlay"), result.stderr
