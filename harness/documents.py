# SPDX-License-Identifier: LGPL-2.1-or-later
"""The commands and files that the documents of this tree tell the user to type or to write."""

import re

import helpers


def read_blocks(name):
    """The indented blocks of a document, each a list of lines without comments.  A fenced one is what a terminal shows."""
    text = re.sub(r"^```\n.*?^```\n", "", (helpers.ROOT / name).read_text(), flags=re.M | re.S)
    blocks = re.findall(r"(?:^    .*\n)+", text, re.M)
    return [[re.sub(r"\s{2,}#.*", "", line[4:]) for line in block.splitlines()] for block in blocks]


def read_unit(word, name):
    """The only block that is a unit of systemd and has WORD in it."""
    [block] = [b for b in read_blocks(name) if b[0] == "[Service]" and any(word in line for line in b)]
    return block
