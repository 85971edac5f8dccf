# SPDX-License-Identifier: LGPL-2.1-or-later
"""The patched linker opens an object's image in the place of its file: nothing is copied or moved, and to the program and
to every tool that looks at the object it is the file.  Executables that the kernel maps are tested in tests/images."""

import contextlib
import os
import pathlib
import re
import shutil
import struct
import subprocess

import pytest

import helpers
from hugepages import free_pages
from linked import ALL, by_command, by_run
from linkers import LINKED
from objects import PF_X, PT_LOAD, page_down, page_up, read_headers
from pagecache import on_small_pages
from smaps import read_smaps
from stores import Store


HERE = pathlib.Path(__file__).resolve().parent
IMAGE = re.compile(r"^hugeld: (libbig\S*|app-\S*): text (\d+) pages image, rodata \d+ pages? image", re.M)
MISMATCH = "its image does not match the file"
NO_IMAGE = "there is no image of it, or the file has changed since"
UNSAFE = "another user could have written to the store, or to the image"


@pytest.fixture
def own(builder, tmp_path):
    """own(variant): (program, library), copies that the test may change."""

    def copy(variant="dso"):
        folder = shutil.copytree(builder.with_library(variant)[0].parent, tmp_path / "own", symlinks=True)
        on_small_pages(folder / "libbig.so")
        return folder / f"small-{variant}", folder / "libbig.so"

    return copy


def without_loads(text):
    """An executable's image may have fewer PT_LOADs, and dl_iterate_phdr shows them."""
    return re.sub(r"^loads \d+$", "", text, flags=re.M)


@pytest.fixture
def same(linked, images):
    """same(argv, ...): ARGV does the same as without hugeld; the lines of ours at verbose=2."""

    def run(argv, patterns="libbig*", options="", way=by_run, **changes):
        plain = helpers.run(argv, helpers.environment(**changes))
        done = linked.run(argv, patterns, images.options("verbose=2", *filter(None, [options])), way, **changes)
        assert (done.returncode, without_loads(done.stdout)) == (plain.returncode, without_loads(plain.stdout)), done.stderr
        return done.stderr

    return run


def text_of(pid, image):
    """The executable mappings of IMAGE in PID."""
    return [m for m in read_smaps(pid) if m.name == str(image) and "x" in m.permissions]


def check_text(mappings, pages):
    """PAGES whole huge pages lie inside, but for one whose first page has the ELF header, all that was touched of them is mapped
    by huge pages, and nothing is a copy."""
    pages -= min(m.start for m in mappings) % helpers.HUGE == helpers.PAGE
    whole = sum((m.end & -helpers.HUGE) - (m.start + helpers.HUGE - 1 & -helpers.HUGE) for m in mappings)
    assert whole == pages * helpers.HUGE, mappings
    assert sum(m.kb["ShmemPmdMapped"] for m in mappings) * 1024 == whole, mappings
    assert not any(m.kb["Anonymous"] for m in mappings) and {m.permissions for m in mappings} == {"r-xp"}


@pytest.fixture
def waiting(linked, images):
    """waiting(app, ...): runs a program of the builder until it has called all of its text, for `with`."""
    started = []

    def start(app, patterns="libbig*", options="", way=by_run, **changes):
        env = linked.environment(patterns, images.options(*filter(None, [options])), **changes)
        process = helpers.start(way(linked.ldso, patterns, images.options(*filter(None, [options])), [app, "wait", "x"]), env)
        started.append(process)
        helpers.wait_until(lambda: "break" in process.stdout.readline(), what="its last line")
        return process

    yield start
    for process in started:
        helpers.end_process(process)


# --- its effects ---


@pytest.mark.parametrize("variant", ["dso", "dso-aligned", "dso-norosegment", "dso-noseparate", "dso-six", "dso-hole"])
def test_library(images, builder, same, waiting, variant):
    app, [library] = builder.with_library(variant)
    image = images.add(library)
    told = IMAGE.search(same([app]) + "x")
    if variant in ("dso-norosegment", "dso-noseparate"):  # one segment has both
        told = re.search(r"^hugeld: (libbig\S*): text (\d+) pages image", same([app]), re.M)
    check_text(text_of(waiting(app).pid, image), int(told[2]))


