# SPDX-License-Identifier: LGPL-2.1-or-later
"""Stores of images, made by hand."""

import contextlib
import json
import mmap
import os
import pathlib
import re
import tempfile

import pytest

from helpers import HUGE, HUGELD, at_end, hugeld, run

MADV_COLLAPSE = 25


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
    """A folder of images on a tmpfs with huge=always, made by hand: a process's use of images does not depend on `hugeld apply`."""

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


@contextlib.contextmanager
def mounted(folder):
    """A Store on a new tmpfs with huge=always at FOLDER."""
    if os.getuid() != 0:
        pytest.skip("needs root: mounts a tmpfs")
    folder.chmod(0o755)
    options = "huge=always,size=1g,mode=0755,nosuid,nodev"
    result = run(["mount", "-t", "tmpfs", "-o", options, "none", folder])
    if result.returncode != 0:
        pytest.skip(f"no tmpfs with huge=always here: {result.stderr}")
    with at_end('umount -l "$1"', folder):
        yield Store(folder)


def is_image(path):
    """Whether PATH is an image in a store."""
    return os.path.islink(os.path.join(os.path.dirname(path), ".origin"))


def quote_entry(path):
    """PATH as a word of a list of hugeld's."""
    return re.sub(r"([\\*?\[ ])", r"\\\1", str(path))


def origins(store, seen_from):
    return [os.readlink(link) for link in pathlib.Path(seen_from, str(store).lstrip("/")).glob("0x*/.origin")]


def make_images(store, *files, way=None, any_disk=True, command=(HUGELD,), seen_from="/", **options):
    """Has `hugeld apply` make the images of FILES in the folder STORE, and keep those that are there.  SEEN_FROM: the root of the
    mount namespace that COMMAND enters."""
    kept = {path: "" for path in origins(store, seen_from)}
    lines = kept | {os.path.realpath(file): f" way={way}" if way else "" for file in files}
    with tempfile.NamedTemporaryFile("w", suffix=".list", prefix="hugeld-") as listed:
        listed.write("".join(f"{quote_entry(path)}{said}\n" for path, said in lines.items()))
        listed.flush()
        return run([*command, "apply", "--json", f"--list={listed.name}", f"--store={store}", *(["--any-disk"] if any_disk else [])],
                   **options)


def list_images(store, command=(HUGELD,), seen_from="/"):
    """The files of which STORE has an image, or which are in place by it."""
    with tempfile.NamedTemporaryFile("w", suffix=".list", prefix="hugeld-") as listed:
        listed.writelines(f"{quote_entry(path)}\n" for path in origins(store, seen_from))
        listed.flush()
        result = run([*command, "list", "--json", f"--store={store}", f"--list={listed.name}"])
    return [file for found in json.loads(result.stdout)["stores"] for file in found["files"] if file["key"]]
