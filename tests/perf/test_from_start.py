# SPDX-License-Identifier: LGPL-2.1-or-later
"""perf from the start: text is moved by mremap, of which perf hears nothing, so it takes names from the files and needs
no map.  The same functions as in a plain run with the same shares, as the innermost and as callers."""

import os
import re

import pytest

import helpers
import profiles


def record(program, output, argv):
    process = profiles.from_the_start(argv, output, frequency=program.frequency)
    try:
        return program.work(process)
    finally:
        helpers.end_process(process)


def record_both(program, folder, library):
    """The samples of a plain run and of a moved one."""
    record(program, folder / "plain.data", program.argv)
    run = [library.parent / "hugeld", "run", "-o", "backend=hugetlb,verbose=2"]
    run += ["-p", program.patterns] if program.patterns else []
    said = record(program, folder / "moved.data", [*run, "--", *program.argv])
    for name in program.moved:
        assert re.search(rf"hugeld: {re.escape(name)}: text \d+ pages? hugetlb", said), said
    return tuple(profiles.read(folder / name) for name in ("plain.data", "moved.data"))


def compare(plain, moved, program, figure):
    """The functions in its text, and its callers, whose shares differ.  The nameless are one of the functions here."""
    def of_program(frame):
        return os.path.basename(frame.dso) in program.moved

    lost = [f for s in moved for f in s if f.dso.startswith(profiles.NOT_A_FILE)]
    assert not lost
    inside = [profiles.share(samples, lambda s: of_program(s[0])) for samples in (plain, moved)]
    in_text = [[s for s in samples if of_program(s[0])] for samples in (plain, moved)]
    named = [profiles.share(samples, lambda s: s[0].known) for samples in in_text]
    figure(f"{program.name} from the start, plain and moved: samples in its text {inside[0]:.1%} {inside[1]:.1%}, "
           f"of these named {named[0]:.1%} {named[1]:.1%}")
    assert abs(inside[0] - inside[1]) < 0.15
    found = {}
    for callers in (False, True):
        counts = [profiles.profile(samples, of_program, callers) for samples in (plain, moved)]
        found.update({(name, callers): shares for name, shares in profiles.differences(*counts, program.drift).items()})
    return found


@pytest.mark.check_all
def test_names(program, folder, pool, library, figure):
    pool(128)
    assert not profiles.differ_each_time(lambda: compare(*record_both(program, folder, library), program, figure))
