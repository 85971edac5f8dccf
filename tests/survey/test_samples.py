# SPDX-License-Identifier: LGPL-2.1-or-later
"""The samples of hugeld survey: they rank the text of a known program, tell which of it is on huge pages, and
cannot be pushed out by any user; nothing of a process is walked, and where nothing can be sampled one line says what would
help."""

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import subprocess

import pytest

import helpers
from helpers import hugeld, one_line
from pagecache import on_small_pages
from reports import answer_of
from watching import FOREVER, NOBODY, look, running, survey, ticks


MIB = 1 << 20
HUGE = 2 * MIB


def replaced(errors, *words):
    """The command WORDS, in which system calls fail: {name: (errno, the number that its second argument has, or None)}."""
    pytest.importorskip("seccomp", reason="needs python3-seccomp")
    rules = "".join(f"f.add_rule(seccomp.ERRNO({number}), {name!r}"
                    + (f", seccomp.Arg(1, seccomp.EQ, {argument})" if argument else "") + ")\n"
                    for name, (number, argument) in errors.items())
    return ["/usr/bin/python3", "-c", f"import os, seccomp, sys\nf = seccomp.SyscallFilter(seccomp.ALLOW)\n{rules}f.load()\n"
            "os.execvp(sys.argv[1], sys.argv[1:])", *words]


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    """(path, {function: the 2 MiB of the file that it is in}): three quarters of its time it is in `hot`, the rest in
    `warm`, and next to never in `cold`."""
    folder = tmp_path_factory.mktemp("uneven")
    source, program = folder / "uneven.c", folder / "uneven"
    source.write_text("#include <stdint.h>\nvolatile uint64_t sum;\n"
                      "#define WORK(name) __attribute__((noinline, aligned(2 << 20))) void name(uint64_t n) \\\n"
                      "{ for (uint64_t i = 0; i < n; i++) sum += i; }\n"
                      "WORK(cold) WORK(warm) WORK(hot)\n"
                      "int main(void) { cold(1000); for (;;) { hot(300000); warm(100000); } }\n")
    subprocess.run(["gcc", "-O1", "-no-pie", "-o", program, source], check=True, timeout=60)
    on_small_pages(program)
    symbols = subprocess.run(["nm", program], check=True, capture_output=True, text=True).stdout
    sections = subprocess.run(["readelf", "-SW", program], check=True, capture_output=True, text=True).stdout
    address, offset = (int(n, 16) for n in re.search(r"\.text\s+PROGBITS\s+(\w+) (\w+)", sections).groups())
    where = {name: int(value, 16) - address + offset
             for value, name in re.findall(r"^(\w+) T (cold|warm|hot)$", symbols, re.M)}
    yield str(program), {name: at - at % HUGE for name, at in where.items()}
    shutil.rmtree(folder)


def most_sampled(object_):
    return sorted(object_["chunks"], key=lambda chunk: -chunk["samples"])[:2]


# --- their answers ---


def test_ranking(uneven):
    """Programs are ranked by their share of the samples, in 2 MiB of a file."""
    path, chunks = uneven
    with running([path, FOREVER]) as [process]:
        answer, found = look(path, "--pid", process.pid)
    assert answer["sampling"]["hz"] == 997
    [program] = found["objects"][:1]
    assert program["path"] == path and program["samples"] >= 0.95 * found["samples"]
    first, second = most_sampled(program)
    assert (first["offset"], second["offset"]) == (chunks["hot"], chunks["warm"])
    assert 0.6 < first["samples"] / program["samples"] < 0.9
    assert sum(c["samples"] for c in program["chunks"]) == program["samples"]
    assert found["hot_bytes"] == 4096 * sum(c["small_pages"] for o in found["objects"] for c in o["chunks"])
    assert first["small_pages"] <= 2 and found["hot_bytes"] <= found["likely_hot_bytes"] < MIB


