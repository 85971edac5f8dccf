# SPDX-License-Identifier: LGPL-2.1-or-later
"""hugeld bench: it measures the programs' real work, its arithmetic agrees with a second one in Python, and each cause of a
worthless measurement is one clear line."""

import json
import os
import pathlib
import statistics
import subprocess
import sys

import pytest

import helpers
from helpers import hugeld
from hugepages import NR_HUGEPAGES
from reports import Drawing, answer_of

HERE = pathlib.Path(__file__).resolve().parent
METRICS = ["wall_ms", "processor_ms", "user_ms", "system_ms", "minor_faults", "major_faults", "peak_rss_kib"]
TIMES = ["wall", "processor", "user", "system"]


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    program = tmp_path_factory.mktemp("bench") / "worker"
    subprocess.run(["gcc", "-O1", "-no-pie", "-o", program, HERE / "worker.c"], check=True, timeout=60)
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


# --- wrong use ---


@pytest.mark.parametrize("arguments", [
    [], ["--"], ["-n", "0", "true"], ["-n", "5", "true"], ["-n", "-6", "true"], ["-n", "10001", "true"], ["-n", "x", "true"],
    ["-n"], ["-n", "6"], ["--via=nonsense", "true"], ["-o", "backend=nonsense", "true"], ["--no-such-option", "true"],
    ["--pid", "x"], ["--pid", "0"], ["--pid", "1", "true"], ["--pid", "1", "-n", "6"], ["--pid", "1", "--report", "x"],
    ["--pid", "1", "-p", "main"], ["--pid", "1", "--via=preload"], ["--pid", "1", "--at-once"], 
    ["--pid", "1", "--seconds", "0"], ["--pid", "1", "--seconds", "0.05"], ["--pid", "1", "--seconds", "1s"],
    ["--seconds", "1", "true"], ["--report", "/no-such-folder/x.html", "true"], ["--report"],
], ids=" ".join)
def test_bench_wrong_use(arguments):
    one_line(hugeld("bench", *arguments), 2)


def test_bench_program_that_cannot_run(tmp_path):
    one_line(hugeld("bench", "no-such-program-here"), 127, "no-such-program-here", "PATH")
    one_line(hugeld("bench", tmp_path), 126)
    one_line(hugeld("bench", "--pid", 2**31 - 1, "--toggle"), 1, "no such process")


def test_bench_help():
    result = hugeld("bench", "--help")
    assert (result.returncode, result.stderr) == (0, "") and "--report" in result.stdout and "edges" in result.stdout


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


@pytest.mark.check_all
def test_bench_slower(bench_json, by_clock):
    answer = bench_json("pass", "10", "100", env=by_clock)
    assert answer["ratio"]["wall"] == {"ratio": 10, "low": 10, "high": 10} and "takes 900.0 % more wall time" in answer["sentence"]
    assert answer["verdict"] == "slower" and answer["next"] is None or name_ratio(answer["ratio"]["processor"]) == "faster"


def test_bench_sides_take_turns(bench_json, by_clock, tmp_path):
    """A program whose every second run is slow: a side that always went first would look faster."""
    answer = bench_json("turns", tmp_path / "runs", n=12, env=by_clock)
    assert (tmp_path / "runs").stat().st_size == 2 * 12 + 5  # four to warm up, and one at the end
    assert name_ratio(answer["ratio"]["wall"]) == "no difference" and "wall time: no difference seen (±" in answer["sentence"]
    assert "--at-once" in answer["restless"]  # the interval is wide
    assert sorted(answer["runs"]["plain"]["wall_ms"]) == sorted(answer["runs"]["huge"]["wall_ms"]) == 6 * [4] + 6 * [16]


@pytest.mark.check_all
def test_bench_at_once(bench_json):
    """Each run shares its time with the other side's, and is counted for its own side; a second input reads from its beginning."""
    answer = bench_json("spin", "200", "10", options=["--at-once"])
    assert answer["method"] == "at once" and answer["output"] == "same" and answer["pairs"] == 6
    plain, huge = ([user + system for user, system in zip(runs["user_ms"], runs["system_ms"])]
                   for runs in (answer["runs"][side] for side in ("plain", "huge")))
    assert max(huge) < 150 < min(plain)  # ms of processor time


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


@pytest.mark.check_all
def test_bench_input_is_read_by_both(bench, tmp_path):
    """Both sides read it from where it stands, also at the same time."""
    file = tmp_path / "input"
    file.write_text("skipped\n" + "".join(f"{i}\n" for i in range(100000)))
    for method in ([], ["--at-once"]):
        with open(file) as input_:
            os.lseek(input_.fileno(), len("skipped\n"), os.SEEK_SET)
            result = bench("copy", options=["--json", *method], stdin=input_)
        answer = json.loads(result.stdout)
        assert answer["output"] == "same" and answer["pairs"] == 6, result


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


