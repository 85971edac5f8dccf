# SPDX-License-Identifier: LGPL-2.1-or-later
"""Each call of mremap(2) fails once: the program is on huge pages as planned or exactly as it was, runs, and leaves nothing
behind.  strace injects the errors; it also makes this the test of a traced process.  All other calls are tested in
tests/faults; this runs in guests too."""

import contextlib
import os

import pytest

import helpers
from proof import check_memory, read_image, read_plans


@contextlib.contextmanager
def waiting(argv, env):
    """Runs ARGV, one of the generated programs, until it has said everything and sleeps."""
    process = helpers.start([*argv, "wait", "here"], env)
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("break"):
                break
        process.lines = lines
        yield process
    finally:
        helpers.end_process(process)


def run_with_fault(prefix, app, env, plain_image, plain_lines, options, backend):
    """Whether it moved, with the fault."""
    with waiting([*prefix, app], env) as process:
        image = read_image(process.pid)
        names = [o.name for o in image.objects if o.name == app.name or "libbig" in o.name]
        plans = read_plans(process.pid, [o.path for o in image.objects if o.name in names], options)
        # Either all spans of a kind of an object, or none of them.
        moved = {}
        for name in names:
            for span in plans[name].spans:
                inside = [m for m in image.mappings if m.start < span.end and m.end > span.start]
                if any(m.is_hugetlb or m.thp_bytes for m in inside):
                    moved.setdefault(name, set()).add(span.kind)
        check_memory(image, plain_image, plans, moved, backend)
        assert process.lines == plain_lines
    return bool(moved)


def own_mremaps(lines):
    """The calls of mremap, counted from the exec, that libhugeld.so makes: between its look at /proc/self/exe and that of
    pause.so, which runs after it."""
    begin = next(i for i, line in enumerate(lines) if line.startswith("openat") and '"/proc/self/status"' in line)
    end = next(i for i, line in enumerate(lines) if line.startswith("readlink") and '"/proc/self/exe"' in line)
    count = [sum(line.startswith("mremap(") for line in lines[:i]) for i in (begin, end)]
    return range(count[0] + 1, count[1] + 1)


@pytest.mark.parametrize("backend", ["hugetlb", "thp"])
def test_mremap_fails(builder, pool, thp, strace, library, empty_library, pause_library, tmp_path, backend):
    pool(64)
    app = builder.executable("six")
    options = f"backend={backend}"
    env = helpers.preload(library, pause_library, options=options)
    with waiting([app], helpers.preload(empty_library, pause_library)) as process:
        plain_image, plain_lines = read_image(process.pid), process.lines
    trace = tmp_path / "trace"
    helpers.run(["strace", "-o", trace, app], env)
    calls = own_mremaps(trace.read_text(errors="replace").split("\n"))
    moved = []
    for i in calls[:40:4 if os.environ.get("T_VM") else 1]:  # in a guest the processor is emulated
        prefix = strace("mremap", "ENOMEM", i)
        moved.append(run_with_fault(prefix, app, env, plain_image, plain_lines, options, backend))
    assert len(calls) > 8 and not all(moved), "no fault had any effect"
