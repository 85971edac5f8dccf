# SPDX-License-Identifier: LGPL-2.1-or-later
"""The commands' answers about images: each number against smaps, each reason against the changes to the store."""

import json
import os
import pathlib
import re

import pytest

import helpers
import stores
from helpers import HUGE, run
from smaps import read_smaps

KIB = 1024


class Store:
    """A store on a tmpfs with huge pages, in a mount namespace of its own, which INSIDE enters."""

    def __init__(self, path, holder):
        self.path = path
        self.inside = ["nsenter", "-t", holder.pid, "-m", "--"]
        self.apply = {"command": [*self.inside, helpers.HUGELD], "seen_from": f"/proc/{holder.pid}/root"}

    def call(self, *argv, **options):
        return run([*self.inside, *argv], **options)

    def done(self, *argv):
        result = self.call(*argv)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def hugeld(self, command, *arguments, env=None):
        return self.call(helpers.HUGELD, command, *arguments, env=env)

    def json(self, command, *arguments, code=0, env=None):
        result = self.hugeld(command, "--json", *arguments, env=env)
        assert result.returncode == code, result.stderr
        return json.loads(result.stdout)

    def add(self, path):
        """The image of PATH, which is made if there is none."""
        made = stores.make_images(self.path, path, any_disk=False, **self.apply)
        assert made.returncode == 0, made
        [image] = [os.path.normpath(i["image"]) for i in stores.list_images(self.path, **self.apply) if i["path"] == os.path.realpath(path)]
        return image

    def options(self, text=""):
        return ",".join(filter(None, [f"backend=image,store={self.path}", text]))

    def inspect(self, path, *arguments, options=""):
        [file] = self.json("inspect", "-o", self.options(options), *arguments, path)["files"]
        return file


@pytest.fixture
def store(tmp_path, root):
    path = tmp_path / "store"
    path.mkdir()
    script = f"mount -t tmpfs -o huge=always,mode=700,size=64m tmpfs {path} && echo ready && exec sleep 600"
    holder = helpers.start(["unshare", "-m", "sh", "-c", script])
    try:
        if holder.stdout.readline() != "ready\n":
            pytest.skip(f"no mount namespace: {holder.stderr.read()}")
        yield Store(path, holder)
    finally:
        helpers.end_process(holder)


def image_bytes_of(mappings, name):
    """The bytes on huge pages in the mappings of NAME, by smaps."""
    return sum(m.kb["ShmemPmdMapped"] * KIB + m.hugetlb_bytes for m in mappings if m.name == str(name))


def touch(process, name):
    """Has PROCESS map all pages of its mappings of NAME, which would come as they are used; the bytes by smaps then."""
    with open(f"/proc/{process.pid}/mem", "rb", buffering=0) as memory:
        for mapping in read_smaps(process.pid):
            for at in range(mapping.start, mapping.end if mapping.name == str(name) else 0, helpers.PAGE):
                memory.seek(at)
                memory.read(1)
    return read_smaps(process.pid)


def status_of(process):
    [told] = helpers.hugeld_json("status", process.pid)["processes"]
    return told


def check_image(told, mappings, path, image, name=None):
    """The object at PATH in the answer TOLD of status agrees with smaps of IMAGE, which is called NAME there."""
    [found] = [o for o in told["objects"] if o["path"] == str(path)]
    expected = image_bytes_of(mappings, name or image)
    assert expected > 0 and found["image_bytes"] == expected and found["image"] == str(name or image)
    assert found["backends"]["image_pages"] == expected // HUGE == found["pages"]
    assert {r["backend"] for r in found["ranges"]} == {"image"}
    assert found["text_huge_bytes"] > 0
    assert not any(told["own"].values())
    assert not any(str(image).startswith(o["path"]) for o in told["objects"])


# --- status, perf-map ---


@pytest.fixture
def app_of_image(builder, store, library, pause_library):
    """A program that is mapped from its image, at the end of its constructors, and the image."""
    app = builder.executable("nopie")
    image = store.add(app)
    env = helpers.preload(library, pause_library, options=store.options())
    with helpers.paused([*store.inside, app], env, app.name) as process:
        touch(process, image)
        yield process, app, image


def test_status(app_of_image):
    process, app, image = app_of_image
    told, mappings = status_of(process), read_smaps(process.pid)
    check_image(told, mappings, app, image)
    text = helpers.hugeld("status", process.pid).stdout
    pages = told["objects"][0]["backends"]["image_pages"]
    assert f"{pages * HUGE // KIB} KiB of it belong to an image, of which all processes share one copy" in text
    rows = re.findall(r"^    0x\S+ r\S+ +\w+ +image +(\d+) pages?", text, re.M)
    assert sum(map(int, rows)) == pages, text
    [row] = [line for line in helpers.hugeld("status", "--all").stdout.splitlines() if line.split()[0] == str(process.pid)]
    assert row.split()[4:8] == ["0", "0", str(pages), "0"]


