# SPDX-License-Identifier: LGPL-2.1-or-later
"""hugeld.service: the gain of its acts, on copies of programs whose page cache is made and seen; and the cost of its windows to all
other programs, and the machine."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import time

import databases
import helpers
import pagecache
from helpers import HUGELD, ROOT
from installed import find_cc1plus
from measure import OUT, Variant, at_once, compile_c, environment, experiment, paired_experiment, take_turns
from memory import memory_kib
from servers import has_pgbench, pgbench
from workloads import STORE, data_folder

FOLDER = pathlib.Path("/var/lib/hugeld-bench")  # where root alone can write
WINDOW = 50  # seconds; the longest that a configuration takes is 60


# --- files in place ---


@contextlib.contextmanager
def copies(files):
    """{state: folder with a copy of each of FILES}."""
    found = {}
    try:
        for state in "scattered", "large", "in-place":
            found[state] = FOLDER / state
            found[state].mkdir(parents=True)
            for file in files:
                shutil.copy(os.path.realpath(file), found[state] / os.path.basename(file))
        yield found
    finally:
        subprocess.run([HUGELD, "share", "--store", STORE, "remove", "--all"], stdout=subprocess.DEVNULL, check=False)
        shutil.rmtree(FOLDER, ignore_errors=True)


def put_in_place(file, state):
    """Puts the text of FILE in place as acts do, but at once; the rest lies as STATE says. False: this kernel and file system
    cannot."""
    subprocess.run([HUGELD, "share", "--store", STORE, "remove", "--all"], stdout=subprocess.DEVNULL, check=False)
    pagecache.make(file, state)
    result = subprocess.run([HUGELD, "share", "--store", STORE, "add", "--any-disk", "--way=place", file], capture_output=True,
                            text=True)
    return result.returncode == 0


def is_in_place(file):
    """Whether `share check` finds all of it huge."""
    result = subprocess.run([HUGELD, "share", "--store", STORE, "check"], capture_output=True, text=True)
    return result.returncode == 0 and "in place" in result.stdout


def measure_states(name, title, files, argv, rounds):
    """ARGV(folder) with copies of FILES, in place beside each of the states in which the page cache may have them."""
    with copies(files) as folders:
        for state in pagecache.STATES:
            for file in files:
                if not put_in_place(folders["in-place"] / os.path.basename(file), state):
                    raise RuntimeError(f"{file} cannot be put in place on this kernel and file system")
            ways = [Variant("plain", argv(folders[state])), Variant("plain-again", argv(folders[state])), Variant("in-place", argv(folders["in-place"]))]
            here = [folders[state] / os.path.basename(file) for file in files]
            found = pagecache.measure_in(state, here, lambda ways=ways: at_once(ways, rounds, files=here))
            if not is_in_place(folders["in-place"]):
                raise RuntimeError("what was in place did not stay so")
            yield paired_experiment(f"service-{name}-{state}", f"{title}, in place, beside its file {state} in the page cache", "ms", ways,
                                    found)


def write_sources(n):
    """The words that compile N small C files, which are preprocessed, with the cc1 in FOLDER."""
    source = OUT / "small"
    source.mkdir(exist_ok=True)
    for i in range(n):
        text = f"#include <stdio.h>\nint f{i}(int x) {{ return printf(\"%d\", x + {i}); }}\n"
        subprocess.run(["gcc", "-E", "-x", "c", "-o", source / f"{i}.i", "-"], input=text, text=True, check=True)
    script = f'for i in {source}/*.i; do "$1"/cc1 -fpreprocessed -quiet -O1 "$i" -o /dev/null || exit 1; done'
    return lambda folder: ["/bin/sh", "-c", script, "sh", folder]


def cc1_of(compiler):
    return subprocess.run([compiler, "-print-prog-name=cc1"], capture_output=True, text=True, check=True).stdout.strip()


def short_processes():
    """Many processes that end at once, as in a suite of tests."""
    return lambda folder: ["/bin/sh", "-c", 'for i in $(seq 40); do "$1"/perl -e 1 || exit 1; done', "sh", folder]


def measure_acts(plan):
    source = OUT / "two-lines.cc"
    source.write_text("int f(int x) { return x; }\nint main() { return f(3); }\n")
    cc1plus, rounds = find_cc1plus(), max(12, plan.short * 4)
    if cc1plus:
        yield from measure_states("start", "cc1plus of two lines", [cc1plus],
                                  lambda folder: [folder / "cc1plus", "-quiet", "-O2", source, "-o", "/dev/null"], rounds)
    if os.path.isabs(cc1_of("gcc")):
        yield from measure_states("build", "Twenty small C files compiled", [cc1_of("gcc")], write_sources(20), rounds)


def measure_short(plan):
    """perl has no whole huge page of text, so nothing of it is put in place: a program that runs often must not be slower for
    that."""
    with copies([shutil.which("perl")]) as folders:
        ways = [Variant("plain", short_processes()(folders["scattered"])), Variant("plain-again", short_processes()(folders["scattered"]))]
        with observing(folders["scattered"], act=True):
            found = at_once(ways, max(12, plan.short * 2))
        yield paired_experiment("service-short", "Forty processes of perl that end at once, while the service samples", "ms", ways, found,
                                note="Both sides run beside the service: no difference is what is expected.")


# --- the cost ---


@contextlib.contextmanager
def observing(eligible, act=False, window=WINDOW):
    """The service, in a window of WINDOW seconds, in a mount namespace with a /run of its own."""
    configuration = OUT / "service.conf"
    configuration.write_text(f"observe = yes\nwindow = {window}\ninterval = 3600\ndelay = 0\nact = {'yes' if act else 'no'}\n"
                             f"eligible = {eligible}/*\n")
    script = 'mount -t tmpfs -o mode=0755 none /run && exec "$@"'
    process = subprocess.Popen(["unshare", "-m", "sh", "-c", script, "sh", HUGELD, "service", "--keep-only", "--config", configuration],
                               env=environment())
    try:
        helpers.wait_until(lambda: rings(process.pid), 30, "a window")
        yield process
        if window == WINDOW and not rings(process.pid):
            raise RuntimeError("the window ended before the measurement did")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def rings(pid):
    """Whether it has events open, and is the service already."""
    with contextlib.suppress(OSError):
        return any("perf_event" in os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd"))
    return False


def measure_steps(plan):
    """The kernel's work for every program, with and without a window."""
    compile_c(OUT / "steps", ROOT / "bench/steps.c")
    counts = {"spawn": 512, "fault": 51200, "map": 51200}
    for what, title in ("spawn", "Starting a process that ends at once"), ("fault", "The first touch of a page"), ("map", "mmap and munmap of a page"):
        ways = [Variant("quiet", [OUT / "steps", what, counts[what]]), Variant("sampling", [OUT / "steps", what, counts[what]], "quiet")]

        def run(way):
            with observing("/usr") if way.name == "sampling" else contextlib.nullcontext():
                return float(subprocess.run(way.argv, env=way.env, capture_output=True, text=True, check=True).stdout)

        yield experiment(f"service-{what}", f"{title}, while the service samples", "ns", ways,
                         take_turns(ways, 7 if plan.quick else 41, run), base="quiet")


