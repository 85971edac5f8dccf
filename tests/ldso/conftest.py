# SPDX-License-Identifier: LGPL-2.1-or-later
"""The dynamic linkers that these tests compare: the installed one, ours, and ours without the series."""

import pathlib
import shutil

import pytest

from linked import Linked
from linkers import LINKED, WORK, build_linker, interpreter, run_script

HERE = pathlib.Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def installed():
    """The file itself, behind symbolic links."""
    return interpreter().resolve()


@pytest.fixture(scope="session")
def cached_tree():
    """Where the distribution's glibc lies, built and unpatched."""
    done = run_script("tree", "lib")
    assert done.returncode == 0, done.stderr
    return pathlib.Path(done.stdout.strip())


@pytest.fixture(scope="session")
def unpatched(cached_tree):
    """An ld.so built as ours is, without the series."""
    done = run_script("build", "-u", "-d", WORK / "unpatched")
    assert done.returncode == 0, done.stderr
    return WORK / "unpatched/ld.so"


@pytest.fixture(scope="session")
def ldso(cached_tree):
    return build_linker()


@pytest.fixture(scope="module")
def readable_ldso(ldso, shared_folder, request):
    """Ours, where every user may run it."""
    copy = shared_folder / f"our-ld.so-{request.module.__name__}"
    shutil.copy(ldso, copy)
    copy.chmod(0o755)
    return copy


@pytest.fixture
def linked(ldso, pause_library):
    """Runs programs with our ld.so, and proves which spans it moved."""
    return Linked(ldso, pause_library)


@pytest.fixture(scope="module")
def features(builder):
    """features(link, words): libbig-LINK.so with large text, TLS, IFUNC and a constructor; WORDS as in Builder.object."""

    def make(link="now", words=8):
        def build(folder):
            return builder.compile(folder / f"libbig-{link}.so", "-shared", "-fPIC", HERE / "features.c",
                                   *builder.object(words), *LINKED[link])

        return builder.once(f"features-{link}-{words}", build)

    return make


@pytest.fixture(scope="module")
def auditor(builder):
    """A library for LD_AUDIT, with large text."""
    return builder.once("auditor", lambda folder: builder.compile(folder / "libbig-auditor.so", "-shared", "-fPIC", HERE / "auditor.c",
                                                                  *builder.object()))


@pytest.fixture(scope="module")
def loads(builder):
    return builder.once("loads", lambda folder: builder.compile(folder / "loads", HERE / "loads.c"))
