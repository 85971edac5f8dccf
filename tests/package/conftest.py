# SPDX-License-Identifier: LGPL-2.1-or-later
"""The source as git knows it, the packages built from it, and a clean Debian for each test that wants one."""

import os
import pathlib
import shutil
import subprocess

import pytest

import clean
import helpers


def copy_source(folder):
    """Copies the files of this tree that git knows, as they are now, into FOLDER."""
    listing = helpers.run(["git", "-C", helpers.ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"])
    if listing.returncode != 0:
        pytest.skip(f"git does not know this tree: {listing.stderr}")
    for name in filter(None, listing.stdout.split("\0")):
        if (helpers.ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(helpers.ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="session")
def source_copy(tmp_path_factory):
    folder = copy_source(tmp_path_factory.mktemp("copy"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def debian_packages(tmp_path_factory):
    """The folder of the built packages, hugeld-ldso too; glibc comes from the cache of `make ldso`.  Or $DEBS, where they
    were built before."""
    if "DEBS" in os.environ:
        yield pathlib.Path(os.environ["DEBS"])
        return
    for tool in ("dpkg-buildpackage", "dh"):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed")
    folder = tmp_path_factory.mktemp("debian")
    source = folder / "hugeld"
    source.mkdir()
    copy_source(source)
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    env = helpers.environment(HUGELD_CACHE=cache, MAKEFLAGS=None, MAKELEVEL=None, DEB_BUILD_OPTIONS="parallel=2")
    result = subprocess.run(["dpkg-buildpackage", "-b", "-uc"], cwd=source, env=env, timeout=3600, check=False, text=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert result.returncode == 0, result.stdout[-4000:]
    shutil.rmtree(source)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def clean_debian(root, tmp_path_factory):
    """clean_debian(suite): a Debian to install things in."""
    folders = []

    def make(suite):
        if not shutil.which("debootstrap"):
            pytest.skip("debootstrap is not installed")
        folders.append(tmp_path_factory.mktemp(suite))
        try:
            return clean.Clean(suite, folders[-1])
        except clean.Unavailable as error:
            pytest.skip(f"no clean {suite}: {error}")

    yield make
    for folder in folders:
        shutil.rmtree(folder)
