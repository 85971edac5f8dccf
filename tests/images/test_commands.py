# SPDX-License-Identifier: LGPL-2.1-or-later
"""The commands' answers about images: each number against smaps, each reason against the changes to the store."""

import json
import os
import pathlib
import re
import shutil

import pytest

import helpers
import stores
from helpers import HUGE, run
from hugepages import compact_memory
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
    [row] = re.findall(r"^    0x000000400000 (\S+)$", text, re.M)
    assert row.count("I") == pages or "?" in row, text  # since Linux 6.7 the kernel says which of them
    [row] = [line for line in helpers.hugeld("status", "--all").stdout.splitlines() if line.split()[0] == str(process.pid)]
    assert row.split()[4:8] == ["0", "0", str(pages), "0"]


def test_status_of_what_does_not_use_its_image(builder, store, pause_library):
    """The program was started before its image was made, or without hugeld."""
    app = builder.executable("nopie")
    image = store.add(app)
    env = helpers.environment(LD_PRELOAD=pause_library, LD_HUGEPAGES_OPTIONS=store.options())
    with helpers.paused([*store.inside, app], env, app.name) as process:
        before = store.hugeld("status", process.pid).stdout
        store.done("rm", "-r", pathlib.Path(image).parent)
        after = store.hugeld("status", process.pid).stdout
    assert "    now: on small pages: it was not started on its image, which is there; " in before, before
    assert "    now: on small pages: there is no image of it, " in after, after


def test_status_tells_untouched_text_from_small(builder, store, library, pause_library):
    """An image's pages come as they are touched: of a program that has not begun, none has yet."""
    app = builder.executable("nopie")
    env = helpers.preload(library, pause_library, options=store.options())
    for _ in range(5):
        image = store.add(app)
        with helpers.paused([*store.inside, app], env, app.name) as process:
            with open(f"/proc/{process.pid}/mem", "rb", buffering=0) as memory:
                memory.seek(0x600000)
                memory.read(1)
            told, text = status_of(process), helpers.hugeld("status", process.pid).stdout
            mappings = [m for m in read_smaps(process.pid) if m.name == str(image)]
        huge = sum(m.kb["ShmemPmdMapped"] * KIB + m.hugetlb_bytes for m in mappings)
        if sum(m.kb["Rss"] for m in mappings) * KIB <= huge:
            break
        store.done("rm", "-r", pathlib.Path(image).parent)
        compact_memory()
    else:
        pytest.skip("the kernel mapped small pages of the image")
    [main] = [o for o in told["objects"] if o["is_main"]]
    [row] = re.findall(r"^    0x000000400000 (\S+)$", text, re.M)
    if "?" not in row:  # since Linux 6.7
        assert row[1] == "I" and row[:6].count("I") == huge // HUGE, text
        assert row.count("-") == row[:5].count("-") == 5 - huge // HUGE, text
    assert 0 <= huge - main["text_huge_bytes"] <= helpers.PAGE and huge < main["text_bytes"]  # the ELF header is no text
    assert 0 < main["text_untouched_bytes"] <= sum(m.end - m.start for m in mappings) - huge
    assert f"{-(-main['text_untouched_bytes'] // KIB)} KiB of the text are not touched yet" in text


def test_status_of_a_removed_image(app_of_image, store):
    """It stays mapped, and its path no longer leads to it."""
    process, app, image = app_of_image
    store.done("rm", "-r", pathlib.Path(image).parent)
    told, mappings = status_of(process), read_smaps(process.pid)
    check_image(told, mappings, app, image, f"{image} (deleted)")


def test_status_of_library(builder, store, library, pause_library):
    app, [big] = builder.with_library("dso-aligned")
    image = store.add(big)
    env = helpers.preload(library, pause_library, options=store.options(), patterns="libbig*")
    with helpers.paused([*store.inside, app], env, app.name) as process:
        check_image(status_of(process), read_smaps(process.pid), big, image)


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


def test_folder_that_is_called_almost_like_a_key(builder, store, pause_library):
    app = builder.executable("nopie")
    image = pathlib.Path(store.add(app))
    other = store.path / (image.parent.name + "x") / image.name
    store.done("cp", "-r", image.parent, other.parent)
    with helpers.paused([*store.inside, other], helpers.environment(LD_PRELOAD=pause_library), app.name) as process:
        touch(process, other)
        [main] = [o for o in status_of(process)["objects"] if o["is_main"]]
    assert main["path"] == str(other) and main["image"] is None and main["backends"]["image_pages"] == 0
    assert main["backends"]["file_pages"] > 0


def test_perf_map(app_of_image):
    process, _, _ = app_of_image
    result = helpers.hugeld("perf-map", process.pid)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (f"hugeld: {process.pid}: nothing is written: none of its text was moved, or it is mapped from "
                             "images: perf names it without a map\n")
    assert not os.path.exists(f"/tmp/perf-{process.pid}.map")


def test_report_lines(builder, store, library):
    app = builder.executable("nopie")
    store.add(app)
    env = helpers.preload(library, options=store.options("verbose=2"))
    line = "hugeld: app-nopie: text 5 pages image, rodata 1 page image"
    assert line in store.call(app, env=env).stderr.splitlines()


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
    assert f"mapped from {image}" in text and "I  5 pages: text, image" in text


