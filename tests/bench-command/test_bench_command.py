# SPDX-License-Identifier: LGPL-2.1-or-later
"""hugeld bench: it measures the programs' real work, its arithmetic agrees with a second one in Python, and each cause of a
worthless measurement is one clear line."""

import json
import os
import pathlib
import shlex
import statistics
import subprocess
import sys

import pytest

import helpers
from helpers import hugeld, one_line
from hugepages import SMALL_PAGES
from pagecache import on_small_pages
from reports import Drawing, answer_of

HERE = pathlib.Path(__file__).resolve().parent
METRICS = ["wall_ms", "processor_ms", "user_ms", "system_ms", "minor_faults", "major_faults", "peak_rss_kib"]
TIMES = ["wall", "processor", "user", "system"]


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    program = tmp_path_factory.mktemp("bench") / "worker"
    subprocess.run(["gcc", "-O1", "-no-pie", "-o", program, HERE / "worker.c"], check=True, timeout=helpers.PATIENCE)
    on_small_pages(program)  # else it may be huge already, and stay
    return program


@pytest.fixture
def bench(worker, pool):
    """bench(WORDS of worker, options before them): the completed process."""
    pool(16)

    def run(*words, options=(), n=6, patterns=("-p", "main"), **more):
        return hugeld("bench", "--copy", "-n", n, *patterns, *options, "--", worker, *words, **more)

    return run


@pytest.fixture
def bench_json(bench):
    def run(*words, options=(), **more):
        result = bench(*words, options=["--json", *options], **more)
        assert result.returncode in (0, 1) and result.stdout, result.stderr
        answer = json.loads(result.stdout)
        assert (answer["verdict"] == "faster") == (result.returncode == 0)
        return answer

    return run


# --- the arithmetic ---


def draw(n):
    """The bootstrap's resamples, drawn as its author describes."""
    state = 0x9E3779B97F4A7C15
    for _ in range(10000):
        chosen = []
        for _ in range(n):
            state ^= state >> 12
            state = (state ^ state << 25) & (1 << 64) - 1
            state ^= state >> 27
            chosen.append((state * 0x2545F4914F6CDD1D % (1 << 64) >> 32) * n >> 32)
        yield chosen


