# SPDX-License-Identifier: LGPL-2.1-or-later
"""The hugeld command: its answers, in words and as JSON, and one clear line for every kind of bad input."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess

import pytest

import helpers
from helpers import hugeld, hugeld_json, one_line
from hugepages import pool_counts
from objects import PT_LOAD, read_headers
from pagecache import on_small_pages
from smaps import read_smaps



def outcome(result):
    return result.returncode, result.stdout, result.stderr


# --- run ---


def test_run_is_the_program(builder, pool):
    """The same process, arguments, exit status and streams."""
    pool(64)
    app = builder.executable("nopie")
    argv = [app, "an argument", "--verbose"]
    result = hugeld("run", "--copy", "-o", "backend=hugetlb,verbose=2", *argv[:1], *argv[1:2])
    assert result.stderr == "hugeld: app-nopie: text 5 pages hugetlb, rodata 1 page hugetlb\n"
    assert (result.returncode, result.stdout) == outcome(helpers.run(argv[:2]))[:2]
    assert hugeld("run", "sh", "-c", "kill -TERM $$").returncode == -15
    assert hugeld("run", "cat", input="in\n").stdout == "in\n"


def test_run_keeps_what_is_preloaded(builder, pool, pause_library):
    env = helpers.environment(LD_PRELOAD=pause_library)
    result = hugeld("run", "--copy", "sh", "-c", "echo $LD_PRELOAD", env=env)
    assert result.stdout.endswith(f"/libhugeld.so:{pause_library}\n") and result.stdout.count(":") == 1


VARIABLES = "LD_PRELOAD", "LD_HUGEPAGES", "LD_HUGEPAGES_OPTIONS"


@pytest.mark.parametrize("arguments, preloads", [
    ([], False), (["-o", "edges=small"], False), (["-p", "main:libc*"], False), (["--copy"], True), (["-o", "backend=auto"], True),
    (["-o", "backend=thp"], True), (["-l", "preload"], True), (["--copy", "-p", "main:libc*"], True)], ids=str)
def test_run_copies_only_where_asked(arguments, preloads, tmp_path):
    """No image of it is there, so nothing of hugeld is in it; a copy is made only if its name, a backend or the library is
    given."""
    env = helpers.environment(XDG_RUNTIME_DIR=tmp_path)
    for name in VARIABLES:
        env.pop(name, None)
    for verbose in (0, 1):
        result = hugeld("run", *arguments, "-o", f"verbose={verbose}", "sh", "-c", "env; cat /proc/self/maps", env=env)
        assert ("libhugeld.so" in result.stdout) == preloads
        assert preloads or not any(f"{name}=" in result.stdout for name in VARIABLES)
        assert result.stderr.count("started as it is") == (verbose and not preloads)
    if not preloads:
        asked, never = "none was asked for", "no whole huge page lies inside"
        large = shutil.copy("/usr/bin/python3", tmp_path)  # the machine's own store has no image of it
        on_small_pages(large)
        large = hugeld("run", *arguments, "-o", "strict=on", large, "-c", "1", env=env)
        one_line(large, 127, never if "edges=small" in arguments else "there is no image of it" if "-p" in arguments else asked)
        small = hugeld("run", *arguments, "-o", "strict=on", "true", env=env)
        if "-p" in arguments:  # with other objects it is libhugeld.so that judges, as everywhere
            assert (small.returncode, small.stderr) == (0, ""), small
        else:
            one_line(small, 127, never)


def test_strict_refuses_what_never_fits(pool):
    """It has a whole huge page at no load address.  The program that it starts is not judged by that."""
    one_line(hugeld("run", "--copy", "-o", "strict=on", "true"), 127, "no whole huge page lies inside", "; strict=on, so it does not run")
    pool(16)
    script = "import subprocess; print(subprocess.run(['true']).returncode)"
    result = hugeld("run", "--copy", "-o", "strict=on", "--", "/usr/bin/python3", "-c", script)
    assert (result.returncode, result.stdout, result.stderr) == (0, "0\n", "")
    assert hugeld("run", "--copy", "-o", "strict=on,exe=other", "true").returncode == 0


def write_program(path, text, mode=0o755):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


RAN = "#!/bin/sh\necho ran\n"
PRIVATE = {"bin/t-program": (RAN, 0o700), "other/t-program": ("#!/bin/sh\necho another\n", 0o755)}
AS_NOBODY_WITH = "setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=+dac_override --ambient-caps=+dac_override"
# The programs that env(1) starts: the files, and a command prefix.
STARTED = {
    "an empty file": ({"bin/t-program": ("", 0o755)}, ""),
    "no interpreter's name": ({"bin/t-program": ("#!\necho ran\n", 0o755)}, ""),
    "an interpreter without one": ({"bin/t-program": ("#!{folder}/inner\necho ran\n", 0o755), "inner": ("echo inner\n", 0o755)}, ""),
    "a later match": ({"bin/t-program": ("#!/no/such/interpreter\n", 0o755), "other/t-program": (RAN, 0o755)}, ""),
    "the effective user's": (PRIVATE, "setpriv --ruid=65534"),
    "not the real user's": (PRIVATE, "setpriv --euid=65534 --inh-caps=-all --bounding-set=-all"),
    "an ambient capability's": (PRIVATE, AS_NOBODY_WITH),
}


@pytest.mark.parametrize("words", [[], ["--copy"], ["-o", "verbose=1"]], ids=str)
@pytest.mark.parametrize("what", STARTED)
def test_runs_what_env_runs(root, shared_folder, library, tmp_path_factory, what, words):
    files, prefix = STARTED[what]
    folder = shared_folder / tmp_path_factory.mktemp("started").name
    folder.mkdir()
    for name, (text, mode) in files.items():
        write_program(folder / name, text.format(folder=folder), mode)
    env = helpers.environment(PATH=f"{folder}/bin:{folder}/other:{os.environ['PATH']}")
    plain = helpers.run([*prefix.split(), "env", "t-program"], env)
    assert plain.returncode == 0, plain
    result = helpers.run([*prefix.split(), library.parent / "hugeld", "run", *words, "--", "t-program"], env)
    assert (result.returncode, result.stdout) == (0, plain.stdout), result


@pytest.mark.parametrize("arguments", [
    [], ["--"], ["-p", "main"], ["-o", "edges=small"], ["-o", "backend=thp"], ["-o", "verbose=1"], ["--copy"]], ids=str)
def test_run_is_short(arguments, tmp_path):
    """hugeld becomes the program by itself, after few system calls."""
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    trace = tmp_path / "trace"
    result = helpers.run(["strace", "-o", trace, helpers.HUGELD, "run", *arguments, "true"], helpers.environment(PATH="/bin"))
    calls = trace.read_text().splitlines()
    starts = [i for i, call in enumerate(calls) if call.startswith("execve(") and call.endswith("= 0")]
    assert result.returncode == 0 and len(starts) == 2 and starts[1] < 80


def test_run_options_join_the_environment(builder, pool):
    """-o comes after LD_HUGEPAGES_OPTIONS, so it wins; -p replaces LD_HUGEPAGES."""
    env = helpers.environment(LD_HUGEPAGES="none", LD_HUGEPAGES_OPTIONS="verbose=1,edges=small")
    result = hugeld("run", "--copy", "-p", "main:libx*", "-o", "verbose=2", "-o", "data=off", "sh", "-c",
                    "echo $LD_HUGEPAGES; echo $LD_HUGEPAGES_OPTIONS", env=env)
    assert result.stdout == f"main:libx*\n{helpers.ALL_SEGMENTS},verbose=1,edges=small,verbose=2,data=off\n"


def test_run_missing_program():
    env = helpers.environment(PATH="/usr/bin:/bin")
    one_line(hugeld("run", "no-such-program-anywhere", env=env), 127, "no-such-program-anywhere")
    one_line(hugeld("run", "/no/such/program"), 127, "/no/such/program")
    one_line(hugeld("run", ""), 127)


def test_missing_interpreter(tmp_path):
    script = tmp_path / "script"
    script.write_text("#! /no/such/shell -x\n")
    script.chmod(0o755)
    one_line(hugeld("run", script), 127, f"{script}: its interpreter /no/such/shell is not there; install it")
    one_line(hugeld("bench", "--", script), 1, f"{script}: its interpreter /no/such/shell is not there; install it")


def test_folder_is_no_program(tmp_path):
    one_line(hugeld("run", tmp_path), 126, "Is a directory; name a program")
    text = tmp_path / "text"
    text.write_text("x\n")
    one_line(hugeld("run", text), 126, "make it an executable file (chmod +x)")


def test_inspect_of_what_cannot_be_read(tmp_path, builder, root, library):
    text = tmp_path / "empty"
    text.write_text("")
    text.chmod(0o755)
    one_line(hugeld("inspect", text), 1, "is empty; build or install it again")
    user = [*helpers.become(12345), library.parent / "hugeld"]
    one_line(helpers.run([*user, "inspect", "--pid", "1"]), 1, "1: ", "root")
    hidden = shutil.copy(builder.executable("nopie"), "/run/hugeld-hidden")
    try:
        os.chmod(hidden, 0o711)
        result = helpers.run([*user, "inspect", hidden])
        assert "Permission denied; run hugeld as a user who may read it" in result.stderr, result
    finally:
        os.unlink(hidden)


@pytest.mark.parametrize("options", ["verbose=0", "verbose=1", "strict=on"])
@pytest.mark.parametrize("arguments", [[], ["--copy"], ["--via=preload"]], ids=" ".join)
def test_run_opens_the_program_once(builder, pool, tmp_path, arguments, options):
    """run opens the program once, so that everything is decided about one file, even if another user exchanges it meanwhile."""
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    pool(64)
    app, trace = builder.executable("nopie"), tmp_path / "trace"
    helpers.run(["strace", "-o", trace, helpers.HUGELD, "run", *arguments, "-o", options, app])
    calls = trace.read_text().split(f'execve("{app}"')[0]
    assert len(re.findall(rf'^open(?:at)?\(.*"{app}"', calls, re.MULTILINE)) == 1, calls


def test_run_script(builder, pool, tmp_path):
    pool(64)
    script = tmp_path / "script"
    script.write_text(f'#!/bin/sh\nexec {builder.executable("nopie")} "$@"\n')
    script.chmod(0o755)
    result = hugeld("run", "--copy", "-o", "backend=hugetlb,verbose=2,exe=app*", script)
    assert result.stderr == "hugeld: app-nopie: text 5 pages hugetlb, rodata 1 page hugetlb\n"
    assert (result.returncode, result.stdout) == outcome(helpers.run([script]))[:2]


def test_run_set_user_id_program(builder, root, shared_folder):
    copy = pathlib.Path(shutil.copy(builder.tiny(), shared_folder / "setuid-tiny"))
    os.chown(copy, 65534, 65534)
    copy.chmod(0o4755)
    result = hugeld("run", "--copy", copy)
    assert (result.returncode, result.stdout) == (4, "tiny\n")
    assert result.stderr.count("\n") == 1 and "it is set-user-ID" in result.stderr
    copy.unlink()


def test_run_static_program(builder):
    app = builder.tiny("-static")
    result = hugeld("run", "--copy", app)
    assert (result.returncode, result.stdout) == (4, "tiny\n")
    assert result.stderr.count("\n") == 1 and "static, the dynamic linker never runs" in result.stderr
    result = hugeld("run", "--copy", "-o", "strict=on", app)
    assert (result.returncode, result.stdout) == (127, "")
    result = hugeld("run", "--copy", "-o", "strict=on,exe=other", app)
    assert (result.returncode, result.stdout) == (4, "tiny\n")


# --- inspect ---


def check_plan(file):
    keys = {"load_bias", "load_bias_of", "pages", "text_share", "made_executable_bytes", "reason", "spans", "segments"}
    assert keys <= set(file["plan"])
    before = 0
    for span in file["plan"]["spans"]:
        start, end = int(span["start"], 16), int(span["end"], 16)
        assert before <= start < end and start % file["huge_page_bytes"] == 0 == end % file["huge_page_bytes"]
        assert span["pages"] * file["huge_page_bytes"] == end - start
        assert (span["kind"], span["flags"]) in (("text", "r-x"), ("rodata", "r--"), ("data", "rw-"))
        before = end
    assert file["plan"]["pages"] == sum(s["pages"] for s in file["plan"]["spans"])


def test_inspect_executable(builder):
    [file] = hugeld_json("inspect", builder.executable("nopie"))["files"]
    check_plan(file)
    assert (file["type"], file["machine"], file["static"]) == ("exec", "x86-64", False)
    assert [(s["start"], s["end"], s["kind"]) for s in file["plan"]["spans"]] == [
        ("0x400000", "0xe00000", "text"), ("0xe00000", "0x1000000", "rodata")]
    assert file["plan"]["text_share"] == 1
    assert "range" not in file
    # The headers before the text and the beginning of the read-only data lie in the text's pages.
    headers, _, rodata, _ = (h for h in read_headers(builder.executable("nopie")) if h.type == PT_LOAD)
    assert file["plan"]["made_executable_bytes"] == headers.memory_bytes + 0xE00000 - rodata.vaddr


def test_inspect_ranges_over_load_addresses(builder):
    [file] = hugeld_json("inspect", builder.executable("pie"))["files"]
    check_plan(file)
    range_ = file["range"]
    assert range_["starts"] == 512
    # A span may begin only inside the object, so where the first page is cut, the text begins small.
    assert 0.7 < range_["text_share_min"] < 0.8 and range_["text_share_max"] == 1
    assert 0 < range_["starts_full_share"] < 1
    assert range_["pages_min"] in (5, 6) and range_["pages_max"] in (6, 7)
    [aligned] = hugeld_json("inspect", builder.executable("aligned-pie"))["files"]
    assert aligned["range"]["starts"] == 1 and aligned["range"]["text_share_min"] == 1


def test_inspect_where_the_kernel_puts_it(builder, tmp_path):
    """inspect shows the place that each start gives a library, or all places."""
    library = builder.with_library("dso")[1][0]
    [file] = hugeld_json("inspect", library)["files"]
    script = f"import ctypes; ctypes.CDLL('{library}'); print(min(line for line in open('/proc/self/maps') if '{library}' in line))"
    starts = {int(helpers.run(["/usr/bin/python3", "-c", script]).stdout.partition("-")[0], 16) % helpers.HUGE for _ in range(8)}
    if file["plan"]["load_bias_of"] == "kernel":
        assert starts == {int(file["plan"]["load_bias"], 16) % helpers.HUGE}
    else:
        assert file["plan"]["load_bias_of"] == "example" and len(starts) > 1


def test_inspect_options(builder):
    app = builder.executable("nopie")
    [keep] = hugeld_json("inspect", "-o", "edges=small", app)["files"]
    spans = [(s["start"], s["end"]) for s in keep["plan"]["spans"]]
    assert spans == [("0x600000", "0xc00000"), ("0xe00000", "0x1000000")]
    [text] = hugeld_json("inspect", "-o", "segments=text", app)["files"]
    assert [s["kind"] for s in text["plan"]["spans"]] == ["text"]
    assert "KiB: segments=text leaves read-only data alone (set segments=text+rodata)" in hugeld("inspect", "-o", "segments=text", app).stdout


def test_inspect_why_not(builder):
    [file] = hugeld_json("inspect", builder.tiny())["files"]
    assert (file["plan"]["reason"], file["plan"]["remedy"]) == ("too-small", None) and file["plan"]["sentence"]
    [file] = hugeld_json("inspect", builder.with_library("dso-textrel")[1][0])["files"]
    assert file["plan"]["reason"] == "text-relocations"
    [file] = hugeld_json("inspect", builder.tiny("-static"))["files"]
    text = hugeld("inspect", builder.tiny("-static")).stdout
    assert file["static"] is True and "plan:" not in text and "small:" not in text, text


def remedies(path, options):
    """(flags of the segment, its bytes that are covered, the remedy) for each segment of PATH with OPTIONS."""
    [file] = hugeld_json("inspect", "-o", options, path)["files"]
    return [(s["flags"], s["covered_bytes"], s["remedy"]) for s in file["plan"]["segments"]]


@pytest.mark.parametrize("options", ["verbose=0", "edges=small", "segments=text", "segments=text,edges=small,data=off", "bss=thp"])
def test_inspect_remedies_help(builder, options):
    """The advice of inspect covers more of that segment, and is nothing that the user has already."""
    variants = ("pie", "nopie", "aligned", "aligned-pie", "noseparate", "six", "hole")
    apps = [builder.tiny(), *(builder.executable(v) for v in variants), builder.executable("nopie", 2**18)]
    seen = set()
    for app in apps:
        small = remedies(app, options)
        for i, (flags, covered, remedy) in enumerate(small):
            seen.add(remedy)
            if remedy:
                setting = remedy.removeprefix("set ")
                assert setting not in options and remedies(app, f"{options},{setting}")[i][1] > covered, (app, flags, remedy)
    assert None in seen
    assert "set segments=text+rodata" in seen or "segments=text" not in options


def test_inspect_driver():
    """g++ starts cc1plus, so that is to be inspected; cc1plus does its work itself."""
    worker = helpers.run(["g++", "-print-prog-name=cc1plus"]).stdout.strip()
    [file, own] = hugeld_json("inspect", "g++", worker)["files"]
    assert os.path.samefile(file["worker"], worker) and own["worker"] is None
    assert f"it only starts {file['worker']}, which does its work: inspect that" in hugeld("inspect", "g++").stdout


def test_inspect_several_files(builder):
    result = hugeld("inspect", "--json", builder.tiny(), "/no/such/file", builder.executable("pie"))
    assert result.returncode == 1
    files = json.loads(result.stdout)["files"]
    assert ["error" in f for f in files] == [False, True, False]
    assert result.stderr.count("\n") == 1


def foreign(path, machine, big_endian=False):
    """A made-up ELF64 library of another machine: 8 MiB of text at 2 MiB."""
    order = ">" if big_endian else "<"
    ident = b"\x7fELF\x02" + (b"\x02" if big_endian else b"\x01") + b"\x01" + bytes(9)
    header = ident + struct.pack(order + "HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    loads = [(5, 0, 0x800000), (6, 0x800000, 0x1000)]
    for flags, vaddr, size in loads:
        header += struct.pack(order + "IIQQQQQQ", 1, flags, vaddr, vaddr, vaddr, size, size, 0x10000)
    path.write_bytes(header)
    os.truncate(path, 0x801000)
    return path


@pytest.mark.parametrize("machine, name", [(183, "aarch64"), (21, "unknown"), (9999, "unknown")])
def test_inspect_foreign_machine(tmp_path, machine, name):
    [file] = hugeld_json("inspect", foreign(tmp_path / "foreign", machine))["files"]
    check_plan(file)
    assert file["machine"] == name
    assert (file["range"]["pages_min"], file["range"]["pages_max"]) == (3, 4)


def thirty_two_bit():
    return b"\x7fELF\x01\x01\x01" + bytes(9) + struct.pack("<HHIIIIIHHHHHH", 2, 3, 1, 0, 52, 0, 0, 52, 32, 0, 0, 0, 0)


@pytest.mark.parametrize("content, word", [
    (b"", "empty"), (b"#!/bin/sh\n", "script"), (b"text\n", "no ELF"), (thirty_two_bit(), "32-bit"),
    (b"\x7fELF", "truncated"), (b"\x7fELF\x02\x01\x01" + bytes(57), ""), (b"\x7fELF\x07" + bytes(200), ""),
    (bytes(4096), "no ELF"),
], ids=["empty", "script", "text", "32-bit", "four bytes", "zeros", "class", "zero page"])
def test_inspect_bad_file(tmp_path, content, word):
    file = tmp_path / "bad"
    file.write_bytes(content)
    one_line(hugeld("inspect", file), 1, "bad", word)


def test_inspect_no_file(tmp_path):
    one_line(hugeld("inspect", "/no/such/file"), 1, "/no/such/file")
    one_line(hugeld("inspect", tmp_path), 1, "regular")
    one_line(hugeld("inspect", "/dev/zero"), 1, "regular")
    os.mkfifo(tmp_path / "fifo")
    one_line(hugeld("inspect", tmp_path / "fifo"), 1)


def test_inspect_hostile_name(tmp_path):
    file = tmp_path / "a\x1b[2Jb\nc\u202ed"
    file.write_text("text")
    said = one_line(hugeld("inspect", file), 1).stderr
    assert "\x1b" not in said and "\u202e" not in said
    broken = os.fsencode(tmp_path) + b"/\xff\xfe"
    os.link(file, broken)
    result = subprocess.run([helpers.HUGELD, "inspect", "--json", broken], capture_output=True, timeout=helpers.PATIENCE)
    assert result.returncode == 1 and json.loads(result.stdout)["files"][0]["error"]


def test_inspect_needs_no_privileges(builder, root, library, shared_folder):
    copy = shared_folder / "readable"
    copy.write_bytes(builder.executable("pie").read_bytes())
    result = helpers.run([*NOBODY, library.parent / "hugeld", "inspect", copy])
    assert (result.returncode, result.stderr) == (0, "")


# --- processes: status, inspect --pid ---

NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


@contextlib.contextmanager
def on_huge_pages(app, library, pause_library, options, patterns=None):
    env = helpers.preload(library, pause_library, options=options, patterns=patterns)
    with helpers.paused([app], env, app.name) as process:
        yield process


def status_of(pid):
    [process] = hugeld_json("status", pid)["processes"]
    return process


@pytest.mark.parametrize("backend", ["hugetlb", "thp"])
def test_status(builder, library, pause_library, pool, thp, backend):
    """The pages in smaps, per object, range and backend."""
    pool(64)
    app = builder.executable("nopie")
    with on_huge_pages(app, library, pause_library, f"backend={backend}") as process:
        told = status_of(process.pid)
        words = hugeld("status", process.pid)
        everything = hugeld_json("status", "--all")["processes"]
        mappings = read_smaps(process.pid)
    assert told["pid"] in [p["pid"] for p in everything]
    assert told["name"] == app.name and told["executable"] == str(app) and told["text_share"] == 1
    main = told["objects"][0]
    assert main["is_main"] and main["path"] == str(app)
    assert {r["backend"] for r in main["ranges"]} == {backend}
    assert [(int(r["start"], 16), int(r["end"], 16), r["kind"], r["pages"]) for r in main["ranges"]] == [
        (0x400000, 0xE00000, "text", 5), (0xE00000, 0x1000000, "rodata", 1)]
    assert main["backends"] == {"hugetlb_pages": 0, "thp_pages": 0, "image_pages": 0, "file_pages": 0, f"{backend}_pages": 6}
    assert main["private_hugetlb_bytes"] == sum(m.hugetlb_bytes for m in mappings)
    assert main["anon_huge_bytes"] == sum(m.thp_bytes for m in mappings)
    assert sum(n["bytes"] for n in main["nodes"]) == 6 * helpers.HUGE
    assert told["own"]["hugetlb_bytes"] == told["own"]["thp_bytes"] == 0
    assert "100.0 %" in words.stdout and words.returncode == 0
    segments = hugeld_json("inspect", app)["files"][0]["plan"]["segments"]
    small = sum(int(s["end"], 16) - int(s["start"], 16) - s["covered_bytes"] for s in segments) / 1024
    reasons = re.findall(r"^    (\d+) KiB on small pages: ", words.stdout.partition("  /")[2].partition("\n  /")[0], re.M)
    assert reasons and 0 <= sum(map(int, reasons)) - small < len(reasons)  # each line rounds up


@pytest.mark.parametrize("patterns,options,words", [
    ("lib*", "", "it is not one of the named objects; name it in LD_HUGEPAGES"),
    ("main", "exe=other", "exe= leaves this program out; start it with another exe="),
    ("main", "backend=hugetlb", "hugeld in the process left it on small pages; start it with verbose=1, which says why"),
], ids=["not-named", "only", "silent"])
def test_status_says_why_nothing_moved(builder, library, pause_library, pool, patterns, options, words):
    pool(0)
    app = builder.executable("nopie")
    with on_huge_pages(app, library, pause_library, options, patterns) as process:
        result = hugeld("status", process.pid)
    assert result.returncode == 1 and f"    now: on small pages: {words}\n" in result.stdout, result.stdout


def test_status_of_a_small_program(library):
    """It needs no other lines than hugeld's status."""
    process = helpers.start(["sleep", "100"], helpers.preload(library))
    try:
        helpers.wait_until(lambda: helpers.state_of(process.pid) == "S")
        assert "    now: on small pages: no whole huge page lies inside\n" in hugeld("status", process.pid).stdout
    finally:
        helpers.end_process(process)


