# SPDX-License-Identifier: LGPL-2.1-or-later
"""make install, uninstall and dist, in folders of their own."""

import hashlib
import os
import re
import shutil
import subprocess
import tarfile

import pytest

import helpers

# In one worker, which builds the source once.
pytestmark = pytest.mark.xdist_group("install")

EXPECTED = {
    "bin/hugeld", "lib/hugeld/hugeld-command", "lib/libhugeld.so", "lib/hugeld/libhugeld.so",
    "share/hugeld/hugeld.schema.json", "share/man/man1/hugeld.1", "share/man/man7/hugeld.7", "share/man/man8/libhugeld.so.8",
    "share/man/man8/ld-hugeld.so.8", "share/bash-completion/completions/hugeld",
    "share/zsh/site-functions/_hugeld", "share/fish/vendor_completions.d/hugeld.fish",
    *(f"lib/systemd/system/hugeld{unit}" for unit in (".service", ".timer", "-boot.service", ".slice")),
    *(f"lib/systemd/user/hugeld{unit}" for unit in (".service", ".timer")), "lib/systemd/system-generators/hugeld-generator",
}  # fmt: skip


def make(folder, *arguments):
    env = helpers.environment(MAKEFLAGS=None, MAKELEVEL=None)
    return subprocess.run(["make", "-C", folder, *arguments], env=env, check=True, capture_output=True, text=True,
                          timeout=1500).stdout


def files_below(folder):
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_symlink() or not p.is_dir()}


@pytest.fixture(scope="module")
def source(tmp_path_factory, source_copy):
    """A copy of the files that git knows, as they are now, configured for a prefix of its own and built."""
    folder = tmp_path_factory.mktemp("source") / "tree"
    shutil.copytree(source_copy, folder)
    subprocess.run(["./configure", f"--prefix={folder}/prefix"], cwd=folder, check=True, capture_output=True)
    make(folder, "-j2")
    yield folder
    shutil.rmtree(folder)


def test_install_and_uninstall(tmp_path):
    """The files that this tree has built."""
    [where] = re.findall(r"^prefix = (.*)", (helpers.ROOT / "config.mk").read_text(), re.M)
    words = [f"B={helpers.BUILD}", f"DESTDIR={tmp_path}"]
    prefix = tmp_path / where.lstrip("/")
    make(helpers.ROOT, "install", *words)
    assert EXPECTED <= files_below(prefix)
    documents = prefix / "share/doc/hugeld"
    named = set(re.findall(r"\b(?:doc/[\w-]+\.md|bench/\w+\.md)", (documents / "README.md").read_text()))
    assert len(named) > 5 and named <= files_below(documents)
    assert not [name for name in files_below(prefix) if name.endswith(".new")]
    extra = [name for name in files_below(prefix) - EXPECTED
             if not name.startswith(("lib/hugeld/preload/", "share/doc/hugeld/")) and name != "lib/hugeld/ld.so"]
    assert extra == []
    assert not any(os.readlink(p).startswith("/") for p in prefix.rglob("*") if p.is_symlink())
    make(helpers.ROOT, "uninstall", *words)
    assert files_below(tmp_path) == set()
    assert not (prefix / "lib/hugeld").exists() and not documents.exists()


@pytest.mark.check_all
def test_what_is_installed_works(source, thp):
    make(source, "install")
    command = source / "prefix/bin/hugeld"
    version = helpers.run([command, "--version"]).stdout
    assert re.search(r"^hugeld \S+$", version, re.M)
    assert f"preloader: {source}/prefix/lib/hugeld/libhugeld.so" in version
    result = helpers.run([command, "run", "--copy", "-o", "backend=thp,verbose=2", "--", "/usr/bin/python3", "-c", "print(1)"])
    assert (result.returncode, result.stdout) == (0, "1\n")
    assert re.search(r"^hugeld: python3\S*: text \d+ pages? thp", result.stderr, re.M), result.stderr
    by_hand = helpers.run_preloaded(["/usr/bin/python3", "-c", ""], options="backend=thp,verbose=2",
                                    library=source / "prefix/lib/libhugeld.so")
    assert "pages thp" in by_hand.stderr


@pytest.mark.check_all
def test_replacing_disturbs_nobody(source):
    """A process keeps the library that it has, and a new one finds a whole file at every moment."""
    make(source, "install")
    library = source / "prefix/lib/hugeld/libhugeld.so"
    before = library.stat().st_ino
    with open(library, "rb") as file:
        make(source, "install")
        assert library.stat().st_ino != before
        assert hashlib.sha256(file.read()).digest() == hashlib.sha256(library.read_bytes()).digest()


@pytest.mark.check_all
def test_dist_is_reproducible(tmp_path):
    """The same commit gives the same bytes in another folder, time zone and umask, and all of its files are in them."""
    found = []
    for name, zone, mask in (("a", "UTC", 0o022), ("b", "Asia/Tokyo", 0o077)):
        old = os.umask(mask)
        try:
            cloned = helpers.run(["git", "clone", "-q", helpers.ROOT, tmp_path / name])
            if cloned.returncode != 0:
                pytest.skip(f"git does not know this tree: {cloned.stderr}")
            subprocess.run(["make", "-C", tmp_path / name, "dist"], check=True, capture_output=True, timeout=helpers.PATIENCE,
                           env=helpers.environment(TZ=zone, MAKEFLAGS=None))
        finally:
            os.umask(old)
        [path] = (tmp_path / name / "build").glob("hugeld-*.tar.gz")
        found.append(path)
    assert found[0].read_bytes() == found[1].read_bytes()
    with tarfile.open(found[0]) as archive:
        members = archive.getmembers()
    folder = members[0].name.split("/")[0]
    assert all(m.name.split("/")[0] == folder and (m.uid, m.gid) == (0, 0) for m in members)
    known = helpers.run(["git", "-C", tmp_path / "a", "ls-tree", "-r", "--name-only", "HEAD"]).stdout.split()
    assert sorted(m.name.partition("/")[2] for m in members if not m.isdir()) == sorted(known) and len(known) > 100
