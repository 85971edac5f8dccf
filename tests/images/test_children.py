# SPDX-License-Identifier: LGPL-2.1-or-later
"""hugeld run --children: what a program starts is on images, and what cannot be runs as it is; hugeld run and enable of programs that
only start others."""

import os
import pathlib
import shutil
import tempfile

import pytest

import helpers
import stores
from helpers import HUGELD, hugeld, reasons
from worlds import APP

# Prints from where its text is mapped, starts the programs that its arguments name, and ends with 3.  A PIE that lies at a multiple of
# 2 MiB says so: the kernel puts one of 512 there, and then it is served like a fixed program.
PROGRAM = r"""
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
__asm__(".text\n.p2align 12\nfiller: .fill 6144 << 10, 1, 0x90\n");
extern char filler[], __ehdr_start[];
int main(int argc, char **argv) {
    char line[4096];
    unsigned long start, end, at = (unsigned long)filler + (3 << 20), base = (unsigned long)__ehdr_start;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx", &start, &end) == 2 && start <= at && at < end)
            printf("%s%s %s", strrchr(argv[0], '/') + 1, base >> 32 && base % (2 << 20) == 0 ? "-aligned" : "", strrchr(line, ' ') + 1);
    fflush(stdout);
    for (int i = 1; i < argc; i++)
        if (fork() == 0)
            return execl(argv[i], argv[i], (char *)NULL);
        else
            wait(NULL);
    return 3;
}
"""


@pytest.fixture
def place(root):
    """A folder that no other user can change."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="children-", dir="/run"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def image_store(tmp_path_factory):
    """A store that has no images of other tests."""
    with stores.mounted(tmp_path_factory.mktemp("children-store")) as store:
        yield store


@pytest.fixture
def program(builder, place):
    """program(name, flags): a large program of its own."""

    def make(name, *flags):
        (place / "program.c").write_text(PROGRAM)
        return builder.compile(place / name, place / "program.c", "-w", *flags)

    return make


def run(store, *words, options="", **more):
    return hugeld("run", "--children", "-o", ",".join(filter(None, [f"store={store}", options])), *words, **more)


def shown(store, *words):
    return helpers.shown_on_terminal([HUGELD, "run", "--children", "-o", f"store={store}", *words])


@pytest.mark.parametrize("first", ["no PIE", "PIE", "static", "script"])
def test_children_are_served(images, own_store, program, place, first):
    """A fixed program is on its image whoever starts it; a PIE only where hugeld run itself does, which one line says on a terminal."""
    fixed, pie = program("fixed", "-no-pie"), program("pie", "-pie", "-fPIE")
    script = place / "script"
    script.write_text(f"#!/bin/sh\n{fixed}\n{pie}\n{fixed}\nexit 3\n")
    script.chmod(0o755)
    starts = {"no PIE": [fixed, fixed, pie], "PIE": [pie, fixed, pie], "static": [program("static", "-static"), fixed, pie],
              "script": [script]}[first]
    on_image = {app.name: str(images.add(app)) for app in (fixed, pie)}
    result = run(own_store, "--", *starts)
    assert (result.returncode, result.stderr) == (3, ""), result
    served = {"fixed": on_image["fixed"], "pie": str(pie), "pie-aligned": on_image["pie"], "static": str(place / "static")}
    text = [line.split(" ", 1) for line in result.stdout.splitlines()]
    assert len(text) == 3 and all(file == served[name] for name, file in text), result
    assert first in ("static", "script") or text[0][1] == on_image[starts[0].name], result
    line = f"hugeld: {starts[0]}: some of what it starts stays as it is: {reasons()['child-place']}; hugeld run -- {pie}"
    assert [one for one in shown(own_store, "--", *starts).splitlines() if one.startswith("hugeld: ")] == [line]


def test_libraries_that_are_named(images, own_store, builder, place):
    """A library is on its image in children if -p names it, and nothing is preloaded if it doesn't."""
    (place / "lib.c").write_text('__asm__(".text; .fill 6144 << 10, 1, 0x90"); int big(void) { return 0; }\n')
    library = builder.compile(place / "libbig.so", place / "lib.c", "-shared", "-fPIC", "-Wl,-z,max-page-size=0x200000")
    (place / "main.c").write_text('#include <stdlib.h>\nint big(void); int main(void) { return big() + system("grep libbig /proc/$PPID/maps"); }\n')
    app = builder.compile(place / "app", place / "main.c", library, f"-Wl,-rpath,{place}")
    image = images.add(library)
    named = run(own_store, "-p", "main:libbig*", "--", "/bin/sh", "-c", f"{app}; exit")
    assert (named.returncode, named.stderr) == (0, "") and " r-xp " in named.stdout and str(image) in named.stdout, named
    other = run(own_store, "--", "/bin/sh", "-c", f"{app}; exit")
    assert str(image) not in other.stdout and f"{reasons()['no-child-image']}; " in other.stderr, other


