# SPDX-License-Identifier: LGPL-2.1-or-later
"""hugeld survey: --exact counts the text that programs execute, once for all processes of one program.  In both ways it recommends
a way that works and prints commands that a shell takes, and reports in one line the processes that it could not look at. The tests
of samples are in test_samples.py."""

import json
import os
import pathlib
import re
import resource
import shlex
import shutil
import subprocess

import pytest

import helpers
from calls import build_calls
from helpers import hugeld, jump_costs_file, one_line
from reports import Drawing, answer_of
from watching import FOREVER, NOBODY, name_of, row, running, ticks


MIB = 1 << 20
QUIET = "no program here executes more text than the TLB reaches"


def is_quiet(result, already=""):
    """Other tests' processes may be those of other users, which one more line counts."""
    others = r"(\d+ process(es)? of other users left out; fix: run hugeld survey --all-users\n)?"
    return result.returncode == 1 and re.fullmatch(f"{QUIET}{already}\n{others}", result.stdout) is not None


def survey(*arguments, seconds=0.5, **options):
    """(the answer of --json, exit status), of pages that were counted."""
    result = hugeld("survey", "--exact", "--json", "--seconds", seconds, *arguments, **options)
    assert result.returncode in (0, 1) and result.stdout, result.stderr
    return json.loads(result.stdout), result.returncode


def is_all(bytes_):
    """Whether all of the 16 MiB are counted: a few pages stay in the TLB, and a few more are the rest of the program's."""
    return 15 * MIB <= bytes_ <= 18 * MIB


# --- wrong use ---


@pytest.mark.parametrize("arguments", [
    ["--seconds", "0"], ["--seconds", "x"], ["--seconds", "-1"], ["--seconds", "nan"], ["--seconds", "1e9"], ["--seconds"],
    ["--program", "/no/such/program"], ["--program"], ["--calibrate", "--all-users"], ["--calibrate", "--", "true"],
    ["--report", "/no-such-folder/x.html"], ["--no-such-option"], ["--pid", "x"], ["--pid", "0"], ["--pid", "1", "--", "true"],
    ["--pid", "1", "--all-users"], ["--calibrate", "--exact"], ["--calibrate", "--pid", "1"],
], ids=" ".join)
def test_survey_wrong_use(arguments):
    one_line(hugeld("survey", *arguments), 2)


def test_survey_32_bit(tmp_path):
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF\1" + pathlib.Path("/bin/true").read_bytes()[5:])
    program.chmod(0o755)
    one_line(hugeld("survey", "--program", program), 2, "it is a 32-bit program")


def test_survey_program_that_cannot_run(tmp_path):
    one_line(hugeld("survey", "--", "no-such-program-here"), 127, "no-such-program-here")
    one_line(hugeld("survey", "--", tmp_path), 126)


# --- hot text ---


def test_hot_text(calls):
    """Text that two processes execute is counted once, and text that is only mapped is not counted."""
    with running([calls, FOREVER], [calls, FOREVER]):
        answer, status = survey("--program", calls)
    found = row(answer, calls)
    assert found["processes"] == 2 and len(answer["programs"]) == 1 and answer["processes"]["watched"] == 2
    assert is_all(found["hot_bytes"]) and found["huge_bytes"] == 0
    assert found["objects"][0]["path"] == calls and is_all(found["objects"][0]["hot_bytes"])
    assert sum(o["hot_bytes"] for o in found["objects"]) == found["hot_bytes"]
    assert 0.1 < found["cpu_share"] < os.cpu_count() + 0.5
    assert answer["limit_bytes"] == (answer["reach"]["small_bytes"] or 2 * MIB)
    assert (status == 0) == (found["advice"]["way"] != "nothing")


def test_waiting_program_is_not_hot(calls):
    """It has executed all of its text, and then none in the window; one line says so."""
    process = helpers.start([calls, "0", "wait"], stdin=subprocess.PIPE)
    try:
        assert process.stdout.readline() == "ready\n"
        answer, status = survey("--program", calls)
        assert row(answer, calls)["hot_bytes"] < 2 * MIB and status == 1
        assert row(answer, calls)["advice"]["way"] == "nothing"
        result = hugeld("survey", "--exact", "--seconds", "0.3", "--program", calls)
        assert is_quiet(result) and result.stderr == "", result
    finally:
        helpers.end_process(process)