def test_bench_by_the_patched_linker(bench_json):
    """The time to mount it is no part of the answer."""
    if not (helpers.BUILD / "ldso/ld.so").exists():
        pytest.skip("needs the patched linker: make ldso")
    answer = bench_json("spin", "1", "1", options=["--via=ldso"])
    assert answer["loader"] == "ldso" and moved_pages(answer, "huge") == 3
    assert [os.path.basename(m["executable"]) for m in answer["maps"]["huge"]] == ["worker"]


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
        assert answer["next"] == f"hugeld enable {path} && hugeld run -- {path} -S -c '{script}'"
    helpers.wait_until(lambda: sorted(os.listdir("/dev/shm")) == before)


def test_bench_serves_children(tmp_path):
    """With run's --children the program that a shell starts gets an image, and is on it."""
    path = os.path.realpath(sys.executable)
    result = hugeld("bench", "--children", "--json", "-n", 6, "--", "sh", "-c", f"{path} -S -c 'for i in range(4000000): pass'; true")
    assert result.returncode in (0, 1) and result.stdout, result.stderr
    answer = json.loads(result.stdout)
    assert answer["own_images"] == [path] and moved_pages(answer, "huge") > 0


def test_bench_makes_no_image_where_run_copies(worker, pool):
    """--copy and options that ask for private copies are as for run."""
    pool(16)
    for options in ["--copy"], ["-o", "backend=hugetlb"], ["--via=preload"]:
        answer = json.loads(hugeld("bench", "--json", "-n", 6, *options, "--", worker, "spin", "1", "1").stdout)
        assert answer["own_images"] == [] and "on huge pages of private copies: " in answer["sentence"]


def test_bench_killed_leaves_no_store(tmp_path):
    path, before = os.path.realpath(sys.executable), set(os.listdir("/dev/shm"))
    process = helpers.start([helpers.HUGELD, "bench", "-n", 100, "--", path, "-c", "0"])
    helpers.wait_until(lambda: set(os.listdir("/dev/shm")) > before, 60)
    helpers.end_process(process)
    helpers.wait_until(lambda: set(os.listdir("/dev/shm")) == before, 60)


def test_bench_starts_as_run_does(bench_json, tmp_path, worker):
    """Each of run's options reaches it, as its own table has them."""
    said = hugeld("run", "--help").stdout
    flags = [line.split("--")[1].split("=")[0].split()[0] for line in said.splitlines() if line.lstrip().startswith("-") and "--" in line]
    assert {"objects", "options", "via", "copy", "ld-so"} <= set(flags)
    bench = hugeld("bench", "--help").stdout
    assert all(f"--{flag}" in bench for flag in flags)


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


@pytest.mark.parametrize("redirection", ["2>&-", pytest.param("2> /dev/null", marks=pytest.mark.check_all)])
def test_bench_program_without_standard_error(worker, pool, redirection):
    """hugeld's lines do not come through, and the kernel reports the moved pages all the same."""
    pool(16)
    script = f'exec "$0" spin 1 1 {redirection}'
    result = hugeld("bench", "--copy", "-n", 6, "--json", "-p", "worker", "--", "sh", "-c", script, worker)
    assert result.stdout, result.stderr
    answer = json.loads(result.stdout)
    assert [moved_pages(answer, side) for side in ("plain", "huge")] == [0, 3]


@pytest.mark.check_all
def test_bench_silent_program_that_stops_moving(worker, pool, tmp_path):
    """The last run is a traced one again; hugeld's reason does not come through."""
    pool(16)
    script = ('echo >> runs; if [ $(wc -l < runs) -gt 4 ]; then echo 0 > '
              f'{NR_HUGEPAGES}; fi; exec "$0" spin 1 1 2> /dev/null')
    one_line(hugeld("bench", "-n", 6, "-o", "backend=hugetlb", "-p", "worker", "--", "sh", "-c", script, worker,
                    cwd=tmp_path), 1, "nothing moved", "its standard error is redirected")
    assert (tmp_path / "runs").read_text().count("\n") == 4 + 2 * 6 + 1


@pytest.mark.parametrize("words, expected", [
    (["print", "one", "two"], "standard output differs"),
    (["complain", "one", "two"], "standard error differs"),
    (["die"], "signal 11"),
    (["exit", "0", "3"], "exit status 3"),
    (["exit", "3", "0"], "exit status 3"),
], ids=" ".join)
def test_bench_other_outcome(bench, words, expected):
    one_line(bench(*words), 1, expected)


def test_bench_ignored_failure(bench_json):
    assert bench_json("exit", "3", "3", options=["--ignore-failure"])["output"] == "same"


@pytest.mark.check_all
def test_bench_output_that_varies(bench_json):
    assert bench_json("vary")["output"] == "differs from run to run"
    assert bench_json("print", "x", "x")["output"] == "same"


