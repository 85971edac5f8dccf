# SPDX-License-Identifier: LGPL-2.1-or-later
"""The cached trees of glibc-patches/tree: an interrupted build is never taken for a whole one, no build writes into them,
and the files imported into a copy are the repository's."""

import contextlib
import os
import pathlib
import shutil

import pytest

import helpers
from linkers import PATCHES, WORK, run_script

# In one worker: they build glibc in the same folders.
pytestmark = pytest.mark.xdist_group("glibc")


@contextlib.contextmanager
def building(cache, **changes):
    """`tree lib` with another cache folder; in the end it is killed, with all of its children."""
    process = helpers.start([PATCHES / "tree", "lib"], helpers.environment(XDG_CACHE_HOME=cache, **changes))
    try:
        yield process
    finally:
        helpers.end_process(process)


def wait_for(process, cache, pattern):
    def found():
        assert process.poll() is None, process.stderr.read()
        return next(pathlib.Path(cache).glob(pattern), None)

    return helpers.wait_until(found, timeout=120, what=pattern)


@pytest.mark.check_all
def test_interrupted(cached_tree, tmp_path):
    with building(tmp_path) as process:
        tree = wait_for(process, tmp_path, "hugeld/glibc/*/lib/version.h").parent
    assert tree.parent.name == cached_tree.parent.name
    assert not tree.with_name("lib.made-with").exists()
    (tree / "left-behind").touch()
    with building(tmp_path) as process:
        helpers.wait_until(lambda: not (tree / "left-behind").exists(), what="beginning anew")
        wait_for(process, tmp_path, "hugeld/glibc/*/lib/version.h")
        assert not tree.with_name("lib.made-with").exists()


@pytest.mark.parametrize("whole", [True, False])
def test_made_by_other_tools(cached_tree, tmp_path, whole):
    """A tree that other versions of the tools made is not used; a whole one is, without a look inside."""
    tree = tmp_path / "hugeld/glibc" / cached_tree.parent.name / "lib"
    (tree / "debian/sysdeps").mkdir(parents=True)
    for file in ("debian/rules", "debian/sysdeps/linux.mk"):
        shutil.copy(cached_tree / file, tree / file)
    made_with = cached_tree.with_name("lib.made-with").read_text()
    assert "\nbinutils " in made_with and "gcc-" in made_with
    tree.with_name("lib.made-with").write_text(made_with if whole else made_with.replace("\nbinutils ", "\nbinutils 0"))
    with building(tmp_path) as process:
        if whole:
            assert process.communicate(timeout=60) == (f"{tree}\n", "")
            assert process.returncode == 0
        else:
            helpers.wait_until(lambda: not (tree.with_name("lib.made-with")).exists(), what="beginning anew")


@pytest.mark.check_all
def test_changed_source_package(tmp_path):
    """An installed source package of which one file was changed is not built: apt fetches and verifies it again."""
    shim = tmp_path / "bin/dpkg"
    shim.parent.mkdir()
    shim.write_text('#!/bin/sh\n[ "$1" != --verify ] || { echo "??5??????   /usr/src/glibc/debian/rules"; exit 1; }\n'
                    'exec /usr/bin/dpkg "$@"\n')
    shim.chmod(0o755)
    cache = tmp_path / "cache"
    with building(cache, PATH=f"{shim.parent}:{os.environ['PATH']}") as process:
        tree = wait_for(process, cache, "hugeld/glibc/*/lib/version.h").parent
        package, = tree.parent.glob("package/glibc-source_*.deb")
        assert package.stat().st_size > 1_000_000


@pytest.mark.parametrize("arguments, cache, said", [
    (["nothing"], "cache", "usage: tree lib|all, tree -r ROOT lib|installed, tree upstream RELEASE"),
    (["lib"], "with space", "a character that make does not take")])
def test_misuse(tmp_path, arguments, cache, said):
    done = helpers.run([PATCHES / "tree", *arguments], helpers.environment(XDG_CACHE_HOME=tmp_path / cache))
    assert done.returncode == 1 and said in done.stderr and not (tmp_path / cache).exists()


def listing(tree):
    """Each file's inode, size, times and links, which would show a write."""
    return helpers.run(["find", tree, "-type", "f", "-printf", "%p %i %s %T@ %C@ %n\\n"]).stdout


@pytest.mark.check_all
def test_cached_tree_is_only_read(cached_tree):
    """A build, also one that compiles much of it anew, leaves it alone."""
    before = listing(cached_tree)
    assert before.count("\n") > 20_000
    done = run_script("build", "-u", "-d", WORK / "unpatched")
    assert done.returncode == 0, done.stderr
    tree = WORK / "unpatched/tree"
    os.utime(tree / "sysdeps/generic/ldsodefs.h")
    done = run_script("build", "-u", "-d", WORK / "unpatched")
    assert done.returncode == 0, done.stderr
    assert listing(cached_tree) == before


def test_import(tmp_path):
    assert run_script("import", tmp_path).stderr == f"glibc-patches/import: {tmp_path} is no glibc tree\n"
    (tmp_path / "elf/hugeld").mkdir(parents=True)
    (tmp_path / "elf/hugeld/gone.c").touch()
    core = {f.name: f for folder in ("elf", "perf-maps") for f in (helpers.ROOT / folder).glob("*.*")
            if f.suffix in (".c", ".h", ".def")}
    glue = {f.name: f for f in (PATCHES / "glue").glob("*.[ch]")}
    assert len(core) > 30
    times = []
    for _ in range(2):
        done = run_script("import", tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        times.append({f: f.stat().st_mtime_ns for f in tmp_path.rglob("*") if f.is_file()})
        for files, folder in ((core, tmp_path / "elf/hugeld"), (glue, tmp_path / "elf")):
            assert {f.name for f in folder.iterdir() if f.is_file()} == set(files)
            assert all((folder / name).read_bytes() == file.read_bytes() for name, file in files.items())
    assert times[0] == times[1], "make would compile all of it again"
