# SPDX-License-Identifier: LGPL-2.1-or-later
"""Settings of the machine that are always put back, and names that several tests use."""

import collections
import contextlib
import pathlib

from helpers import at_end

ALL = ("text", "rodata")
# app-nopie and all that is linked like it: text on 5 pages, read-only data on 1.
TEXT, RODATA = 5, 1

# A rule of confine.c: what Docker's default profile refuses, of the calls that hugeld, a dynamic linker or a command here may make.
DOCKER = "deny=userfaultfd,get_mempolicy,mbind,set_mempolicy,move_pages,perf_event_open,bpf,kcmp,keyctl,unshare,setns,mount,umount2"

Outcome = collections.namedtuple("Outcome", "pages image plain_image plain returncode stdout stderr")


@contextlib.contextmanager
def setting(path, value):
    """The file of /proc/sys or /sys at PATH has VALUE inside the block, for a test that is marked guest."""
    before = pathlib.Path(path).read_text()
    before = before.partition("[")[2].partition("]")[0] or before  # "always [madvise] never"
    with at_end('printf %s "$2" > "$1"', path, before):
        pathlib.Path(path).write_text(value)
        yield
