# SPDX-License-Identifier: LGPL-2.1-or-later
"""hugeld run --children: what a program starts is on images, and what cannot be runs as it is; hugeld run and enable of programs that
only start others."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest

import helpers
import stores
from helpers import HUGELD, hugeld, reasons
from installed import find_cc1plus
from smaps import read_smaps
from worlds import APP

# Prints from where its text is mapped, starts the programs that its arguments name, and ends with 3.
PROGRAM = r"""
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
__asm__(".text\n.p2align 12\nfiller: .fill 6144 << 10, 1, 0x90\n");
extern char filler[];
int main(int argc, char **argv) {
    char line[4096];
    unsigned long start, end, at = (unsigned long)filler + (3 << 20);
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx", &start, &end) == 2 && start <= at && at < end)
            printf("%s %s", strrchr(argv[0], '/') + 1, strrchr(line, ' ') + 1);
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
    text = dict(line.split(" ", 1) for line in result.stdout.splitlines()[-2:])
    assert text["fixed"] == on_image["fixed"], result
    assert text["pie"] == str(pie) or first == "script", result
    seen = dict(line.split(" ", 1) for line in result.stdout.splitlines()[:2])
    assert first not in ("no PIE", "PIE") or seen[starts[0].name] == on_image[starts[0].name], result
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


@pytest.mark.parametrize("words", [["--copy"], ["--via=preload"], ["--ld-so=/lib64/ld-linux-x86-64.so.2"]], ids=" ".join)
def test_images_alone(words):
    helpers.one_line(hugeld("run", "--children", *words, "true"), 2, "--children takes images alone")


@pytest.mark.parametrize("kind", ["AddressSanitizer", "set-user-ID"])
def test_programs_that_take_no_library(images, own_store, program, builder, place, kind):
    """They run, what they start is not served, and a line says so."""
    images.add(program("fixed", "-no-pie"))
    (place / "small.c").write_text("int main(void) { return 4; }\n")
    app = builder.compile(place / "small", place / "small.c", *(["-fsanitize=address"] if kind == "AddressSanitizer" else []))
    if kind == "set-user-ID":
        os.chown(app, 65534, 65534)
        app.chmod(0o4755)
    reason = reasons()["sanitized" if kind == "AddressSanitizer" else "privileged"]
    result = run(own_store, "--", app)
    assert result.returncode == 4 and result.stderr.startswith(f"hugeld: {app}: what it starts stays as it is: {reason}"), result


# --- compilers, in a build by make ---

CPP = "#include <map>\n#include <string>\nint f{}(std::map<std::string, int> &m) {{ return m[\"{}\"]; }}\n"


def find_rustc():
    """rustc itself, which rustup may stand for, and the library with its text; or None."""
    rustc = helpers.run(["rustup", "which", "rustc"]).stdout.strip() if shutil.which("rustup") else shutil.which("rustc")
    text = helpers.run(["ldd", rustc]).stdout if rustc else ""
    return (rustc, [line.split()[2] for line in text.splitlines() if "librustc_driver" in line]) if "librustc_driver" in text else None


def find_clang():
    clang = shutil.which("clang++")
    text = helpers.run(["ldd", clang]).stdout if clang else ""
    return clang, [line.split()[2] for line in text.splitlines() if "libLLVM" in line or "libclang-cpp" in line]


def find_compiler(name):
    """The words of its command, its process's program, and the files with its text."""
    if name == "g++" and find_cc1plus():
        return ["g++", "-O1", "-x", "c++", "-c", "-", "-o"], find_cc1plus(), [find_cc1plus()]
    if name == "clang++" and shutil.which("clang++") and find_clang()[1]:
        return ["clang++", "-O1", "-x", "c++", "-c", "-", "-o"], os.path.realpath(find_clang()[0]), find_clang()[1]
    if name == "rustc" and find_rustc():
        return [find_rustc()[0], "--crate-type=lib", "--crate-name=it", "--emit=obj", "-", "-o"], *find_rustc()
    pytest.skip(f"{name} is not installed, or not linked as Debian's is")


def build(folder, command, source, prefix):
    """Starts a build of four files, of which the last one's source comes from the pipe that is returned with the process."""
    folder.mkdir()
    for i in range(3):
        (folder / f"{i}.in").write_text(source.format(i, i))
    os.mkfifo(folder / "3.in")
    pipe = os.open(folder / "3.in", os.O_RDWR)
    (folder / "Makefile").write_text(f"all: 0.o 1.o 2.o 3.o\n%.o: %.in\n\t{' '.join(command)} $@ < $<\n")
    return helpers.start([*prefix, "make", "-s", "-j2", "-C", folder], stderr=subprocess.DEVNULL), pipe


def finish(folder, started, source):
    process, pipe = started
    os.write(pipe, source.format(3, 3).encode())
    os.close(pipe)
    output, _ = process.communicate(timeout=helpers.PATIENCE)
    assert process.returncode == 0, output
    return output, [(folder / f"{i}.o").read_bytes() for i in range(4)]


def images_of(file, pipe):
    """Of each process that runs FILE and reads PIPE: KiB of text that are mapped by huge entries, by the path of the mapped file."""
    for pid in helpers.marked_processes():
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/exe") == os.path.realpath(file) and os.readlink(f"/proc/{pid}/fd/0") == str(pipe):
                yield {one.name: one.kb["ShmemPmdMapped"] for one in read_smaps(pid) if "x" in one.permissions}


@pytest.mark.parametrize("name", ["g++", pytest.param("clang++", marks=pytest.mark.check_all(ci=True)),
                                  pytest.param("rustc", marks=pytest.mark.check_all(ci=True))])
def test_compilers_in_a_build(images, own_store, tmp_path, name):
    """make's children are on the images of the files with their text, and write what they write without."""
    command, file, texts = find_compiler(name)
    added = {str(images.add(text)) for text in texts}
    source = CPP if name != "rustc" else "pub fn f{}() -> u32 {{ {} }}\n"
    patterns = ":".join(["main", *(os.path.basename(text) for text in texts if text != file)])
    started = build(tmp_path / "huge", command, source, [HUGELD, "run", "--children", "-o", f"store={own_store}", "-p", patterns, "--"])
    helpers.wait_until(lambda: any(all(maps.get(image, 0) > 0 for image in added) for maps in images_of(file, tmp_path / "huge/3.in")),
                       helpers.PATIENCE, f"a {name} on {added}")
    huge = finish(tmp_path / "huge", started, source)
    started = build(tmp_path / "plain", command, source, [])
    helpers.wait_until(lambda: list(images_of(file, tmp_path / "plain/3.in")), helpers.PATIENCE, f"a plain {name}")
    plain = finish(tmp_path / "plain", started, source)
    assert huge == plain


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


def test_rustup_and_scripts(images, own_store, builder, place):
    (place / "small.c").write_text("int main(void) { return 0; }\n")
    builder.compile(place / "rustup", place / "small.c")
    (place / "rustc").symlink_to("rustup")
    (place / "script").write_text("#!/bin/sh\nexit 0\n")
    (place / "script").chmod(0o755)
    for name, reason in (("rustc", "shim"), ("script", "launcher"), ("rustup", "too-small")):
        text = helpers.shown_on_terminal([HUGELD, "run", "-o", f"store={own_store}", "--", place / name])
        assert text.startswith(f"hugeld: {place / name}: started as it is: {reasons()[reason]}"), text
        assert text.count("\n") == 1


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
    for name, file in (("g++", "/run/programs/cc1plus"), ("npm", APP)):
        result = world.hugeld("enable", "--way=image", f"/run/programs/{name}")
        assert (result.returncode, result.stderr) == (0, f"hugeld: /run/programs/{name}: {file} does its work\n"), result
        assert world.path(local).read_text() == f"{file} way=image\n" and [one["path"] for one in world.list()] == [file]
        result = world.hugeld("disable", f"/run/programs/{name}")
        assert result.returncode == 0 and world.list() == [], result
    for name, reason in (("rustc", "shim"), ("script", "launcher")):
        helpers.one_line(world.hugeld("enable", f"/run/programs/{name}"), 1, f"/run/programs/{name}: {reasons()[reason]}; ")
        assert world.hugeld("disable", f"/run/programs/{name}").returncode == 0
    assert world.list() == []


@pytest.mark.parametrize("answer", ["/", "/run/programs", "/run/programs/app", "/run/programs/folder/cc1plus"])
def test_enable_takes_no_other_answer(world, builder, tmp_path, answer):
    """The driver runs as nobody, and so may what changes its answer: only a file with the compiler's name is taken."""
    folder = world.path("/run/programs")
    (folder / "folder/cc1plus").mkdir(parents=True)
    (tmp_path / "driver.c").write_text(f'#include <stdio.h>\nint main(void) {{ puts("{answer}"); return 0; }}\n')
    builder.compile(folder / "g++", tmp_path / "driver.c")
    helpers.one_line(world.hugeld("enable", "--way=image", "/run/programs/g++"), 1, "/run/programs/g++: ")


def test_enable_of_a_small_program_with_a_library(world, builder, tmp_path):
    folder = world.path("/run/programs")
    (tmp_path / "lib.c").write_text('__asm__(".text; .fill 6144 << 10, 1, 0x90"); int big(void) { return 0; }\n')
    (tmp_path / "main.c").write_text("int big(void); int main(void) { return big(); }\n")
    library = builder.compile(folder / "libbig.so", tmp_path / "lib.c", "-shared", "-fPIC", "-Wl,-soname,libbig.so",
                              "-Wl,-z,max-page-size=0x200000")
    builder.compile(folder / "small", tmp_path / "main.c", library, "-Wl,-rpath,/run/programs")
    helpers.one_line(world.hugeld("enable", "/run/programs/small"), 1,
                     f"{reasons()['text-in-library']}; hugeld enable /run/programs/libbig.so, then name it: hugeld run -p")
