# SPDX-License-Identifier: LGPL-2.1-or-later
"""Data that ld.so keeps for us as long as a process lives: they are read-only once ld.so has relocated itself."""

import subprocess

import helpers
from objects import PF_W, PT_GNU_RELRO, PT_LOAD, read_headers


def test_state_is_read_only(ldso):
    """All that dl-hugepages.c defines lies in RELRO, and the core defines nothing that can be written to."""
    [relro] = [h for h in read_headers(ldso) if h.type == PT_GNU_RELRO]
    listing = subprocess.run(["readelf", "-sW", ldso], check=True, capture_output=True, text=True).stdout
    core = {path.name for path in (helpers.ROOT / "elf").glob("*.c")}
    file, ours, writable = "", [], []
    loads = [h for h in read_headers(ldso) if h.type == PT_LOAD and h.flags & PF_W]
    for words in map(str.split, listing.splitlines()):
        if len(words) != 8:
            continue
        if words[3] == "FILE":
            file = words[7]
        if words[3] != "OBJECT":
            continue
        start, name = int(words[1], 16), words[7]
        if name == "_dl_hugepages_path":  # `hugeld run` writes it before ld.so begins, and only debuggers read it
            continue
        if file == "dl-hugepages.c" and words[4] == "LOCAL" or name.startswith("_dl_hugepages"):
            ours.append((name, relro.vaddr <= start < relro.vaddr + relro.memory_bytes))
        if any(h.vaddr <= start < h.vaddr + h.memory_bytes for h in loads) and (
                file in core and words[4] == "LOCAL" or name.startswith("hl_")):
            writable.append((name, relro.vaddr <= start < relro.vaddr + relro.memory_bytes))
    assert {name for name, _ in ours} >= {"_dl_hugepages_active", "context", "executable"}
    assert all(is_relro for _, is_relro in ours + writable), ours + writable