def test_started_program(calls):
    """The program is counted with its children; all of them have ended afterwards."""
    answer, _ = survey("--", "sh", "-c", f"{calls} {FOREVER} & {calls} {FOREVER} & wait", seconds=5)
    assert row(answer, calls)["processes"] == 2 and is_all(row(answer, calls)["hot_bytes"])
    assert not [pid for pid in helpers.marked_processes() if helpers.state_of(pid) not in "ZX"]


@pytest.mark.check_all
def test_started_program_alone(calls):
    """Other programs that run meanwhile are not looked at, and the program's output is not in the answer."""
    with running([calls, FOREVER]):
        answer, _ = survey("--", "sh", "-c", "echo out; sleep 5", seconds=0.4)
    assert all(p["path"] != calls for p in answer["programs"]) and answer["programs"]


@pytest.mark.check_all
def test_started_program_that_ends(calls):
    """Its pages counted before count, and its file decides the best way; of one that ends at once there is nothing to be seen."""
    answer, _ = survey("--", "sh", "-c", f"timeout 4 {calls} {FOREVER}; true", seconds=100)
    found = row(answer, calls)
    assert answer["seconds"] < 100 and is_all(found["hot_bytes"])
    verdict = json.loads(hugeld("inspect", "--json", calls).stdout)["files"][0]["verdict"]
    assert ", then ".join(found["advice"]["commands"]) == verdict["commands"], found
    result = hugeld("survey", "--exact", "--seconds", "20", "--", "true")
    assert is_quiet(result) or (result.returncode == 1 and "ended before it could be looked at" in result.stderr), result


@pytest.mark.check_all
def test_program_that_is_run_again(calls):
    """None of its processes lives as long as the window; the plan is made for the one that there is at the end."""
    answer, _ = survey("--", "sh", "-c", f"while :; do timeout --foreground 0.4 {calls} {FOREVER}; done", seconds=5)
    found = row(answer, calls)
    assert found["processes"] >= 2 and is_all(found["hot_bytes"]) and found["advice"]["way"] in ("place", "image")


@pytest.mark.check_all
def test_filter(calls):
    with running([calls, FOREVER], ["sleep", "60"]) as (_, sleeping):
        answer, _ = survey("--program", calls, "--program", "sleep")
        names = {p["path"]: p for p in answer["programs"]}
        assert set(names) >= {calls} and names[os.readlink(f"/proc/{sleeping.pid}/exe")]["processes"] >= 1


# --- advice ---


def test_advice(calls):
    """The advice is the verdict of inspect, and hugeld takes its commands."""
    with running([calls, FOREVER]) as [process]:
        [file] = helpers.hugeld_json("inspect", "--pid", process.pid, "-o", "segments=text,sparse_text=off")["files"]
        answer, status = survey("--program", calls)
    advice = row(answer, calls)["advice"]
    assert status == 0 and advice["way"] == file["verdict"]["way"] in ("place", "image") and advice["hot_share"] > 0.8
    assert advice["pages"] == file["verdict"]["pages"] > 0 and advice["all_pages"] == advice["pages"]
    assert ", then ".join(advice["commands"]) == file["verdict"]["commands"]
    assert advice["commands"][0] == f"hugeld enable {calls}"


@pytest.mark.check_all
def test_position_independent(roots_folder):
    pie = build_calls(roots_folder / "pie", "-pie", "-fPIE")
    with running([pie, FOREVER]):
        answer, _ = survey("--program", pie)
    assert row(answer, pie)["advice"]["commands"][-1] == f"hugeld run -- {pie}"


def test_static_program(roots_folder):
    """Nothing can be preloaded: only the executable itself, from its image."""
    static = build_calls(roots_folder / "static", "-static", "-Wl,-z,max-page-size=4096")
    with running([static, FOREVER]):
        answer, _ = survey("--program", static)
    advice = row(answer, static)["advice"]
    assert advice["way"] in ("place", "image") and "preloaded" in advice["reason"]
    assert advice["commands"] == [f"hugeld enable {static}", f"hugeld run -- {static}"][:1 if advice["way"] == "place" else 2]


