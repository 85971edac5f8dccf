# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files that say what /proc/pressure would."""

import contextlib
import sys

import helpers

CALM = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"


@contextlib.contextmanager
def waiting(path):
    """PATH says that something waits all the time: its total grows as the clock does, on a busy machine, too."""
    path.write_text(CALM.replace("0.00", "60.00", 1).replace("total=0", "total=000000000000", 1))
    script = ("import os, sys, time\nos.nice(-20)\nf = os.open(sys.argv[1], os.O_RDWR)\nat = os.pread(f, 4096, 0).index(b'total=') + 6\n"
              "while True: os.pwrite(f, b'%012d' % (time.monotonic_ns() // 1000), at); time.sleep(0.01)")
    process = helpers.start([sys.executable, "-c", script, path])
    try:
        helpers.wait_until(lambda: "total=000000000000" not in path.read_text(), what="the first number")
        yield
    finally:
        helpers.end_process(process)