def test_status_of_library_that_is_an_image(builder, store, pause_library):
    """A library mapped by the patched linker: nothing of the object is mapped from its own file."""
    app, [big] = builder.with_library("dso-aligned")
    image = pathlib.Path(store.add(big))
    argv = ["env", f"LD_PRELOAD={image}:{pause_library}", app]
    with helpers.paused([*store.inside, *argv], helpers.environment(), app.name) as process:
        mappings = touch(process, image)
        check_image(status_of(process), mappings, big, image)
        [file] = helpers.hugeld_json("inspect", "--pid", process.pid, big)["files"]
    assert file["image"]["used"] is True and file["plan"]["pages"] == file["image"]["pages"] > 0


@pytest.mark.parametrize("variant", ["nopie", "pie"])
@pytest.mark.parametrize("how", ["mounted", "by-name"])
def test_status_of_executed_image(builder, store, pause_library, variant, how):
    """No hugeld is in the process: the image is mounted over the original, and called by its name."""
    app = builder.executable(variant)
    image = store.add(app)
    env = helpers.environment(LD_PRELOAD=pause_library)
    argv = [image]
    if how == "mounted":
        argv = ["unshare", "-m", "sh", "-c", f"mount --bind {image} {app} && exec {app}"]
    with helpers.paused([*store.inside, *argv], env, app.name) as process:
        mappings = touch(process, app if how == "mounted" else image)
        told = status_of(process)
        [file] = helpers.hugeld_json("inspect", "--pid", process.pid)["files"]
        said = helpers.hugeld("perf-map", process.pid)
    check_image(told, mappings, app, image, app if how == "mounted" else None)
    assert told["objects"][0]["is_main"] and file["image"]["used"] is True
    assert (said.returncode, said.stdout) == (1, "") and "without a map" in said.stderr


def test_perf_map(app_of_image):
    process, _, _ = app_of_image
    result = helpers.hugeld("perf-map", process.pid)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (f"hugeld: {process.pid}: nothing is written: none of its text was moved, or it is mapped from "
                             "images: perf names it without a map\n")
    assert not os.path.exists(f"/tmp/perf-{process.pid}.map")


# --- inspect ---


def test_inspect(builder, store):
    app = builder.executable("nopie")
    before = store.inspect(app)["image"]
    assert (before["path"], before["bytes"], before["used"], before["reason"]) == (None, None, False, "no-image")
    assert before["needed_pages"] == before["pages"] + 2 and before["remedy"].endswith(f"hugeld enable {app}")
    image = store.add(app)
    after = store.inspect(app, options="segments=text")
    assert after["image"]["path"] == image and after["image"]["used"] is True
    assert after["image"]["bytes"] == int(store.done("stat", "-c", "%s", image))
    assert after["image"]["reason"] is after["image"]["remedy"] is None
    # From an image read-only data and pages with little text move as well.
    assert {s["kind"] for s in after["plan"]["spans"]} == {"text", "rodata"}
    assert after["plan"]["pages"] == after["image"]["pages"] == 6
    text = store.hugeld("inspect", "-o", store.options(), app).stdout
    assert f"mapped from {image}" in text and re.search(r"r-x text +5 pages", text), text


# --- doctor ---


def examine(store):
    """The lines about this store; there may be one of the machine's besides."""
    result = store.hugeld("doctor", "--json", env=helpers.environment(LD_HUGEPAGES_OPTIONS=f"store={store.path}"))
    told = json.loads(result.stdout)
    [found] = [f for f in told["findings"] if f["name"] == "store" and str(store.path) in f["sentence"]]
    return told["stores"][0], found


def test_doctor(builder, store):
    app = builder.executable("nopie")
    empty, said = examine(store)
    assert (empty["exists"], empty["safe"], empty["executable"], empty["images"]) == (True, True, True, 0)
    assert (empty["type"], empty["huge"], empty["bytes"]) == ("tmpfs", "always", 64 << 20)
    assert said["state"] == "ok" and said["remedy"] is None
    store.add(app)
    full, _ = examine(store)
    assert (full["images"], full["stale_images"]) == (1, 0)
    assert empty["free_bytes"] - full["free_bytes"] >= 6 * HUGE
    assert "1 image, 0 stale; tmpfs, huge=always" in store.hugeld(
        "doctor", env=helpers.environment(LD_HUGEPAGES_OPTIONS=f"store={store.path}")).stdout
