# SPDX-License-Identifier: LGPL-2.1-or-later
"""Helpers of the tests of the surroundings: a proof like `prove` with other libraries and wrappers around the program,
and the small C programs beside this file."""

import os
import pathlib
import subprocess

import pytest

import helpers
import programs
from proof import Plan, Span, check_memory, read_image, read_plans, same_but_stderr
from surroundings import Outcome

HERE = pathlib.Path(__file__).resolve().parent


def plan_file(path, options):
    [found] = helpers.hugeld_json("inspect", *(["-o", options] if options else []), path)["files"]
    spans = [Span(int(s["start"], 0), int(s["end"], 0), s["kind"]) for s in found["plan"]["spans"]]
    return Plan(path, spans, found)


@pytest.fixture
def surround(library, empty_library, pause_library):
    """surround(argv, moved, ...): like prove(), and also

    FIRST: libraries whose constructors run before libhugeld.so's; PREFIX: a command that becomes ARGV, PLAIN_PREFIX the
    same for the plain run if it differs; PRELOAD: false if libraries come in some other way than LD_PRELOAD;
    ROUTE: the beginning of the name of a text span's mapping; REPAIR: called when the program has stopped, before a process
    reads its files; INTACT: where to read the plan of an executable that is not PIE and cannot be read; CONTENTS: the
    file with the bytes of the program, if that is another one.  Standard error is the caller's to judge."""

    def run(argv, moved, first=(), prefix=(), plain_prefix=None, patterns=None, options="", backend="hugetlb",
            route="", same=same_but_stderr, preload=True, repair=lambda: None, intact=None,
            contents=None, timeout=helpers.PATIENCE, **changes):
        name = os.path.basename(argv[0])
        plain_prefix = prefix if plain_prefix is None else plain_prefix

        # Constructors run from the last to the first, but before all of them the last with -z initfirst.
        def environment(hugeld, **variables):
            libraries = [pause_library, hugeld, *first] if preload else []
            return helpers.preload(*libraries, **variables, **changes)

        with helpers.paused([*plain_prefix, *argv], environment(empty_library), name, timeout) as process:
            plain_image = read_image(process.pid)
            plain = process.finish()
        env = environment(library, patterns=patterns, options=options or None)
        with helpers.paused([*prefix, *argv], env, name, timeout) as process:
            repair()
            image = read_image(process.pid)
            if contents:
                image.contents[name] = contents
            paths = [o.path for o in image.objects if o.name in moved]
            if intact:
                plans = {intact.name: plan_file(intact, options)}
            else:
                plans = read_plans(process.pid, paths, options)
            pages = check_memory(image, plain_image, plans, moved, backend)
            for object_name, kinds in moved.items():
                for span in plans[object_name].spans:
                    names = {m.name for m in image.mappings if span.start <= m.start < span.end}
                    assert span.kind != "text" or "text" not in kinds or all(n.startswith(route) for n in names), names
            result = process.finish()
        assert same(plain, result), f"plain: {plain}\nmoved: {result}"
        return Outcome(pages, image, plain_image, plain, *result)

    return run


@pytest.fixture(scope="session")
def tool(builder, shared_folder):
    """tool(name, ...): NAME.c beside this file, compiled; a library with shared=True."""
    built = {}

    def make(name, *arguments, shared=False):
        key = (name, *arguments)
        if key not in built:
            number = sum(other == name for other, *_ in built)  # a guest of tests/vm finds it by its name
            output = shared_folder / f"{name}{number}{'.so' if shared else ''}"
            flags = ["-shared", "-fPIC"] if shared else []
            command = ["gcc", "-O1", "-Wall", "-Wextra", *flags, "-o", output, HERE / f"{name}.c", *arguments]
            result = subprocess.run(command, capture_output=True, text=True, timeout=helpers.PATIENCE)
            assert result.returncode == 0, result.stderr
            built[key] = output
        return built[key]

    make.source = lambda name: HERE / f"{name}.c"
    return make


@pytest.fixture(scope="session")
def first(tool):
    """A library whose constructor runs before libhugeld.so's and follows T_FIRST."""
    return tool("first", "-Wl,-z,initfirst", "-pthread", shared=True)


@pytest.fixture(scope="session")
def confine(tool):
    """confine(rules...): a command prefix under which these rules hold.  Static, so that nothing is preloaded into it."""
    if not pathlib.Path("/usr/include/seccomp.h").exists():
        pytest.skip("needs libseccomp-dev")
    program = tool("confine", "-static", "-lseccomp")
    return lambda *rules: [program, *rules, "--"] if rules else []


@pytest.fixture(scope="session")
def sum_program(builder, tool):
    """sum_program(variant): sum.c with the large text and data inside; uses few mappings."""

    def make(variant="nopie", *more, name=None):
        name = name or f"sum-{variant}"

        def link(folder):
            arguments = builder.link_arguments(f"sum-{variant}", programs.EXECUTABLES[variant])
            return builder.compile(folder / name, HERE / "sum.c", "-rdynamic", *builder.object(), *arguments,
                                   *more)

        return builder.once(name, link)

    return make
