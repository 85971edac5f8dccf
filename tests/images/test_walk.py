# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs of many kinds are walked through inspect, run, status and bench: what one says about a program that is started as it is,
the others say.  Each row is a program and its reason in elf/reason.def."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import pytest

import helpers
from helpers import hugeld
from hugepages import file_pages_stay
from pagecache import on_small_pages
from stores import make_images

FILL = '__asm__(".text\\n.fill {} << 10, 1, 0x90\\n");\n#include <unistd.h>\nint main(void) {{ char c; return read(0, &c, 1) != 0; }}\n'


def build(place, name, kib=6144, *flags):
    source, app = place / f"{name}.c", place / name
    source.write_text(FILL.format(kib))
    subprocess.run(["gcc", "-w", "-o", app, source, *flags], check=True)
    return app


def written(place, name, text, mode=0o755):
    (place / name).write_bytes(text)
    (place / name).chmod(mode)
    return place / name


def changed(place, name, patch):
    """A program whose ELF header is patched: {offset: bytes}."""
    app = build(place, name)
    data = bytearray(app.read_bytes())
    for at, new in patch.items():
        data[at:at + len(new)] = new
    app.write_bytes(data)
    return app


def in_parts(place):
    """Its text lies in two huge pages, in one of which is other data, wherever it is loaded."""
    source, app = place / "parts.c", place / "parts"
    source.write_text('__asm__(".section .rodata; .skip 2 << 20, 1; .text; .skip 3 << 20, 0x90");\n' + FILL.partition("\n")[2].replace("{{", "{").replace("}}", "}"))
    subprocess.run(["gcc", "-w", "-pie", "-fPIE", "-o", app, source], check=True)
    return app


def stripped(place):
    app = build(place, "stripped")
    subprocess.run(["strip", app], check=True)
    return app


def privileged(place, mode):
    app = build(place, f"privileged-{mode:o}")
    os.chown(app, 65534, 65534)
    app.chmod(mode)
    return app


def by_linker(place, *flags):
    return ["/lib64/ld-linux-x86-64.so.2", build(place, "linked", 6144, *flags)]


def with_mode(place, mode, owner=0):
    app = build(place, "other")
    os.chown(app, owner, owner)
    app.chmod(mode)
    return app


def on_mount(place, *words):
    """A program on a file system that is mounted with WORDS."""
    folder, parts = place / "mounted", place / "parts"
    for one in (folder, parts, parts / "lower", parts / "upper", parts / "work"):
        one.mkdir()
    app = build(place if "tmpfs" in words else parts / "lower", "mounted-program")
    layers = f"lowerdir={parts}/lower,upperdir={parts}/upper,workdir={parts}/work"
    result = helpers.run(["mount", *(layers if word == "LAYERS" else word for word in words), "none", folder])
    if result.returncode != 0:
        pytest.skip(f"no such mount here: {result.stderr}")
    if app.parent == place:
        shutil.copy(app, folder)
    return folder / app.name


def with_musl(place):
    if not shutil.which("musl-gcc"):
        pytest.skip("musl-gcc is not installed (musl-tools)")
    source, app = place / "musl.c", place / "musl"
    source.write_text(FILL.format(6144))
    subprocess.run(["musl-gcc", "-w", "-o", app, source], check=True)
    return app