@pytest.mark.check_all
def test_bench_own_lines_are_no_output(bench_json):
    """hugeld's lines on standard error, in a child too, are taken out."""
    answer = bench_json("fork")
    assert answer["output"] == "same" and moved_pages(answer, "huge") == 3


def test_bench_input(bench_json, tmp_path):
    """A file is read anew by each run, from where it stands."""
    file = tmp_path / "input"
    file.write_text("left out, the rest\n" * 2000)
    with open(file) as stream:
        os.lseek(stream.fileno(), 9, os.SEEK_SET)
        assert bench_json("copy", stdin=stream)["output"] == "same"


@pytest.mark.check_all
def test_bench_leaves_children_alone(bench, tmp_path):
    """A daemon that a traced run left behind goes on, untraced, while the next run starts."""
    result = bench("daemon", tmp_path / "daemons")
    assert result.stdout and not result.stderr
    left = helpers.marked_processes()
    assert len(left) == 2 * 6 + 5
    for pid in left:
        helpers.wait_until(lambda pid=pid: helpers.state_of(pid) == "S")
        assert "TracerPid:\t0\n" in pathlib.Path(f"/proc/{pid}/status").read_text()
        os.kill(pid, 9)
    helpers.wait_until(lambda: not helpers.marked_processes())


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


def test_bench_no_counters(bench_json, tmp_path):
    """Without perf, or with one that can count nothing, the answer says so."""
    answer = bench_json("spin", "1", "1", env=helpers.environment(PATH=tmp_path))
    assert answer["counters"] is None and answer["no_counters"] == "perf is not installed"
    perf = tmp_path / "perf"
    perf.write_text("#!/bin/sh\nexit 1\n")
    perf.chmod(0o755)
    answer = bench_json("spin", "1", "1", env=helpers.environment(PATH=f"{tmp_path}:/usr/bin:/bin"))
    assert answer["counters"] is None and "on this machine" in answer["no_counters"]


# --- output ---


def test_bench_json_schema(bench_json):
    answer = bench_json("spin", "1", "1", options=["-o", "data=off"])
    assert set(answer) == {"program", "loader", "patterns", "options", "pairs", "machine", "output", "verdict", "sentence",
                           "next", "own_images", "plain_huge_bytes", "runs", "middle", "ratio", "counters", "no_counters", "maps",
                           "method", "restless"}
    assert answer["program"][1:] == ["spin", "1", "1"] and answer["pairs"] == 6 and answer["loader"] == "auto"
    assert answer["patterns"] == "main" and answer["options"] == "data=off"
    assert set(answer["machine"]) == {"kernel", "cpu", "cpus", "tlb"} and answer["machine"]["kernel"] == os.uname().release
    assert set(answer["runs"]) == set(answer["middle"]) == {"plain", "huge"}
    for side in ("plain", "huge"):
        assert list(answer["runs"][side]) == list(answer["middle"][side]) == METRICS
    assert list(answer["ratio"]) == TIMES and set(answer["ratio"]["wall"]) == {"ratio", "low", "high"}
    assert set(answer["maps"]["huge"][0]) == {"executable", "objects"}
    assert set(answer["maps"]["huge"][0]["objects"][0]) == {"path", "is_main", "text_bytes", "text_huge_bytes", "ranges"}
    assert set(answer["maps"]["huge"][0]["objects"][0]["ranges"][0]) == {"start", "end", "flags", "backend", "huge_bytes"}


@pytest.mark.check_all
def test_bench_table(bench, by_clock):
    result = bench("pass", "200", "10", env=by_clock)
    lines = result.stdout.splitlines()
    assert "gains are limited" in lines[0] or lines[0].endswith("95 % interval")
    assert result.returncode == 0 and lines[-2].startswith("faster in 6 pairs on huge pages of private copies: ")
    assert lines[-1].startswith("hugeld run --objects=main --copy -- ")
    for word in ("wall", "processor", "user", "system", "minor faults", "major faults", "peak RSS"):
        assert any(line.startswith(word) for line in lines)


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


@pytest.mark.check_all
def test_bench_page_that_cannot_be_written(bench):
    result = bench("spin", "1", "1", options=["--report", "/dev/full"])
    assert result.returncode == 1 and "/dev/full: the report cannot be written" in result.stderr and result.stdout


def test_bench_progress(worker, pool):
    """The progress is shown on a terminal, and gone at the end."""
    pool(16)
    shown = helpers.shown_on_terminal([helpers.HUGELD, "bench", "--copy", "-n", "6", worker, "spin", "60", "60"])  # a line is shown for a tenth of a second
    assert "pair 1 of 6" in shown and "pair 6 of 6" in shown and shown.endswith("\r\x1b[K")
