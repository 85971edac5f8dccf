# SPDX-License-Identifier: LGPL-2.1-or-later
"""hugeld run puts the text of a program that has an image onto it at the exec stop, before the first instruction.  The program
cannot tell, even if the helper fails; and programs that must be left alone are left alone."""

import difflib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import pytest

import helpers
from installed import find_cc1plus, find_node
from objects import PF_X, PT_LOAD, read_headers
from smaps import read_smaps


HERE = pathlib.Path(__file__).resolve().parent
FIXED = {"nopie": ["-no-pie"], "static": ["-static", "-no-pie"]}
# Position-independent ones are moved to where the image fits, but for the last variant: that fits wherever the kernel (since
# Linux 5.10) puts it.
ANYWHERE = {"pie": ["-fPIE", "-pie"], "static-pie": ["-fPIE", "-static-pie"]}
VARIANTS = {**FIXED, **ANYWHERE, "pie-2m": ["-fPIE", "-pie", "-Wl,-z,max-page-size=0x200000"]}
FAR_ZEROS = ["-no-pie", "-Wl,-z,noseparate-code,-Tbss=0x70000000"]  # to which GNU ld gives the offset of the headers
BLOCK = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
os.execvp(sys.argv[1], sys.argv[1:])
"""


def build_meddle(builder):
    """The library preloaded into hugeld run."""
    flags = ["-shared", "-fPIC"]
    return builder.once("meddle", lambda folder: builder.compile(folder / "meddle.so", HERE / "exec-stop-meddle.c", *flags, "-ldl"))


@pytest.fixture
def meddle(builder):
    return build_meddle(builder)


def build(builder, variant):
    """A large program that says how it was started."""

    def link(folder):
        flags = VARIANTS.get(variant, FAR_ZEROS)
        return builder.compile(folder / f"state-{variant}", HERE / "exec-stop-state.c", "-w", *builder.object(), *flags)

    return builder.once(f"state-{variant}", link)


@pytest.fixture
def program(builder, tmp_path):
    """program(variant): that, for this test alone."""
    return lambda variant: pathlib.Path(shutil.copy(build(builder, variant), tmp_path / f"state-{variant}"))


@pytest.fixture
def run(images):
    """run(argv, ...): hugeld run with the test's store."""

    def start(argv, *arguments, options="", prefix=(), command=helpers.HUGELD, **changes):
        option = ",".join(filter(None, [f"store={images.folder}", options]))
        env = helpers.environment(**{**changes, "LD_HUGEPAGES_OPTIONS": None})
        env.pop("LD_HUGEPAGES_OPTIONS")
        return helpers.run([*prefix, command, "run", *arguments, "-o", option, "--", *argv], env)

    return start


def plainly(argv, prefix=(), **changes):
    env = helpers.environment(**changes)
    env.pop("LD_HUGEPAGES_OPTIONS")
    return helpers.run([*prefix, *argv], env)


def lines(result, *without):
    """The lines that a program printed but for those that begin with one of WITHOUT: both runs are sessions of their own."""
    return [re.sub(r"pipe:\[\d+\]", "pipe", line) for line in result.stdout.splitlines()
            if not line.startswith(("user ", *without))
            and not re.match(r"/proc/self/status: (PPid|NSpgid|NSsid)", line)]


def check_same(result, plain, *without):
    """Both runs printed the same, but for lines that begin with one of WITHOUT."""
    differences = [line for line in difflib.unified_diff(lines(plain, *without), lines(result, *without), lineterm="", n=0)]
    assert not differences and result.returncode == plain.returncode, (differences, result.returncode, result.stderr)


def on_image(result, app, image):
    """How many huge pages of text the only line says are on IMAGE."""
    pages = r"text (\d+) pages? image, (?:rodata \d+ pages? image, )?"
    line = re.fullmatch(rf"hugeld: {os.path.basename(app)}: {pages}at the exec stop from {image}\n", result.stderr)
    assert line, result.stderr
    return int(line[1])


def pmd_mapped(pid, path):
    """Bytes of PATH in PID that are mapped by huge entries, and bytes that are mapped at all."""
    huge = mapped = 0
    for start, end, name, rest in re.findall(r"^(\w+)-(\w+) \S+ \S+ \S+ \d+ *(.*)\n((?:[A-Z]\w+:.*\n)+)",
                                             pathlib.Path(f"/proc/{pid}/smaps").read_text(), re.M):
        if name == str(path):
            mapped += int(end, 16) - int(start, 16)
            huge += sum(int(kib) << 10 for kib in re.findall(r"ShmemPmdMapped: *(\d+)", rest))
    return huge, mapped