def processor_ms(pid):
    return 1e-6 * int(pathlib.Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def timer_interrupts():
    line = next(line for line in pathlib.Path("/proc/interrupts").read_text().splitlines() if line.split()[:1] == ["LOC:"])
    return sum(int(word) for word in line.split()[1:] if word.isdigit())


def measure_itself(plan):
    """The service's own time, and how often idle processors are woken up, in a window, between windows and without it."""
    seconds, rounds = (2, 6) if plan.quick else (8, 8)
    ways = [Variant("without", []), Variant("between", [], "without"), Variant("window", [], "without")]
    own, interrupts, memory = {way.name: [] for way in ways}, {way.name: [] for way in ways}, 0.0
    for _ in range(rounds):
        for way in ways:
            with between_or_in(way.name) as pid:
                before, ticks = processor_ms(pid) if pid else 0, timer_interrupts()
                time.sleep(seconds)
                own[way.name].append(((processor_ms(pid) if pid else 0) - before) / seconds)
                interrupts[way.name].append((timer_interrupts() - ticks) / seconds)
                memory = max(memory, memory_kib(pid) / 1024 if pid else 0)
    note = f"Memory of its own: {memory:.1f} MiB (Pss). The machine is otherwise idle."
    yield experiment("service-own", "The service's processor time in a second", "ms", ways, own, note=note)
    yield experiment("service-wakeups", "Timer interrupts of all processors in a second", "", ways, interrupts)


@contextlib.contextmanager
def between_or_in(name):
    """The process ID of the service, in a window or after a short one; None without it."""
    if name == "without":
        yield None
        return
    with observing("/usr", window=WINDOW if name == "window" else 1) as process:
        if name == "between":
            helpers.wait_until(lambda: not rings(process.pid), 30, "the window's end")
        yield process.pid


def percentile_of(client, share):
    """ms of the transaction of CLIENT, which has ended, than which SHARE of them were faster."""
    said = client.communicate()[0]
    if client.returncode != 0 or "number of failed transactions: 0" not in said:
        raise RuntimeError(f"pgbench: {said}")
    times = sorted(int(line.split()[2]) for log in OUT.glob("pgbench.*") for line in log.open())
    return times[int(share * (len(times) - 1))] / 1e3


def measure_transactions(plan):
    """The transactions of a client of PostgreSQL, while windows are open and without."""
    if not has_pgbench():
        return
    folder = data_folder("postgres-service")
    ways = [Variant("quiet", ["postgres"]), Variant("sampling", ["postgres"], "quiet")]
    try:
        postgres = databases.make_postgres(folder)
        with databases.serving(postgres) as words:
            subprocess.run(words("pgbench", "-q", "-i", "-s", "1", "postgres"), check=True, stderr=subprocess.DEVNULL)

            def run(way):
                with between_or_in("window" if way.name == "sampling" else "without"):
                    return percentile_of(pgbench(plan, words, 1), 0.999)

            yield experiment("service-pgbench", "PostgreSQL under pgbench: the 99.9th percentile of a transaction", "ms", ways,
                             take_turns(ways, 6 if plan.quick else 20, run))
    finally:
        shutil.rmtree(folder.parent, ignore_errors=True)


def measure(plan):
    yield from measure_acts(plan)
    yield from measure_short(plan)
    yield from measure_steps(plan)
    yield from measure_itself(plan)
    yield from measure_transactions(plan)
