# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs that begin on their image at the exec stop, in the arm64 guests: a sample of ../../images/test_exec_stop.py, and
programs that refuse wrong branches."""

import subprocess

import pytest

import arm64
import helpers
import proof
from arm64 import HUGE, IS_SMALL, VARIANTS, refuses
from proof import read_image
from smaps import read_smaps

exec_stop = arm64.load("images", "test_exec_stop")
program, run, meddle = exec_stop.program, exec_stop.run, exec_stop.meddle
SMALL = pytest.mark.skipif(not IS_SMALL, reason="n/a: a hundred MiB for each program")
# No libc here has landing pads.
BARE = {"bare-static": ["-static", "-no-pie"], "bare-static-pie": ["-static-pie", "-fPIE"]}


def build_bare(builder, variant):
    flags = ["-nostdlib", "-ffreestanding", *arm64.BTI, *BARE[variant]]
    return builder.once(variant, lambda folder: builder.compile(folder / variant, arm64.HERE / "bare.c", *builder.object(), *flags))


def command(images, *argv):
    return [helpers.HUGELD, "run", "-o", f"store={images.folder},verbose=2", "--", *argv]


def environment(**changes):
    env = helpers.environment(**changes)
    env.pop("LD_HUGEPAGES_OPTIONS")
    return env


def guards(after, before):
    """Whether ranges that are text BEFORE have PROT_BTI AFTER.  Data beside it need not: the dynamic linker does not know of it."""
    plain, distance = before.objects[0], after.objects[0].bias - before.objects[0].bias
    text = [(m.start + distance, m.end + distance) for m in before.mappings
            if plain.start <= m.start < plain.end and "x" in m.permissions]
    return {"bt" in m.flags for m in after.mappings
            if "x" in m.permissions and any(m.start < end and m.end > start for start, end in text)}


@pytest.mark.parametrize("variant", VARIANTS)
def test_program(builder, images, pause_library, variant):
    """Its dynamic linker gives the image's text PROT_BTI where it would have given that to the file's."""
    app = builder.executable(variant)
    image = images.add(app)
    env = environment(LD_PRELOAD=pause_library)
    with helpers.paused([app], env, app.name) as process:
        before = read_image(process.pid)
        plain = process.finish()
    with helpers.paused(command(images, app), env, app.name) as process:
        after = read_image(process.pid)
        result = process.finish()
    assert result[:2] == plain[:2] and f"at the exec stop from {image}" in result[2], result
    text = [m for m in after.mappings if m.name == str(image) and "x" in m.permissions and m.end - m.start >= HUGE]
    assert sum(m.end - m.start for m in text) >= 2 * HUGE
    for mapping in text:  # all of it is huge, but for the edges of moved parts
        small_bytes = (mapping.kb["Rss"] - mapping.kb["ShmemPmdMapped"]) << 10
        assert (mapping.start - mapping.offset) % HUGE == 0
        # With 16 KiB pages a huge one takes 32 MiB in one piece, which the guest does not always have.
        assert HUGE > 2 << 20 or small_bytes <= -mapping.start % HUGE + mapping.end % HUGE
    assert guards(after, before) == proof.guards(before, before.objects[0])
    assert refuses(result) == variant.startswith("bti")


@SMALL
@pytest.mark.parametrize("variant", BARE)
def test_branch_protection(builder, images, variant):
    """The kernel has given the text PROT_BTI, and the image's has it, too; wherever the vdso lies, which need not have it."""
    app = build_bare(builder, variant)
    image = images.add(app)
    said, sizes = [], []
    for argv in [app], *[command(images, app)] * (12 if "pie" in variant else 1):
        process = helpers.start(argv, environment(), stdin=subprocess.PIPE)
        try:
            said.append(process.stdout.readline())
            sizes.append(exec_stop.pmd_mapped(process.pid, image)[0])
            text = [m for m in read_smaps(process.pid) if m.name in (str(app), str(image)) and "x" in m.permissions]
            assert text and all("bt" in m.flags for m in text), text
            process.stdin.close()
            assert process.wait(timeout=helpers.PATIENCE) == 3
        finally:
            helpers.end_process(process)
    assert len(set(said)) == 1 and len(said[0]) == 17 and all(huge >= 4 * HUGE for huge in sizes[1:]), sizes


@SMALL
@pytest.mark.parametrize("before", ["", "trap '' TRAP USR1 CHLD; ", "block", "ulimit -s 1024; ulimit -n 64; exec 7</dev/null; "],
                         ids=["plain", "ignored", "blocked", "limits"])
@pytest.mark.parametrize("variant", exec_stop.VARIANTS)
def test_state(images, program, run, variant, before):
    exec_stop.test_state(images, program, run, variant, before)


@SMALL
@pytest.mark.parametrize("variant", exec_stop.VARIANTS)
def test_on_huge_pages(images, program, variant):
    exec_stop.test_on_huge_pages(images, program, variant)


@SMALL
@pytest.mark.parametrize("variant", ["static", "pie"])
def test_call_fails(images, program, run, meddle, variant):
    exec_stop.test_call_fails(images, program, run, meddle, variant)


@SMALL
@pytest.mark.parametrize("variant", ["static", "pie"])
def test_helper_killed(images, program, run, meddle, variant):
    exec_stop.test_helper_killed(images, program, run, meddle, variant)


@SMALL
def test_in_the_gaps(images, program, run):
    """The linker leaves 64 KiB between segments, and where no more is left above a static program, the kernel puts the vdso
    there: it stays there when the program moves."""
    app = program("static-pie")
    image = images.add(app)
    for _ in range(40):
        assert exec_stop.on_image(run([app, "x"], options="verbose=2"), app, image) >= 4