def average(pairs):
    """Both sides' means in the middle half of the pairs."""
    middle = sorted(pairs, key=lambda pair: (pair[1] / pair[0], pair[0]))[len(pairs) // 4:len(pairs) - len(pairs) // 4]
    return [statistics.mean(side) for side in zip(*middle)]


def compare(plain, huge):
    """(plain, huge, ratio, low, high), or None; it draws from the sorted pairs."""
    pairs = sorted(((a, b) for a, b in zip(plain, huge) if a > 0), key=lambda pair: (pair[1] / pair[0], pair[0]))
    if 2 * len(pairs) <= len(plain):
        return None
    ratios = sorted(b / a for a, b in (average([pairs[i] for i in chosen]) for chosen in draw(len(pairs))))
    a, b = average(pairs)
    return a, b, b / a, ratios[249], ratios[9750]


def test_bench_arithmetic(bench_json):
    """Ratios, intervals and the times that they are made of, from the runs that it lists."""
    answer = bench_json("spin", "2", "2", n=7)
    for side in ("plain", "huge"):
        for name in METRICS:
            runs = answer["runs"][side][name]
            assert len(runs) == 7
            if name.removesuffix("_ms") not in TIMES:
                assert answer["middle"][side][name] == pytest.approx(statistics.median(runs), rel=1e-4)
    for name in TIMES:
        expected = compare(*(answer["runs"][side][f"{name}_ms"] for side in ("plain", "huge")))
        if expected is None:
            assert answer["ratio"][name] is None
        else:
            found = [answer["middle"][side][f"{name}_ms"] for side in ("plain", "huge")]
            found += [answer["ratio"][name][key] for key in ("ratio", "low", "high")]
            assert found == pytest.approx(expected, rel=1e-4)
    assert answer["sentence"].startswith(answer["verdict"])


# --- what is measured ---


def test_bench_less_processor_time(bench_json, library):
    """The plain side has none of the inherited variables.  The huge pages are known by smaps; the backend is named, since a traced
    program prefers thp before Linux 6.13.  And the command to type is the one that was measured."""
    env = helpers.environment(LD_PRELOAD=library, LD_HUGEPAGES="main", LD_HUGEPAGES_OPTIONS="verbose=2")
    answer = bench_json("spin", "60", "10", options=["-o", "data=off,backend=hugetlb", "--via=preload"], env=env)
    assert answer["verdict"] == "faster" and answer["ratio"]["processor"]["high"] < 1
    less = 100 * (1 - answer["ratio"]["processor"]["ratio"])
    assert answer["sentence"].startswith(f"faster in 6 pairs on huge pages of private copies: uses {less:.1f} % less processor time; ")
    options = "--objects=main --options=data=off,backend=hugetlb --via=preload --copy"
    assert answer["next"] == f"hugeld run {options} -- {' '.join(answer['program'])}"
    [object_] = answer["maps"]["huge"][0]["objects"]
    huge = [r for r in object_["ranges"] if r["backend"]]
    assert [(r["flags"], r["backend"], r["huge_bytes"]) for r in huge] == [("r-x", "hugetlb", 3 << 21)]
    [plain] = answer["maps"]["plain"][0]["objects"]
    assert not any(r["backend"] == "hugetlb" for r in plain["ranges"]) and plain["text_bytes"] == object_["text_bytes"]
    assert answer["plain_huge_bytes"] == plain["text_huge_bytes"]


def test_bench_beside_a_global_preload(worker, library, pool, root):
    """The administrator's /etc/ld.so.preload moves nothing in the plain side."""
    pool(16)
    script = 'mount -t tmpfs none /etc && echo "$1" > /etc/ld.so.preload && shift && exec "$@"'
    words = [helpers.HUGELD, "bench", "--json", "--copy", "-n", 6, "-o", "backend=hugetlb,data=off", "--", worker, "spin", "1", "1"]
    answer = json.loads(helpers.run(["unshare", "-m", "sh", "-ec", script, "sh", library, *words]).stdout)
    backends = {side: {r["backend"] for r in answer["maps"][side][0]["objects"][0]["ranges"]} for side in ("plain", "huge")}
    assert backends == {"plain": {None}, "huge": {None, "hugetlb"}}


@pytest.mark.parametrize("what, expected", [("print", "standard output differs"), ("complain", "standard error differs")])
def test_bench_other_output(bench, what, expected):
    one_line(bench(what, "one", "two"), 1, expected)


def test_bench_at_once_uses_two_processors(bench_json, tmp_path):
    """The sides swap them in each pair: one alone would not do for a program that counts its processors."""
    where = tmp_path / "where"
    answer = bench_json("where", where, options=["--at-once"], n=8)
    seen = [line.split() for line in where.read_text().splitlines()][4:-1]
    assert answer["pairs"] == 8 and len(seen) == 16
    for side in ("plain", "huge"):
        processors = [processor for name, processor in seen if name == side]
        assert len(set(processors)) == 2 and all(a != b for a, b in zip(processors, processors[1:]))


def test_bench_makes_an_image(tmp_path):
    """Where run would find none, one is made for the measurement, by which run's options start the program; nothing stays."""
    path, before = os.path.realpath(sys.executable), sorted(os.listdir("/dev/shm"))
    script = "for i in range(4000000): pass"  # it ends after it was traced
    result = hugeld("bench", "--json", "-n", 6, "--", path, "-S", "-c", script)
    assert result.returncode in (0, 1) and result.stdout, result.stderr
    answer = json.loads(result.stdout)
    assert answer["own_images"] == [path] and "on huge pages of images: " in answer["sentence"] and answer["options"] is None
    [main] = [o for m in answer["maps"]["huge"] for o in m["objects"] if o["is_main"]]
    assert "image" in [r["backend"] for r in main["ranges"]]
    if answer["verdict"] == "faster":
        assert shlex.split(answer["next"]) == ["hugeld", "enable", path, "&&", "hugeld", "run", "--", path, "-S", "-c", script]
    helpers.wait_until(lambda: sorted(os.listdir("/dev/shm")) == before)


def test_bench_killed_leaves_no_store(tmp_path):
    path, before = os.path.realpath(sys.executable), set(os.listdir("/dev/shm"))
    process = helpers.start([helpers.HUGELD, "bench", "-n", 100, "--", path, "-c", "0"])
    helpers.wait_until(lambda: set(os.listdir("/dev/shm")) > before, 60)
    helpers.end_process(process)
    helpers.wait_until(lambda: set(os.listdir("/dev/shm")) == before, 60)


@pytest.mark.parametrize("options", [[], ["--at-once"]], ids=["in turns", "at once"])
def test_bench_input(bench_json, tmp_path, options):
    """A file is read anew by each run, from where it stands."""
    file = tmp_path / "input"
    file.write_text("skipped\nread")
    with open(file, encoding="ascii") as stream:
        os.lseek(stream.fileno(), len("skipped\n"), os.SEEK_SET)
        assert bench_json("read", "read", stdin=stream, options=options)["output"] == "same"


def test_bench_leaves_children_alone(worker, pool, tmp_path):
    """What a traced run has left behind goes on, and nothing traces it."""
    pool(16)
    script = 'setsid sleep 1000 > /dev/null 2>&1 & echo $! >> pids; exec "$0" spin 1 1'
    result = hugeld("bench", "--copy", "-n", 6, "-o", "backend=hugetlb,exe=*/worker", "-p", "main", "--", "sh", "-c", script, worker,
                    cwd=tmp_path)
    assert result.stdout and not result.stderr, result
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2 * 6 + 5
    for pid in pids:
        assert "TracerPid:\t0\n" in pathlib.Path(f"/proc/{pid}/status").read_text()
        helpers.wait_until(lambda pid=pid: helpers.state_of(pid) == "S", what="its sleep")
        os.kill(pid, 9)
    helpers.wait_until(lambda: not helpers.marked_processes(), what="their end")


def test_toggle_without_a_number(worker):
    process = helpers.start([worker, "wait"], stdin=subprocess.PIPE)
    try:
        result = hugeld("bench", "--pid", process.pid, "--toggle", "--seconds", "0.1", "-n", 6, "--metric", "echo no")
        assert result.returncode == 1 and "printed no number" in result.stderr, result
    finally:
        helpers.end_process(process)


def test_toggle_ends_with_its_process(worker, root, tmp_path):
    """Another process that gets its number is left alone."""
    (tmp_path / "metric").write_text('if mkdir once 2> /dev/null; then kill -9 $1; while kill -0 $1 2> /dev/null; do :; done\n'
                                     'echo $(($1 - 1)) > /proc/sys/kernel/ns_last_pid; sleep 100 > /dev/null & fi\ndate +%s%N\n')
    script = 'sleep 100 | "$1" wait & pid=$!; sleep 1; "$2" bench --pid $pid --toggle --seconds 0.1 -n 6 --metric "sh metric $pid"; echo $pid'
    result = helpers.run(["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", script, "sh", worker, helpers.HUGELD], cwd=tmp_path)
    assert f"{result.stdout.strip()}: no such process, or it has ended" in result.stderr or SMALL_PAGES in result.stderr, result


# --- counters ---

PERF = """#!/bin/sh
# perf stat -x, [--log-fd N] -e LIST -- COMMAND
shift 2
out=2
[ "$1" != --log-fd ] || { out=$2; shift 2; }
list=$2
shift 2
case $LD_PRELOAD:$* in :*"/hugeld run -- "*) n=2000 ;; *) n=500 ;; esac
case $list in
*[wrt]*walk*|*refill*|*bp_l1*|*ls_l1*) echo "event syntax error" >&2; exit 129 ;;
esac
for event in $(echo "$list" | tr , ' '); do
    case $event$([ $event != dTLB-load-misses ] || echo .$n) in
    cycles|iTLB-load-misses|dTLB-load-misses.2000) echo "$n,,$event:u,100,100.00,," >&$out ;;
    *) echo "<not supported>,,$event,0,100.00,," >&$out ;;
    esac
done
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""


@pytest.fixture
def fake_perf(tmp_path):
    perf = tmp_path / "perf"
    perf.write_text(PERF)
    perf.chmod(0o755)
    return helpers.environment(PATH=f"{tmp_path}:{os.environ['PATH']}")


def test_bench_counters(bench_json, bench, fake_perf, library):
    """The counts of a made-up perf, and only those that it has of both sides; the plain one lacks the library that others inherit."""
    answer = bench_json("spin", "1", "1", env={**fake_perf, "LD_PRELOAD": str(library)})
    assert answer["counters"] == {"plain": {"cycles": 2000, "iTLB-load-misses": 2000},
                                  "huge": {"cycles": 500, "iTLB-load-misses": 500}}
    assert answer["no_counters"] is None
    assert "iTLB-load-misses" in bench("spin", "1", "1", env=fake_perf).stdout
    answer = bench_json("spin", "1", "1", env=helpers.environment(PATH="/nowhere"))
    assert answer["counters"] is None and answer["no_counters"] == "perf is not installed"


# --- output ---


@pytest.mark.check_all
def test_bench_page(bench, tmp_path):
    """A browser draws every run as a dot, and names that try to be markup stay text."""
    report = tmp_path / "report.html"
    hostile = "<!--<script>&\x01</script>"
    result = bench("print", hostile, hostile, options=["--report", report, "-o", "backend=hugetlb"], n=9)
    assert result.returncode in (0, 1) and "interval" in result.stdout
    answer = answer_of(report)
    assert answer["sentence"] in result.stdout.splitlines() and answer["pairs"] == 9
    drawn = Drawing(report, tmp_path)
    assert drawn.shapes.count(("circle", "plain")) == 9 and drawn.shapes.count(("circle", "huge")) >= 10
    assert drawn.shapes.count(("rect", "hugetlb")) == 1 and ("rect", "small") in drawn.shapes
    assert "uge pages reach the TLB" in drawn.text and hostile.replace("\x01", "?") in drawn.text and answer["sentence"] in drawn.text
    assert f"{answer['ratio']['wall']['ratio']:.3f}" in drawn.text and f"{answer['middle']['plain']['wall_ms']:.3f}" in drawn.text
