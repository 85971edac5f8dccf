# SPDX-License-Identifier: LGPL-2.1-or-later
"""hugeld run --via=image: the program's image is executed in its place, in a mount namespace of its own; nothing of hugeld is in
the process, and the program finds itself where it always is. Some programs must never be executed from an image."""

import contextlib
import fcntl
import json
import os
import pathlib
import re
import shutil
import stat
import subprocess

import pytest

import helpers
from installed import find_cc1plus, find_node
from objects import PF_X, PT_LOAD, read_headers
from smaps import read_smaps
from stores import make_images


# Prints where a program finds itself, in every way that there is.
WHERE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>
unsigned long big_sum(unsigned long x);
int main(int argc, char **argv) {
    char self[4096] = "";
    Dl_info info = {0};
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
        return 2;
    dladdr((void *)main, &info);
    printf("exe %s\nargv[0] %s\nAT_EXECFN %s\nrealpath %s\n", self, argv[0], (char *)getauxval(AT_EXECFN),
           realpath("/proc/self/exe", NULL));
    printf("dladdr %s\nargc %d\nsum %lx\nAT_SECURE %lu\n", info.dli_fname != NULL ? info.dli_fname : "-", argc,
           big_sum(argc), getauxval(AT_SECURE));
    fflush(stdout);
    if (argc > 1 && argv[1][0] == 'c' && fork() == 0)
        return execl(self, "child", (char *)NULL);
    if (argc > 1 && argv[1][0] == 's')
        pause();
    return 3;
}
"""
LINKED = {"pie": ["-fPIE", "-pie"], "nopie": ["-no-pie"], "static": ["-static"], "static-pie": ["-fPIE", "-static-pie"]}
USER = 54321  # no account has this number
# Mounts are shared, as systemd makes them; elsewhere --via=image is refused.
SHARED = ["unshare", "-m", "--propagation", "shared"]
APART = ", in a mount namespace of its own: mounts that it makes are not seen outside\n"
UNPRIVILEGED = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")


@pytest.fixture
def program(builder, tmp_path):
    """program(variant): a copy of a large program that says where it finds itself, for this test alone."""

    def make(variant):
        def link(folder):
            source = builder.write("where.c", WHERE)
            return builder.compile(folder / f"where-{variant}", source, "-w", *builder.object(), *LINKED[variant])

        there = tmp_path / f"where-{variant}"
        shutil.copy(builder.once(f"where-{variant}", link), there)
        return there

    return make


@pytest.fixture
def run(images):
    """run(argv, ...): by --via=image with the test's store."""

    def start(argv, *arguments, loader=("-l", "image"), options="verbose=2", prefix=(), **more):
        option = ",".join(filter(None, [f"store={images.folder}", options]))
        return helpers.run([*SHARED, *prefix, helpers.HUGELD, "run", *loader, "-o", option, *arguments, "--", *argv], **more)

    return start


def from_image(name, image):
    return f"hugeld: {name}: executed from its image {image}" + APART


@pytest.mark.parametrize("variant", LINKED)
def test_finds_itself(images, program, run, variant):
    app = program(variant)
    image = images.add(app)
    result = run([app, "x"])
    assert result.stdout == helpers.run([app, "x"]).stdout and f"exe {app}\n" in result.stdout
    assert (result.returncode, result.stderr) == (3, from_image(app, image))


@pytest.mark.parametrize("variant", LINKED)
def test_is_on_huge_pages(images, program, variant):
    """All whole pages of text are mapped by one entry each, from the image, and nothing of hugeld is there."""
    app = program(variant)
    image = images.add(app)
    process = helpers.start([*SHARED, helpers.HUGELD, "run", "-l", "image", "-o", f"store={images.folder}", "--", app, "s"],
                            stdout=subprocess.PIPE)
    try:
        while not process.stdout.readline().startswith("AT_SECURE"):
            assert process.poll() is None
        smaps = pathlib.Path(f"/proc/{process.pid}/smaps").read_text()
        maps = pathlib.Path(f"/proc/{process.pid}/maps").read_text()
        assert "libhugeld" not in maps and "libhugeld" not in pathlib.Path(f"/proc/{process.pid}/environ").read_text()
        assert os.stat(f"/proc/{process.pid}/exe").st_ino == image.stat().st_ino
        [(start, end, rest)] = [(int(a, 16), int(b, 16), rest) for a, b, rest in
                                re.findall(rf"^(\w+)-(\w+) r-xp .* {app}\n((?:[A-Z]\w+:.*\n)+)", smaps, re.M)]
        whole = end // helpers.HUGE - -(-start // helpers.HUGE)
        huge = int(re.search(r"ShmemPmdMapped: *(\d+)", rest)[1]) * 1024 // helpers.HUGE
        text = sum(h.file_bytes for h in read_headers(app) if h.type == PT_LOAD and h.flags & PF_X)
        assert whole >= 3 and huge == whole and huge * helpers.HUGE >= text
    finally:
        helpers.end_process(process)