def ended_pid():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_vanished_process():
    pid = ended_pid()
    one_line(hugeld("status", pid), 1, f"{pid}: no such process, or it has ended; ps -e lists all")
    one_line(hugeld("inspect", "--pid", pid, "/bin/true"), 1, str(pid))
    one_line(hugeld("inspect", "--pid", 2), 1, "2: the process has no memory: it is a kernel thread")
    one_line(hugeld("status", "a-name"), 2, "status: 'a-name' is not a process ID; give a number as ps prints it, or --all")


def test_process_of_someone_else(root, library):
    command = library.parent / "hugeld"
    one_line(helpers.run([*NOBODY, command, "status", os.getpid()]), 1, "another user's process; run hugeld as its owner or as root")
    one_line(helpers.run([*NOBODY, command, "inspect", "--pid", os.getpid(), "/bin/true"]), 1, "another user's process; run hugeld as its owner or as root")
    result = helpers.run([*NOBODY, command, "status", "--all"])
    assert result.stderr == ""


@pytest.fixture
def sleeper_of_nobody(root):
    process = helpers.start([*NOBODY, "sleep", "infinity"])
    helpers.wait_until(lambda: os.path.basename(os.readlink(f"/proc/{process.pid}/exe")) == "sleep")
    yield process.pid
    helpers.end_process(process)


