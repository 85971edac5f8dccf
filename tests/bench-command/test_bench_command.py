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
from helpers import hugeld
from hugepages import NR_HUGEPAGES
from pagecache import on_small_pages
from reports import Drawing, answer_of

HERE = pathlib.Path(__file__).resolve().parent
METRICS = ["wall_ms", "processor_ms", "user_ms", "system_ms", "minor_faults", "major_faults", "peak_rss_kib"]
TIMES = ["wall", "processor", "user", "system"]


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    program = tmp_path_factory.mktemp("bench") / "worker"
    subprocess.run(["gcc", "-O1", "-no-pie", "-o", program, HERE / "worker.c"], check=True, timeout=60)
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


@pytest.fixture(scope="module")
def clock(tmp_path_factory):
    library = tmp_path_factory.mktemp("clock") / "clock.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, HERE / "clock.c"], check=True, timeout=60)
    return library


@pytest.fixture
def by_clock(clock, tmp_path):
    """The environment in which wall times are those of `worker pass`, to the millisecond."""
    (tmp_path / "time").touch()
    return helpers.environment(LD_PRELOAD=clock, CLOCK=tmp_path / "time")


def one_line(result, status, *words):
    lines = result.stderr.splitlines()
    assert result.returncode == status and len(lines) == 1 and lines[0].startswith("hugeld: "), result.stderr
    assert result.stdout == ""
    for word in words:
        assert word in lines[0]


def moved_pages(answer, side):
    """The pages to which hugeld has moved something of SIDE, in smaps."""
    ranges = [r for m in answer["maps"][side] for o in m["objects"] for r in o["ranges"]]
    return sum(r["huge_bytes"] for r in ranges if r["backend"] in ("hugetlb", "thp", "image")) >> 21


# --- programs that cannot run ---


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


def name_ratio(ratio):
    return "faster" if ratio and ratio["high"] < 1 else "slower" if ratio and ratio["low"] > 1 else "no difference"


@pytest.mark.parametrize("n", [pytest.param(6, marks=pytest.mark.check_all), 7, pytest.param(25, marks=pytest.mark.check_all)])
def test_bench_arithmetic(bench_json, n):
    """Ratios, intervals and the times that they are made of, from the runs that it lists, odd and even in number."""
    answer = bench_json("spin", "2", "2", n=n)
    for side in ("plain", "huge"):
        for name in METRICS:
            runs = answer["runs"][side][name]
            assert len(runs) == n
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
    found = [name_ratio(answer["ratio"][name]) for name in ("processor", "wall")]
    expected = "faster" if "faster" in found else "slower" if "slower" in found else "no difference"
    assert answer["verdict"] == expected and answer["sentence"].startswith(expected)


# --- verdicts ---


def test_bench_faster(bench_json, by_clock):
    answer = bench_json("pass", "200", "10", env=by_clock)
    assert answer["verdict"] == "faster" and answer["sentence"].startswith("faster in 6 pairs on huge pages of private copies: ")
    assert answer["ratio"]["wall"] == {"ratio": 0.05, "low": 0.05, "high": 0.05}
    assert answer["sentence"].endswith("; takes 95.0 % less wall time")


def test_bench_less_processor_time(bench_json, by_clock):
    """It is worth it although the wall time shows nothing; and the command to type is the one that was measured."""
    answer = bench_json("spin", "60", "10", options=["-o", "data=off", "--via=preload"], env=by_clock)
    assert name_ratio(answer["ratio"]["wall"]) == "no difference" and name_ratio(answer["ratio"]["processor"]) == "faster"
    less = 100 * (1 - answer["ratio"]["processor"]["ratio"])
    assert answer["sentence"].startswith(f"faster in 6 pairs on huge pages of private copies: uses {less:.1f} % less processor time; ")
    assert answer["next"] == f"hugeld run --objects=main --options=data=off --via=preload --copy -- {' '.join(answer['program'])}"


def test_bench_sides_take_turns(bench_json, by_clock, tmp_path):
    """A program whose every second run is slow: a side that always went first would look faster."""
    answer = bench_json("turns", tmp_path / "runs", n=12, env=by_clock)
    assert (tmp_path / "runs").stat().st_size == 2 * 12 + 5  # four to warm up, and one at the end
    assert name_ratio(answer["ratio"]["wall"]) == "no difference" and "wall time: no difference seen (±" in answer["sentence"]
    assert "--at-once" in answer["restless"]  # the interval is wide
    assert sorted(answer["runs"]["plain"]["wall_ms"]) == sorted(answer["runs"]["huge"]["wall_ms"]) == 6 * [4] + 6 * [16]


def test_bench_at_once_uses_two_processors(bench_json, tmp_path):
    """The sides swap them in each pair: one alone would not do for a program that counts its processors."""
    where = tmp_path / "where"
    answer = bench_json("where", where, options=["--at-once"], n=8)
    seen = [line.split() for line in where.read_text().splitlines()][4:-1]
    assert answer["pairs"] == 8 and len(seen) == 16
    for side in ("plain", "huge"):
        processors = [processor for name, processor in seen if name == side]
        assert len(set(processors)) == 2 and all(a != b for a, b in zip(processors, processors[1:]))


