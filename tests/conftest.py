# SPDX-License-Identifier: LGPL-2.1-or-later
"""Services for every test: a machine for each test process, the proof that nothing is left behind, STRICT=1 and T_SAMPLE=1.

A skipped test says why; with STRICT=1 in the environment, as in CI, it is a failure.  With T_SAMPLE=1, as in `make check`,
each test runs with as few of its cases as it takes for every value of every parameter to occur; a parameter or a test marked `check_all`
is left to `make check-all`.  With T_SAMPLE=ci, as in CI, no test is left out, and of the parameters marked so only those without
`ci=True` are, where the test has others.  Each process of tests, a worker of pytest-xdist
or the only one, has a pool of huge pages of its own (harness/machine.py), so any test may run beside any other.  A guest of
tests/vm (T_VM in the environment) has the machine for itself, and so the real pool.
"""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import typing

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "system"), str(HERE.parent / "harness")]

import helpers  # noqa: E402  (their folders have just been added)
import machine  # noqa: E402
import programs  # noqa: E402
import uprobes  # noqa: E402
from hugepages import NR_HUGEPAGES, WANTED, compact_memory, count_free_huge_pages, drop_file_pages, free_pages, pool_counts  # noqa: E402
from installed import cache_folder  # noqa: E402
from progress import Progress  # noqa: E402
from proof import check_memory, read_image, read_plans  # noqa: E402
from stores import mounted  # noqa: E402
from strict import fail_if_skipped  # noqa: E402

IS_GUEST = "T_VM" in os.environ
SYSTEM_STORE = "/run/hugeld"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    reason = call.excinfo and str(call.excinfo.value)
    fail_if_skipped(item, report, reason)


def pytest_sessionstart(session):
    """Only one process prints. In CI, memory is full of files that were built before; later nothing is dropped, since other tests look at such pages."""
    if hasattr(session.config, "workerinput"):
        return
    session.config.pluginmanager.register(Progress(session.config.pluginmanager.getplugin("terminalreporter")))
    if os.environ.get("T_SAMPLE") == "ci" and not IS_GUEST:
        drop_file_pages()


def sample(cases):
    """The fewest of CASES, greedily, that have every value of every parameter; CASES are those of one test."""
    values = {case: {(name, repr(value)) for name, value in case.callspec.params.items()} for case in cases}
    missing = set().union(*values.values())
    while missing:
        best = max(values, key=lambda case: len(values[case] & missing))
        missing -= values[best]
        yield best


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    config.addinivalue_line("markers", "check_all(ci=False): left out of `make check` (T_SAMPLE=1), as what needs the patched linker or tests stock "
                                       "programs is")
    config.addinivalue_line("markers", "guest: changes a setting of the whole machine, or needs its pool, so it runs only in a guest")
    config.own_folder = config.machine = None
    if not config.option.basetemp:  # pytest's own folder is of all runs on this machine, and each one that begins closes it to other users
        config.own_folder = tempfile.mkdtemp(prefix="pytest-hugeld-")
        config.option.basetemp = os.path.join(config.own_folder, "pytest")
    if not IS_GUEST and (hasattr(config, "workerinput") or not config.getoption("numprocesses", None)):
        folder = pathlib.Path(f"{config.option.basetemp}-machine")
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier run with the same --basetemp
        folder.mkdir()
        config.machine = machine.enter(folder, [pathlib.Path.cwd(), helpers.ROOT, helpers.BUILD, cache_folder()])
        if config.machine:
            config.option.basetemp = "/tmp/pytest"


def pytest_unconfigure(config):
    is_outside = config.machine.leave() if config.machine else True
    if config.own_folder and is_outside:  # inside, folders in /tmp that are kept are mounted below it
        shutil.rmtree(config.own_folder, ignore_errors=True)