# Some kernels let root without CAP_SYS_PTRACE read the maps and not the file that runs.
@pytest.mark.parametrize("rights", ["-sys_ptrace", "-all"])
@pytest.mark.parametrize("words", [
    "attach", "attach --dry-run", "detach", "status", "status --json", "inspect --pid", "perf-map",
    "survey --seconds 0.1 --pid", "bench --seconds 0.1 --toggle --pid"])
def test_root_that_may_not_read_a_process(library, sleeper_of_nobody, words, rights):
    """Every command says so, and none that there is nothing.  The remedy is not "run hugeld as root" for root."""
    command = ["setpriv", f"--bounding-set={rights}", library.parent / "hugeld", *words.split(), sleeper_of_nobody]
    result = helpers.run(command)
    if words == "status --json":
        assert json.loads(result.stdout) == {"processes": [], "error": {"message": result.stderr[len("hugeld: "):-1]}}
        result.stdout = ""
    one_line(result, 1, f"{sleeper_of_nobody}: root may not read it without CAP_SYS_PTRACE; ", "--cap-add=SYS_PTRACE")


@pytest.mark.parametrize("user", [0, 12345])
def test_store_that_another_user_named(library, root, tmp_path, user):
    """Another user named a store in the environment of his process: root gets no command with it.  Root's own is used."""
    env = helpers.environment(LD_HUGEPAGES_OPTIONS=f"store={tmp_path}")
    python = os.path.realpath("/usr/bin/python3")
    process = helpers.start([*helpers.become(user), python, "-c", "import time; time.sleep(1000)"], env)
    try:
        helpers.wait_until(lambda: os.readlink(f"/proc/{process.pid}/exe") == python)
        said = [helpers.run([library.parent / "hugeld", "status", *json, process.pid]).stdout for json in ([], ["--json"])]
        assert ["store=" in text for text in said] == [False, user == 0], said
    finally:
        helpers.end_process(process)