@pytest.mark.check_all
def test_small_text(tmp_path):
    """More text than the TLB reaches, but none that fills a huge page: the answer says so with the reason."""
    source = tmp_path / "many.c"
    source.write_text("int main(void) { return 0; }\n")
    folder = helpers.ROOT / "harness"
    libraries = []
    for i in range(6):
        library = tmp_path / f"libpart{i}.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-DTEXT_MIB=1", "-Wl,-Bsymbolic", "-o", library, folder / "text.S"],
                       check=True, timeout=60)
        libraries.append(library)
    main = tmp_path / "many"
    source.write_text("#include <dlfcn.h>\n#include <stdint.h>\nint main(int n, char **v) { volatile uint64_t r = 0; char *at[8];\n"
                      "for (int i = 1; i < n; i++) at[i] = dlsym(dlopen(v[i], RTLD_NOW), \"text_start\");\n"
                      "for (;;) for (int i = 1; i < n; i++) for (uint64_t f = 0; f < 256; f++)\n"
                      "r = ((uint64_t(*)(uint64_t))(at[i] + f * 4096 + (f * 7 % 61 + 1) * 64))(r); }\n")
    subprocess.run(["gcc", "-O1", "-o", main, source], check=True, timeout=60)
    process = helpers.start([main, *libraries], stdout=subprocess.DEVNULL)
    try:
        helpers.wait_until(lambda: ticks(process.pid) > 10)
        answer, status = survey("--program", main)
    finally:
        helpers.end_process(process)
    found = row(answer, main)
    assert 0 < found["hot_bytes"] < 8 * MIB  # as many pages as were met by samples
    if found["hot_bytes"] > answer["limit_bytes"] and found["advice"]["way"] == "nothing":
        assert "no whole huge page lies inside" in found["advice"]["reason"] and status == 1


def test_already_huge(calls, library, pool):
    pool(32)
    env = helpers.preload(library, options="backend=hugetlb")
    with running([calls, FOREVER], env=env):
        answer, status = survey("--program", calls)
        result = hugeld("survey", "--exact", "--seconds", "0.3", "--program", calls)
    found = row(answer, calls)
    assert found["huge_bytes"] >= 14 * MIB and found["hot_bytes"] < 2 * MIB
    assert found["advice"]["already_huge"] is True and found["advice"]["way"] == "nothing" and status == 1
    assert found["advice"]["commands"] == [] and "already" in found["advice"]["reason"]
    assert is_quiet(result, "; 1 is on huge pages already"), result


@pytest.mark.check_all
def test_already_huge_is_shown(calls, library, pool):
    """Already huge text is shown beside a program that would gain."""
    pool(32)
    copy = pathlib.Path(calls).parent / "moved"
    shutil.copy(calls, copy)
    env = helpers.preload(library, options="backend=hugetlb")
    with running([copy, FOREVER], env=env), running([calls, FOREVER]):
        result = hugeld("survey", "--exact", "--seconds", "0.5", "--program", calls, "--program", copy,
                        env=helpers.environment(COLUMNS=120))
    [line] = [line for line in result.stdout.splitlines() if line.endswith("moved") and "%" in line and "(huge)" in line]
    assert line.startswith("   0.0%")


# --- processes that cannot be looked at ---


@pytest.mark.check_all
def test_kinds_of_processes(calls):
    """Kernel threads and zombies are no programs; one that ends meanwhile is counted."""
    zombie = subprocess.Popen(["true"], env=helpers.environment())
    helpers.wait_until(lambda: helpers.state_of(zombie.pid) == "Z")
    short = helpers.start(["sh", "-c", "for i in $(seq 1 2 60); do sleep $i & done; wait"])  # whenever the window begins, one ends in it
    try:
        answer, _ = survey("--program", "sleep", seconds=3)
    finally:
        helpers.end_process(short)
        zombie.wait()
    assert answer["processes"]["zombies"] >= 1 and answer["processes"]["ended"] >= 1
    assert answer["processes"]["kernel_threads"] >= (1 if os.path.exists("/proc/2") else 0)


