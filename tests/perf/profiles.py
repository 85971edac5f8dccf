# SPDX-License-Identifier: LGPL-2.1-or-later
"""Recording with perf, and what it says of deep.c, of which every call chain is known."""

import contextlib
import os
import pathlib
import re
import subprocess
import typing

import helpers

EVENT = "cpu-clock:u"
LEAST = 0.99  # of call chains; some functions' first instructions have no frame yet


class Program(typing.NamedTuple):
    name: str  # of the executable
    argv: list


def record(output, call_graph="fp"):
    """-N: no copies into the build-id cache."""
    return ["perf", "record", "-N", "-q", "-e", EVENT, "-F", "999", "--call-graph", call_graph, "-o", output]


@contextlib.contextmanager
def attached(pid, output):
    """Records PID, which may be stopped, from now until the block's end, or until it has ended."""
    folder = pathlib.Path(output).parent
    control, answer = folder / "control", folder / "answer"
    for fifo in (control, answer):
        fifo.unlink(missing_ok=True)
        os.mkfifo(fifo)
    process = helpers.start([*record(output), "-p", pid, "-D", "-1", f"--control=fifo:{control},{answer}"],
                            dict(helpers.environment(), HOME=str(folder)), stdout=subprocess.DEVNULL)
    try:
        # Opened for reading and writing, so that nothing blocks when perf refuses to start.
        with open(control, "r+b", buffering=0) as to, open(answer, "r+b", buffering=0) as back:
            to.write(b"enable\n")
            os.set_blocking(back.fileno(), False)
            helpers.wait_until(lambda: process.poll() is not None or back.read(4), what="perf attaching")
            assert process.poll() is None, process.stderr.read()
            yield process
            if process.poll() is None:
                with contextlib.suppress(BrokenPipeError):
                    to.write(b"stop\n")
            _, stderr = process.communicate(timeout=helpers.PATIENCE)
        assert process.returncode == 0, stderr
    finally:
        helpers.end_process(process)


def write_map(pid, *options):
    result = helpers.hugeld("perf-map", *options, pid)
    assert result.returncode == 0, result.stderr


FRAME = re.compile(r"\s*[0-9a-f]+ (.*?) \((.*)\)$")


def read(data):
    """The samples of DATA, recorded with a call graph, as `perf script` resolves them: lists of frames (name, object), innermost first."""
    env = dict(helpers.environment(), HOME=str(pathlib.Path(data).parent))
    result = helpers.run(["perf", "script", "-i", data, "-F", "tid,ip,sym,dso", "--no-inline"], env)
    assert result.returncode == 0, result.stderr
    samples = []
    for line in result.stdout.splitlines():
        if line.strip().isdigit():
            samples.append([])
        elif line.strip():
            name, dso = FRAME.match(line).groups()
            # Names shorter than perf wants them have blanks at their end in a map.
            samples[-1].append((name.rstrip(), dso))
    return [s for s in samples if s]


# deep.c's.  At a function's first instructions, and in now_ms(), it is another one.
CHAIN = ["deep_leaf", "deep_three", "deep_two", "deep_one", "main"]


def from_deep_leaf(samples):
    return [[name for name, _ in sample] for sample in samples if sample[0][0] == "deep_leaf"]


def check_complete(samples):
    """Nearly all chains go back to libc's call of main."""
    chains = from_deep_leaf(samples)
    complete = [c for c in chains if c[:len(CHAIN)] == CHAIN and any(name.startswith("__libc_start") for name in c)]
    assert len(chains) > 50 and len(complete) >= LEAST * len(chains), (len(complete), len(chains), chains[:3])