# --- nothing to be noticed ---


@pytest.mark.parametrize("before", ["", "trap '' TRAP USR1 CHLD; ", "block",
                                    "ulimit -s 1024; ulimit -n 64; exec 7</dev/null; "],
                         ids=["plain", "ignored", "blocked", "limits"])
@pytest.mark.parametrize("variant", [*VARIANTS, "far-zeros"])
def test_state(images, program, run, variant, before):
    """All that the program can find out is as without hugeld, but for the processor time of a child that it never had."""
    app = program(variant)
    image = images.add(app)
    prefix = ["sh", "-c", f'{before}exec "$@"', "sh"]
    if before.startswith("block"):
        prefix = [sys.executable, "-c", BLOCK]
    result = run([app, "x"], options="verbose=2", prefix=prefix)
    assert on_image(result, app, image) >= 4
    check_same(result, plainly([app, "x"], prefix), "children ")
    assert result.returncode == 3 and "TracerPid:\t0\n" in result.stdout and "\nwait -1 errno 10\n" in result.stdout


@pytest.mark.parametrize("variant", ["static", "pie"])
def test_small_stack(images, program, run, variant):
    """Variables leave the program a few KiB of its stack, or less than it needs: the result is as without hugeld at each size.  Without
    randomisation both have the same stack."""
    app = program(variant)
    image = images.add(app)
    prefix = ["setarch", "-R", "sh", "-c", 'ulimit -s 64; exec "$@"', "sh"]
    codes = []
    for size in range(10000, 66000, 997):
        filler = {"T_FILLER": "x" * size}
        plain = plainly([app, "x"], prefix, **filler)
        result = run([app, "x"], options="verbose=2" if not codes else "", prefix=prefix, **filler)
        if not codes:
            on_image(result, app, image)
        codes.append(plain.returncode)
        if "hugeld: Argument list too long" in result.stderr:  # the shell's words: those of `hugeld run` take some of it, too
            continue
        assert result.returncode == plain.returncode, (size, plain, result)
    assert codes[0] == 3 and codes[-1] != 3


def on_huge_pages(images, app, image, variant):
    process = helpers.start([helpers.HUGELD, "run", "-o", f"store={images.folder}", "--", app, "wait"], stdin=subprocess.PIPE)
    try:
        while process.stdout.readline() != "waits\n":
            assert process.poll() is None
        huge, mapped = pmd_mapped(process.pid, image)
        assert huge >= 4 * helpers.HUGE
        # Where it is moved, all read-only parts are the image's: also those that fill no huge page.
        assert (mapped - huge < 2 * helpers.HUGE) if variant in ANYWHERE else mapped == huge
        text = [m for m in read_smaps(process.pid) if "x" in m.permissions and m.name == str(image)]
        text_bytes = sum(h.file_bytes for h in read_headers(app) if h.type == PT_LOAD and h.flags & PF_X)
        assert sum(m.kb["ShmemPmdMapped"] for m in text) * 1024 >= text_bytes
        assert os.readlink(f"/proc/{process.pid}/exe") == str(app)
        maps = pathlib.Path(f"/proc/{process.pid}/maps").read_text()
        environment = pathlib.Path(f"/proc/{process.pid}/environ").read_text()
        assert "libhugeld" not in maps + environment and "LD_PRELOAD" not in environment
        assert pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text() == ""
    finally:
        helpers.end_process(process)


@pytest.mark.parametrize("variant, huge", [*((variant, "always") for variant in VARIANTS), ("nopie", "never"), ("pie", "never")])
def test_on_huge_pages(images, program, variant, huge):
    """Also where the kernel aligns no mapping of a file: a user's store lies on a tmpfs without huge=always."""
    app = program(variant)
    image = images.add(app)
    remount = 'mount -o "remount,huge=$2" "$1"'
    with helpers.at_end(remount, images.folder, "always"):
        assert helpers.run(["sh", "-c", remount, "sh", images.folder, huge]).returncode == 0
        on_huge_pages(images, app, image, variant)