def is_left_out(item):
    """Whether `make check` leaves it to `make check-all`: tests marked so, tests of the patched linker, which takes minutes to
    build the first time, and of programs that `make check` does not install."""
    return (item.get_closest_marker("check_all") is not None or "ldso" in item.nodeid or "ldso" in item.fixturenames
            or not {"real", "programs"}.isdisjoint(item.path.relative_to(HERE.parent).parts))


def is_for_ci(item):
    mark = item.get_closest_marker("check_all")
    return mark is None or mark.kwargs.get("ci", False)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    if not IS_GUEST:
        items[:] = [item for item in items if not item.get_closest_marker("guest")]
    kind = os.environ.get("T_SAMPLE")
    if kind not in ("1", "ci"):
        return
    tests = {}
    for item in items:
        tests.setdefault((item.path, item.originalname), []).append(item)
    chosen = set()
    for every in tests.values():
        if kind == "ci":
            cases = [item for item in every if is_for_ci(item)] or every
        else:
            cases = [item for item in every if not is_left_out(item)]
        chosen.update(sample(cases) if cases and hasattr(cases[0], "callspec") else cases)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = [item for item in items if item in chosen]


def set_total(pages):
    """vm.nr_hugepages becomes PAGES: where memory is in pieces, some cannot be had before it was put together."""
    for _ in range(10):
        NR_HUGEPAGES.write_text(str(pages))
        if int(NR_HUGEPAGES.read_text()) == pages:
            break
        compact_memory()


class Pool:
    def __call__(self, wanted):
        """Makes exactly WANTED huge pages free and not reserved."""
        for attempt in range(3):
            free = free_pages()
            if free == wanted:
                break
            NR_HUGEPAGES.write_text(str(int(NR_HUGEPAGES.read_text()) + wanted - free))
            if attempt:
                compact_memory()
        if free_pages() != wanted:
            pytest.skip(f"{wanted} huge pages cannot be had: {free_pages()} are free")


@pytest.fixture
def pool(pytestconfig):
    """pool(n): exactly n huge pages are free, for this test."""
    if not os.access(NR_HUGEPAGES, os.W_OK):
        pytest.skip("needs root: sets the size of the pool")
    if not IS_GUEST and not pytestconfig.machine:
        pytest.skip("needs cgroup version 2 with the controller hugetlb, for a pool of its own")
    before = int(NR_HUGEPAGES.read_text())
    yield Pool()
    set_total(before)


@pytest.fixture(autouse=True)
def nothing_left(request):
    """After each test the pool has as many free pages as before, no process of ours is left, and no store of the machine's, which
    would change the results of later tests; in a guest it is the guest's."""
    may_have_store = "vm" in request.path.relative_to(HERE).parts or os.path.lexists(SYSTEM_STORE)
    before = pool_counts()
    yield
    left = helpers.marked_processes()
    for pid in left:  # each was started by this test run: it carries our mark
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    helpers.wait_until(lambda: not helpers.marked_processes(), what="the end of what was left")
    assert not left, f"still running: {left}"
    assert may_have_store or not os.path.lexists(SYSTEM_STORE), f"{SYSTEM_STORE} is left"
    helpers.wait_until(lambda: pool_counts() == before, what="a pool (total, free, reserved, surplus) as before")


@pytest.fixture
def root():
    if os.getuid() != 0:
        pytest.skip("needs root")