@pytest.mark.parametrize("variant, way", [("pie", by_command), ("aligned-pie", by_command), ("now", by_command), ("nopie", by_command),
                                          ("hole-pie", by_command), ("hole", by_command), ("six", by_command), ("nopie", by_run)])
def test_executable(images, builder, same, waiting, variant, way):
    """An executable that ld.so maps may be a PIE, and lies right for its image; of those that the kernel maps the preloader's way
    takes the parts that fit."""
    app = builder.executable(variant)
    image = images.add(app)
    told = IMAGE.search(same([app], "main", way=way))
    assert told[1] == app.name
    check_text(text_of(waiting(app, "main", way=way).pid, image), int(told[2]))


@pytest.mark.parametrize("variant", ["pie", "now", "aligned-pie", "hole-pie", "nopie", "lazy"])
def test_nothing_else_changes(images, builder, linked, variant):
    """Protections, RELRO, descriptors and all other memory are those of a plain run."""
    app = builder.executable(variant)
    images.add(app)
    proof = linked.prove([app], {app.name: ALL}, "main", images.options("data=off"), way=by_command, backend="image",
                         same=lambda plain, moved: list(map(without_loads, plain[1:])) == list(map(without_loads, moved[1:])))
    assert proof.plans[app.name].pages("text") >= 3


def test_nothing_else_changes_around_a_library(images, builder, linked):
    app, [library] = builder.with_library("dso")
    images.add(library)
    proof = linked.prove([app], {library.name: ALL}, "libbig*", images.options("data=off"), backend="image")
    assert proof.plans[library.name].pages("text") == 5


def test_auto_takes_nothing_of_the_pool(images, builder, linked, pool):
    pool(64)
    app, [library] = builder.with_library("dso")
    images.add(library)
    with linked.paused([app], "libbig*", f"store={images.folder}") as process:
        assert free_pages() == 64
        assert not any(m.is_hugetlb or m.thp_bytes for m in read_smaps(process.pid))
        process.finish()


def test_edges_keep(images, builder, same, waiting):
    """Boundary pages stay as they are: only the text is executable."""
    app, [library] = builder.with_library("dso")
    image = images.add(library)
    assert IMAGE.search(same([app], options="edges=small"))
    [text] = text_of(waiting(app, options="edges=small").pid, image)
    [header] = [h for h in read_headers(image) if h.type == PT_LOAD and h.flags & PF_X]
    assert text.bytes == page_up(header.vaddr + header.file_bytes) - page_down(header.vaddr)
    assert text.offset == page_down(header.offset)


def test_second_process_shares(images, builder, waiting):
    app, [library] = builder.with_library("dso")
    image = images.add(library)
    processes = [waiting(app) for _ in range(2)]
    text = text_of(processes[0].pid, image)
    assert sum(m.kb["Pss"] for m in text) <= 0.51 * sum(m.kb["Rss"] for m in text)


@pytest.mark.parametrize("link", LINKED)
def test_linked(images, features, loads, same, link):
    """RELRO, TLS, IFUNCs, constructors and more work as usual."""
    library = features(link)
    if helpers.run([loads, "once", library]).returncode != 0:
        return  # dlopen refuses an executable stack since glibc 2.41
    images.add(library)
    assert IMAGE.search(same([loads, "once", library], "*"))


@pytest.mark.parametrize("how, times", [("new", 2), ("thread", 1), ("threads", 1), ("small", 1), ("coroutine", 1), ("inside", 1),
                                        ("handler", 1), ("rounds", 20)])
def test_opened(images, features, loads, same, how, times):
    """The library is opened by dlopen and dlmopen, beside threads, on small stacks, again and again: nothing stays behind."""
    images.add(features())
    assert len(IMAGE.findall(same([loads, how, features(), "20" if how == "rounds" else "8"]))) == times


def test_writable_data(images, features, loads, same, thp):
    """Private data are the process's own memory, in transparent huge pages, and filled from the image."""
    library = features(words=6 * 2**17)
    images.add(library)
    told = same([loads, "once", library], options="data=thp")
    assert re.search(r"text 5 pages image, rodata \d+ pages? image, data \d+ pages? thp", told), told