def test_another_file_lies_at_its_path(library, root, tmp_path):
    """The file at its path in the process's mount namespace is another one than here: no command names the path."""
    command, place = library.parent / "hugeld", tmp_path / "place"
    place.mkdir()
    shutil.copy("/usr/bin/perl", place / "prog")
    script = (f"mount -t tmpfs none {place} && cp $(readlink -f /usr/bin/python3) {place}/prog && "
              f"exec {place}/prog -c 'import time; time.sleep(1000)'")
    process = helpers.start(["unshare", "-m", "sh", "-c", script])
    try:
        helpers.wait_until(lambda: os.readlink(f"/proc/{process.pid}/exe") == f"{place}/prog")
        status = helpers.run([command, "status", process.pid]).stdout
        assert "prog" in status and "hugeld run" not in status and "hugeld enable" not in status
        for words in ["status"], ["inspect", "--pid"]:
            answer = json.loads(helpers.run([command, words[0], "--json", *words[1:], process.pid]).stdout)
            objects = answer["processes"][0]["objects"] if words == ["status"] else answer["files"]
            assert [o["verdict"]["commands"] for o in objects if o["path"] == f"{place}/prog"] == [None], objects
    finally:
        helpers.end_process(process)


def test_root_of_a_user_namespace(library, sleeper_of_nobody):
    for words in ["status"], ["attach"], ["inspect", "--pid"]:
        result = helpers.run(["unshare", "--map-root-user", library.parent / "hugeld", *words, sleeper_of_nobody])
        if "unshare failed" in result.stderr:
            pytest.skip("no user namespaces here")
        one_line(result, 1, "a security policy or a user namespace denies root access to the process; run hugeld outside of it")


