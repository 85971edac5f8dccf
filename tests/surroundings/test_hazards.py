# SPDX-License-Identifier: LGPL-2.1-or-later
"""What surrounds a program, by every way in which hugeld brings its text onto huge pages: a program that runs without hugeld runs,
says and returns the same, its children live, and its text is where the table says.

The program forks, waits for the end of its input, and calls all of its text again, as its children do (sum.c)."""

import os
import pathlib
import re
import shutil
import subprocess
import typing

import pytest

import helpers
from hugepages import SMALL_PAGES, compact_memory
from pagecache import on_small_pages
from smaps import read_smaps
from surroundings import DOCKER

WHOLE = 4 * helpers.HUGE  # the huge pages that lie in its text; copies take those at its edges, too
ANONYMOUS, MEMFD = "/anon_hugepage", "/memfd:hugeld"
COPIES = ("preload", "copy", "command", "interpreter")
ALL_COPIES = "preload copy command interpreter"
WITHOUT_RIGHTS = "preload copy stop interpreter"  # what runs with rights that its caller has not


def namespace(script):
    """SCRIPT in a mount namespace of its own, and then the program."""
    return ["unshare", "-m", "sh", "-ec", f'mount --make-rprivate /; {script}; exec "$@"', "sh"]


def shell(script):
    return ["bash", "-c", f'{script}; exec "$@"', "bash"]


class Hazard(typing.NamedTuple):
    prefix: typing.Sequence = ()  # a command that becomes the program
    stays: str = ""  # the ways by which its text stays on small pages
    either: str = ""  # those by which it may
    rules: str = ""  # of confine.c
    change: typing.Callable = None  # of the file, before it has an image
    later: typing.Callable = None  # the same, afterwards
    text: str = ANONYMOUS  # the name of mappings with copies of text