def test_nothing_could_serve(images, own_store, program):
    """One line says it, the program runs without any variable of hugeld's, and only strict=on refuses."""
    pie, plain = program("pie", "-pie", "-fPIE"), helpers.run(["/usr/bin/env"], helpers.environment()).stdout
    outdated = program("outdated", "-no-pie")
    images.add(outdated)
    outdated.write_bytes(outdated.read_bytes() + b"\0")
    for reason, image in (("no-child-image", None), ("child-place", pie)):
        if image:
            images.add(image)
        result = run(own_store, "--", "/usr/bin/env")
        assert result.stdout == plain and result.returncode == 0
        assert result.stderr.startswith(f"hugeld: /usr/bin/env: what it starts stays as it is: {reasons()[reason]}; "), result
        assert result.stderr.count("\n") == 1
        refused = run(own_store, "--", "/usr/bin/env", options="strict=on")
        helpers.one_line(refused, 127, reasons()[reason], "strict=on, so it does not run")


def test_strict_is_about_the_start(images, own_store, program):
    """Where something is served, strict=on ends no child that has no image."""
    fixed, other = program("fixed", "-no-pie"), program("other", "-no-pie")
    image = images.add(fixed)
    result = run(own_store, "--", other, fixed, options="strict=on,verbose=2")
    assert result.returncode == 3 and result.stdout == f"other {other}\nfixed {image}\n", result
    assert "hugeld: fixed: text 3 pages image" in result.stderr


@pytest.mark.parametrize("options", ["", "backend=hugetlb", "backend=thp"])
def test_never_a_copy(images, own_store, program, pool, thp, options):
    """Whatever is set, a program without an image stays on its own file."""
    pool(64)
    fixed, other = program("fixed", "-no-pie"), program("other", "-no-pie")
    image = images.add(fixed)
    result = run(own_store, "--", other, fixed, other, options=options)
    assert (result.returncode, result.stdout) == (3, f"other {other}\nfixed {image}\nother {other}\n"), result


# --- programs that only start others ---

# In the place of gcc's driver: what asks it, and as whom.
DRIVER = r"""
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv) {
    if (argc == 2 && strncmp(argv[1], "-print-prog-name=", 17) == 0)
        printf("%s/%s%s\n", FOLDER, argv[1] + 17, getuid() == 65534 && getgid() == 65534 && environ[0] != NULL ? "" : "-not-as-nobody");
    return argc == 1 ? 6 : 0;
}
"""


@pytest.fixture
def driver(builder, place):
    def make(name):
        (place / "driver.c").write_text(DRIVER)
        return builder.compile(place / name, place / "driver.c", "-w", "-D_GNU_SOURCE", f'-DFOLDER="{place}"')

    return make


@pytest.mark.parametrize("name, compiler", [("g++", "cc1plus"), ("x86_64-linux-gnu-gcc-12", "cc1"), ("gfortran-13.2", "f951")])
def test_run_names_the_compiler(images, own_store, program, driver, name, compiler):
    app, file = driver(name), program(compiler, "-no-pie")

    def said():
        return [line for line in helpers.shown_on_terminal([HUGELD, "run", "-o", f"store={own_store}", "--", app]).splitlines()]

    assert said() == [f"hugeld: {app}: started as it is: {reasons()['driver']}; hugeld enable {file}"]
    helpers.one_line(hugeld("bench", "-i", "-o", f"store={own_store}", "--", app), 1, "nothing moved", f"hugeld enable {file}; to measure it: hugeld bench --children")
    images.add(file)
    assert said() == [f"hugeld: {app}: started as it is: {reasons()['driver-child']}; use hugeld run --children"]


