# SPDX-License-Identifier: LGPL-2.1-or-later
"""A guest's root file system: copies of the files that the tests need of this machine, with their libraries, as an
ext4 image.

Debian's cloud kernels have NVMe and ext4 built in, so there is no initramfs, and mke2fs fills the image without
mounting anything."""

import os
import pathlib
import re
import shutil
import struct
import subprocess

from archive import Unavailable, run

LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
# The number by which the kernel finds the root, since some kernels number disks as they find them.
DISK_SIGNATURE, PARTITION_AT = 0x6875_6765, 1 << 20
FOLDERS = ("dev", "proc", "sys", "run", "tmp", "root", "etc", "var", "mnt")


class Root:
    """The tree at FOLDER, which becomes a root file system."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        for name in FOLDERS:
            (self.folder / name).mkdir(parents=True)
        for name, target in LINKS.items():
            (self.folder / target).mkdir(parents=True)
            (self.folder / name).symlink_to(target)

    def inside(self, path):
        """The place of the guest's PATH in the tree. /bin and so on are links on the host too, or they are here."""
        path = pathlib.Path(path)
        first = path.parts[1]
        return self.folder / LINKS.get(first, first) / pathlib.Path(*path.parts[2:])

    def write(self, path, text, mode=0o644):
        file = self.inside(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def add(self, path, at=None, libraries=True):
        """A file of this machine, following links, and the libraries that the dynamic linker finds for it."""
        file = self.inside(at or path)
        if file.exists():
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, file)
        if libraries:
            self.add_libraries(path)

    def add_libraries(self, path):
        with open(path, "rb") as file:
            if file.read(4) != b"\x7fELF":
                return
        found = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
        for library in re.findall(r"^\s+(?:\S+ => )?(/\S+) \(", found, re.M):
            self.add(library, libraries=False)

    def add_command(self, *names):
        for name in names:
            path = shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")
            if path is None:
                raise Unavailable(f"{name} is not installed")
            self.add(path)

    def add_tree(self, path, at=None, leave=()):
        """A folder of this machine without the entries whose names match one of LEAVE."""
        shutil.copytree(path, self.inside(at or path), symlinks=True, dirs_exist_ok=True,
                        ignore=shutil.ignore_patterns(*leave))
        for library in pathlib.Path(path).rglob("*.so"):
            if self.inside(at or path).joinpath(library.relative_to(path)).exists():
                self.add_libraries(library)

    def make_image(self, image, free_mib=16):
        """Writes the tree to IMAGE, a disk with one partition of ext4 and room for more, under another name until it is complete."""
        kib = sum((f.lstat().st_size + 4095) // 4096 * 4 + 1 for f in self.folder.rglob("*"))
        new = image.with_suffix(f".{os.getpid()}")
        run(["/sbin/mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-E", f"root_owner=0:0,offset={PARTITION_AT}",
             "-d", self.folder, new, f"{kib * 11 // 10 + free_mib * 1024}k"])
        with open(new, "r+b") as disk:
            disk.seek(440)
            disk.write(struct.pack("<IH", DISK_SIGNATURE, 0))
            sectors = (new.stat().st_size - PARTITION_AT) // 512
            disk.write(struct.pack("<4sB3sII", b"", 0x83, b"", PARTITION_AT // 512, sectors) + bytes(48) + b"\x55\xaa")
        new.rename(image)
        return image