def programs_here():
    go = shutil.which("go") or "/usr/local/go/bin/go"
    return {
        "go": [go, "version"],
        "cc1plus": [find_cc1plus(), "-quiet", "-O2", "-o", "-", "-"],
        "node": [find_node(), "-e", "console.log(process.execPath, process.argv0, [1, 2].map(String), process.version)"],
        "python": [os.path.realpath("/usr/bin/python3"), "-c", "import os, sys; print(sys.version, sys.executable, os.times()[:0])"],
        "git": ["/usr/bin/git", "-C", helpers.ROOT, "log", "-3", "--stat"],
        "gdb": ["/usr/bin/gdb", "-q", "-nx", "-batch", "-ex", "python print(6 * 7)"],
        "php": [os.path.realpath("/usr/bin/php"), "-r", "echo PHP_VERSION, PHP_BINARY, array_sum(range(1, 100000));"],
        "qemu": ["/usr/bin/qemu-system-x86_64", "-machine", "help"],
    }


@pytest.mark.parametrize("name", ["go", "cc1plus", "node", "python", "git", "gdb", "php", "qemu"])
def test_stock_programs(images, run, name):
    argv = programs_here()[name]
    if argv[0] is None or not os.path.exists(argv[0]):
        pytest.skip(f"{name} is not installed")
    image = images.add(argv[0])
    prefix = ["sh", "-c", 'echo "int main() { return 0; }" | "$@"', "sh"] if name == "cc1plus" else ()
    result = run(argv, options="verbose=2", prefix=prefix)
    expected = plainly(argv, prefix)
    assert (result.returncode, result.stdout) == (expected.returncode, expected.stdout)
    assert on_image(result, argv[0], image) >= 1


def test_script(images, run, tmp_path):
    """The kernel executes its interpreter."""
    python = os.path.realpath("/usr/bin/python3")
    image = images.add(python)
    script = tmp_path / "script"
    script.write_text(f"#!{python}\nimport sys\nprint(sys.argv, open('/proc/self/maps').read().count({str(image)!r}) > 0)\n")
    script.chmod(0o755)
    result = run([script, "a"], options="verbose=2")
    assert result.stdout == f"['{script}', 'a'] True\n" and on_image(result, python, image) >= 1


def test_library_beside(images, program, run):
    """Where another object is named, the preloader comes for that, and leaves the executable alone."""
    app = program("nopie")
    image = images.add(app)
    result = run([app, "x"], "--copy", "-p", "main:libnothing*", options="verbose=2")
    ours, *others = result.stderr.splitlines(keepends=True)
    assert on_image(subprocess.CompletedProcess(ours, 0, "", ours), app, image) >= 4
    assert not any("text" in line for line in others), others
    assert re.findall("^sum .*", result.stdout, re.M) == re.findall("^sum .*", plainly([app, "x"]).stdout, re.M)


# --- a helper that fails ---


def meddled(meddle, run, app, what, **more):
    """Nothing can be preloaded into hugeld itself if that is linked with musl."""
    return run([app, "x"], command=helpers.STARTER, LD_PRELOAD=meddle, T_MEDDLE=what, **more)


@pytest.mark.parametrize("variant", VARIANTS)
def test_helper_killed(images, program, run, meddle, variant):
    """The helper is killed before each of its calls of ptrace(2): the program is right, or it is in the midst of being moved, and
    ends.  At most there remain a zombie that only __WALL sees, and one descriptor that is closed on exec."""
    app = program(variant)
    images.add(app)
    same = ("children ", "wait ", "env ", "/proc/self/fd", "3 flags", "header ", "4 flags")
    plain = plainly([app, "x"], LD_PRELOAD=meddle)
    killed = untouched = 0
    for n in range(1, 400):
        result = meddled(meddle, run, app, f"kill {n}")
        if variant in ANYWHERE and result.returncode == -signal.SIGKILL:
            killed += 1
            assert (result.stdout, result.stderr) == ("", "meddled\n")
            continue
        check_same(result, plain, *same)
        untouched += "meddled" not in result.stderr
        if untouched == 3:  # one in 512 lies on a boundary by itself, which takes fewer calls, and two may
            break
    # A static one may lie on a boundary by itself: the kernel maps its file, as any.
    assert n > 20 and (killed > 10 or variant != "pie"), (n, killed, untouched)