AS_NOBODY = helpers.become(65534)
HAZARDS = {
    "none": Hazard(),
    "no proc": Hazard(namespace("umount -l /proc"), stays=f"stop {ALL_COPIES}"),
    "an empty proc": Hazard(namespace("mount -t tmpfs none /proc"), stays=f"stop {ALL_COPIES}"),
    "hidepid": Hazard(namespace(f"mount -t proc -o hidepid=2 proc /proc; set -- {' '.join(AS_NOBODY)} \"$@\"")),
    "no sys": Hazard(namespace("umount -l /sys")),  # the kernel itself gives the pool's pages
    "chroot without proc and sys": Hazard(namespace('mount --rbind / /mnt; umount -l /mnt/proc; umount -l /mnt/sys; set -- chroot /mnt "$@"'), stays=f"stop {ALL_COPIES}"),
    "chroot": Hazard(namespace('mount --rbind / /mnt; set -- chroot /mnt "$@"')),
    "a read-only root": Hazard(namespace("mount -o remount,bind,ro /")),
    "a stack of 40 KiB": Hazard(shell("ulimit -s 40"), stays="attach"),
    "a stack of 64 KiB": Hazard(shell("ulimit -s 64"), stays="attach"),
    "a stack of 128 KiB": Hazard(shell("ulimit -s 128"), stays="attach"),
    "a stack of 1 MiB": Hazard(shell("ulimit -s 1024")),
    "an environment in much of the stack": Hazard(shell("ulimit -s 64; export T=$(yes | head -c 24000)"), stays="attach"),
    "a huge environment": Hazard(shell('for i in {1..6}; do export T$i=$(yes | head -c 130000); done')),
    "no descriptor left": Hazard(shell("ulimit -n 3")),
    "one descriptor left": Hazard(shell("ulimit -n 4")),
    "two descriptors left": Hazard(shell("ulimit -n 5"), stays="attach", either=f"stop {ALL_COPIES}"),
    "four descriptors left": Hazard(shell("ulimit -n 7"), stays="attach", either=f"stop {ALL_COPIES}"),
    "little address space": Hazard(shell("ulimit -v 40000"), stays="attach", either=ALL_COPIES),
    "little data": Hazard(shell("ulimit -d 1000"), stays=ALL_COPIES),
    "no file size": Hazard(shell("ulimit -f 0")),
    "no locked memory": Hazard(shell("ulimit -l 0")),
    "no core": Hazard(shell("ulimit -c 0")),
    "no signals pending": Hazard(shell("ulimit -i 0")),
    "no other process": Hazard(["prlimit", "--nproc=4", *helpers.become(100000 + os.getpid())]),  # of a user with no others
    "no new privileges": Hazard(["setpriv", "--no-new-privs"]),
    "another user": Hazard(AS_NOBODY),
    "addresses that are not random": Hazard(["setarch", "-R"]),
    "traced": Hazard(["strace", "-D", "-o", "/dev/null", "-e", "trace=none"], stays="attach", either="stop"),
    "mdwe": Hazard(rules="mdwe", text=MEMFD),
    "MemoryDenyWriteExecute": Hazard(rules="no-write-execute", text=MEMFD),
    "a hardened container": Hazard(rules=f"mdwe no-write-execute {DOCKER}", text=MEMFD),
    "no memory that becomes executable": Hazard(rules="mdwe deny=memfd_create", stays=ALL_COPIES),
    "no populate": Hazard(rules="no-populate", either="interpreter"),
    "no mremap": Hazard(rules="deny=mremap", stays="preload copy interpreter", either="command"),
    "no ptrace": Hazard(rules="kill=ptrace"),
    "no transparent huge pages": Hazard(rules="no-thp", stays="stop unit attach"),
    "a status of 8 KiB": Hazard(rules="groups=2000 deny=acct"),
    "set-user-ID": Hazard(AS_NOBODY, change=lambda app: app.chmod(0o4755), stays=WITHOUT_RIGHTS),
    "set-group-ID": Hazard(AS_NOBODY, change=lambda app: app.chmod(0o2755), stays=WITHOUT_RIGHTS),
    "capabilities": Hazard(AS_NOBODY, change=lambda app: subprocess.run(["setcap", "cap_net_bind_service+ep", app], check=True), stays=WITHOUT_RIGHTS),
    "a file that may not be read": Hazard(AS_NOBODY, change=lambda app: app.chmod(0o711), stays=WITHOUT_RIGHTS),
    "a changed file": Hazard(later=lambda app: app.chmod(0o700), stays="stop"),
    "another file": Hazard(later=lambda app: os.replace(shutil.copy(app, f"{app}.new"), app), stays="stop"),
    "noexec": Hazard(namespace('mount -o remount,bind,noexec "$T_STORE"'), stays="stop"),
    "no pool": Hazard(stays=ALL_COPIES),
    "a uprobe": Hazard(stays=f"stop attach {ALL_COPIES}", either="interpreter"),
}


class Ways:
    """The ways, each a command that runs APP under PREFIX; FILES: it, and the same with our linker as its interpreter."""

    def __init__(self, prefix, files, library, linker, image, store):
        self.prefix, self.files, self.library, self.linker, self.image, self.store = prefix, files, library, linker, image, store
        self.app, self.hugeld = files[0], library.parent / "hugeld"
        self.options = "backend=hugetlb,segments=text,verbose=2"

    def variables(self, *more):
        return [*self.prefix, "/usr/bin/env", *more, f"LD_HUGEPAGES_OPTIONS={self.options}"]

    def plain(self):
        return [*self.prefix, self.app]

    def preload(self):
        return [*self.variables(f"LD_PRELOAD={self.library}"), self.app]

    def copy(self):
        return [*self.prefix, self.hugeld, "run", "--copy", "-o", self.options, "--", self.app]

    def stop(self):
        return [*self.prefix, self.hugeld, "run", "-o", f"store={self.store.folder},verbose=2", "--", self.app]

    def unit(self):
        """As systemd does it for a listed service: the image lies over the program."""
        return ["unshare", "-m", "sh", "-ec", 'mount --bind "$0" "$1"; shift; exec "$@"', self.image, self.app, *self.prefix, self.app]

    def command(self):
        return [*self.variables("LD_HUGEPAGES=main"), self.linker, self.app]

    def plain_command(self):
        return [*self.prefix, LINKERS[os.uname().machine], self.app]

    def interpreter(self):
        return [*self.variables("LD_HUGEPAGES=main"), self.files[1]]

    def attach(self):
        return self.plain()


LINKERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
WAYS = ("preload", "copy", "stop", "unit", "command", "interpreter", "attach")
HITS = 5  # of the probe: the program sums twice, and its children once each


def huge_text(pid):
    """The bytes of the program's text on huge pages of copies and images, the names of its mappings with them, and the bytes on huge
    pages of its own file, which attach may have made; without attach that is the page cache's affair."""
    text = [m for m in read_smaps(pid) if "x" in m.permissions and m.start < 1 << 28]
    found = [(m.hugetlb_bytes + m.thp_bytes + m.kb["ShmemPmdMapped"] * 1024, m.name.split(" ")[0]) for m in text]
    return sum(size for size, _ in found), {name for size, name in found if size}, sum(m.kb["FilePmdMapped"] for m in text) * 1024


def use(argv, store, attaches=False):
    """(status, output), standard error, and huge_text() of ARGV where it has waited."""
    process = helpers.start([*argv, "family"], helpers.environment(T_STORE=store), stdin=subprocess.PIPE)
    try:
        said, found, told = process.stdout.readline() + process.stdout.readline(), None, ""
        if said.endswith("ready\n"):
            for _ in range(10 if attaches else 0):
                told = helpers.hugeld("attach", process.pid).stderr
                if SMALL_PAGES in told:
                    compact_memory()
                elif not re.search("did not stop within|did not run for|sleep in a system call", told):  # on a busy machine
                    break
            found = huge_text(process.pid)
        stdout, stderr = process.communicate(timeout=helpers.PATIENCE)
    finally:
        helpers.end_process(process)
    return (process.returncode, said + stdout), told + stderr, found


@pytest.fixture(scope="module")
def linker(shared_folder):
    path = helpers.BUILD / "ldso/ld.so"
    if not path.exists():
        pytest.skip("needs build/ldso/ld.so: make ldso")
    return pathlib.Path(shutil.copy(path, shared_folder / "ld.so"))


@pytest.fixture
def files(sum_program, linker, shared_folder):
    """The program, and the same with our linker."""
    folder = shared_folder / "hazard"
    folder.mkdir(mode=0o755)
    yield [pathlib.Path(shutil.copy(sum_program("nopie", *more, name=made), folder)) for made, more in
           (("sum", ()), ("sum-ldso", (f"-Wl,--dynamic-linker={linker}",)))]
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", HAZARDS)
def test_hazard(files, library, linker, images, confine, pool, thp, root, request, name):
    pool(0 if name == "no pool" else 64)
    hazard = HAZARDS[name]
    for file in files if hazard.change else ():
        hazard.change(file)
    image = images.add(files[0])
    for file in files:
        if hazard.later:
            hazard.later(file)
        on_small_pages(file)
    probe = request.getfixturevalue("probe")(files[0]) if name == "a uprobe" else None
    if probe:
        probe.set()
    rules = hazard.rules.split()
    ways = Ways([*confine(*rules), *(["/usr/bin/env"] if rules else []), *hazard.prefix], files, library, linker, image, images)
    plain, of_command = (use(argv, images.folder) for argv in (ways.plain(), ways.plain_command()))
    for way in WAYS:
        hits = probe.hits() if probe else 0
        result, said, found = use(getattr(ways, way)(), images.folder, way == "attach")
        assert result == (of_command if way == "command" else plain)[0], (way, result, said, plain)
        if found is None or way in hazard.either.split():
            continue
        moved, names, of_its_file = found
        if way in hazard.stays.split():
            assert moved == 0, (way, found, said)
        else:
            assert moved + (of_its_file if way == "attach" else 0) >= WHOLE, (way, found, said)
        assert way not in COPIES or names <= {hazard.text}, (way, found)
        assert not probe or moved or probe.hits() == hits + HITS, (way, said)
