# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs to be recorded, and the figures that are printed after the tests."""

import contextlib
import functools
import glob
import os
import pathlib
import shutil
import signal

import pytest

import databases
import helpers
import profiles
from installed import find_cc1plus, find_node
from profiles import Program
from proof import read_image, read_plans

HERE = pathlib.Path(__file__).resolve().parent


@pytest.fixture
def figure(record_property):
    """figure(text): a measured figure; all of them are printed at the end."""
    return functools.partial(record_property, "measured with perf")


@pytest.fixture(scope="session")
def perf_works(tmp_path_factory):
    if not shutil.which("perf"):
        pytest.skip("perf is not installed (linux-perf)")
    folder = tmp_path_factory.mktemp("perf")
    result = helpers.run([*profiles.record(folder / "data", "fp", 999), "--", "/bin/true"])
    if result.returncode != 0:
        pytest.skip(f"perf cannot record here: {result.stderr.strip()}")


@pytest.fixture
def folder(perf_works, tmp_path):
    """The folder for recordings. They are large."""
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.fixture
def map_of():
    """map_of(pid): where the map of that process is to be; removed after the test."""
    paths = []

    def path(pid):
        paths.append(pathlib.Path(f"/tmp/perf-{pid}.map"))
        return paths[-1]

    yield path
    for map_ in paths:
        map_.unlink(missing_ok=True)


SOURCE = """
#include <algorithm>
#include <map>
#include <string>
#include <vector>
#include <sstream>
int main(int argc, char **argv) {
    std::map<std::string, std::vector<int>> map;
    std::ostringstream out;
    for (int i = 0; i < argc; i++)
        map[argv[i]].push_back(i);
    for (auto &entry : map) {
        std::sort(entry.second.begin(), entry.second.end());
        out << entry.first;
    }
    return out.str().size();
}
"""

SCRIPT = """
const text = JSON.stringify(Array.from({ length: 20000 }, (_, i) => ({ id: i, word: 'w' + i % 977, x: i / 7 })));
let sum = 0;
while (process.cpuUsage().user < 1000000) {
    sum += JSON.parse(text).length;
    sum += require('zlib').deflateSync(text.slice(0, 200000)).length;
    sum += text.replace(/w(\\d)(\\d*)/g, '$2$1').length;
    sum += require('crypto').createHash('sha256').update(text).digest()[0];
}
console.log(sum > 0);
"""


def processor_seconds(pid):
    """How long PID has run as a user."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK")


def resume(process):
    if helpers.state_of(process.pid) == "T":
        os.kill(process.pid, signal.SIGCONT)


def finish(process):
    resume(process)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    return stderr


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "program.cc"
    path.write_text(SOURCE)
    return path


@pytest.fixture(scope="session")
def cc1plus(source):
    compiler = find_cc1plus()
    if compiler is None:
        pytest.skip("cc1plus is not installed (g++)")
    preprocessed = source.with_suffix(".ii")
    assert helpers.run(["g++", "-E", source, "-o", preprocessed]).returncode == 0
    return Program("cc1plus", [compiler, "-quiet", "-O2", preprocessed, "-o", "/dev/null"], ("cc1plus",), None, finish)


@pytest.fixture(scope="session")
def clang(source):
    if not shutil.which("clang"):
        pytest.skip("clang is not installed")
    libraries = helpers.run(["ldd", shutil.which("clang")]).stdout
    paths = [line.split()[2] for line in libraries.splitlines() if "libLLVM" in line or "libclang-cpp" in line]
    moved = tuple(os.path.basename(os.path.realpath(path)) for path in paths)
    assert len(moved) == 2, libraries
    argv = [os.path.realpath(shutil.which("clang")), "-x", "c++", "-O2", "-S", source, "-o", "/dev/null"]
    return Program("clang", argv, moved, "libLLVM*:libclang-cpp*", finish)


@pytest.fixture(scope="session")
def rustc(tmp_path_factory):
    """The compiler, whose functions are Rust's."""
    root = helpers.run(["rustc", "--print", "sysroot"]).stdout.strip() if shutil.which("rustc") else ""
    compiler = os.path.realpath(f"{root}/bin/rustc")
    drivers = [os.path.basename(path) for path in glob.glob(f"{root}/lib/librustc_driver-*.so")
               + glob.glob(f"{root}/lib/*-linux-gnu/librustc_driver-*.so")]
    if len(drivers) != 1:
        pytest.skip("rustc is not installed")
    source = tmp_path_factory.mktemp("rust") / "many.rs"
    source.write_text("".join(f"pub fn f{i}<T: Into<u64>>(x: T) -> u64 {{ let y: u64 = x.into(); (0..y).filter(|z| z % {i + 1} == 0)"
                              f".map(|z| z ^ {i}).sum() }}\npub fn g{i}(x: u32) -> u64 {{ f{i}(x) + f{i}(x as u8) }}\n" for i in range(400)))
    argv = [compiler, "--crate-type=lib", "--emit=metadata,mir", "--out-dir", source.parent, source]
    return Program("rustc", argv, tuple(drivers), "librustc_driver*", finish)