# How the program is made in a folder (a path, or the words with which it is started), and the reason that all name.
WALK = {
    "small": (lambda at: build(at, "small", 4), "too-small"),
    "small, static": (lambda at: build(at, "small-static", 4, "-static"), "static"),
    "small, no PIE": (lambda at: build(at, "small-nopie", 4, "-no-pie"), "too-small"),
    "too little text": (lambda at: build(at, "little", 40, "-no-pie", "-Wl,-z,max-page-size=0x200000"), "sparse-text"),
    "PIE": (lambda at: build(at, "pie"), "no-image"),
    "no PIE": (lambda at: build(at, "nopie", 6144, "-no-pie"), "no-image"),
    "no whole page of text": (in_parts, "no-image"),
    "static": (lambda at: build(at, "static", 6144, "-static"), "no-image"),
    "static PIE": (lambda at: build(at, "static-pie", 6144, "-static-pie"), "no-image"),
    "linked at 2 MiB": (lambda at: build(at, "aligned", 6144, "-Wl,-z,max-page-size=0x200000"), "no-image"),
    "no PIE, with a brk heap": (lambda at: build(at, "brk", 6144, "-no-pie", "-Wl,-z,norelro"), "no-image"),
    "stripped": (stripped, "no-image"),
    "without section headers": (lambda at: changed(at, "sectionless", {0x28: bytes(8), 0x3c: bytes(4)}), "no-copy"),
    "set-user-ID": (lambda at: privileged(at, 0o4755), "privileged"),
    "set-group-ID": (lambda at: privileged(at, 0o2755), "privileged"),
    "for another machine": (lambda at: changed(at, "foreign", {0x12: b"\xb7\x00"}), "other-machine"),
    "32-bit": (lambda at: changed(at, "narrow", {0x04: b"\x01"}), "32-bit"),
    "AddressSanitizer, small": (lambda at: build(at, "sanitized", 4, "-fsanitize=address"), "sanitized"),
    "a shell script": (lambda at: written(at, "script", b"#!/bin/sh\nexec true\n"), "launcher"),
    "a script of a program": (lambda at: written(at, "own-script", b"#!%s\n" % os.fsencode(build(at, "interpreter"))), "no-image"),
    "env": (lambda at: ["/usr/bin/env", build(at, "of-env")], "no-image"),
    "env with options": (lambda at: ["/usr/bin/env", "-u", "X", "true"], "launcher"),
    "a launcher": (lambda at: ["/usr/bin/nice", build(at, "of-nice")], "too-small"),
    "the dynamic linker's path": (by_linker, "no-copy"),
    "the dynamic linker's path, no PIE": (lambda at: by_linker(at, "-no-pie"), "no-image"),
    "musl": (with_musl, "no-image"),
    "no x": (lambda at: with_mode(at, 0o644), "not-executable"),
    "another user's file": (lambda at: with_mode(at, 0o755, 65534), "no-image"),
    "on noexec": (lambda at: on_mount(at, "-t", "tmpfs", "-o", "noexec,mode=0755"), "not-executable"),
    "on overlay": (lambda at: on_mount(at, "-t", "overlay", "-o", "LAYERS"), "no-copy"),
    "text huge already": (lambda at: on_mount(at, "-t", "tmpfs", "-o", "huge=always,mode=0755"), "no-copy"),
    "the dynamic linker with an option": (lambda at: ["/lib64/ld-linux-x86-64.so.2", "--argv0", "x", build(at, "named")], "no-copy"),
    "the dynamic linker alone": (lambda at: ["/lib64/ld-linux-x86-64.so.2", "--help"], "launcher"),
    "no ELF file": (lambda at: written(at, "other", b"neither\n"), "launcher"),
    "an empty file": (lambda at: written(at, "empty", b""), "launcher"),
    "a folder that others may write": (lambda at: open_to_all(at), "no-copy"),
    "the same, static": (lambda at: open_to_all(at, "-static"), "image-ineligible"),
    "text in a library": (lambda at: with_library(at), "text-in-library"),
    "in place": (lambda at: build(at, "in-place", 6144, "-no-pie", "-Wl,-z,max-page-size=0x200000"), "in-place"),
    "an image": (lambda at: build(at, "imaged"), "not-started"),
    "the file changed after its image": (lambda at: build(at, "outdated"), "no-image"),
}
OPEN = {"a folder that others may write", "the same, static"}  # no matter to the store of the tests
IMAGED = {"an image", "the file changed after its image"}
# They end before their first instruction.
CANNOT_RUN = {"for another machine", "32-bit", "no ELF file", "an empty file", "no x", "on noexec"}
REFUSED = {"no x": "make it an executable file (chmod +x)", "on noexec": "mount its file system without noexec"}


def open_to_all(place, *flags):
    folder = place / "open"
    folder.mkdir()
    app = build(folder, "open", 6144, *flags)
    folder.chmod(0o777)
    return app


def with_library(place):
    (place / "lib.c").write_text('__asm__(".text; .fill 6144 << 10, 1, 0x90"); int f(void) { return 0; }\n')
    (place / "main.c").write_text("#include <unistd.h>\nint f(void); int main(void) { char c; return f() + read(0, &c, 1) != 0; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", place / "liblarge.so", place / "lib.c"], check=True)
    subprocess.run(["gcc", "-o", place / "main", place / "main.c", place / "liblarge.so", f"-Wl,-rpath,{place}"], check=True)
    return place / "main"


@pytest.fixture
def place(root, request):
    """A folder that no other user can change, nor replace what root is to put in place."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="walk-", dir="/var/lib" if "[in place]" in request.node.name else "/var/tmp"))
    folder.chmod(0o755)
    with file_pages_stay():
        yield folder
    if (folder / "mounted").is_mount():
        subprocess.run(["umount", "-l", folder / "mounted"], check=True)
    shutil.rmtree(folder)


def inspected(file, options):
    """The reason that inspect names for FILE; None: it is no ELF file that it plans."""
    if file.exists() and file.read_bytes()[:5] == b"\x7fELF\2":
        [answer] = json.loads(hugeld("inspect", "--json", "-o", options, file).stdout)["files"]
        return answer["verdict"]["reason"]
    return None


def put_in_place(file, store):
    """From small pages, whatever the linker left in the page cache and however busy the machine's disks are."""
    on_small_pages(file)
    os.utime(file, (1, 1))
    calm = 'for what in io memory; do mount --bind /dev/null /proc/pressure/$what; done; exec "$@"'
    result = make_images(store, file, way="in-place", command=["unshare", "-m", "sh", "-c", calm, "sh", helpers.HUGELD])
    if "keeps files on small pages" in result.stderr:
        pytest.skip("this file system and kernel have no large folios")
    assert result.returncode == 0, result


