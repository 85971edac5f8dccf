# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names that several tests of writable data use."""

import pathlib
import re

HERE = pathlib.Path(__file__).resolve().parent
ALL = ("text", "rodata")
FIXED = ["setarch", "-R"]  # without address-space randomisation the heap begins right behind .bss


def read_flags(pid):
    """(start, end, VmFlags) of every mapping of PID."""
    text = pathlib.Path(f"/proc/{pid}/smaps").read_text(errors="surrogateescape")
    found = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) (?:.*\n)+?VmFlags: (.*)", text, re.M)
    return [(int(a, 16), int(b, 16), flags.split()) for a, b, flags in found]