@pytest.fixture(scope="session")
def node(tmp_path_factory):
    node = find_node()
    if not node:
        pytest.skip("node is not installed")
    script = tmp_path_factory.mktemp("node") / "script.js"
    script.write_text(SCRIPT)
    return Program("node", [os.path.realpath(node), script], ("node",), None, finish, 1499)


# In all parts of a server: parser, optimiser, joins, expressions, sorting, temporary tables.
QUERIES = """
    SELECT COUNT(*) FROM seq_1_to_1500 a JOIN seq_1_to_1500 b ON (a.seq * 7 + b.seq) % 11 = 3;
    SELECT a.seq % 97 AS n, COUNT(*), AVG(b.seq * 3) FROM seq_1_to_900 a JOIN seq_1_to_900 b GROUP BY n ORDER BY n;
    SELECT COUNT(*) FROM (SELECT DISTINCT CONCAT(seq % 5000, 'x') AS w FROM seq_1_to_300000) t WHERE w LIKE '%1%2x';
    SELECT seq FROM seq_1_to_300000 ORDER BY (seq * 7919) % 300007 LIMIT 1;
"""


@pytest.fixture(scope="session")
def mariadbd(shared_folder):
    folder, argv = databases.make_mariadb(shared_folder, "mariadb-perf")
    client = ["mariadb", "--no-defaults", f"--socket={folder}/socket", "-N", "mysql"]

    def work(process):
        resume(process)
        helpers.wait_until(lambda: helpers.run([*client, "-e", "SELECT 1"]).returncode == 0, what="mariadbd answering")
        server = int((folder / "pid").read_text())  # PROCESS may be perf
        enough = processor_seconds(server) + 1
        while processor_seconds(server) < enough:
            answer = helpers.run([*client, "-e", QUERIES])
            assert answer.returncode == 0 and answer.stdout.count("\n") == 100, answer
        helpers.run(["mariadb-admin", "--no-defaults", f"--socket={folder}/socket", "shutdown"])
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
        return stderr

    return Program("mariadbd", argv, ("mariadbd",), None, work)


@pytest.fixture
def start_stopped(library, pause_library, map_of):
    """start_stopped(program, options): the program on huge pages, stopped after its constructors; without hugeld
    if there are no OPTIONS.  Gives the process, which has the moved ranges as `placed`."""

    @contextlib.contextmanager
    def start(program, options=None):
        libraries = [library, pause_library] if options else [pause_library]
        env = helpers.preload(*libraries, patterns=program.patterns if options else None, options=options)
        with helpers.paused(program.argv, env, program.name, cwd=program.folder) as process:
            process.map = map_of(process.pid)
            image = read_image(process.pid)
            if options:
                paths = [o.path for o in image.objects if o.name in program.moved]
                plans = read_plans(process.pid, paths, options)
                process.placed = profiles.place(process.pid, plans)
                inside = [m for p in process.placed for m in image.mappings
                          if p.executable and p.start < m.end and m.start < p.end]
                assert {os.path.basename(p.path) for p in process.placed} == set(program.moved)
                assert inside and all(m.is_copy or m.is_hugetlb for m in inside), "the text has not moved"
            yield process

    return start


@pytest.fixture(params=["cc1plus", *(pytest.param(p, marks=pytest.mark.check_all) for p in ("clang", "mariadbd", "node", "rustc"))])
def program(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def deep(tmp_path_factory):
    """deep(milliseconds, frame_pointers): deep.c."""
    folder = tmp_path_factory.mktemp("deep")
    for kind in ("with", "without"):
        # At -O0 every function has a frame, also one that needs none.
        flags = ["-O0" if kind == "with" else "-O1", "-fno-toplevel-reorder", "-fno-pie", "-no-pie"]
        result = helpers.run(["gcc", *flags, "-o", folder / f"deep-{kind}", HERE / "deep.c"])
        assert result.returncode == 0, result.stderr

    def make(milliseconds, frame_pointers=True):
        name = "deep-with" if frame_pointers else "deep-without"
        return Program(name, [folder / name, str(milliseconds)], (name,), None, finish, 1999)

    return make