def said_by_status(file, options):
    process = helpers.start([file], env=helpers.environment(LD_HUGEPAGES_OPTIONS=options), stdin=subprocess.PIPE)
    try:
        helpers.wait_until(lambda: os.readlink(f"/proc/{process.pid}/exe") == str(file))
        return hugeld("status", process.pid).stdout
    finally:
        helpers.end_process(process)


@pytest.mark.parametrize("row", WALK)
def test_walk(place, images, own_store, row):
    make, reason = WALK[row]
    made = make(place)
    words = made if isinstance(made, list) else [made]
    file = pathlib.Path(words[-1])
    options = "" if row in OPEN else f"store={own_store}"
    if row in IMAGED:
        images.add(file)
    if row == "in place":
        put_in_place(file, own_store)
    if row.startswith("the file changed"):
        file.write_bytes(file.read_bytes() + b"\0")

    of_file = inspected(file, options)
    # Where the kernel and the file system can have it in place, that comes before an image.
    reason = of_file if reason in ("no-image", "no-copy") and of_file == "not-in-place" else reason
    expected = {"text-in-library": "too-small"}.get(reason, None if reason in ("launcher", "32-bit") else reason)
    if len(words) == 1 and "script" not in row:
        assert of_file == expected
    sentence = helpers.reasons()[reason]
    if row in REFUSED:
        for words in (["run", "-o", options, "--", file], ["bench", "-o", options, "--", file]):
            result = hugeld(*words)
            assert (result.returncode, result.stderr) == (126, f"hugeld: {file}: Permission denied; {REFUSED[row]}\n"), result
    elif row != "an image":  # with which run starts it
        run = helpers.run([helpers.HUGELD, "run", "-o", f"verbose=1,{options}", "--", *words], stdin=subprocess.DEVNULL)
        assert f"hugeld: {words[0]}: started as it is: {sentence}" in run.stderr, run
        bench = hugeld("bench", "-i", "-n", 6, "-o", options, "--", *words, env=helpers.environment(ASAN_OPTIONS="detect_leaks=0"))
        if reason == "no-image" and row not in ("env", "the dynamic linker's path, no PIE"):  # it makes one for the measurement
            assert ": no image; one was made for this measurement alone" in bench.stdout and bench.stderr == "", bench
        else:
            assert bench.returncode != 0, bench
            assert f"nothing moved: {words[0]}: started as it is: {sentence}" in bench.stderr or row == "for another machine", bench
    if len(words) == 1 and "script" not in row and row not in CANNOT_RUN:
        status = said_by_status(file, options)
        if row == "in place":  # the process may not have touched its text yet
            assert "now: on huge pages in the page cache" in status or helpers.reasons()["outside-place"] in status, status
            return
        assert f"now: on small pages: {helpers.reasons()[expected]}" in status, status


def test_machine_without_huge_pages(place, pool, thp, tmp_path):
    """No store, no THP and an empty pool: doctor names what inspect, run and status give as the reason."""
    pool(0)
    never, setting = tmp_path / "enabled", "/sys/kernel/mm/transparent_hugepage/enabled"
    never.write_text("always madvise [never]\n")
    there = ["unshare", "-m", "sh", "-c", f'mount --bind {never} {setting} && exec "$@"', "sh"]
    file = open_to_all(place)

    def asked(*words):
        return helpers.run([*there, helpers.HUGELD, *words])

    doctor = asked("doctor", "--json")
    machine = json.loads(doctor.stdout)
    assert doctor.returncode == 1 and machine["usable"] == {"hugetlb": False, "thp": False}, machine
    assert [store["exists"] for store in machine["stores"]] == [False]
    assert machine["thp_reason"] == "thp-never"
    assert {one["name"] for one in machine["findings"] if one["state"] == "warn"} >= {"pool", "thp"}
    sentence = helpers.reasons()["pool-short"]  # as libhugeld.so names it
    [answer] = json.loads(asked("inspect", "--json", file).stdout)["files"]
    assert (answer["verdict"]["way"], answer["verdict"]["reason"]) == ("nothing", "pool-short"), answer["verdict"]
    run = helpers.run([*there, helpers.HUGELD, "run", "-o", "verbose=1", "--", file], stdin=subprocess.DEVNULL)
    assert sentence in run.stderr, run
    process = helpers.start([file], stdin=subprocess.PIPE)
    try:
        helpers.wait_until(lambda: os.readlink(f"/proc/{process.pid}/exe") == str(file))
        status = asked("status", process.pid)
        assert status.returncode == 1 and f"now: on small pages: {sentence}" in status.stdout, status
    finally:
        helpers.end_process(process)


def test_remedies_name_commands_that_exist():
    """Each 'hugeld COMMAND' in reason.def is one."""
    commands = re.findall(r"^  (\w[\w-]*) ", hugeld("--help").stdout, re.M)
    named = re.findall(r"(?<!run )(?<!ask )(?<!preload )hugeld ([a-z-]+)", " ".join(re.findall(r'"[^"]*"\)', helpers.reason_rows())))
    assert {"run", "enable", "apply"} <= set(named) <= set(commands), set(named) - set(commands)