@pytest.fixture
def cgroup(root, pytestconfig):
    """cgroup(controller, v2=(file, value), v1=(file, value)): a command prefix that joins a new cgroup with this limit,
    in version 2 where the controller is there, else in version 1.  In version 2 it lies in this test process's own."""
    groups = []

    def find(controller):
        for _, mount, kind, options, *_ in map(str.split, pathlib.Path("/proc/mounts").read_text().splitlines()):
            if kind == "cgroup2" and controller in pathlib.Path(mount, "cgroup.controllers").read_text().split():
                folders = [pathlib.Path(mount), *([pytestconfig.machine.group] if pytestconfig.machine else [])]
                for folder in folders:
                    (folder / "cgroup.subtree_control").write_text(f"+{controller}")
                return folders[-1], 2
            if kind == "cgroup" and controller in options.split(","):
                return pathlib.Path(mount), 1
        pytest.skip(f"no cgroup with the {controller} controller")

    def limit(controller, v2, v1):
        try:
            mount, version = find(controller)
            group = mount / f"hugeld-test-{helpers.MARK_VALUE}-{controller}"
            group.mkdir()
            groups.append(group)
            file, value = v2 if version == 2 else v1
            (group / file).write_text(str(value))
        except OSError as error:
            pytest.skip(f"cannot make a cgroup: {error}")
        return ["/bin/sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]

    yield limit
    for group in groups:
        helpers.wait_until(lambda: not (group / "cgroup.procs").read_text(), what="the group becoming empty")
        group.rmdir()


def pytest_report_header():
    total, free, reserved, _ = pool_counts()
    kernel = os.uname().release
    return f"hugeld: {helpers.BUILD}, Linux {kernel}, pool {total} pages, {free} free, {reserved} reserved"


def pytest_terminal_summary(terminalreporter):
    """The measurements of the tests in all workers."""
    reports = [report for found in terminalreporter.stats.values() for report in found if getattr(report, "when", "") == "teardown"]
    figures = [figure for report in reports for figure in report.user_properties]
    for title in dict.fromkeys(title for title, _ in figures):
        terminalreporter.section(title)
        for line in [text for name, text in figures if name == title]:
            terminalreporter.write_line(line)


def compile_shared(source, output):
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", output, source], check=True, timeout=helpers.PATIENCE)
    return output


@pytest.fixture(scope="session", autouse=True)
def base_is_open(tmp_path_factory):
    """A test opens its own folder to other users, and need not know how many are above it: a worker of xdist has one more."""
    base = tmp_path_factory.getbasetemp()
    for folder in base, *(parent for parent in base.parents if parent.name.startswith("pytest")):
        folder.chmod(0o755)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory):
    """A folder that other users may enter too, with libhugeld.so, pause.so and noop/libhugeld.so."""
    folder = tmp_path_factory.mktemp("shared")
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def library(shared_folder):
    """libhugeld.so where every user can read it, beside the command `hugeld`."""
    folder = shared_folder / "real"
    folder.mkdir()
    for file in (helpers.HUGELD, helpers.COMMAND, helpers.LIBRARY):
        copy = folder / file.name
        copy.write_bytes(file.read_bytes())
        copy.chmod(0o755)
    return folder / "libhugeld.so"


@pytest.fixture(scope="session")
def pause_library(shared_folder):
    return compile_shared(HERE / "system" / "pause.c", shared_folder / "pause.so")


@pytest.fixture(scope="session")
def empty_library(shared_folder, library):
    """Does nothing, has libhugeld.so's name, a path as long as library's and needs the same symbols: the plain run preloads it, so
    that the dynamic linker's own memory is the same in both."""
    folder = shared_folder / "none"
    folder.mkdir()
    listing = subprocess.run(["nm", "-D", "--undefined-only", library], check=True, capture_output=True, text=True).stdout
    names = re.findall(r" U ([a-z_]+)", listing)
    assert "getauxval" in names
    source = folder / "empty.c"
    source.write_text("".join(f"extern char {name}[]; char *needed_{name} = {name};\n" for name in names))
    return compile_shared(source, folder / "libhugeld.so")


@pytest.fixture(scope="session")
def builder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    yield programs.Builder(folder)
    shutil.rmtree(folder)  # pytest would keep hundreds of MiB of the last runs


class Proof(typing.NamedTuple):
    pages: int  # on huge pages
    plans: dict  # proof.Plan by base name
    plain: tuple  # (returncode, stdout, stderr)
    moved: tuple