# 3 MiB of text that lie between read-only data, so no whole huge page lies inside them.
EDGES = r"""
#include <stdio.h>
#include <unistd.h>
__asm__(".section .rodata; .skip 2 << 20, 1; .text; .skip 3 << 20, 0x90");
__attribute__((noinline)) void waits_here(void) { pause(); __asm__(""); }
int main(void) { puts("ready"); fflush(stdout); waits_here(); return 0; }
"""


@pytest.fixture(params=LINKED)
def edges(request, images, builder, tmp_path):
    """A program of EDGES that was executed from its image, the image, and how many KiB of its text have huge entries."""
    app = builder.compile(tmp_path / "edges", builder.write("edges.c", EDGES), *LINKED[request.param])
    image = images.add(app)
    process = helpers.start([*SHARED, helpers.HUGELD, "run", "-l", "image", "-o", f"store={images.folder}", "--", app],
                            stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == "ready\n"
        assert os.stat(f"/proc/{process.pid}/exe").st_ino == image.stat().st_ino
        text = [m for m in read_smaps(process.pid) if m.name == str(app) and "x" in m.permissions]
        yield process, app, image, sum(m.kb["ShmemPmdMapped"] for m in text)
    finally:
        helpers.end_process(process)


def test_edges(edges):
    """All text is on huge pages, with the read-only data beside it, as libhugeld.so and the exec stop would have it."""
    process, app, _, huge = edges
    assert huge >= 4096
    told = json.loads(helpers.hugeld("status", "--json", process.pid).stdout)
    [main] = [o for o in told["processes"][0]["objects"] if o["path"] == str(app)]
    assert main["verdict"]["now"] == "executed" and main["verdict"]["text_share"] == 1, main


def test_gdb_of_an_image(edges, tmp_path):
    """The program headers in memory are the image's: gdb finds the functions in a core file if it is given the image."""
    process, _, image, _ = edges
    if not shutil.which("gdb"):
        pytest.skip("gdb is not installed")
    gdb = ["gdb", "-nx", "-batch", "-ex", "set debuginfod enabled off"]
    attached = helpers.run([*gdb, "-p", process.pid, "-ex", "bt", "-ex", f"generate-core-file {tmp_path}/core"], timeout=120)
    assert " waits_here ()" in attached.stdout and " main ()" in attached.stdout, attached
    told = helpers.run([*gdb, image, tmp_path / "core", "-ex", "bt"], timeout=120)
    assert " waits_here ()" in told.stdout and " main ()" in told.stdout, told


def test_children_see_it(images, program, run):
    """A child executes the same path and gets the image too; no process outside does."""
    app = program("pie")
    images.add(app)
    before = app.stat()
    result = run([app, "c"])
    assert result.stdout.count(f"exe {app}\n") == 2
    assert (app.stat().st_ino, app.stat().st_dev) == (before.st_ino, before.st_dev)
    assert str(app) not in pathlib.Path("/proc/self/mountinfo").read_text()


def test_origin_and_libraries(images, builder, run, tmp_path):
    """Libraries beside the program ($ORIGIN) are found."""
    library = builder.compile(tmp_path / "libbeside.so", "-shared", "-fPIC", "-x", "c", "/dev/null")
    source = builder.write("origin.c", "unsigned long big_sum(unsigned long);\nint main(void) { return big_sum(1) == 0; }\n")
    app = builder.compile(tmp_path / "origin", source, "-pie", "-fPIE", *builder.object(), "-Wl,--no-as-needed", library,
                          "-Wl,-rpath,$ORIGIN")
    image = images.add(app)
    result = run([app])
    assert (result.returncode, result.stderr) == (0, from_image(app, image))


@pytest.mark.parametrize("name", ["node", "go", "script", "env"])
def test_programs_that_ask(images, run, name, tmp_path):
    """Programs that look for their parts beside themselves; a script of env, which is followed to the program that it starts."""
    go = shutil.which("go") or "/usr/local/go/bin/go"
    program = go if name == "go" else find_node()
    if program is None or not os.path.exists(program):
        pytest.skip(f"{name} is not installed")
    image = images.add(program)
    ask = "console.log(process.execPath, process.argv0, require('fs').realpathSync('/proc/self/exe'))\n"
    argv = {"node": [program, "-e", ask], "env": ["env", "A=1", program, "-e", ask], "go": [go, "env", "GOROOT"]}.get(name)
    if argv is None:
        script = tmp_path / "script"
        script.write_text(f"#!/usr/bin/env {program}\n{ask}")
        script.chmod(0o755)
        argv = [script]
    result = run(argv)
    assert (result.stdout, result.stderr) == (helpers.run(argv).stdout, from_image(argv[0], image))


# --- without --via ---


@pytest.mark.check_all
@pytest.mark.parametrize("variant", LINKED)
def test_unasked(images, program, run, variant):
    """An image is executed only where that was asked for; without, it is used at the exec stop."""
    app = program(variant)
    images.add(app)
    result = run([app], loader=())
    assert result.stdout == helpers.run([app]).stdout
    assert "executed from its image" not in result.stderr
    assert "at the exec stop from" in result.stderr
    result = run([app], loader=("-l", "preload"))
    assert ("pages image" in result.stderr) == (variant == "nopie")


# Started with a folder as descriptor 3: mounts, and renames between that descriptor and a path.
NOTICES = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>
__asm__(".text\n.p2align 12\nfiller: .rept 6291456\nnop\n.endr\n.p2align 12");
int main(int argc, char **argv) {
    char path[4096], name[256] = "";
    printf("%s\n", mount("none", argv[1], "tmpfs", 0, "") == 0 ? "mounted" : strerror(errno));
    snprintf(path, sizeof path, "%s/file", argv[2]);
    close(open(path, O_CREAT | O_RDWR, 0600));
    printf("%s\n", renameat(AT_FDCWD, path, 3, "other") == 0 ? "renamed" : strerror(errno));
    printf("%zd\n", readlink("/proc/self/ns/mnt", name, sizeof name - 1));
    printf("%s %s\n", name, argc == 3 ? "as started" : "otherwise");
    return 0;
}
"""


@pytest.mark.check_all
@pytest.mark.parametrize("how, outside", [((), True), (("-o", "backend=auto"), True), (("-l", "preload"), True),
                                          (("-l", "image"), False)], ids=["run", "auto", "preload", "image"])
def test_namespace_is_left_alone(images, builder, tmp_path, how, outside):
    """The program's mounts are seen by others, and a descriptor that it inherited is in the same mount as a path."""
    source = tmp_path / "notices.c"
    source.write_text(NOTICES)
    app = builder.compile(tmp_path / "notices", source, "-pie", "-fPIE")
    images.add(app)
    (tmp_path / "mount").mkdir()
    run = [helpers.HUGELD, "run", *how, "-o", f"store={images.folder}", "--", app, tmp_path / "mount", tmp_path]
    script = 'readlink /proc/self/ns/mnt; "$@" 3< "$0"; grep -c "$0/mount" /proc/self/mountinfo'
    result = helpers.run([*SHARED, "sh", "-c", script, tmp_path, *run])
    before, mounted, renamed, _, inside, seen = result.stdout.splitlines()
    assert mounted == "mounted" and inside.endswith(" as started"), result
    assert (seen, renamed, inside.split()[0]) == ("1", "renamed", before) if outside else seen == "0"


def test_private_mounts(images, program, run):
    """With private mounts the program would not see later mounts, and would keep unmounted devices busy: it is refused, with the
    reason."""
    app = program("pie")
    images.add(app)
    private = ["unshare", "-m", "--propagation", "private"]
    result = run([app], prefix=private)
    assert result.returncode == 3 and "not from an image: mounts are private here" in result.stderr
    assert "executed" not in result.stderr


def test_cannot_be_undone(images, program, run, strace):
    """The trial works, and the call that counts fails after the namespace was entered: the program does not run in it."""
    app = program("pie")
    images.add(app)
    prefix = ["strace", "-D", "-o", "/dev/null", "-e", "trace=mount", "-e", "inject=mount:error=EBUSY:when=2"]
    result = run([app], prefix=prefix)
    assert (result.returncode, result.stdout) == (126, ""), result
    assert result.stderr == f"hugeld: {app}: it cannot be covered any more (Device or resource busy), and its mount " \
                            "namespace cannot be left; run it again\n"


@pytest.mark.parametrize("options", ["backend=thp", "backend=hugetlb", "exe=*/other"])
def test_not_wanted(images, program, run, options):
    app = program("static")
    images.add(app)
    assert "image" not in run([app], loader=(), options=f"verbose=2,{options}").stderr
    assert "image" not in run([app], loader=("-l", "preload")).stderr
    assert "image" not in run([app], "-p", "libc*", loader=()).stderr


def test_by_a_user(program, library, shared_folder):
    """A user has a store of their own; and a user namespace is entered only if the user asks for it, because it takes rights from
    the program: sudo would not work in it."""
    if helpers.run([*UNPRIVILEGED, "unshare", "-rm", "true"]).returncode != 0:
        pytest.skip("no user namespaces here")
    folder, store = shared_folder / "user", shared_folder / "runtime/hugeld"
    folder.mkdir(mode=0o755)
    store.parent.mkdir()
    app = pathlib.Path(shutil.copy(program("static"), folder))
    shutil.chown(app, USER)  # the owner may ask whether it has a writer
    command = library.parent / "hugeld"
    mounted = helpers.run(["mount", "-t", "tmpfs", "-o", f"mode=700,uid={USER},gid={USER}", "none", store.parent])
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs here: {mounted.stderr}")
    user = [*SHARED, *UNPRIVILEGED, "env", f"XDG_RUNTIME_DIR={store.parent}"]
    with helpers.at_end('umount "$1"; rm -rf "$@"', store.parent, folder):
        made = helpers.run([*user, f"XDG_CONFIG_HOME={store.parent}/config", command, "enable", app])
        assert made.returncode == 0, made.stderr
        result = helpers.run([*user, command, "run", "-o", "verbose=2", "--", app])
        assert re.fullmatch(rf"hugeld: where-static: text \d pages image, .*at the exec stop from {store}/.*/where-static\n", result.stderr), result.stderr
        result = helpers.run([*user, command, "run", "-l", "image", "-o", "verbose=2", "--", app])
        assert re.fullmatch(rf"hugeld: {app}: executed from its image {store}/.*/where-static{APART}", result.stderr), result.stderr
        assert (result.returncode, result.stdout) == (3, helpers.run([app]).stdout)
        root = helpers.run([*SHARED, command, "run", "-l", "image", "-o", "verbose=2", "--", app])
        assert "not from an image" in root.stderr and root.stderr.endswith("; it runs on small pages\n")  # that store is the user's alone


# --- other objects ---


@pytest.mark.parametrize("variant", ["pie", "nopie"])
def test_with_other_objects(images, program, run, variant):
    """libhugeld.so comes for them, and leaves the parts alone that the image has on huge pages."""
    app = program(variant)
    image = images.add(app)
    result = run([app], "-p", "main:libnothing*", options="verbose=2,backend=image")
    assert result.stdout == helpers.run([app]).stdout
    assert from_image(app, image) in result.stderr
    assert "stays" not in result.stderr and "pages image" not in result.stderr


def test_main_left_out(images, program, run):
    app = program("pie")
    images.add(app)
    result = run([app], "-p", "libnothing*")
    assert result.stderr.startswith(
        f"hugeld: {app}: not from an image: the objects that were named leave out the program itself; "
        "libhugeld.so is preloaded instead\n")


# --- programs that must never be executed from an image ---


def refused(run, app, why, prefix=()):
    """It runs all the same, with one line; and not at all with strict=on."""
    result = run([app], options="", prefix=prefix)
    assert result.stdout == helpers.run([app]).stdout and result.returncode == 3
    [line] = result.stderr.splitlines()
    assert re.match(rf"hugeld: {app}: not from an image: .*{why}.*; (libhugeld.so is preloaded instead|it runs on small pages)$",
                    line), line
    result = run([app], options="strict=on", prefix=prefix)
    assert (result.returncode, result.stdout) == (127, "")
    assert why in result.stderr and result.stderr.endswith("; strict=on, so it does not run; run it without strict=on\n")


@pytest.mark.parametrize("change", ["touched", "written", "replaced", "none"])
def test_changed_file(images, program, run, change, tmp_path):
    app = program("pie")
    if change != "none":
        images.add(app)
    if change == "touched":
        app.chmod(0o750)
        app.chmod(0o755)
    elif change == "written":
        with open(app, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"x")
    elif change == "replaced":
        shutil.copy(app, tmp_path / "new")
        os.replace(tmp_path / "new", app)
    refused(run, app, "make one: hugeld enable " + str(app))


def test_image_of_another_file(images, program, run, builder):
    """A process with the store's rights put it there: the headers differ."""
    app = program("pie")
    images.add(app, source=builder.executable("pie"))
    refused(run, app, "its image does not match the file")


def test_other_entry(images, program, run):
    """The image has the same segments, and another entry point."""
    app = program("nopie")
    image = images.add(app)
    with open(image, "r+b") as file:
        file.seek(0x18)
        entry = int.from_bytes(file.read(8), "little")
        file.seek(0x18)
        file.write((entry + 1).to_bytes(8, "little"))
    refused(run, app, "its image does not match the file")


@pytest.mark.parametrize("what", ["store", "image"])
def test_writable_by_others(images, program, run, what):
    app = program("static")
    image = images.add(app)
    writable = images.folder if what == "store" else image
    mode = writable.stat().st_mode
    writable.chmod(mode | stat.S_IWGRP)
    try:
        refused(run, app, "another user could have written")
    finally:
        writable.chmod(mode)


@pytest.mark.parametrize("kind", ["set-user-ID", "set-group-ID", "capabilities"])
def test_privileged_programs(images, program, run, kind):
    app = program("pie")
    if kind == "capabilities":
        if subprocess.run(["setcap", "cap_net_raw+ep", app], check=False, capture_output=True).returncode != 0:
            pytest.skip("file capabilities cannot be set here")
    else:
        app.chmod(0o4755 if kind == "set-user-ID" else 0o2755)
    images.add(app)
    result = run([app])
    assert "executed from its image" not in result.stderr and result.returncode == 3
    assert "not from an image: it is set-user-ID" in result.stderr


def test_noexec(images, program, run):
    app = program("static")
    images.add(app)
    helpers.run(["mount", "-o", "remount,noexec", images.folder])
    try:
        refused(run, app, "the store is mounted noexec")
    finally:
        helpers.run(["mount", "-o", "remount,exec", images.folder])


def test_no_namespace(images, program, run, tmp_path):
    """Root has no CAP_SYS_ADMIN, and there are no user namespaces either, as in most containers."""
    app = program("static")
    images.add(app)
    # In a chroot no user namespace can be made.
    inside = 'mount --rbind / "$1" && mount --make-rshared "$1" && shift && exec chroot "$@"'
    prefix = ("unshare", "--mount", "sh", "-c", inside, "sh", tmp_path, tmp_path, "setpriv", "--bounding-set=-sys_admin",
              "--inh-caps=-sys_admin")
    refused(run, app, "it cannot be mounted here", prefix)


def test_upgrade_under_it(images, program, tmp_path):
    """dpkg's rename over the file of a running program works outside, and the program's next child is the new one."""
    app = program("pie")
    images.add(app)
    process = helpers.start([*SHARED, helpers.HUGELD, "run", "-l", "image", "-o", f"store={images.folder}", "--", app, "s"],
                            stdout=subprocess.PIPE)
    try:
        while not process.stdout.readline().startswith("AT_SECURE"):
            assert process.poll() is None
        enter = ["nsenter", "-m", "-t", str(process.pid), "stat", "-c", "%d:%i", app]
        inside = helpers.run(enter).stdout
        assert inside != helpers.run(["stat", "-c", "%d:%i", app]).stdout
        shutil.copy(app, tmp_path / "new")
        os.replace(tmp_path / "new", app)
        assert helpers.run(enter).stdout == helpers.run(["stat", "-c", "%d:%i", app]).stdout
    finally:
        helpers.end_process(process)


# --- --share ---


def test_share(own_store, program, run, later):
    """Makes a missing image, once, and runs from it at once."""
    app = program("pie")
    first = run([app], "--share", prefix=later)
    assert re.fullmatch(rf"hugeld: {app}: executed from its image {own_store}/.*/where-pie{APART}", first.stderr), first.stderr
    [image] = own_store.glob("*/where-pie")
    made = image.stat()
    assert run([app], "--share", prefix=later).stderr == first.stderr
    assert (image.stat().st_ino, image.stat().st_mtime_ns) == (made.st_ino, made.st_mtime_ns)


def test_share_libraries(own_store, builder, run, later):
    """Images are made of the libraries that the patterns name, and no others."""
    app, _ = builder.with_library("dso-aligned")
    result = run([app], "--share", "-p", "libbig*", loader=(), prefix=later)
    assert result.stdout == helpers.run([app]).stdout
    assert "libbig.so.1: text" in result.stderr and "pages image" in result.stderr, result.stderr
    assert not list(own_store.glob(f"*/{app.name}"))


@pytest.mark.parametrize("variant, arguments, made", [
    ("pie", (), True), ("pie", ("-l", "preload"), False), ("nopie", ("-l", "preload"), True), ("nopie", ("-o", "backend=thp"), False)], ids=str)
def test_share_of_what_is_used(own_store, program, run, later, variant, arguments, made):
    """libhugeld.so cannot use the image of a position-independent program, and another backend no image at all."""
    app = program(variant)
    result = run([app], "--share", *arguments, loader=(), prefix=later)
    assert result.stdout == helpers.run([app]).stdout
    assert bool(list(own_store.glob(f"*/{app.name}"))) == made, result.stderr


def test_share_of_what_just_changed(own_store, program, run):
    """A program that just changed may run only once, so no image is made; and nothing waits for the clock."""
    app = program("pie")
    result = run([app], "--share", loader=())
    assert f"hugeld: {app}: no image: it changed in the last 5 minutes" in result.stderr and result.returncode == 3
    assert "no image" not in run([app], "--share", loader=(), options="").stderr
    assert not list(own_store.glob(f"*/{app.name}"))


def test_share_while_the_store_is_locked(own_store, program, run, later):
    """It goes on without an image: `make -j64` does not queue up behind a copy."""
    app = program("pie")
    with open(own_store / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        result = run([app], "--share", loader=(), prefix=later)
    assert "no image this time: another process is changing the store" in result.stderr and result.returncode == 3
    assert not list(own_store.glob(f"*/{app.name}"))


def test_share_what_another_store_has(images, program, run, later):
    """...that the program's process looks into, too."""
    app = program("nopie")
    images.add(app)
    other = images.folder / "empty"
    other.mkdir(mode=0o700)
    system = "mount -t tmpfs -o mode=755 none /run && mkdir /run/hugeld && mount --rbind $0 /run/hugeld && exec \"$@\""
    prefix = ["unshare", "-m", "sh", "-c", system, images.folder]
    result = run([app], "--share", options=f"store={other},verbose=2", loader=(), prefix=[*prefix, *later])
    assert "at the exec stop from /run/hugeld/" in result.stderr and os.listdir(other) == [], result.stderr


def test_share_under_a_memory_limit(own_store, program, run, later, cgroup):
    """The image's pages would count against the program's own limit, and kill it."""
    app = program("pie")
    limit = cgroup("memory", v2=("memory.max", 512 << 20), v1=("memory.limit_in_bytes", 512 << 20))
    result = run([app], "--share", loader=(), prefix=[*limit, *later])
    assert "no image: private copies count against its memory limit" in result.stderr and result.returncode == 3
    assert not list(own_store.glob(f"*/{app.name}"))


@contextlib.contextmanager
def full(folder):
    """Fills the store's file system but for 4 MiB."""
    limit = os.statvfs(folder)
    filler = folder / "filler"
    with open(filler, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, (limit.f_bavail * limit.f_frsize) - (4 << 20))
    try:
        yield
    finally:
        filler.unlink()


def test_share_makes_no_room_in_vain(own_store, program, run, later, images):
    """Removing all images that may go would not make enough room: none goes."""
    small = program("static")
    run([small], "--share", loader=(), prefix=later)
    [made] = own_store.glob(f"*/{small.name}")
    with full(own_store):
        run([find_cc1plus(), "--version"], "--share", loader=(), prefix=later)
    assert made.exists() and not list(own_store.glob("*/cc1plus"))


def test_share_makes_room(own_store, program, run, later, images):
    """Images made for programs that ran go first, the least recently used; those added by hand stay."""
    first, second, third = (program(variant) for variant in ("pie", "static", "nopie"))
    assert make_images(own_store, first).returncode == 0
    run([second], "--share", loader=(), prefix=later)
    [made] = own_store.glob(f"*/{second.name}")
    with full(own_store):
        run([third], "--share", loader=(), prefix=later)
    assert not made.exists() and list(own_store.glob(f"*/{first.name}")) and list(own_store.glob(f"*/{third.name}"))


def test_share_cannot(images, program, run):
    """One line says why, and it runs all the same: the system's store takes nothing that others can write."""
    app = program("static")
    app.chmod(0o777)
    result = run([app], "--share", options="")
    assert (result.returncode, result.stdout) == (3, helpers.run([app]).stdout)
    [why, plain] = result.stderr.splitlines()
    assert why.startswith(f"hugeld: {app}: no image: ") and "not from an image" in plain


def test_share_nothing(run):
    """A program that is too small gains nothing, and no line says so."""
    result = run(["/bin/true"], "--share", options="", loader=())
    assert (result.returncode, result.stderr) == (0, "")


def test_share_under_a_file_limit(own_store, program, run, later):
    """The image is larger than the program's files may be: it runs without."""
    app = program("pie")
    result = run([app], "--share", loader=(), prefix=["prlimit", "--fsize=1048576", *later])
    assert (result.returncode, result.stdout) == (3, helpers.run([app]).stdout), result
    assert f"hugeld: {app}: no image: " in result.stderr and not list(own_store.glob(f"*/{app.name}"))


def test_share_of_a_launcher(own_store, program, run, later):
    """The program that env starts does not begin on its image, so none is made."""
    app = program("pie")
    result = run(["/usr/bin/env", app], "--share", loader=(), prefix=later)
    assert (result.returncode, result.stdout) == (3, helpers.run([app]).stdout)
    assert f"hugeld: /usr/bin/env: no image: it only starts {app}, " in result.stderr and not list(own_store.glob(f"*/{app.name}"))


@pytest.mark.parametrize("shell", ["/bin/sh", "/usr/bin/env sh"])
def test_share_for_a_script(run, tmp_path, shell):
    """For a shell script that names no program at its end no program is known, and the shell's image would be of no use to it."""
    script = tmp_path / "starts"
    script.write_text(f"#!{shell}\nfor program in true; do $program; done\n")
    script.chmod(0o755)
    result = run([script], "--share", options="verbose=1", loader=())
    assert result.returncode == 0
    assert [line for line in result.stderr.splitlines() if "no image" in line] == [
        f"hugeld: {script}: no image: it is not known which program this script starts; run that one"]


@pytest.mark.parametrize("words", [[], ["--copy"], ["--share"]], ids=" ".join)
def test_lines_that_are_not_read(own_store, program, words):
    """Standard error is a pipe that nothing reads any more; the program itself writes nothing there."""
    app, ends = program("nopie"), os.pipe()
    os.close(ends[0])
    try:
        result = subprocess.run([helpers.HUGELD, "run", *words, "-o", f"store={own_store},verbose=2", "--", app], stdout=subprocess.PIPE,
                                stderr=ends[1], env=helpers.environment(), text=True, timeout=60)
    finally:
        os.close(ends[1])
    assert (result.returncode, result.stdout) == (3, helpers.run([app]).stdout)


@pytest.mark.check_all
def test_no_room_for_variables(program):
    """The kernel takes no more variables than the program has: it runs without hugeld's."""
    app, tried = program("nopie"), 0
    limit = 512 << 10  # a limit of the stack, a quarter of which is for words and variables

    def run(size, *words):
        variables = {**helpers.environment(), **{f"A{i}": "x" * 1000 for i in range(size // 1024)}, "B": "x" * (size % 1024)}
        try:
            return subprocess.run(["prlimit", f"--stack={limit}", *words, app], env=variables, capture_output=True, text=True, timeout=60)
        except OSError:
            return None

    for size in range((limit >> 2) - 6000, limit >> 2, 40):
        hugeld = run(size, helpers.HUGELD, "run", "--copy", "--")
        if hugeld is None or "Argument list too long" in hugeld.stderr:
            continue  # hugeld itself could not be executed
        plain = run(size)
        tried += 1
        assert (hugeld.returncode, hugeld.stdout) == (plain.returncode, plain.stdout) == (3, plain.stdout), (size, hugeld)
    assert tried > 0