def test_killed_early(images, program, run, meddle):
    """hugeld run is killed when it has a helper, which may not have begun: that ends too, so the pipes are closed."""
    app = program("static")
    images.add(app)
    for _ in range(20):
        result = meddled(meddle, run, app, "die")
        assert (result.returncode, result.stdout, result.stderr) == (-signal.SIGKILL, "", "meddled\n")


@pytest.mark.parametrize("when", ["stop", "halt"])
def test_group_is_stopped(images, program, meddle, when):
    """SIGSTOP for the process group at the exec stop, or before: the program is stopped as it would be, and SIGCONT for it alone
    lets it go on."""
    app = program("static")
    images.add(app)
    env = helpers.environment(LD_PRELOAD=meddle, T_MEDDLE=when, LD_HUGEPAGES_OPTIONS=None)
    env.pop("LD_HUGEPAGES_OPTIONS")
    process = helpers.start([helpers.STARTER, "run", "-o", f"store={images.folder}", "--", app, "x"], env)
    try:
        helpers.wait_until(lambda: os.waitpid(process.pid, os.WUNTRACED | os.WNOHANG)[0] == process.pid, what="the stop")
        os.kill(process.pid, signal.SIGCONT)
        stdout, stderr = process.communicate(timeout=helpers.PATIENCE)
        assert process.returncode == 3 and "TracerPid:\t0\n" in stdout and "meddled" in stderr, (stdout, stderr)
    finally:
        helpers.end_process(process)


@pytest.mark.parametrize("variant", VARIANTS)
def test_call_fails(images, program, run, meddle, variant):
    """Each call that is made in the program fails once: it begins on small pages, with nothing left."""
    app = program(variant)
    images.add(app)
    plain = plainly([app, "x"], LD_PRELOAD=meddle)
    for n in range(1, 40):
        result = meddled(meddle, run, app, f"fail {n}", options="verbose=2")
        # All is done when the descriptor cannot be closed, or the helper not be waited for.
        done = "at the exec stop from" in result.stderr
        left = ("wait ", "/proc/self/fd", "3 flags", "4 flags") if done else ()
        check_same(result, plain, "children ", "env ", *left)
        if "meddled" not in result.stderr:
            break
    assert n > 5


@pytest.mark.parametrize("what", ["lose", "fail"])
@pytest.mark.parametrize("blind", [{}, {"T_BLIND": "1"}], ids=["seeing", "blind"])
@pytest.mark.parametrize("variant", [*FIXED, "pie-2m"])
def test_text_is_lost(images, program, run, meddle, variant, blind, what):
    """The kernel has no memory for the new text, and may have taken the old one away: then the program's own file is mapped
    there again.  Nothing else is opened for that, since there may be no memory for it either."""
    app = program(variant)
    images.add(app)
    result = meddled(meddle, run, app, f"{what} 2", options="verbose=1", **blind)
    check_same(result, plainly([app, "x"], LD_PRELOAD=meddle), "children ", "env ")
    assert "meddled" in result.stderr and "not on its image: no address space or memory for the copy; it runs on small pages" in result.stderr


@pytest.mark.parametrize("variant", [*FIXED, "pie-2m"])
def test_every_later_call_fails(images, program, run, meddle, variant):
    """Mapped parts stay, the image's headers too, which only debuggers notice: no program is ended that has its text."""
    app = program(variant)
    images.add(app)
    plain = plainly([app, "x"], LD_PRELOAD=meddle)
    for n in range(1, 40):
        result = meddled(meddle, run, app, f"end {n}")
        check_same(result, plain, "children ", "env ", "header ", "wait ", "/proc/self/fd", "3 flags", "4 flags")
        if "meddled" not in result.stderr:
            break
    assert n > 5


@pytest.mark.parametrize("options", ["verbose=1", "strict=on"])
def test_text_is_lost_for_good(images, program, run, meddle, options):
    """Its own file cannot be mapped there either: the process has no text, so it is ended, and the line says that and nothing
    else."""
    app = program("static")
    images.add(app)
    result = meddled(meddle, run, app, "ruin 2", options=options)
    assert (result.returncode, result.stdout) == (-signal.SIGKILL, "")
    said = f"hugeld: {app}: its text is lost, so it is ended: no memory for mapping it again\n"
    assert result.stderr == f"meddled\n{said}"