@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_executable_that_may_not_be_read(library, root, tmp_path, kind):
    """The owner may read its maps, but no longer its file.  There are still its libraries."""
    tmp_path.chmod(0o755)
    app, source = tmp_path / "app", tmp_path / "app.c"
    source.write_text("#include <unistd.h>\nint main(void) { return pause(); }\n")
    subprocess.run(["gcc", *(["-static"] if kind == "static" else []), "-o", app, source], check=True)
    process = helpers.start([*NOBODY, app])
    try:
        helpers.wait_until(lambda: os.path.basename(os.readlink(f"/proc/{process.pid}/exe")) == "app")
        helpers.wait_until(lambda: kind == "static" or "libc.so" in pathlib.Path(f"/proc/{process.pid}/maps").read_text())
        app.chmod(0)
        for words in ["attach"], ["status"], ["inspect", "--pid"], ["perf-map"]:
            result = helpers.run([*NOBODY, library.parent / "hugeld", *words, process.pid])
            if kind == "static":
                one_line(result, 1, "its owner may not read it", "run hugeld as root")
            else:
                assert "may not read" not in result.stdout + result.stderr, (words, result)
    finally:
        helpers.end_process(process)


# --- doctor ---


def test_doctor(pool):
    pool(7)
    total = pool_counts()[0]
    told = hugeld_json("doctor")
    assert told["usable"]["hugetlb"] is True
    assert (told["page_bytes"], told["huge_page_bytes"]) == (helpers.PAGE, helpers.HUGE)
    assert (told["pool"]["total_pages"], told["pool"]["available_pages"]) == (total, 7)
    assert sum(n["free_pages"] for n in told["pool"]["nodes"]) == told["pool"]["free_pages"]
    usable = [n for n in told["pool"]["nodes"] if n["use"] == "usable"]
    assert usable and told["pool"]["usable_free_pages"] == sum(n["free_pages"] for n in usable) == 7
    assert told["pool"]["available"]["any"] == told["pool"]["available"]["interleave"] == 7
    assert told["numa"]["local_node"] in [n["node"] for n in told["pool"]["nodes"]]
    assert all(isinstance(v, bool) for v in told["abilities"].values()) and "hugetlb_mremap" in told["abilities"]
    assert told["libhugeld"] == str(helpers.LIBRARY.resolve())
    for finding in told["findings"]:
        assert finding["name"] and finding["sentence"] and finding["state"] in ("ok", "warn", "bad")
        assert finding["state"] == "ok" or finding["remedy"]


