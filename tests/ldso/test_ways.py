# SPDX-License-Identifier: LGPL-2.1-or-later
"""The ways to use our ld.so: as a command, as PT_INTERP (by the linker, by patchelf), and over the interpreter in a
mount namespace of its own, made by root and by any user."""

import shutil
import subprocess

import pytest

import helpers
from linkers import BY_ANYBODY, BY_ROOT, over_interpreter
from objects import PF_X, find_bias, object_at
from smaps import read_smaps


@pytest.fixture
def program(builder, shared_folder, request):
    """A copy of a small program with a large library, where every user may run it."""
    app, _ = builder.with_library("dso")
    folder = shared_folder / request.node.name.replace("/", "-")
    shutil.copytree(app.parent, folder, symlinks=True)
    folder.chmod(0o755)
    yield folder / app.name
    shutil.rmtree(folder)


def as_command(ldso, program, installed, builder):
    return [ldso, program]


def by_linker(ldso, program, installed, builder):
    builder.compile(program, builder.folder / "main.c", "-Wl,--no-as-needed", program.parent / "libbig.so",
                    "-Wl,-rpath,$ORIGIN", f"-Wl,--dynamic-linker={ldso}")
    return [program]


def by_patchelf(ldso, program, installed, builder):
    subprocess.run(["patchelf", "--set-interpreter", ldso, program], check=True, timeout=60)
    return [program]


def by_root(ldso, program, installed, builder):
    return [*over_interpreter(BY_ROOT, ldso, installed), program]


def by_anybody(ldso, program, installed, builder):
    if helpers.run([*BY_ANYBODY, "true"]).returncode != 0:
        pytest.skip("this machine allows no user namespaces")
    return [*over_interpreter(BY_ANYBODY, ldso, installed), program]


@pytest.mark.parametrize("way", [as_command, by_linker, by_patchelf, by_root, by_anybody])
def test_way(way, readable_ldso, program, installed, builder, pause_library, pool, root):
    """Before main all whole huge pages of the library's text are on huge pages, and the program says the same as with
    the installed ld.so.  /proc/self/exe is the program except when ld.so is the command."""
    command = way(readable_ldso, program, installed, builder)
    plain = helpers.run([installed, program, "one"])  # as patchelf has changed it, too
    assert plain.returncode == 3
    name = readable_ldso.name if way is as_command else program.name
    pool(64)
    env = helpers.preload(pause_library, patterns="libbig.so*")
    with helpers.paused([*command, "one"], env, name) as process:
        mappings = read_smaps(process.pid)
        linkers = {m.inode for m in mappings if m.name in (str(readable_ldso), str(installed))}
        assert linkers == {readable_ldso.stat().st_ino}
        check_text(mappings, program.parent / "libbig.so")
        result = process.finish()
    assert result == (plain.returncode, plain.stdout, plain.stderr)


def check_text(mappings, library):
    """All that is on hugetlb pages lies in LIBRARY, and its text is, but for edges of less than a page."""
    remains = [m for m in mappings if m.name == str(library)]
    object_ = object_at(library, find_bias(library, remains))
    text, = [load for load in object_.loads if load.flags & PF_X]
    start = object_.bias + text.vaddr
    end = start + text.memory_bytes
    huge = [m for m in mappings if m.is_hugetlb]
    assert all(object_.start <= m.start and m.end <= object_.end for m in huge), huge
    assert all(m.hugetlb_bytes == m.bytes for m in huge), huge
    covered = sum(max(0, min(m.end, end) - max(m.start, start)) for m in huge)
    assert end - start - covered < helpers.HUGE, f"{covered} of {end - start} bytes of text: {huge}"