def test_strict(images, program, run, meddle):
    """If the helper fails, the program ends before it begins, as strict=on does in the preloader."""
    app = program("static")
    images.add(app)
    result = meddled(meddle, run, app, "fail 1", options="strict=on")
    assert (result.returncode, result.stdout) == (127, "")
    assert result.stderr.endswith("; strict=on, so it does not run; run it without strict=on\n")


def test_killed_while_it_waits(program, meddle, shared_folder, image_store):
    """Another user's file cannot be read by this one, so the process may not be traced; the helper asks it for permission (for
    Yama), and is killed just then."""
    app, hugeld, library = (pathlib.Path(shutil.copy(file, shared_folder)) for file in (program("static"), helpers.STARTER, meddle))
    hugeld.chmod(0o711)
    image_store.add(app)
    command = [hugeld, "run", "-o", f"verbose=1,store={image_store.folder}", "--", app]
    result = helpers.run([*helpers.become(65534), "env", f"LD_PRELOAD={library}", "T_MEDDLE=permit", *command])
    assert result.returncode == 3 and result.stderr.startswith(f"meddled\nhugeld: {app}: not at the exec stop: "), result
    for file in app, hugeld, library:
        file.unlink()


def test_file_replaced(images, program, run, meddle, tmp_path):
    """Between the plan and execve(2): the program that runs is not the one that has that image."""
    app = program("static")
    images.add(app)
    shutil.copy("/bin/echo", tmp_path / "other")
    result = run([app, "x"], command=helpers.STARTER, LD_PRELOAD=meddle, T_MEDDLE="swap", T_OTHER=tmp_path / "other", options="verbose=1")
    assert (result.returncode, result.stdout) == (0, "x\n")
    assert "not on its image: there is no image of it" in result.stderr


def test_exec_refused(images, program, run, meddle):
    """A security module may forbid execve to a traced process: the program is executed untraced."""
    app = program("static")
    images.add(app)
    result = meddled(meddle, run, app, "refuse", options="verbose=1")
    check_same(result, plainly([app, "x"], LD_PRELOAD=meddle), "children ", "env ")


# --- programs that are left alone ---


def left_alone(run, app, why, prefix=(), **more):
    """It runs as without hugeld, and with verbose=1 one line says why."""
    result = run([app, "x"], options="verbose=1", prefix=prefix, **more)
    assert re.search(rf"^hugeld: {app}: (not at the exec stop|not on its image): .*{why}", result.stderr, re.M), result.stderr
    return result


def test_no_process_for_the_helper(program, library, shared_folder, image_store):
    """RLIMIT_NPROC, or a full cgroup.  The user has no other process, since with one execve(2) fails."""
    app = pathlib.Path(shutil.copy(program("static"), shared_folder))
    image_store.add(app)
    prefix = ["prlimit", "--nproc=0", *helpers.become(100000 + os.getpid())]
    result = helpers.run([*prefix, library.parent / "hugeld", "run", "-o", f"verbose=1,store={image_store.folder}", "--", app])
    assert result.returncode == 3 and f"hugeld: {app}: not at the exec stop: Resource temporarily unavailable" in result.stderr
    app.unlink()


def test_few_descriptors(images, program, run):
    """Which is not said to be a missing image: another one would be of no use."""
    app = program("static")
    images.add(app)
    left_alone(run, app, "no file can be opened", ["sh", "-c", 'ulimit -n 5; exec "$@"', "sh"])


def test_other_pid_namespace(images, program, run):
    """The next child of such a process is process 1 of a new namespace, with which that would end."""
    app = program("static")
    images.add(app)
    left_alone(run, app, "may not be traced", ["unshare", "--pid", "sh", "-c", 'exec "$@"', "sh"])


def test_proc_of_another_pid_namespace(images, program, run):
    """The helper would look at another process there, and could not even be waited for."""
    app = program("static")
    images.add(app)
    prefix = ["unshare", "--pid", "--fork", "sh", "-c", '"$@"; exit $?', "sh"]
    assert "\nwait -1 errno 10\n" in run([app, "x"], prefix=prefix).stdout
    left_alone(run, app, "/proc", prefix)


def test_process_one(images, program, run):
    """The program is process 1, as in a container: no orphan is left that it would have to wait for."""
    app = program("static")
    image = images.add(app)
    result = run([app, "x"], options="verbose=2", prefix=["unshare", "--pid", "--fork", "--mount-proc"])
    assert on_image(result, app, image) >= 4 and "\nwait -1 errno 10\n" in result.stdout
