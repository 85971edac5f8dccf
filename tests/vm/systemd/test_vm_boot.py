# SPDX-License-Identifier: LGPL-2.1-or-later
"""The guest's own boot, with a list that names two services: one starts after hugeld-boot.service, from its image; the other starts
before the local file systems are there, so it cannot wait for that."""

import re

import helpers


def test_boot(boot):
    states, smaps, journal = boot
    assert "ordering cycle" not in journal, journal
    assert "ActiveState=active" in states["boot-early"] and "Result=success" in states["boot-early"], (states, journal)
    assert "Result=success" in states["hugeld-boot"], (states, journal)
    text = re.findall(r" r-xp .*/python3[.0-9]*\n((?:[A-Z]\w+:.*\n)+)", smaps)
    assert sum(int(re.search(r"ShmemPmdMapped: *(\d+)", one)[1]) for one in text) >= helpers.HUGE // 1024, (smaps, journal)
