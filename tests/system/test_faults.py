# SPDX-License-Identifier: LGPL-2.1-or-later
"""System calls fail, one after the other: the program is on huge pages as planned or exactly as it was, runs, and leaves
nothing behind.  strace injects the errors; it also makes this the test of a traced process."""

import contextlib
import os

import pytest

import helpers


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
        image = helpers.read_image(process.pid)
        names = [o.name for o in image.objects if o.name == app.name or "libbig" in o.name]
        plans = helpers.read_plans(process.pid, [o.path for o in image.objects if o.name in names], options)
        # Either all spans of a kind of an object, or none of them.
        moved = {}
        for name in names:
            for span in plans[name].spans:
                inside = [m for m in image.mappings if m.start < span.end and m.end > span.start]
                if any(m.is_hugetlb or m.thp_bytes for m in inside):
                    moved.setdefault(name, set()).add(span.kind)
        helpers.check_memory(image, plain_image, plans, moved, backend)
        assert process.lines == plain_lines
    return bool(moved)


# Per call the error that its manual names.
CALLS = [("mremap", "ENOMEM"), ("mmap", "ENOMEM"), ("mprotect", "EACCES"), ("madvise", "EINVAL"), ("ioctl", "ENOMEM"),
         ("userfaultfd", "EPERM"), ("openat", "ENOENT"), ("pread64", "EIO"), ("read", "EIO"),
         ("memfd_create", "ENOSYS"), ("process_vm_readv", "ENOSYS")]


def own_calls(lines, call):
    """Which calls of CALL, counted from the exec, libhugeld.so makes: between its look at /proc/self/exe and that of
    pause.so, which runs after it."""
    begin, end = [i for i, line in enumerate(lines) if line.startswith("readlink") and '"/proc/self/exe"' in line][:2]
    count = [sum(line.startswith(f"{call}(") for line in lines[:i]) for i in (begin, end)]
    return range(count[0] + 1, count[1] + 1)


@pytest.mark.parametrize("backend", ["hugetlb", "thp"])
@pytest.mark.parametrize("call, error", CALLS, ids=[c[0] for c in CALLS])
def test_call_fails(builder, pool, thp, strace, library, empty_library, pause_library, tmp_path, call, error, backend):
    pool(64)
    app = builder.executable("six")
    options = f"backend={backend}"
    env = helpers.preload(library, pause_library, options=options)
    with waiting([app], helpers.preload(empty_library, pause_library)) as process:
        plain_image, plain_lines = helpers.read_image(process.pid), process.lines
    trace = tmp_path / "trace"
    helpers.run(["strace", "-o", trace, app], env)
    calls = own_calls(trace.read_text(errors="replace").split("\n"), call)
    moved = []
    chosen = calls[:40:4 if os.environ.get("T_VM") else 1]  # in a guest the processor is emulated
    for i in chosen:
        moved.append(run_with_fault(strace(call, error, i), app, env, plain_image, plain_lines, options, backend))
    if call == "mremap":
        assert len(calls) > 8 and not all(moved), "no fault had any effect"


@pytest.mark.parametrize("when", range(1, 30, 3))
def test_one_mremap_of_two_objects_fails(builder, pool, strace, library, empty_library, when):
    """Two objects, one fault: what moved before it stays, what failed is back, and the program runs."""
    pool(64)
    app, _ = builder.with_library("dso-six", 2)
    plain = helpers.run([app])
    prefix = strace("mremap", "ENOMEM", str(when))
    result = helpers.run([*prefix, app], helpers.preload(library, patterns="libbig*", options="verbose=1"))
    assert (result.returncode, result.stdout) == (plain.returncode, plain.stdout)
    assert "rolled back, but" not in result.stderr


@pytest.mark.parametrize("call, error", [c for c in CALLS if c[0] in ("mremap", "mmap", "mprotect", "ioctl", "read")],
                         ids=lambda c: c)
def test_call_fails_while_data_moves(builder, pool, thp, strace, library, pause_library, tmp_path, call, error):
    """Without address-space randomisation, so that the heap begins in the last page of .bss."""
    pool(64)
    app = builder.executable("nopie", words=6 * 2**17)
    argv = ["setarch", "-R", app]
    options = "backend=hugetlb,bss=thp"
    env = helpers.preload(library, pause_library, options=f"verbose=1,only={app.name},{options}")
    plain = helpers.run(argv)
    trace = tmp_path / "trace"
    helpers.run(["setarch", "-R", "strace", "-o", trace, app], env)
    for i in own_calls(trace.read_text(errors="replace").split("\n"), call)[:40]:
        result = helpers.run(["setarch", "-R", *strace(call, error, i), app], env)
        assert (result.returncode, result.stdout) == (plain.returncode, plain.stdout), f"{call} {i}: {result.stderr}"
        assert "rolled back, but" not in result.stderr, f"{call} {i}"
