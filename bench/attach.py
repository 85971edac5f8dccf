# SPDX-License-Identifier: LGPL-2.1-or-later
"""Processes that run already: the delays that others see while hugeld attaches to them and detaches, how long that takes, and
the speed afterwards."""

import shutil
import subprocess
import time

import databases
import helpers
from helpers import HUGELD
from measure import OUT, Variant, environment, experiment, hugeld, take_turns
from servers import has_pgbench, pgbench
from workloads import calls, data_folder


def toggle(command, pid, *arguments):
    """ms that `hugeld attach` or `detach` took; it must succeed."""
    start = time.monotonic()
    result = subprocess.run([HUGELD, command, *map(str, arguments), str(pid)], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"{command}: {result.stdout.strip()}")
    return (time.monotonic() - start) * 1e3


def toggle_while(process, pid, *arguments):
    """Attaches to PID and detaches until PROCESS has ended; how often some text was moved.  A thread may be in the wrong call at
    that moment, or a process have ended."""
    done = 0
    while process.poll() is None:
        for command in "attach", "detach":
            said = subprocess.run([HUGELD, command, *arguments, str(pid)], capture_output=True).stdout
            done += b" huge page" in said  # attach's words
    return done


def live_pauses(plan, program, rounds):
    """The delays of a thread that is not stopped while another one's stop replaces the text, again and again."""
    argv = [program, "100000" if plan.quick else "1000000", "beside"]
    ways = [Variant("plain", argv), Variant("attached and detached", argv)]
    found = {way.name: [] for way in ways}

    def run(way):
        process = subprocess.Popen(way.argv, stdout=subprocess.PIPE, text=True, env=environment())
        pairs_done = toggle_while(process, process.pid) if way is not ways[0] else 0
        longest, tail, *_ = map(float, process.communicate()[0].split())
        found[way.name].append((longest / 1e3, tail / 1e3, pairs_done))
        return longest

    take_turns(ways, rounds, run)
    for i, name, title in (0, "worst", "the longest request"), (1, "tail", "99.9th percentile"):
        yield experiment(f"attach-{name}", f"attach and detach, 64 MiB of text, a thread that is not stopped: {title}", "ms", ways,
                         {way: [row[i] for row in rows[1:]] for way, rows in found.items()},
                         note=f"Requests of 100 calls, without a pause; {found[ways[1].name][-1][2]} pairs in the last run.")


def live_duration(plan, program, rounds):
    """attach and detach altogether, over reading the text once."""
    process = helpers.start([program, "0", "wait"], stdin=subprocess.PIPE)
    try:
        process.stdout.readline()  # it is ready
        ways = [Variant("read", [program]), Variant("attach-copy", [program], "read"), Variant("detach", [program], "read")]

        def run(way):
            if way.name == "read":
                start = time.monotonic()
                with open(program, "rb", buffering=0) as file:
                    while file.read(1 << 20):
                        pass
                return (time.monotonic() - start) * 1e3
            taken = toggle("attach", process.pid)
            back = toggle("detach", process.pid)
            return back if way.name == "detach" else taken

        yield experiment("attach-duration", "attach and detach altogether, 64 MiB of text, over reading it once", "ms", ways,
                         take_turns(ways, rounds, run))
    finally:
        helpers.end_process(process)


def live_calls(plan, program, rounds):
    """Calls after an attach, as fast as when started on huge pages."""
    count = "1000000" if plan.quick else "4000000"
    ways = [Variant("plain", [program, count, "later"]), hugeld("started", [program, count, "later"], "backend=hugetlb"),
            Variant("attached", [program, count, "later"], "started")]

    def run(way):
        process = subprocess.Popen(way.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=way.env)
        process.stdout.readline()
        if way.name == "attached":
            toggle("attach", process.pid)
        return float(process.communicate("")[0].split()[0])

    yield experiment("attach-calls", "Random calls over 64 MiB of text, after an attach", "ns", ways, take_turns(ways, rounds, run))


def longest_transaction(client):
    """ms, when CLIENT has ended."""
    said = client.communicate()[0]
    if client.returncode != 0 or "number of failed transactions: 0" not in said:
        raise RuntimeError(f"pgbench: {said}")
    return max(int(line.split()[2]) for log in OUT.glob("pgbench.*") for line in log.open()) / 1e3


def live_postgres(plan, rounds):
    """The longest transaction of one client, and of four, which leave no processor idle."""
    if not has_pgbench():
        return
    folder = data_folder("postgres-attached")
    plain, work, attached = (Variant(name, ["postgres"]) for name in ("plain", "other work", "attached and detached"))
    try:
        postgres = databases.make_postgres(folder)
        with databases.serving(postgres) as words:
            server = int((postgres[0] / "data/postmaster.pid").read_text().split()[0])
            subprocess.run(words("pgbench", "-q", "-i", "-s", "1", "postgres"), check=True, stderr=subprocess.DEVNULL)
            for clients, title, ways in (1, "one client", [plain, attached]), (4, "four clients", [plain, work, attached]):
                done = 0

                def run(way, clients=clients):
                    nonlocal done
                    client = pgbench(plan, words, clients)
                    while way is work and client.poll() is None:
                        subprocess.run(["sha256sum", f"{postgres[1]}/postgres"], stdout=subprocess.DEVNULL)
                    if way is attached:
                        done = toggle_while(client, server, "--children")
                    return longest_transaction(client)

                values = take_turns(ways, rounds, run)
                note = f"No transaction failed; {done} pairs in the last run."
                if work in ways:
                    note += (" Other work: `sha256sum`, again and again, with which they have to share the processors as with "
                             "hugeld.")
                yield experiment(f"attach-pgbench-{clients}", "attach and detach, PostgreSQL and its backends under pgbench, "
                                 f"{title}: the longest transaction", "ms", ways, values, note=note)
    finally:
        shutil.rmtree(folder.parent, ignore_errors=True)


def measure(plan):
    program, rounds = calls(64, pie=False), 3 if plan.quick else 9
    for part in live_pauses, live_duration, live_calls:
        yield from part(plan, program, rounds)
    yield from live_postgres(plan, plan.long)