def test_preloaded(images, builder, features, linked):
    app, [library] = builder.with_library("dso")
    images.add(library)
    images.add(features())
    done = linked.run([app], "libbig*", images.options("verbose=2"), preloaded=[features()])
    assert done.stdout == helpers.run([app], helpers.preload(features())).stdout
    assert len(IMAGE.findall(done.stderr)) == 2


def test_audited(images, builder, features, loads, same):
    """Auditors hear the file's names."""
    auditor = builder.once("names", lambda folder: builder.compile(folder / "names.so", "-shared", "-fPIC", HERE / "names.c"))
    app, [library] = builder.with_library("dso")
    images.add(library)
    images.add(features())
    assert len(IMAGE.findall(same([app], LD_AUDIT=auditor))) == 1
    assert len(IMAGE.findall(same([loads, "new", features()], LD_AUDIT=auditor))) == 2


def test_debugger(images, features, loads, linked, root):
    """gdb finds the functions under the file's name, and its breakpoint is a private copy of a page."""
    if not shutil.which("gdb"):
        pytest.skip("gdb is not installed")
    library = features()
    image = images.add(library)
    before = image.read_bytes()
    env = linked.environment("libbig*", images.options(), [linked.pause])
    with helpers.paused([linked.ldso, loads, "pause", library], env, os.path.basename(linked.ldso)) as process:
        process.resume()
        helpers.wait_until(lambda: text_of(process.pid, image) and helpers.state_of(process.pid) == "T", what="the second stop")
        gdb = ["gdb", "-nx", "-batch", "-p", process.pid, "-ex", "info sharedlibrary", "-ex", "info symbol use_features",
               "-ex", "handle SIGSTOP nostop noprint nopass", "-ex", "break big_sum", "-ex", "call (int)use_features()", "-ex", "backtrace", "-ex", "kill"]
        said = helpers.run(gdb, timeout=120).stdout
    assert "use_features in section .text" in said and str(library) in said, said
    assert re.search(r"^Breakpoint 1, .* in big_sum \(\)", said, re.M) and re.search(r"^#1 .* in use_features", said, re.M), said
    assert image.read_bytes() == before


@pytest.mark.usefixtures("pool")
def test_few_system_calls(images, builder, features, loads, linked, strace):
    """Without a store there is one open at the start and one for a dlopen.  With an image there are no calls to copy, and none to
    read /proc for it."""
    def calls(options):
        env = linked.environment("*", options)
        return helpers.run(["strace", "-f", linked.ldso, loads, "once", features()], env).stderr

    images.add(features())
    nothing = calls(f"store={images.folder}/nothing")
    assert nothing.count(f'"{images.folder}/nothing"') == 2
    there = calls(images.options("data=off"))
    opened = re.search(r'openat\(\d+, "[^"]*/.image".*?\) = (\d+)$(.*?)^close\(\1\)', there, re.M | re.S)
    done = re.findall(r"^(\w+)\(", opened[2], re.M)
    assert not {"read", "pread64", "openat", "mremap"} & set(done[done.index("mmap"):]) - {"pread64"}, opened[2]
    assert done.count("pread64") <= 2 and len(done) <= 26, opened[2]


# --- it is still the file ---


@pytest.fixture(scope="module")
def asks(builder):
    return builder.once("asks", lambda folder: builder.compile(folder / "asks", HERE / "asks.c"))


@pytest.mark.parametrize("way", [by_run, by_command])
def test_same_object(images, own, same, asks, way):
    """Names, origin and identity: another name of the file, a symbolic and a hard link are the same object, a copy is not."""
    _, library = own()
    image = images.add(library)
    hard, link, copy = (library.with_name(f"libbig-{name}.so") for name in ("hard", "link", "copy"))
    link.symlink_to(library)
    shutil.copy(library, copy)
    os.link(library, hard)  # that changes its ctime
    image = images.add(library)
    told = same([asks, library, link, hard, library.parent / "." / library.name, copy], way=way)
    assert IMAGE.search(told) and str(image) in told


