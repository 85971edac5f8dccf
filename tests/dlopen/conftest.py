# SPDX-License-Identifier: LGPL-2.1-or-later
"""The DSOs that come later, and the programs that open them."""

import shutil

import pytest

import helpers
import proof
from tables import HERE, compile_c, link_table

ALIGNED = "-Wl,-z,max-page-size=0x200000"


@pytest.fixture(scope="session")
def workshop(tmp_path_factory):
    """A folder with the DSOs and programs of this folder's tests."""
    folder = tmp_path_factory.mktemp("later")
    names = ["main/libpick", "caller/libpick", "main/libother", "caller/libother", "caller/libown", "main/libonly-main"]
    for number, name in enumerate(names, 10):
        (folder / name).parent.mkdir(exist_ok=True)
        link_table(folder / f"{name}.so", number)
    for number in (1, 2, 3):
        link_table(folder / f"libtable{number}.so", number)
    link_table(folder / "libaligned.so", 4, ALIGNED)
    link_table(folder / "libmissing.so", 5, "-DMISSING")
    (folder / "text.so").write_text("no ELF file\n" * 100)
    compile_c(HERE / "host.c", folder / "libcaller.so", "-DCALLER", "-shared", "-fPIC",
              f"-Wl,--enable-new-dtags,-rpath,{folder}/caller")
    compile_c(HERE / "host.c", folder / "host", f"-Wl,--enable-new-dtags,-rpath,{folder}/main")
    compile_c(HERE / "open-close.c", folder / "open-close")
    compile_c(HERE / "share.c", folder / "share")
    compile_c(HERE / "small-stack.c", folder / "small-stack", "-Wl,-z,now")
    # The text of the library fills its last huge page by a few bytes: the rest is a gap.
    link_table(folder / "libgap.so", 6, ALIGNED)
    compile_c(HERE / "own-text.c", folder / "own-text", "-DNUMBER=1", HERE / "table.S", "-s")
    compile_c(HERE / "own-text.c", folder / "own-text-by-call", "-DNUMBER=1", HERE / "table.S", "-DBY_CALL")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def later(library):
    """later(argv, patterns, options): the environment and arguments of a program that hugeld watches."""

    def start(argv, patterns, options="", **changes):
        env = helpers.preload(library, patterns=patterns, options=f"backend=hugetlb,{options}", **changes)
        return helpers.start(argv, env)

    return start


@pytest.fixture(scope="session")
def check_plans():
    return proof.check_plans


@pytest.fixture(params=["preload", "ldso"])
def way(request):
    """way(library, patterns, options): a command prefix and an environment."""
    if request.param == "preload":
        return lambda library, patterns, options: ([], helpers.preload(library, patterns=patterns, options=options))
    linker = helpers.BUILD / "ldso/ld.so"
    if not linker.exists():
        pytest.skip("needs build/ldso/ld.so: make ldso")
    return lambda _, patterns, options: ([helpers.HUGELD, "run", "--ld-so", linker, "-p", patterns, "-o",
                                        f"{helpers.ALL_SEGMENTS},{options}", "--"], None)