@pytest.mark.check_all
def test_without_privileges(calls, library, root):
    """Without privileges only own processes count, and a line says so once."""
    command = library.parent / "hugeld"
    with running([calls, FOREVER]) as [ours], running([*NOBODY, calls, FOREVER]):
        alone = json.loads(helpers.run([*NOBODY, command, "survey", "--exact", "--json", "--seconds", "0.5"]).stdout)
        result = helpers.run([*NOBODY, command, "survey", "--exact", "--seconds", "0.5"], env=helpers.environment(COLUMNS=200))
        everybody = json.loads(helpers.run([*NOBODY, command, "survey", "--exact", "--json", "--all-users", "--seconds", "0.5"]).stdout)
        all_users, _ = survey("--all-users", "--program", calls)
        mine, _ = survey("--program", calls)
    assert row(alone, calls)["processes"] == 1 and alone["processes"]["others"] > 0
    assert is_all(row(alone, calls)["hot_bytes"])
    assert result.stderr == "" and result.stdout.count("of other users left out") == 1 and "as root" in result.stdout
    assert row(everybody, calls)["processes"] == 1 and everybody["processes"]["refused"] > 0
    assert row(all_users, calls)["processes"] == 2 and row(mine, calls)["processes"] == 1
    assert helpers.state_of(ours.pid) in ("", "X", "Z")


@pytest.mark.check_all
def test_other_namespaces(calls, root, tmp_path):
    """A program in namespaces of its own, whose file cannot be found by its path from here."""
    inside = tmp_path / "inside"
    inside.mkdir()
    script = f"mount -t tmpfs none {inside} && cp {calls} {inside}/hidden && exec {inside}/hidden {FOREVER}"
    process = helpers.start(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script],
                            stdout=subprocess.DEVNULL)
    try:
        hidden = helpers.wait_until(lambda: [pid for pid in helpers.marked_processes() if name_of(pid) == "hidden"
                                             and ticks(pid) > 20])[0]
        answer, _ = survey("--all-users")
        found = row(answer, f"{inside}/hidden")
        assert found["pid"] == hidden and is_all(found["hot_bytes"]) and found["advice"]["hot_share"] > 0.8
    finally:
        helpers.end_process(process)


@pytest.mark.check_all
def test_vanished_executable(calls, tmp_path):
    """The file was removed while it runs: the kernel's " (deleted)" is no part of a command that works."""
    copy = tmp_path / "gone"
    shutil.copy(calls, copy)
    process = helpers.start([copy, FOREVER], stdout=subprocess.DEVNULL)
    try:
        helpers.wait_until(lambda: ticks(process.pid) > 20)
        copy.unlink()
        answer, _ = survey("--all-users")
    finally:
        helpers.end_process(process)
    found = row(answer, f"{copy} (deleted)")
    assert is_all(found["hot_bytes"]) and found["advice"]["commands"] == []
    assert found["advice"]["reason"]


@pytest.mark.check_all
def test_thousand_processes():
    script = 'for i in $(seq 1000); do sleep 600 & done; echo ready; wait'
    process = helpers.start(["sh", "-c", script], stdin=subprocess.PIPE)
    try:
        assert process.stdout.readline() == "ready\n"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        answer, _ = survey("--program", "sleep", timeout=300)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        progress = helpers.shown_on_terminal([helpers.HUGELD, "survey", "--exact", "--seconds", "0.3"])
    finally:
        helpers.end_process(process)
    [found] = answer["programs"]
    assert found["processes"] >= 1000 and answer["processes"]["watched"] >= 1000
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert seconds / answer["processes"]["watched"] < 0.005  # of processor time
    assert re.search(r"\d+ of 1\d\d\d processes read", progress) and progress.endswith("\r\x1b[K")


# --- the answer ---