def test_origin(images, builder, same, asks, tmp_path):
    """$ORIGIN is the file's folder."""
    needed = builder.compile(tmp_path / "libneeded.so", "-shared", "-fPIC", "-x", "c", "/dev/null")
    library = builder.compile(tmp_path / "libbig-origin.so", "-shared", *builder.object(), "-Wl,--no-as-needed", "-x", "none", needed,
                              "-Wl,-rpath,$ORIGIN")
    images.add(library)
    assert IMAGE.search(same([asks, library]))


def test_soname(images, builder, same, asks):
    """Before it is mapped its path decides; one that only its soname selects is moved afterwards."""
    _, [library] = builder.with_library("dso")
    image = images.add(library)
    assert str(image) in same([asks, library], "lib*.so")
    assert str(image) not in same([asks, library], "!libbig.so:*")
    assert "libbig.so: text" in same([asks, library], "libbig.so.1")


# --- images that must never be used ---


@pytest.fixture
def unused(images, linked, asks):
    """unused(library, reason): the file itself is mapped, and verbose=3 says why."""

    def check(library, reason, options=None):
        plain = helpers.run([asks, library])
        done = linked.run([asks, library], "libbig*", options or images.options("verbose=3"))
        assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout), done.stderr
        assert reason in done.stderr and f" {library}\n" in done.stderr and "pages image" not in done.stderr, done.stderr

    return check