def test_doctor_empty_pool(pool):
    """The finding brings the command that fixes it."""
    pool(0)
    told = hugeld_json("doctor") if hugeld("doctor").returncode == 0 else json.loads(hugeld("doctor", "--json").stdout)
    assert told["usable"]["hugetlb"] is False
    assert any(f["state"] != "ok" and "vm.nr_hugepages" in (f["remedy"] or "") for f in told["findings"])
    assert "vm.nr_hugepages" in hugeld("doctor").stdout


@pytest.mark.parametrize("kernel, said", [("Not affected", None), ("KVM: Mitigation: Split huge pages", "splits?"),
                                          ("Processor vulnerable", "splits?|does not split")])
def test_doctor_multihit(root, tmp_path, kernel, said):
    """If the processor has that flaw, the host may split the huge pages that its guests execute."""
    where = pathlib.Path("/sys/devices/system/cpu/vulnerabilities/itlb_multihit")
    if not where.exists():
        pytest.skip("this kernel does not know of the flaw")
    (tmp_path / "told").write_text(kernel + "\n")
    script = 'mount --bind "$1" "$2" && exec "$0" doctor --json'
    result = helpers.run(["unshare", "-m", "sh", "-c", script, helpers.HUGELD, tmp_path / "told", where])
    found = [f for f in json.loads(result.stdout)["findings"] if f["name"] == "itlb_multihit"]
    assert len(found) == (said is not None)
    for finding in found:
        assert "iTLB multihit" in finding["sentence"] and re.search(said, finding["sentence"])
        assert (finding["state"], "nx_huge_pages" in (finding["remedy"] or "")) in (("warn", True), ("ok", False))