@pytest.mark.parametrize("who", ["all", "pid"])
def test_hot_text(calls, who):
    """The sampled text is at most the executed text, and the likely amount is about the real one."""
    with running([calls, FOREVER]) as [process]:
        answer, found = look(calls, *(["--pid", process.pid] if who == "pid" else ["--program", calls]),
                             samples=400 if who == "pid" else 100)
    assert answer["sampling"]["of_threads"] is (who != "all") and answer["sampling"]["processors"] >= 1
    assert found["processes"] == 1 and found["huge_samples"] == 0 and found["huge_bytes"] == 0
    assert 16 * MIB <= found["text_bytes"] < 20 * MIB
    assert found["hot_bytes"] <= 16.5 * MIB and found["hot_bytes"] / 4096 <= found["samples"]
    assert found["hot_bytes"] > 0.1 * MIB and found["hot_bytes"] < found["likely_hot_bytes"] <= found["text_bytes"]
    if who != "all":  # with few samples it may be any part of that
        assert found["likely_hot_bytes"] > 4 * MIB and len(found["objects"][0]["chunks"]) >= 8
        assert found["advice"]["way"] in ("in-place", "image") and found["advice"]["hot_share"] > 0.8


@pytest.mark.check_all
def test_already_huge(calls, library, pool):
    """The page sizes of the samples show it, for text that hugeld has moved."""
    pool(32)
    with running([calls, FOREVER], env=helpers.preload(library, options="backend=hugetlb")) as [process]:
        _, found = look(calls, "--pid", process.pid)
    assert found["huge_samples"] > 0.9 * found["samples"] and found["huge_bytes"] >= 10 * MIB
    assert found["objects"][0]["path"] == "text on huge pages"
    assert found["advice"]["already_huge"] is True and found["advice"]["way"] == "nothing"


# --- their cost, and attempts to push them out ---


def test_nothing_is_walked(calls, tmp_path):
    """No file whose reading walks page tables is opened, and no process is traced."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    log = tmp_path / "log"
    with running([calls, FOREVER]):
        survey("--program", calls, seconds=2,
               prefix=["strace", "-f", "-qq", "-e", "trace=openat,openat2,open,ptrace,process_vm_readv", "-o", log])
    seen = set(re.findall(r'open\w*\([^"\n]*"(?:/proc/\d+/)?(\w+)"', log.read_text()))
    assert not re.search("ptrace|process_vm_readv", log.read_text())
    assert {"maps", "exe"} <= seen and not seen & {"clear_refs", "smaps", "smaps_rollup", "numa_maps", "pagemap", "mem"}


@pytest.mark.check_all
def test_loops_of_mmap(calls, tmp_path):
    """Processes that map and unmap text, fork and execute all the time make no other process lose samples."""
    source, storm = tmp_path / "storm.c", tmp_path / "storm"
    source.write_text("#include <fcntl.h>\n#include <sys/mman.h>\n#include <sys/wait.h>\n#include <unistd.h>\n"
                      "int main(int n, char **v) { if (n > 1) return 0; int f = open(v[0], O_RDONLY);\n"
                      "for (unsigned i = 0;; i++) {\n"
                      "munmap(mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, f, 0), 4096);\n"
                      "if (i % 1000 == 0 && fork() == 0) execl(v[0], v[0], \"x\", (char *)0);\n"
                      "while (waitpid(-1, 0, WNOHANG) > 0); } }\n")
    subprocess.run(["gcc", "-O1", "-o", storm, source], check=True, timeout=60)
    with running([calls, FOREVER]) as [process], running([storm], [storm]):
        _, found = look(calls, "--all-users", "--program", calls, samples=100)
        look(calls, "--pid", process.pid, samples=100)
    assert found["objects"][0]["path"] == calls


@pytest.mark.parametrize("words", [["--json"], pytest.param([], marks=pytest.mark.check_all)], ids=["json", "text"])
def test_lost_samples(calls, words, tmp_path):
    """A window that has lost more than one in a hundred decides nothing, and says so."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    log = tmp_path / "trace"
    with running([calls, FOREVER]) as [process]:
        # It stops when all is open, at its first rest, before it has read a sample.
        look_at = helpers.start(["strace", "-D", "-qq", "-o", log, "-e", "trace=poll", "-e", "inject=poll:signal=STOP:when=1",
                                 helpers.HUGELD, "survey", *words, "--seconds", "0.1", "--pid", process.pid])
        helpers.wait_until(lambda: log.exists() and "stopped by SIGSTOP" in log.read_text(), what="its stop")
        enough = ticks(process.pid) + 50 * os.cpu_count() + 20  # in hundredths; the ring of a processor holds 41
        helpers.wait_until(lambda: ticks(process.pid) > enough, helpers.PATIENCE)
        os.kill(look_at.pid, signal.SIGCONT)
        stdout, stderr = look_at.communicate(timeout=helpers.PATIENCE)
    assert look_at.returncode == 1 and not stderr
    if words:
        answer = json.loads(stdout)
        assert answer["sampling"]["lost"] > 0 and answer["sampling"]["decided"] is False
        assert all(p["advice"]["way"] == "nothing" and p["advice"]["command"] is None for p in answer["programs"])
    else:
        assert "decides nothing" in stdout and "hugeld run" not in stdout