def test_file_changed(images, own, unused):
    """The file was overwritten in place, or replaced."""
    _, library = own()
    images.add(library)
    with open(library, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\1")
    unused(library, NO_IMAGE)
    images.add(library)
    shutil.copy(library, library.with_name("new"))
    os.rename(library.with_name("new"), library)
    unused(library, NO_IMAGE)


# Name: how the image of a library is changed, by the place of a header (or None: the ELF header's), the offset in it and the
# format.
FIELDS = {
    "e_ident": (None, 8, "B"), "e_type": (None, 16, "H"), "e_machine": (None, 18, "H"), "e_version": (None, 20, "I"),
    "e_entry": (None, 24, "Q"), "e_flags": (None, 48, "I"), "e_phnum": (None, 56, "H"), "e_shnum": (None, 60, "H"),
    "p_type": (-1, 0, "I"), "p_flags": (-1, 4, "I"), "p_vaddr": (-1, 16, "Q"), "p_paddr": (-1, 24, "Q"),
    "p_filesz": (-1, 32, "Q"), "p_memsz": (-1, 40, "Q"), "p_align": (-1, 48, "Q"), "its p_offset": (0, 8, "Q"),
    "its p_flags": (0, 4, "I"), "its p_memsz": (0, 40, "Q"), "its p_align": (0, 48, "Q"),
}


@pytest.mark.parametrize("field", FIELDS)
def test_other_headers(images, own, unused, field):
    """Every field of the headers is compared but those that say where something is in the file."""
    _, library = own()
    image = images.add(library)
    index, place, kind = FIELDS[field]
    header = 0 if index is None else [h for h in read_headers(image) if index or h.type == PT_LOAD][index].position
    with open(image, "r+b") as file:
        file.seek(header + place)
        [before] = struct.unpack("<" + kind, file.read(struct.calcsize(kind)))
        file.seek(header + place)
        file.write(struct.pack("<" + kind, before ^ (helpers.PAGE | helpers.HUGE if field in ("its p_offset", "its p_align") else 1)))
    unused(library, MISMATCH)


@pytest.mark.parametrize("bytes_left", [0, 63, 100, 831, 4096, 3 << 20])
def test_truncated(images, own, unused, bytes_left):
    _, library = own()
    os.truncate(images.add(library), bytes_left)
    unused(library, MISMATCH)


def test_another_users(images, own, unused):
    _, library = own()
    image = images.add(library)
    os.chown(image, 1, 1)
    unused(library, UNSAFE)
    os.chown(image, 0, 0)
    os.chmod(image, 0o757)
    unused(library, UNSAFE)


@pytest.mark.parametrize("who", ["rootless", "private users"])
def test_host_in_a_container(images, builder, readable_ldso, shared_folder, who):
    """Root's store, in a user namespace that does not map root.  Both processes are root there."""
    folder = shutil.copytree(builder.with_library("dso")[0].parent, shared_folder / f"app-{who[:4]}", symlinks=True)
    app = folder / "small-dso"
    image = images.add(folder / "libbig.so")
    user = 12345 if who == "rootless" else 100000
    map_root = f"import os, sys; open(f'/proc/{{sys.argv[1]}}/setgroups', 'w').write('deny'); " \
               f"[open(f'/proc/{{sys.argv[1]}}/{{name}}_map', 'w').write('0 {user} 1') for name in ('uid', 'gid')]"
    argv = [*helpers.become(user), "unshare", "-U", "sh", "-c", "echo $$; read go; exec \"$@\"", "sh", readable_ldso, app]
    results = []
    for patterns in ("no-such-object*", "libbig*"):
        env = helpers.preload(patterns=patterns, options=images.options("verbose=1"))
        process = helpers.start(argv, env, stdin=subprocess.PIPE)
        try:
            pid = process.stdout.readline().strip()
            if not pid:
                pytest.skip(f"no user namespaces here: {process.stderr.read()}")
            subprocess.run(["python3", "-c", map_root, pid], check=True)
            stdout, stderr = process.communicate("go\n", timeout=60)
            results.append((process.returncode, stdout))
        finally:
            helpers.end_process(process)
    assert results[0] == results[1] and results[0][1].startswith("sum ") and image.exists()
    assert "the store belongs to a user that this user namespace does not map (the host's root)" in stderr, stderr
    shutil.rmtree(folder)


@contextlib.contextmanager
def mounted(folder, *arguments):
    folder.mkdir()
    done = helpers.run(["mount", *arguments, "none", folder])
    if done.returncode != 0:
        pytest.skip(f"cannot mount: {done.stderr}")
    with helpers.at_end('umount -l "$1"', folder):
        yield Store(folder)


def test_noexec(own, unused, tmp_path):
    """dlopen would fail, were this found out too late."""
    with mounted(tmp_path / "noexec", "-t", "tmpfs", "-o", "huge=always,size=64m,mode=0755,noexec") as store:
        _, library = own()
        store.add(library)
        unused(library, "the store is mounted noexec; mount it without noexec", store.options("verbose=3"))


def test_filter_that_came_after_start(images, features, linked):
    """A filter that kills for the calls that look for an image, and not for those of dlopen."""
    images.add(features())
    script = (helpers.forbid_calls("getcpu", "geteuid", "pread64") +
              f"ctypes.CDLL('{features()}')\n"
              f"print('libbig' in open('/proc/self/maps').read())\n")
    for options, told in (("verbose=1", True), ("verbose=0", False)):
        done = linked.run(["/usr/bin/python3", "-c", script], "libbig*", images.options(options))
        assert (done.returncode, done.stdout) == (0, "True\n"), done
        assert ("the process has restricted itself since it started" in done.stderr) == told


def test_secure_mode(images, builder, linked, shared_folder, root):
    """A set-user-ID program has its own file."""
    folder = shared_folder / "secure-images"
    folder.mkdir()
    shutil.copy(linked.ldso, folder / "ld.so")
    library = builder.compile(folder / "libbig.so", "-shared", *builder.object())
    main = builder.write("maps.c", "#include <stdio.h>\nint main(void) { FILE *f = fopen(\"/proc/self/maps\", \"r\"); int c; "
                         "while ((c = getc(f)) != EOF) putchar(c); }\n")
    app = builder.compile(folder / "app", main, "-Wl,--no-as-needed", library, f"-Wl,-rpath,{folder}",
                          f"-Wl,--dynamic-linker={folder}/ld.so")
    image = images.add(library)
    images.folder.chmod(0o755)
    images.folder.parent.chmod(0o755)
    env = linked.environment("libbig*", images.options())
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    assert str(image) in helpers.run([app], env).stdout
    app.chmod(0o4755)
    done = helpers.run([*user, app], env)
    assert str(library) in done.stdout and str(image) not in done.stdout
