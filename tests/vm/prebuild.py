# SPDX-License-Identifier: LGPL-2.1-or-later
"""Builds on the host, by the tests' own fixtures, every program that a guest needs, and copies them to $T_PREBUILT as
they lie below pytest's temporary folder.  guest_amd64.py runs it; it is no test of its own."""

import importlib.util
import os
import pathlib
import shutil
import sys

import pytest

import programs

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE / "guest"), str(HERE.parent / "attach"), str(HERE.parent / "surroundings")]  # vmguest, attaching, surroundings
WORDS = 6 * 2**17  # 6 MiB of writable data


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


surroundings = load(HERE.parent / "surroundings" / "conftest.py", "surroundings_conftest")
writable = load(HERE.parent / "writable" / "conftest.py", "writable_conftest")
guest = load(HERE / "guest" / "conftest.py", "guest_conftest")
attach = load(HERE.parent / "attach" / "conftest.py", "attach_conftest")
exec_stop = load(HERE.parent / "images" / "test_exec_stop.py", "exec_stop")
systemd = load(HERE / "systemd" / "conftest.py", "systemd_conftest")
program, early, under, first = writable.program, writable.early, guest.under, guest.first
tool, confine = surroundings.tool, surroundings.confine
service, pie_service, targets, steps = systemd.service, systemd.pie_service, attach.targets, attach.steps


@pytest.fixture(autouse=True)
def nothing_left():
    """Nothing here runs on huge pages, and others may while it is built."""


def test_build(builder, pause_library, empty_library, confine, program, early, under, first, service, pie_service, targets, steps,
               tmp_path_factory):
    for variant in programs.EXECUTABLES:
        builder.executable(variant)
    for variant in ("nopie", "pie"):
        builder.executable(variant, words=WORDS)
    for variant in programs.LIBRARIES:
        builder.with_library(variant)
    for variant in ("dso", "dso-six"):
        builder.with_library(variant, 2)
    for variant in writable.VARIANTS:
        program(variant)
    for kind in ("exec", "pie", "static"):
        targets[kind]
    for variant in exec_stop.VARIANTS:
        exec_stop.build(builder, variant)
    exec_stop.build_meddle(builder)
    builder.exceptions()
    builder.tiny()
    builder.poke()
    shutil.copytree(tmp_path_factory.getbasetemp(), os.environ["T_PREBUILT"], symlinks=True, dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("*.c", "*.cc", "*.s", "*.ld", "*current"))