@pytest.mark.parametrize("case", ["another user's", "another user's folder", "another name", "a link to it"])
def test_drivers_that_are_not_asked(images, own_store, program, driver, place, case):
    """Only a driver that root alone can write to is started, and only one with the name of gcc's."""
    program("cc1plus", "-no-pie")
    app = driver("clang++" if case == "another name" else "g++")
    if case == "a link to it":
        app.rename(place / "wrapper")
        app.symlink_to(place / "wrapper")
    elif case != "another name":
        os.chown(app if case == "another user's" else place, 65534, 65534)
    text = helpers.shown_on_terminal([HUGELD, "run", "-o", f"store={own_store}", "--", app])
    assert text.splitlines() == [f"hugeld: {app}: started as it is: {reasons()['too-small']}; for what it starts, use hugeld run --children"]


def test_enable_follows(world, builder, tmp_path):
    """enable and disable of g++ mean cc1plus, those of a script its interpreter; where that is unknown, one line says what to name."""
    folder, local = world.path("/run/programs"), "/etc/hugeld/enabled.d/local.list"
    (tmp_path / "driver.c").write_text(DRIVER)
    (tmp_path / "small.c").write_text("int main(void) { return 0; }\n")
    builder.compile(folder / "g++", tmp_path / "driver.c", "-w", "-D_GNU_SOURCE", '-DFOLDER="/run/programs"')
    builder.compile(folder / "rustup", tmp_path / "small.c")
    (folder / "rustc").symlink_to("rustup")
    for name, line in (("npm", f"#!{APP}"), ("script", "#!/bin/sh")):
        (folder / name).write_text(f"{line}\n")
        (folder / name).chmod(0o755)
    shutil.copy(folder / "app", folder / "cc1plus")
    os.utime(folder / "cc1plus", (1, 1))
    for name, file, how in (("g++", "/run/programs/cc1plus", "hugeld run --children"), ("npm", APP, "hugeld run")):
        result = world.hugeld("enable", "--way=image", f"/run/programs/{name}")
        assert (result.returncode, result.stderr) == (0, f"hugeld: /run/programs/{name}: {file} does its work\n"), result
        assert result.stdout.endswith(f"; start it by {how}\n"), result
        assert world.path(local).read_text() == f"{file} way=image\n" and [one["path"] for one in world.list()] == [file]
        result = world.hugeld("disable", f"/run/programs/{name}")
        assert result.returncode == 0 and world.list() == [], result
    (tmp_path / "lib.c").write_text('__asm__(".text; .fill 6144 << 10, 1, 0x90"); int big(void) { return 0; }\n')
    (tmp_path / "main.c").write_text("int big(void); int main(void) { return big(); }\n")
    library = builder.compile(folder / "libbig.so", tmp_path / "lib.c", "-shared", "-fPIC", "-Wl,-soname,libbig.so,-z,max-page-size=0x200000")
    builder.compile(folder / "small", tmp_path / "main.c", library, "-Wl,-rpath,/run/programs")
    for name, reason in (("rustc", "shim"), ("script", "launcher"), ("small", "text-in-library")):
        helpers.one_line(world.hugeld("enable", f"/run/programs/{name}"), 1, f"/run/programs/{name}: {reasons()[reason]}; ")
        assert world.hugeld("disable", f"/run/programs/{name}").returncode == 0
    assert world.list() == []
    how = "name it, as in hugeld run -p 'libLLVM*'"
    assert world.hugeld("enable", "--way=image", "/run/programs/libbig.so").stdout.endswith(f": enabled; {how}\n")
    helpers.one_line(world.hugeld("enable", "/run/programs/small"), 1, f"/run/programs/small: {reasons()['library-unnamed']}; {how}")
    with world.mapped("/run/programs/libbig.so"):
        assert world.list()[0]["advice"] == how
    (folder / "v1.so.d").mkdir()
    shutil.copy(folder / "app", folder / "v1.so.d/app")
    assert world.hugeld("enable", "--way=image", "/run/programs/v1.so.d/app").stdout.endswith(": enabled; start it by hugeld run\n")


@pytest.mark.parametrize("answer", ["/", "/run/programs", "/run/programs/app", "/run/programs/folder/cc1plus"])
def test_enable_takes_no_other_answer(world, builder, tmp_path, answer):
    """The driver runs as nobody, and so may what changes its answer: only a file with the compiler's name is taken."""
    folder = world.path("/run/programs")
    (folder / "folder/cc1plus").mkdir(parents=True)
    (tmp_path / "driver.c").write_text(f'#include <stdio.h>\nint main(void) {{ puts("{answer}"); return 0; }}\n')
    builder.compile(folder / "g++", tmp_path / "driver.c")
    helpers.one_line(world.hugeld("enable", "--way=image", "/run/programs/g++"), 1, "/run/programs/g++: ")