@pytest.fixture
def prove(library, empty_library, pause_library):
    """prove(argv, moved, ...): runs ARGV plainly and on huge pages, stopped after its constructors each time, proves
    with smaps that exactly the plan is on huge pages, and that exit status and output are the plain run's.

    MOVED: base name of each object that must move -> kinds of span.  NAME: the program's base name, if not argv[0]'s.
    BY_COMMAND: through `hugeld run`.  WORK(process): used on the stopped process instead of letting it run to
    its end; its result counts as the program's.  SAME(plain, moved) compares the results; else they must be equal.
    ALWAYS=False: at some load addresses nothing is planned.  COUNTED=False: the pool may grow by the pages that moved."""

    def run(argv, moved, patterns=None, options="", backend="hugetlb", by_command=False, name=None, same=None,
            work=None, always=True, counted=True, timeout=helpers.PATIENCE, **changes):
        name = name or os.path.basename(os.path.realpath(argv[0]))
        finish = work or (lambda process: process.finish())
        env = helpers.preload(empty_library, pause_library, **changes)
        with helpers.paused(argv, env, name, timeout) as process:
            plain_image = read_image(process.pid)
            plain = finish(process)
        command = list(argv)
        if by_command:
            env = helpers.preload(pause_library, **changes)
            arguments = ["-p", patterns] if patterns is not None else []
            arguments += ["-o", options] if options else []
            command = [library.parent / "hugeld", "run", "--copy", *arguments, "--", *argv]
        else:
            env = helpers.preload(library, pause_library, patterns=patterns, options=options or None, **changes)
        free = free_pages()
        with helpers.paused(command, env, name, timeout) as process:
            image = read_image(process.pid)
            paths = [o.path for o in image.objects if o.name in moved]
            plans = read_plans(process.pid, paths, options)
            pages = check_memory(image, plain_image, plans, moved, backend, always)
            if backend == "hugetlb" and counted:
                taken = sum(plans[name].pages(*({*kinds} & {"text", "rodata"} or {""})) for name, kinds in moved.items())
                assert free - free_pages() == taken, "the pool gave more than the plan, or less"
            result = finish(process)
        assert (same or (lambda a, b: a == b))(plain, result), f"plain: {plain}\nmoved: {result}"
        return Proof(pages, plans, plain, result)

    return run


@pytest.fixture(scope="session")
def image_store(tmp_path_factory):
    """A stores.Store on a tmpfs with huge=always, in which images stay."""
    with mounted(tmp_path_factory.mktemp("store")) as store:
        yield store


@pytest.fixture
def images(image_store):
    """The same for one test: its images go at its end, since they all take memory."""
    before = set(os.listdir(image_store.folder))
    yield image_store
    for name in set(os.listdir(image_store.folder)) - before - {".lock", ".records"}:
        shutil.rmtree(image_store.folder / name)


@pytest.fixture
def thp():
    """Transparent huge pages are allowed by the administrator."""
    enabled = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not enabled.exists() or "[never]" in enabled.read_text():
        pytest.skip("transparent huge pages are switched off")
    if "T_VM" in os.environ or count_free_huge_pages() < WANTED:  # a guest has no idle time in which memory could be put together
        compact_memory()


@pytest.fixture
def probe(root, tmp_path):
    """probe(path): a uprobes.Probe, removed at the end."""
    with uprobes.mount_tracefs(tmp_path / "tracing") as tracefs, uprobes.probing(tracefs) as make:
        yield make


@pytest.fixture(scope="module")
def strace():
    """strace(call, error, when): a command prefix that lets calls number WHEN ("3", "3+") fail."""
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    if helpers.run(["strace", "-D", "-o", "/dev/null", "true"]).returncode != 0:
        pytest.skip("strace cannot trace here (ptrace is forbidden)")

    def prefix(call, error, when):
        fault = f"inject={call}:error={error}:when={when}"
        return ["strace", "-D", "-o", "/dev/null", "-e", f"trace={call}", "-e", fault]

    return prefix