def test_program_begins_without_the_command(tmp_path):
    """hugeld-command may be missing for a moment, while it is installed: the program runs all the same, unless that is forbidden."""
    alone = shutil.copy(helpers.HUGELD, tmp_path)
    result = helpers.run([alone, "run", "-o", "verbose=1", "echo", "begins"])
    assert (result.returncode, result.stdout) == (0, "begins\n") and "install hugeld again" in result.stderr, result
    result = helpers.run([alone, "run", "-o", "strict=on", "echo", "begins"])
    assert (result.returncode, result.stdout) == (127, "") and "install hugeld again" in result.stderr, result
    for name, status in ("no-such-program", 127), ("/etc/passwd", 126):
        result = helpers.run([alone, "run", "--", name])
        assert result.returncode == status and result.stderr.startswith(f"hugeld: {name}: "), result


def test_run_without_proc():
    """The command finds its own files."""
    words = ["sh", "-c", 'umount -l /proc; exec "$@"', "sh", helpers.HUGELD, "run", "--copy", "-o", "verbose=1", "--", "/usr/bin/python3", "-V"]
    plain, result = helpers.run(words[-2:]), helpers.run(["unshare", "--mount", *words])
    assert (result.returncode, result.stdout) == (0, plain.stdout) and "mount /proc" in result.stderr, result


def test_few_open_files():
    """No command takes a file for missing that it may not open; a program is run all the same."""
    pid = os.getpid()
    for words in (["attach", "--dry-run", pid], ["status", pid], ["status", "--all"], ["inspect", "--pid", pid], ["list"],
                  ["apply", "--dry-run"], ["doctor"], ["survey", "--seconds=0.1"]):
        result = helpers.run(["sh", "-c", 'ulimit -n 12; exec "$@"', "sh", helpers.HUGELD, *words])
        one_line(result, 1, f"{words[0]}: only 12 files may be open; raise the limit to 64 or more (ulimit -n)")
        result = helpers.run(["sh", "-c", 'ulimit -n 12; exec "$@"', "sh", helpers.HUGELD, words[0], "--help"])
        assert result.returncode == 0 and result.stdout.startswith("Usage:"), result
    result = helpers.run(["sh", "-c", 'ulimit -n 12; exec "$@"', "sh", helpers.HUGELD, "run", "--", "echo", "runs"])
    assert (result.returncode, result.stdout, result.stderr) == (0, "runs\n", "")
