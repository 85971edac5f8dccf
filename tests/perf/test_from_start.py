# SPDX-License-Identifier: LGPL-2.1-or-later
"""perf from the start: text is moved by mremap, of which perf hears nothing, so each frame is in the program's file still, takes its
name from there, and needs no map."""

import os
import re

import pytest

import helpers
import profiles


@pytest.mark.check_all
def test_names(program, folder, pool, library, figure):
    pool(128)
    run = [library.parent / "hugeld", "run", "-o", "backend=hugetlb,verbose=2"]
    run += ["-p", program.patterns] if program.patterns else []
    process = profiles.from_the_start([*run, "--", *program.argv], folder / "moved.data", frequency=program.frequency)
    try:
        said = program.work(process)
    finally:
        helpers.end_process(process)
    for name in program.moved:
        assert re.search(rf"hugeld: {re.escape(name)}: text \d+ pages? hugetlb", said), said
    samples = profiles.read(folder / "moved.data")
    assert not [frame for sample in samples for frame in sample if frame.dso.startswith(profiles.NOT_A_FILE)]
    in_text = [sample for sample in samples if os.path.basename(sample[0].dso) in program.moved]
    named = sum(sample[0].known for sample in in_text)
    figure(f"{program.name} from the start: {len(in_text)} of {len(samples)} samples in its text, {named} of these named")
    assert named > 500
