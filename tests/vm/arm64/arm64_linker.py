# SPDX-License-Identifier: LGPL-2.1-or-later
"""The patched dynamic linker in the arm64 guests, by the proof of ../../ldso."""

import sys

import pytest

import arm64
import helpers
from arm64 import ALL, IS_SMALL, VARIANTS, refuses

sys.path.append(str(arm64.TESTS / "ldso"))

from linked import Linked, by_command, by_run  # noqa: E402  (its folder has just been added)

opens = arm64.opens
LDSO = helpers.BUILD / "ldso" / "ld.so"
INSTALLED = "/lib/ld-linux-aarch64.so.1"
HUGETLB = "backend=hugetlb,data=off"


@pytest.fixture
def linked(pause_library):
    return Linked(LDSO, pause_library)


@pytest.mark.parametrize("option", ["--version", "--list-tunables"])
def test_says_what_the_installed_one_says(option):
    """glibc-patches/guard could not run them where they were built."""
    ours, theirs = (helpers.run([ldso, option]) for ldso in (LDSO, INSTALLED))
    assert ours.returncode == 0 and ours.stdout.count("\n") > 3
    assert ours.stdout == theirs.stdout


CASES = [*((v, by_run) for v in VARIANTS), *((v, by_command) for v in VARIANTS if v in ("pie", "bti", "bti-pie"))]


@pytest.mark.parametrize("variant, way", CASES)
def test_executable(builder, linked, variant, way):
    app = builder.executable(variant)
    proof = linked.prove([app], {app.name: ALL}, "main", HUGETLB, way=way)
    assert proof.pages >= 2
    assert refuses(proof.moved) == variant.startswith("bti")


@pytest.mark.skipif(not IS_SMALL, reason="n/a: a hundred MiB for each library")
@pytest.mark.parametrize("variant", arm64.LATER)
def test_library_that_comes_later(opens, variant):
    program, shared = opens(variant)
    options = "backend=hugetlb,data=off,verbose=2"
    env = helpers.environment(LD_HUGEPAGES="libbig*", LD_HUGEPAGES_OPTIONS=options)
    arm64.check_later(by_run(LDSO, "libbig*", options, [program, shared]), env, program, shared, variant)


@pytest.mark.parametrize("variant", ["pie", "bti-pie"] if IS_SMALL else ["pie"])
def test_image(builder, linked, images, variant):
    """glibc maps text again for PROT_BTI, from the file whose program headers are in memory: the image."""
    app = builder.executable(variant)
    images.add(app)
    proof = linked.prove([app], {app.name: ALL}, "main", images.options("data=off"), way=by_command, backend="image")
    assert proof.pages >= 2
    assert refuses(proof.moved) == variant.startswith("bti")