def test_inspect_without_use_for_it(builder, store):
    """The image has no use: backend= takes none; too little text; another machine's addresses."""
    app = builder.executable("nopie")
    image = store.add(app)
    told = store.inspect(app, options="backend=thp")
    assert told["image"]["path"] == image and told["image"]["used"] is False and told["image"]["reason"] is None
    assert told["image"]["remedy"] == "set backend=image"
    assert "is not used with backend=thp" in store.hugeld("inspect", "-o", store.options("backend=thp"), app).stdout
    tiny = builder.tiny()
    told = store.inspect(tiny)["image"]
    assert (told["reason"], told["remedy"]) == ("too-small", None)
    assert "image" not in store.hugeld("inspect", "-o", store.options(), tiny).stdout


def test_inspect_pie(builder, store, library, pause_library):
    app = builder.executable("pie")
    store.add(app)
    told = store.inspect(app)["image"]
    assert told["used"] is False and told["reason"] == "image-place" and told["remedy"] == "start it with hugeld run"
    env = helpers.preload(library, pause_library, options="data=off", patterns="!*")
    with helpers.paused([*store.inside, app], env, app.name) as process:
        told = store.inspect(app, "--pid", process.pid)
    at = int(told["plan"]["load_bias"], 16)
    assert told["image"]["used"] is (at % HUGE == 0)


@pytest.mark.parametrize("variant", ["dso", "dso-aligned"])
def test_inspect_library(builder, store, variant):
    """A library that is linked at 2 MiB always lies right; of another one this is known if the kernel has a rule."""
    _, [big] = builder.with_library(variant)
    store.add(big)
    told = store.inspect(big)
    by_address = {"kernel": int(told["plan"]["load_bias"], 16) % HUGE == 0, "example": None}
    assert told["image"]["used"] is (True if variant == "dso-aligned" else by_address[told["plan"]["load_bias_of"]])


def spoil(store, app, image, how):
    if how == "touched":
        os.utime(app)
    elif how == "replaced":
        shutil.copy(app, f"{app}.new")
        os.rename(f"{app}.new", app)
    elif how == "noexec":
        store.done("mount", "-o", "remount,noexec", store.path)
    elif how == "another's":
        store.done("chown", "12345", store.path)
    elif how == "other segments":
        store.done("sh", "-c", f"cp {helpers.HUGELD} {image}.new && chmod 555 {image}.new && mv {image}.new {image}")
    else:
        store.done("chmod", "g+w", store.path if how == "writable store" else image)


WRONG = [("touched", "no-image"), ("noexec", "store-noexec"), ("replaced", "no-image"), ("another's", "store-unsafe"),
         ("writable store", "store-unsafe"), ("writable image", "store-unsafe"), ("other segments", "image-mismatch")]


@pytest.mark.parametrize("how, reason", [pytest.param(*case, marks=[] if case in WRONG[:2] else pytest.mark.check_all, id=case[0])
                                         for case in WRONG])
def test_reasons(builder, store, tmp_path, library, how, reason):
    """inspect gives the reason why the program itself stays, and a remedy."""
    app = tmp_path / "app-nopie"
    shutil.copy(builder.executable("nopie"), app)
    spoil_root_owner = how == "another's"
    image = store.add(app)
    spoil(store, app, image, how)
    told = store.inspect(app)["image"]
    result = store.call(app, env=helpers.preload(library, options=store.options("verbose=1")))
    if spoil_root_owner:
        store.done("chown", "0", store.path)
    assert (told["used"], told["reason"]) == (False, reason) and told["remedy"]
    assert f"text stays: {told['sentence']}" in result.stderr


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


@pytest.mark.parametrize("how, key, remedy", [
    ("touched", "stale_images", "hugeld apply"),
    pytest.param("noexec", "executable", "remount,exec", marks=pytest.mark.check_all),
    pytest.param("writable store", "safe", "rm -r", marks=pytest.mark.check_all)])
def test_doctor_finds_what_is_wrong(builder, store, tmp_path, how, key, remedy):
    app = tmp_path / "app-nopie"
    shutil.copy(builder.executable("nopie"), app)
    image = store.add(app)
    before, _ = examine(store)
    spoil(store, app, image, how)
    after, said = examine(store)
    assert before[key] == (0 if key == "stale_images" else True) and after[key] == (1 if key == "stale_images" else False)
    assert said["state"] == "warn" and remedy in said["remedy"]


def test_doctor_without_a_store(store):
    told, said = examine(store), None
    store.done("umount", store.path)
    store.done("rmdir", store.path)
    told, said = examine(store)
    assert not told["exists"] and told["type"] is None and said["state"] == "ok" and said["remedy"] is None


# --- bench ---


def test_bench_of_an_image(builder, store):
    app = builder.executable("nopie")
    store.add(app)
    result = store.hugeld("bench", "--json", "-n", "6", "-o", store.options("segments=text"), "-i", "--", app)
    told = json.loads(result.stdout)
    assert told["own_images"] == []
    backends = {side: {r["backend"] for m in told["maps"][side] for o in m["objects"] for r in o["ranges"]} - {None}
                for side in ("plain", "huge")}
    assert "image" in backends["huge"] and "hugetlb" not in backends["huge"]
    assert "image" not in backends["plain"] and "on huge pages of images" in told["sentence"]
