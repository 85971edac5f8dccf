# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs that carry their data in their own file. They find it by an offset that was recorded when they were built, at the end
of the file, in a section, in a segment or in memory; single-file.c stands for their makers' ways.  With hugeld they print the same
as without it, and an image is made only of a program that finds everything in it."""

import os
import pathlib
import shutil
import struct
import subprocess

import pytest

import helpers
from stores import make_images


SOURCE = pathlib.Path(__file__).resolve().parent / "single-file.c"
PAYLOAD = b"PAYLOAD!" + bytes(i * 7 % 251 for i in range(100_000))
NOTE = '.section .note.payload, "a", @note\n.long 8, {size}, 1\n.asciz "PAYLOAD"\n.incbin "{path}"\n.balign 4\n'
REFUSED = "other data (appended, or in a section)"


def append(app, payload=PAYLOAD, end=b""):
    """...and where it begins."""
    with open(app, "ab") as file:
        at = file.tell()
        file.write(payload + end)
    return at


def add_section(app):
    (app.parent / "payload").write_bytes(PAYLOAD)
    subprocess.run(["objcopy", "--add-section", f"payload={app.parent / 'payload'}", app], check=True)
    return app.read_bytes().index(PAYLOAD)


def record(app, at):
    data = app.read_bytes().replace(b"PLACE OF PAYLOAD" + struct.pack("<QQ", 1, 1),
                                    b"PLACE OF PAYLOAD" + struct.pack("<QQ", at, len(PAYLOAD)))
    app.write_bytes(data)


def as_squashfs(app):
    """Appends the data as the makers of AppImages do."""
    folder = app.parent / "tree"
    folder.mkdir()
    (folder / "payload").write_bytes(PAYLOAD)
    subprocess.run(["mksquashfs", folder, app.parent / "fs", "-quiet", "-no-progress"], check=True, stdout=subprocess.DEVNULL)
    append(app, (app.parent / "fs").read_bytes())


def without_sections(app):
    """Changes the program as UPX does, with the packed data at the end."""
    data = bytearray(app.read_bytes())
    data[0x28:0x30], data[0x3C:0x40] = bytes(8), bytes(4)
    app.write_bytes(data)
    record(app, append(app))


# How it finds its data, the makers' changes to the finished file, and whether it gets an image.
KINDS = {
    "deno": ("find_trailer", lambda app: append(app, end=b"TRAILER!" + struct.pack("<Q", len(PAYLOAD))), False),
    "appimage": ("find_end_of_elf", as_squashfs, False),
    "self-extracting": ("find_recorded", lambda app: record(app, append(app)), False),
    "upx": ("find_packed", without_sections, False),
    "godot": ("find_section", add_section, False),
    "bun": ("find_recorded", lambda app: record(app, add_section(app)), False),
    "segment": ("find_segment", lambda app: None, True),
    "sea": ("find_note", lambda app: None, True),
}


@pytest.fixture
def single(builder, tmp_path):
    """single(kind): such a program, for this test alone."""

    def make(kind):
        way, finish, _ = KINDS[kind]

        def link(folder):
            (folder / "payload").write_bytes(PAYLOAD)
            note = folder / "note.S"
            is_note = kind in ("segment", "sea")
            note.write_text(NOTE.format(size=len(PAYLOAD), path=folder / "payload") if is_note else "")
            return builder.compile(folder / f"single-{kind}", SOURCE, note, "-w", f"-DWAY={way}", *builder.object(), "-no-pie")

        app = tmp_path / f"single-{kind}"
        shutil.copy(builder.once(f"single-{kind}", link), app)
        finish(app)
        return app

    return make


def outcome(result):
    return result.returncode, result.stdout


def attach(argv):
    """The output of ARGV if it is attached to while it waits."""
    process = helpers.start([*argv, "wait"], stdin=subprocess.PIPE)
    try:
        assert process.stdout.readline() == "waits\n"
        attached = helpers.hugeld("attach", process.pid)
        stdout, _ = process.communicate("\n", timeout=60)
    finally:
        helpers.end_process(process)
    return attached, (process.returncode, stdout)


@pytest.mark.usefixtures("pool")  # a program without an image takes pages where some are free
@pytest.mark.parametrize("kind", KINDS)
def test_finds_what_it_carries(images, own_store, single, kind):
    app = single(kind)
    plain = outcome(helpers.run([app]))
    assert plain[0] == 5 and plain[1].count("\n") >= 3 and "no trailer" not in plain[1] and ": 0 bytes" not in plain[1]
    options = f"store={own_store},verbose=2"

    def run(*arguments):
        result = helpers.run([helpers.HUGELD, "run", "-o", options, *arguments, "--", app])
        assert outcome(result) == plain, (arguments, result)
        return result.stderr

    gets_image = KINDS[kind][2]
    assert "pages image" not in run()
    added = make_images(own_store, app)
    assert (REFUSED in added.stderr) == (not gets_image), added
    assert (" image, at the exec stop" in run()) == gets_image
    run("--copy", "--via=preload", "-o", "backend=thp")
    if os.uname().machine == "x86_64":
        attached, result = attach([app])
        assert attached.returncode == 0, attached.stderr
        assert result == plain, attached
