# SPDX-License-Identifier: LGPL-2.1-or-later
"""The programs of stock.py, each without hugeld, under the preloader and with the patched dynamic linker: exit status,
output and created files are the same; hugeld has nothing to say at verbose=1, in none of the program's processes; and
smaps shows the text on huge pages, exactly as planned."""

import contextlib
import fnmatch
import os
import pathlib
import re
import shutil
import signal
import tempfile
import time

import pytest

import helpers
import stock
from proof import check_plans
from smaps import read_smaps

# In one worker, and not beside other tests that take hundreds of the real pool's pages: 1024 are there for all.
pytestmark = [pytest.mark.check_all, pytest.mark.xdist_group("pages")]

NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
OPTIONS = "segments=text,verbose=1,backend=hugetlb"  # the first is the default, which helpers.environment changes

# The parts that differ between two plain runs.
VARIABLE = [
    (r"/tmp/hugeld-\w+", "FOLDER"),
    (r"/CreationDate\(.*?\)|/ID \[(?s:.*?)\]|/DocChecksum /\w+", "PDF"),
]


def normalise(text):
    for pattern, with_ in VARIABLE:
        text = re.sub(pattern, with_, text)
    return text


def processes_of(session):
    """Everything that the leader of SESSION has started and that is still there."""
    pids = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            fields = pathlib.Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] not in "ZX":
                pids.append(int(entry))
    return pids


class Run:
    """One run of PROGRAM in the new FOLDER.  PREFIX: the command that puts it on huge pages; none without hugeld."""

    def __init__(self, program, folder, pause_library, prefix, linker):
        self.program = program
        self.folder = folder
        self.pause_library = pause_library
        self.prefix = prefix
        self.linker = linker  # in what a program executes there is the system's, and nothing moves; None: not by the linker
        self.pages = {}  # huge ones by process, when it was looked at

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    @contextlib.contextmanager
    def start(self, argv, **changes):
        env = helpers.environment(HOME=self.folder, TMPDIR=self.folder, PATH=PATH, TERM="dumb", **changes)
        process = helpers.start([*NOBODY, *self.prefix, *argv], env, cwd=self.folder)
        process.told = ""
        try:
            yield process
        finally:
            helpers.end_process(process)
        said = re.findall("^hugeld: .*", process.told, re.M)
        assert not said, process.told

    @contextlib.contextmanager
    def paused(self, argv):
        """Looks at it when its constructors have run."""
        changes = {"LD_PRELOAD": self.pause_library, "T_PAUSE": os.path.basename(argv[0])}
        with self.start(argv, **changes) as process:
            stock.wait_for(process, lambda: helpers.state_of(process.pid) == "T", "its stopping")
            self.look(process)
            process.send_signal(signal.SIGCONT)
            yield process

    def look(self, process):
        """Every process that has one of the objects has it on huge pages.  One that has just been started gets time."""
        end = time.monotonic() + helpers.SOON
        while self.prefix:
            try:
                self.pages = self.count_pages(process)
                return
            except (AssertionError, OSError):
                if time.monotonic() > end:
                    raise
            time.sleep(0.05)

    def count_pages(self, process):
        pages, found = {}, set()
        for pid in processes_of(process.pid):
            paths = {m.name for m in read_smaps(pid) if m.name.startswith("/")}
            if self.linker is not None and str(self.linker) not in paths:
                continue
            wanted = {p: o for p in paths for o in self.program.objects if fnmatch.fnmatch(os.path.basename(p), o)}
            if wanted:
                pages[pid] = check_plans(pid, sorted(wanted), OPTIONS)
                found.update(wanted.values())
        assert found == set(self.program.objects), f"{found}: the others have no image"
        return pages


@pytest.fixture(scope="module")
def hugeld_folder(library):
    """The command and the patched linker where no user may run them."""
    linker = helpers.BUILD / "ldso/ld.so"
    if linker.exists():
        (library.parent / "ldso").mkdir()
        shutil.copy(linker, library.parent / "ldso")
    return library.parent


@pytest.fixture(scope="module")
def run_program(pause_library):
    """run_program(name, prefix=(), linker=None): its output and created files, and the Run."""

    def run_it(name, prefix=(), linker=None):
        program = stock.PROGRAMS[name]
        folder = pathlib.Path(tempfile.mkdtemp(prefix="hugeld-"))  # its path goes into names of sockets, and is short
        folder.chmod(0o777)
        run = Run(program, folder, pause_library, prefix, linker)
        try:
            return normalise(program.work(run)), run
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    return run_it


@pytest.fixture(scope="module")
def plainly(run_program):
    """plainly(name): the program's results without hugeld, once for both ways."""
    results = {}

    def run(name):
        if name not in results:
            results[name], _ = run_program(name)
        return results[name]

    return run


@pytest.mark.parametrize("way", ["preload", "ldso"])
@pytest.mark.parametrize("name", stock.PROGRAMS)
def test_program(root, pool, hugeld_folder, run_program, plainly, name, way):
    if way == "ldso" and not (helpers.BUILD / "ldso/ld.so").exists():
        pytest.skip("needs build/ldso/ld.so: make ldso")
    pool(760)
    plain = plainly(name)
    patterns = stock.PROGRAMS[name].patterns
    prefix = [hugeld_folder / "hugeld", "run", "-l", way, "-p", patterns, "-o", OPTIONS, "--"]
    moved, run = run_program(name, prefix, hugeld_folder / "ldso/ld.so" if way == "ldso" else None)
    assert moved == plain
    print(f"{name} {way}: {run.pages}")