@pytest.mark.check_all
@pytest.mark.parametrize("width", [10, 25, 40, 60, 80, 200])
def test_width(calls, width, tmp_path):
    """Nothing is wider than the terminal, and a shell reads a wrapped command as the same command."""
    folder = tmp_path / "a folder's" / ("long-" * 12)
    folder.mkdir(parents=True)
    program = folder / "pro gram\\$x"
    shutil.copy(calls, program)
    with running([program, FOREVER]):
        env = helpers.environment(COLUMNS=width)
        answer, _ = survey("--program", program)
        result = hugeld("survey", "--exact", "--seconds", "0.5", "--program", program, env=env)
    assert result.returncode == 0 and max(map(len, result.stdout.splitlines())) <= width
    commands = row(answer, program)["advice"]["commands"]
    assert shlex.split(commands[-1])[-1] == str(program)
    text = result.stdout.replace("\\\n", "")
    for command in commands if width > 10 else []:
        assert f"\n{command}\n" in text


@pytest.mark.check_all
@pytest.mark.parametrize("name", ["new\nline", "esc\x1b[31m", "ümlaut", "bad\udcff", "-n"], ids=ascii)
def test_hostile_names(calls, tmp_path, name):
    """Control characters never reach the terminal; a command that could not be copied is not printed."""
    program = tmp_path / name
    shutil.copy(calls, program)
    with running([program, FOREVER]):
        result = hugeld("survey", "--exact", "--seconds", "0.5", "--program", program)
        answer, _ = survey("--program", program)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", result.stdout) and result.returncode in (0, 1)
    [found] = answer["programs"]
    assert is_all(found["hot_bytes"])
    for command in found["advice"]["commands"]:
        assert "\n" not in command and "\x1b" not in command


@pytest.mark.check_all
def test_report(calls, roots_folder, tmp_path):
    """A browser draws it; a path that tries to be markup stays text."""
    program, report = roots_folder / "<script>&", tmp_path / "report.html"
    shutil.copy(calls, program)
    with running([program, FOREVER]):
        survey("--program", program, "--report", report)
    drawn = Drawing(report, tmp_path)
    assert answer_of(report)["programs"] and drawn.shapes.count(("rect", "huge")) >= 1
    assert "<script>&" in drawn.text and "hugeld enable" in drawn.text and "TLB" in drawn.text


def test_progress():
    shown = helpers.shown_on_terminal([helpers.HUGELD, "survey", "--seconds", "0.5", "--program", "true"])
    assert "s to go" in shown and shown.endswith("\r\x1b[K")


def test_interrupted(calls):
    """Killed in the middle it leaves nothing behind: neither a program that it has started nor a change that stays."""
    process = helpers.start([helpers.HUGELD, "survey", "--", calls, FOREVER])
    helpers.wait_until(lambda: [pid for pid in helpers.marked_processes() if name_of(pid) == "calls"])
    process.kill()
    process.wait()
    helpers.wait_until(lambda: not [pid for pid in helpers.marked_processes() if name_of(pid) == "calls"
                                    and helpers.state_of(pid) not in "ZX"])
    helpers.end_process(process)


# --- calibration ---


@pytest.fixture
def cache(root, pool, curve, monkeypatch):
    """cache(before, *arguments): the answer of survey in a mount namespace where /var/cache is empty but for the files that the
    shell script BEFORE puts there."""
    monkeypatch.delenv("XDG_CACHE_HOME")

    def run(before, *arguments, user=()):
        script = f'mount -t tmpfs -o mode=0755 none /var/cache && cd /var/cache && {before} && shift && exec "$@"'
        words = [*user, helpers.HUGELD, "survey", "--json", *(arguments or ["--seconds", "0.1", "--program", "true"])]
        result = helpers.run(["unshare", "--mount", "sh", "-ec", script, "sh", "x", *words], timeout=120)
        assert result.returncode in (0, 1) and result.stdout, result
        return json.loads(result.stdout)

    return run


def put(text, *more):
    return " && ".join([f"mkdir hugeld && printf %s {shlex.quote(text)} > hugeld/tlb.json", *more])


def test_calibrated(cache):
    answer = cache(put(jump_costs_file()))
    assert answer["calibrated"] is True and answer["curve_problem"] is None
    assert [p["small_ns"] for p in answer["curve"]] == [4.0, 44.0]


def test_not_calibrated(cache):
    answer = cache("true")
    assert answer["calibrated"] is False and answer["curve_problem"] is None