# --- whom they are of ---


@pytest.mark.check_all
def test_without_privileges(calls, library, root):
    """Users sample their own processes, that run already, and their children; no other user's."""
    command = library.parent / "hugeld"
    with running([*NOBODY, calls, FOREVER]) as [process], running([calls, FOREVER]) as [other]:
        answer, found = look(calls, prefix=NOBODY, command=command, samples=50)
        result = helpers.run([*NOBODY, command, "survey", "--seconds", "1"], env=helpers.environment(COLUMNS=200))
        refused = helpers.run([*NOBODY, command, "survey", "--seconds", "1", "--pid", str(other.pid)])
        everybody = survey("--all-users", prefix=NOBODY, command=command)
        there = sum(has_program(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())
    assert answer["sampling"]["of_threads"] is True and answer["sampling"]["hz"] == 97 and found["frames"] is None
    assert found["processes"] == 1 and found["pid"] == process.pid
    assert result.stderr == "" and ("run hugeld as root" in result.stdout or "no program" in result.stdout)
    one_line(refused, 1, "another user's process; run hugeld as its owner or as root")
    assert 0 < everybody["processes"]["refused"] < 1.5 * there  # each counts once


def has_program(pid):
    with contextlib.suppress(OSError):
        return bool(os.readlink(f"/proc/{pid}/exe"))
    return False


@pytest.mark.parametrize("number, who", [(errno.EPERM, []), (errno.EACCES, []), (errno.ENOSYS, []), (errno.EACCES, NOBODY)],
                         ids=["eperm", "eacces", "enosys", "nobody"])
def test_refused(calls, library, root, number, who):
    """A container's filter, or a kernel's setting: one line says what would help."""
    words = replaced({"perf_event_open": (number, None)}, library.parent / "hugeld", "survey", "--seconds", "0.3")
    with running([*who, calls, FOREVER]):  # there may be no other process of theirs
        result = one_line(helpers.run([*who, *words]), 1, "perf_event_open(2)")
    assert ("as root" in result.stderr) == bool(who)
    assert ("CAP_PERFMON" in result.stderr) == (number != errno.ENOSYS and not who)


def test_paranoid_kernel(calls, library, root, tmp_path):
    """Debian's kernels let users sample nothing; the line names the setting."""
    (tmp_path / "paranoid").write_text("3\n")
    script = f'mount --bind {tmp_path}/paranoid /proc/sys/kernel/perf_event_paranoid && exec "$@"'
    words = replaced({"perf_event_open": (errno.EACCES, None)}, library.parent / "hugeld", "survey", "--seconds", "0.3")
    with running([*NOBODY, calls, FOREVER]):
        result = helpers.run(["unshare", "--mount", "sh", "-ec", script, "sh", *NOBODY, *words])
    one_line(result, 1, "kernel.perf_event_paranoid is above 2", "as root")


# --- their output ---


@pytest.mark.parametrize("name", ["new\nline", "esc\x1b[31m", "<script>&", "bad\udcff", "bidi\u202e"], ids=ascii)
def test_hostile_names(calls, tmp_path, name):
    """Hostile names of the program, and of a file that it maps, in text, JSON and the report."""
    program, report = tmp_path / name, tmp_path / "report.html"
    shutil.copy(calls, program)
    on_small_pages(program)
    with running([program, FOREVER]) as [process]:
        for seconds in (2, 6, 18):
            result = hugeld("survey", "--seconds", seconds, "--report", report, "--pid", process.pid)
            assert result.returncode in (0, 1) and not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", result.stdout)
            found = answer_of(report)["programs"]
            if found and found[0]["samples"] > 0:
                break
    [found] = found
    assert found["samples"] > 0 and found["objects"][0]["path"].startswith(str(tmp_path))
