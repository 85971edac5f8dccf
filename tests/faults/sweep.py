# SPDX-License-Identifier: LGPL-2.1-or-later
"""One program in one setting: its plain run, its good run, and its runs with faults."""

import collections
import dataclasses
import os
import threading

import injector
from errnos import DONE_ALL_THE_SAME
from injector import Injector, errors_of, fault_at

MAP_FIXED = 16
MREMAP_FIXED = 2

# The message of ld.so when an object that it has mapped is gone, and cannot be mapped again (elf/map-again.c).
LOST = "failed to map segment from shared object"

# Where these fail nothing can be said: it cannot be written, or standard error might be something else.
SPEAKING = ("write", "fstat")


@dataclasses.dataclass
class Setting:
    """How a program is run; PLAIN is the same environment with a pattern that nothing matches."""

    name: str
    argv: list
    env: dict
    plain: dict
    module: str
    ranges: str  # of MODULE
    mdwe: bool  # PR_SET_MDWE
    busy: bool  # another thread executes the text all the time


class Sweep:
    def __init__(self, command, setting):
        self.command, self.setting = command, setting
        with self.inject(setting.plain) as inject:
            self.plain = inject.run()
        with self.inject(setting.env) as inject:
            self.good = inject.run()
        self.spans = injector.read_spans(self.good.err)
        self.verdicts = {}

    def inject(self, env=None):
        s = self.setting
        return Injector(self.command, s.module, s.argv, env or s.env, s.ranges, s.mdwe)

    def compare(self, look, i, may_lose):
        """The same as before for the same mappings: there are few different ones."""
        key = i, look.lines, look.fds, look.mask, may_lose
        if key not in self.verdicts:
            plain = self.plain.looks[i]
            # A closed library is gone.
            spans = [s for s in self.spans if injector.cut(injector.read_mappings(plain.lines), s.start, s.end)]
            self.verdicts[key] = injector.compare(look, plain, spans, may_lose)
        return self.verdicts[key]

    def judge(self, outcome, faults=()):
        """The error found, as text, or ''; and whether everything moved that can."""
        plain = self.plain
        if outcome.trespasses:
            return f"memory that is not the core's: {outcome.trespasses}", False
        if (outcome.status, outcome.out) != (plain.status, plain.out):
            return f"status {outcome.status}, not {plain.status}: {outcome.out}{outcome.err}", False
        if len(outcome.looks) != len(plain.looks):
            return f"{len(outcome.looks)} marks", False
        if "rolled back, but" in outcome.err:
            return f"the way back failed: {outcome.err}", False
        # Where mremap fails and then /proc/self/maps cannot be read, it is unknown whose that address space is (elf/area.c).
        may_lose = len(faults) > 1 and faults[0].call == "mremap"
        moved = [self.compare(look, i, may_lose) for i, look in enumerate(outcome.looks)]
        for i, (look, before) in enumerate(zip(outcome.looks, plain.looks)):
            elsewhere = None
            if isinstance(moved[i], str) and self.setting.module == "ld.so":
                elsewhere = injector.compare_elsewhere(look, before, outcome.err, may_lose)
                moved[i] = moved[i] if elsewhere is None else elsewhere
            if elsewhere is None and not isinstance(moved[i], str):  # the same addresses are other bytes of an object elsewhere
                moved[i] = injector.wrong_bytes(look, self.good.looks[i], moved[i]) or moved[i]
        wrong = [m for m in moved if isinstance(m, str)]
        silenced = any(f.call in SPEAKING for f in faults)
        if not wrong and not silenced:
            wrong = injector.unexplained(outcome.err, self.spans, moved[0])
        return "; ".join(wrong), moved[0] == self.spans

    def try_all(self, cases):
        """Runs the program with each of CASES, which are tuples of faults.  (number of runs, how often everything moved, [the
        errors found])."""
        cases, found, lock = list(cases), [], threading.Lock()
        count = collections.Counter()

        def work(part):
            with self.inject() as inject:
                for faults in part:
                    outcome = inject.run(*faults)
                    with lock:
                        wrong, moved = self.judge(outcome, faults)
                        count["moved"] += moved
                        count["run"] += 1
                        if wrong:
                            found.append(f"{describe(faults)}: {wrong}")

        n = min(os.cpu_count(), 4)
        workers = [threading.Thread(target=work, args=(cases[i::n],)) for i in range(n)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert count["run"] == len(cases), "a worker ended"
        return len(cases), count["moved"], found


def describe(faults):
    return ", then ".join(f"{f.how} {f.call} ({f.detail:#x}, number {f.nth}) {f.error}" for f in faults)


def how_to_fail(call):
    return "done" if call in DONE_ALL_THE_SAME else "fail"


def single_faults(calls, each=None, only=None):
    """Every call, or ONLY this one, with every errno, or with EACH of them by turns."""
    for number, (call, _) in enumerate(calls, 1):
        if only not in (None, number):
            continue
        errors = errors_of(call)
        n = len(errors) if each is None else min(each, len(errors))
        for i in range(n):
            yield (fault_at(calls, number, how_to_fail(call), errors[(number * n + i) % len(errors)]),)


def halves_and_ruins(calls, busy):
    """Kernels' other misbehaviour: destinations that are gone, short reads.  Text that is gone while a thread executes it is
    beyond help (elf/commit.c).  No kernel does half of a call that moves one mapping, and no call of the core moves several."""
    for number, (call, detail) in enumerate(calls, 1):
        fixed = {"mremap": MREMAP_FIXED, "mmap": MAP_FIXED}.get(call, 0)
        if not busy and detail & fixed:
            for error in ("ENOMEM", "EINVAL", "EFAULT", "EPERM"):
                yield (fault_at(calls, number, "destroy", error),)
        if call in ("read", "pread64"):
            yield (fault_at(calls, number, "half"),)


def common_end(a, b):
    n = 0
    while n < min(len(a), len(b)) and a[-1 - n] == b[-1 - n]:
        n += 1
    return n


def second_faults(sweep, each=None):
    """Every call that follows after a failure, once for each row of calls that may follow.  With EACH the first fails with so
    many errnos by turns, and of the later calls only those that the good run does not make fail: the way back, and the other
    ways of doing the same."""
    with sweep.inject() as inject:
        for number in range(1, len(sweep.good.calls) + 1):
            seen = set()
            for [first] in single_faults(sweep.good.calls, each, only=number):
                outcome = inject.run(first)
                calls = outcome.calls
                if tuple(calls) in seen or not outcome.err:  # an object without a message could not be judged
                    continue
                seen.add(tuple(calls))
                end = len(calls) - (common_end(calls, sweep.good.calls) if each else 0)
                for second in range(number + 1, end + 1):
                    name = calls[second - 1][0]
                    errors = errors_of(name)
                    if errors:
                        yield first, fault_at(calls, second, how_to_fail(name), errors[second % len(errors)])