@pytest.mark.check_all
@pytest.mark.parametrize("before, word", [
    (put("{"), "damaged"), (put(""), "damaged"), (put("[]"), "damaged"), (put("{}"), "damaged"),
    (put(jump_costs_file(processor="another")), "another processor"), (put(jump_costs_file(version=2)), "damaged"),
    (put(jump_costs_file(points=[])), "damaged"), (put(jump_costs_file(points=7)), "damaged"),
    (put(jump_costs_file(points=[{"mib": 2, "small_ns": -1, "huge_ns": 1}])), "damaged"),
    (put(jump_costs_file(points=[{"mib": 2, "small_ns": 1e300, "huge_ns": 1}])), "damaged"),
    (put(jump_costs_file(points=[{"mib": 2, "small_ns": 1, "huge_ns": 1}] * 1000)), "damaged"),
    (put(jump_costs_file(points=[{"mib": 4, "small_ns": 1, "huge_ns": 1}, {"mib": 2, "small_ns": 1, "huge_ns": 1}])), "damaged"),
    (put("[" * 60000), "damaged"), (put(jump_costs_file(), "truncate -s 1G hugeld/tlb.json"), "damaged"),
    (put(jump_costs_file(), "chmod 666 hugeld/tlb.json"), "others could"), (put(jump_costs_file(), "chmod 777 hugeld"), "others could"),
    (put(jump_costs_file(), "chown 65534 hugeld/tlb.json"), "others could"), (put(jump_costs_file(), "chown 65534 hugeld"), "others could"),
    (put(jump_costs_file(), "mv hugeld/tlb.json hugeld/x", "ln -s x hugeld/tlb.json"), "others could"),
    ("mkdir hugeld && mkfifo hugeld/tlb.json", "others could"), ("mkdir -p hugeld/tlb.json", "others could"),
])
def test_hostile_cache(cache, before, word):
    """A hostile cache is no error, and is neither believed nor waited for."""
    answer = cache(before)
    assert answer["calibrated"] is False and word in answer["curve_problem"]


@pytest.mark.check_all
def test_calibrate(cache):
    """The measurement is kept in root's cache, and used from then on."""
    curve = cache("true", "--calibrate")["curve"]
    assert [p["mib"] for p in curve] == [2 * 2**i for i in range(len(curve))] and len(curve) >= 3
    assert all(p["small_ns"] > 0 and p["huge_ns"] > 0 for p in curve)
    answer = cache(f"{helpers.HUGELD} survey --calibrate > /dev/null && stat -c %a-%u hugeld/tlb.json > where")
    assert answer["calibrated"] is True and len(answer["curve"]) >= 3


def test_cache_of_a_user(library, root, tmp_path):
    """Each user has a cache alone: another user's measurement is not used."""
    folder = tmp_path / "cache"
    words = [*NOBODY, library.parent / "hugeld", "survey", "--json", "--seconds", "0.1", "--program", "true"]
    for parent in [tmp_path, *tmp_path.parents][:3]:
        parent.chmod(0o755)
    others = json.loads(helpers.run(words).stdout)
    assert others["calibrated"] is False and "others could" in others["curve_problem"]
    for path in (folder, folder / "hugeld", folder / "hugeld/tlb.json"):
        os.chown(path, 65534, 65534)
    assert json.loads(helpers.run(words).stdout)["calibrated"] is True


# --- its cost to the programs ---


def test_it_changes_nothing(calls):
    """The maps of a process are the same afterwards, and it goes on."""
    with running([calls, FOREVER]) as [process]:
        maps = pathlib.Path(f"/proc/{process.pid}/maps")
        before, worked = maps.read_text(), ticks(process.pid)
        survey("--program", calls)
        assert maps.read_text() == before
        helpers.wait_until(lambda: ticks(process.pid) > worked + 5)
        assert helpers.state_of(process.pid) in "RS"


def test_others_are_told_of(root):
    """Processes of other users are reported even if the own ones gain nothing: those may gain."""
    other = helpers.start([*helpers.become(12345), "sleep", "60"])
    try:
        helpers.wait_until(lambda: pathlib.Path(f"/proc/{other.pid}").stat().st_uid == 12345)
        assert re.search(r"\b\d+ process(es)? of other users left out; fix: run hugeld survey\s+--all-users", hugeld("survey", "--seconds", "0.5").stdout)
    finally:
        other.kill()
        other.communicate()