def test_bench_at_once_needs_two(bench):
    words = bench("spin", "1", "1", options=["--at-once"]).args
    one_line(helpers.run(["taskset", "-c", min(os.sched_getaffinity(0)), *words]), 1, "two processors", "take turns")


# --- checks ---


def test_bench_pages_were_huge(bench_json):
    """The huge pages are known by smaps.  The backend is named, since a traced program prefers thp before Linux 6.13."""
    answer = bench_json("spin", "1", "1", options=["-o", "backend=hugetlb"])
    [object_] = answer["maps"]["huge"][0]["objects"]
    huge = [r for r in object_["ranges"] if r["backend"]]
    assert [(r["flags"], r["backend"], r["huge_bytes"]) for r in huge] == [("r-x", "hugetlb", 3 << 21)]
    assert object_["text_huge_bytes"] <= object_["text_bytes"] and object_["is_main"]
    [plain] = answer["maps"]["plain"][0]["objects"]
    assert not any(r["backend"] == "hugetlb" for r in plain["ranges"]) and plain["text_bytes"] == object_["text_bytes"]
    assert answer["plain_huge_bytes"] == plain["text_huge_bytes"]


def test_bench_nothing_moves(bench, pool):
    pool(0)
    one_line(bench("spin", "1", "1", options=["-o", "backend=hugetlb"]), 1, "nothing moved", "pool", "nr_hugepages")
    one_line(hugeld("bench", "true"), 1, "nothing moved", "no whole huge page")


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


def test_bench_measures_what_run_does(worker, pool, tmp_path):
    """The measured runs have run's options and no others; only the two traced ones let hugeld say what it did."""
    pool(16)
    script = 'echo "${LD_HUGEPAGES_OPTIONS-none}" >> options; exec "$0" spin 1 1'
    hugeld("bench", "--via=preload", "-n", 6, "-o", "data=off", "-p", "worker", "--", "sh", "-c", script, worker, cwd=tmp_path)
    seen = (tmp_path / "options").read_text().split()
    assert sum(options.endswith("data=off,verbose=2") for options in seen) == 2 == sum("verbose" in options for options in seen)
    assert sum(options.endswith("data=off") for options in seen) >= 7


def test_bench_pool_runs_dry(bench, pool, tmp_path):
    """The pages are there for the warm-up and gone later, which the traced run at the end shows."""
    thief = tmp_path / "thief"
    thief.write_text('#!/bin/sh\n[ -z "$LD_HUGEPAGES" ] || echo x >> "$1"\n'
                     'if [ "$(wc -l < "$1")" -gt 4 ]; then echo 0 > ' + f'{NR_HUGEPAGES}; fi\n"$2" spin 1 1\n')
    thief.chmod(0o755)
    (tmp_path / "runs").touch()
    worker = bench("spin", "1", "1").args[-4]
    one_line(hugeld("bench", "-n", "8", "-o", "backend=hugetlb,exe=worker", "-p", "main", "--", thief, tmp_path / "runs",
                    worker), 1, "nothing moved")


@pytest.mark.parametrize("words, expected", [
    (["print", "one", "two"], "standard output differs"),
    (["complain", "one", "two"], "standard error differs"),
    (["die"], "signal 11"),
    (["exit", "0", "3"], "exit status 3"),
    (["exit", "3", "0"], "exit status 3"),
], ids=" ".join)
def test_bench_other_outcome(bench, words, expected):
    one_line(bench(*words), 1, expected)


def test_bench_plain_is_plain(bench_json, library):
    """The plain side has none of the inherited variables."""
    env = helpers.environment(LD_PRELOAD=library, LD_HUGEPAGES="main", LD_HUGEPAGES_OPTIONS="verbose=2")
    answer = bench_json("spin", "1", "1", env=env, patterns=())
    assert [moved_pages(answer, side) for side in ("plain", "huge")] == [0, 3]


# --- counters ---

PERF = """#!/bin/sh
# perf stat -x, [--log-fd N] -e LIST -- COMMAND
shift 2
out=2
[ "$1" != --log-fd ] || { out=$2; shift 2; }
list=$2
shift 2
case $* in *"run --objects= "*) n=2000 ;; *) n=500 ;; esac
case $list in
*[wrt]*walk*|*refill*|*bp_l1*|*ls_l1*) echo "event syntax error" >&2; exit 129 ;;
esac
for event in $(echo "$list" | tr , ' '); do
    case $event in
    cycles|iTLB-load-misses) echo "$n,,$event:u,100,100.00,," >&$out ;;
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


def test_bench_counters(bench_json, bench, fake_perf):
    """The counts of a made-up perf, and only those that it has."""
    answer = bench_json("spin", "1", "1", env=fake_perf)
    assert answer["counters"] == {"plain": {"cycles": 2000, "iTLB-load-misses": 2000},
                                  "huge": {"cycles": 500, "iTLB-load-misses": 500}}
    assert answer["no_counters"] is None
    assert "iTLB-load-misses" in bench("spin", "1", "1", env=fake_perf).stdout


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
