# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs and libraries for musl, by Debian's musl-gcc."""

import pathlib
import shutil
import subprocess

import pytest

HERE = pathlib.Path(__file__).resolve().parent


class Musl:
    """Builds each program and library once per test run."""

    def __init__(self, builder):
        self.builder = builder
        self.opened = builder.folder / "opened"

    def program(self, name, *arguments, compiler="musl-gcc"):
        return self.builder.once(name, lambda folder: self.builder.compile(
            folder / name, HERE / "program.c", "-fPIE", *self.builder.object(), *arguments, compiler=compiler))

    def host(self, name):
        """opener."""
        return self.builder.once(name, lambda folder: self.builder.compile(
            folder / name, HERE / f"{name}.c", compiler="musl-gcc"))

    def libraries(self):
        """The folder for opener."""
        def make(folder):
            missing = self.builder.write("missing.c", "void nobody_defines_this(void);\n"
                                                      "void missing(void) { nobody_defines_this(); }\n")
            # musl keeps an object's place by mapping its file, and leaves that between segments that are apart.
            for name, extra in (("one", []), ("two", ["-Wl,-z,max-page-size=0x200000"]),
                                ("missing", ["-fPIC", missing])):
                self.builder.compile(folder / f"lib{name}.so", "-shared", *self.builder.object(), *extra,
                                     compiler="musl-gcc")
            return folder

        return self.builder.once("musl-libraries", make)

    def linker(self):
        """musl's dynamic linker, which is its libc."""
        listing = subprocess.run(["readelf", "-lW", self.program("musl-pie", "-pie")], check=True, capture_output=True,
                                 text=True).stdout
        return pathlib.Path(listing.partition("interpreter: ")[2].partition("]")[0])


@pytest.fixture(scope="session")
def musl(builder):
    if not shutil.which("musl-gcc"):
        pytest.skip("musl-gcc is not installed (musl-tools)")
    return Musl(builder)
