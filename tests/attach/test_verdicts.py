# SPDX-License-Identifier: LGPL-2.1-or-later
"""One verdict: the answers of inspect, doctor, status, attach, detach, perf-map, share add, run and survey about a program agree,
and come true."""

import contextlib
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess

import helpers
import attaching
import pytest
import stores
from calls import build_calls

CLEARLY_MORE = 1.25
# Stock programs: this number, of all sizes between these, and some small ones.
MIBS, LARGE, SMALL = (2, 48), 34, ("sh", "true", "cat", "ls", "sed", "awk")
FORTY = LARGE + len(SMALL)


class Place:
    """A store in a mount namespace of its own, which INSIDE enters."""

    def __init__(self, path, holder):
        self.path = path
        self.inside = ["nsenter", "-t", str(holder.pid), "-m", "--"]
        self.apply = {"command": [*self.inside, helpers.HUGELD], "seen_from": f"/proc/{holder.pid}/root"}
        self.option = f"store={path}"

    def hugeld(self, *arguments):
        return helpers.run([*self.inside, helpers.HUGELD, *arguments], timeout=120)

    def hugeld_under(self, prefix, *arguments):
        return helpers.run([*self.inside, *prefix, helpers.HUGELD, *arguments], stdin=subprocess.DEVNULL, timeout=120)

    def json(self, command, *arguments):
        result = self.hugeld(command, "--json", *arguments)
        assert result.returncode in (0, 1) and result.stdout, result
        return json.loads(result.stdout)

    def inspect(self, *arguments):
        [file] = self.json("inspect", "-o", self.option, *arguments)["files"]
        return file

    def add(self, path, *options):
        return self.make(path, *options)

    def make(self, path, way=None):
        """What `hugeld apply` does with the file at PATH, and how much of its text is huge then."""
        result = stores.make_images(self.path, path, way=way, any_disk=False, **self.apply)
        [file] = [file for file in json.loads(result.stdout)["files"] if file["path"] == os.path.realpath(path)]
        listed = [found for found in stores.list_images(self.path, **self.apply) if found["path"] == file["path"]]
        return file | {"text_share": listed[0]["text_share"] if listed else None}

    def forget(self, path):
        """Removes the image of the file at PATH, or what says that it is in place."""
        for link in pathlib.Path(self.apply["seen_from"], str(self.path).lstrip("/")).glob("0x*/.origin"):
            if os.readlink(link) == os.path.realpath(path):
                shutil.rmtree(link.parent)


@pytest.fixture
def place(tmp_path, root):
    path = tmp_path / "store"
    path.mkdir()
    script = f"mount -t tmpfs -o huge=always,mode=700,size=1g tmpfs {path} && echo ready && exec sleep 1000"
    holder = helpers.start(["unshare", "-m", "--propagation", "shared", "sh", "-c", script])
    try:
        assert holder.stdout.readline() == "ready\n", holder.stderr.read()
        yield Place(path, holder)
    finally:
        helpers.end_process(holder)


def is_elf(path):
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(5) == b"\x7fELF\x02"
    return False


def can_be_kept(path):
    """Whether it is an ELF program that busy.c can be preloaded into."""
    if not is_elf(path) or path.stat().st_mode & 0o6000:
        return False
    return " INTERP " in subprocess.run(["readelf", "-lW", path], capture_output=True, text=True, check=False).stdout


def stock_programs():
    """Paths of FORTY programs, each once."""
    files = {path.resolve() for path in pathlib.Path("/usr/bin").iterdir()}
    large = [path for path in files if path.is_file() and MIBS[0] << 20 <= path.stat().st_size <= MIBS[1] << 20]
    large = sorted(filter(can_be_kept, large), key=lambda path: (path.stat().st_size, path))
    if len(large) < LARGE:
        pytest.skip(f"only {len(large)} of the {LARGE} programs that it takes are installed")
    small = [pathlib.Path(shutil.which(name)).resolve() for name in SMALL]
    return [large[i * len(large) // LARGE] for i in range(LARGE)] + small


def added_as_told(place, path, verdict):
    """Follows VERDICT with share add, and returns the result."""
    file = place.make(path)
    way, share = verdict["way"], verdict["text_share"]
    if way in ("in-place", "image") and not verdict["is_made"]:
        # A machine short of memory gives no huge pages in place; then it is an image.
        assert file["result"] in ("made", "pending") and (file["way"] in (way, None) or way == "in-place"), (path, verdict, file)
        assert file["way"] != "image" or way != "image" or abs(file["text_share"] - share) < 0.01, (path, verdict, file)
    elif way == "nothing":
        assert file["result"] in ("nothing", "refused"), (path, verdict, file)
    elif file["result"] == "made":
        assert file["text_share"] * CLEARLY_MORE < share, (path, verdict, file)
    return file


def check_program(place, path):
    """The commands' answers about the file at PATH, before there is anything in the store and after."""
    verdict = place.inspect(path)["verdict"]
    text = place.hugeld("inspect", "-o", place.option, path).stdout
    assert verdict["sentence"] in text and (verdict["commands"] or "best: ") in text
    assert (verdict["way"] == "nothing") == (verdict["commands"] is None) == (verdict["text_share"] == 0), verdict
    # Nothing recommends an image that share add would refuse.
    recommended = "hugeld enable" in text
    file = added_as_told(place, path, verdict)
    made = file["result"] == "made"
    assert made or file["result"] == "pending" or not recommended, (path, text)
    after = place.inspect(path)["verdict"]
    assert (after["way"], after["is_made"]) == (("in-place" if file["way"] == "in-place" else "image", True) if made else
                                                (verdict["way"], False)), (path, after)
    if made:
        place.forget(path)
    return verdict["way"]


@pytest.mark.check_all
def test_targets(place, targets, pool):
    """The targets, each linked in another way."""
    pool(0)
    kinds = ("exec", "pie", "static", "static-pie", "aligned", "lld")
    ways = [check_program(place, pathlib.Path(targets[kind])) for kind in kinds]
    assert {"image", "in-place"} & set(ways), ways


def asks_alike(place, target, now=None):
    """Every command that looks at the process of TARGET; the verdict, and the answers of attach and detach --dry-run."""
    [process] = place.json("status", target.pid)["processes"]
    [main] = [o for o in process["objects"] if o["is_main"]]
    verdict = main["verdict"]
    inspected = place.inspect("--pid", target.pid)["verdict"]
    assert {k: inspected[k] for k in ("now", "obstacle")} == {k: verdict[k] for k in ("now", "obstacle")}
    assert now in (None, verdict["now"]), (verdict, target.text())
    now = verdict["now"]
    on_huge = main["text_huge_bytes"] > 0
    assert on_huge or now == "small", main
    # An object called done already, or refused, is so.
    told = {}
    for command in "attach", "detach":
        [answer] = place.json(command, "--dry-run", target.pid)["processes"]
        told[command] = answer["reason"] or next((o["reason"] for o in answer["objects"] if o["is_main"]), None)
    already = ("huge-already", "attach-copy")
    # The text left on small pages can be moved: which of it the page cache has on huge ones is the kernel's choice.
    is_left = main["text_share"] < 1 and (now == "cached" or main["backends"]["file_pages"] > 0)
    assert (told["attach"] in already) == (now in ("moved", "copied", "mapped", "executed", "cached")) or is_left, (told, now)
    expected = {"mapped": (None,), "copied": (None,), "moved": ("attach-moved",), "executed": ("attach-executed",)}
    barred = ("attach-traced", "attach-stopped")
    assert told["detach"] in expected.get(now, ("attach-detached",)) or told["detach"] == told["attach"] in barred, (told, now)
    if verdict["obstacle"] and now == "small":
        assert told["attach"] == verdict["obstacle"], told
    mapped = place.hugeld("perf-map", "-O", "/dev/null", target.pid)
    assert (mapped.returncode == 0) == (now == "moved"), (now, mapped)
    maps = pathlib.Path(f"/proc/{target.pid}/maps").read_text(encoding="utf-8")
    is_copy = "/hugeld:" in maps or "/memfd:hugeld:" in maps
    assert is_copy == (now == "copied"), (now, maps)
    assert ("a copy of its own, in which perf finds no names" in mapped.stderr) == is_copy, (maps, mapped)
    text = place.hugeld("status", target.pid).stdout
    assert "start it with hugeld run" not in text or now == "small", text
    return verdict, told


def does_as_told(place, target, told):
    """attach does as --dry-run said."""
    result = place.hugeld("attach", target.pid)
    assert (result.returncode == 0) == (told["attach"] in (None, "huge-already", "attach-copy")), (told, result)


@contextlib.contextmanager
def started(place, path, mode, *prefix):
    with attaching.running(path, mode, prefix=[*place.inside, *prefix]) as target:
        attaching.wait_in_call(target.pid)
        yield target


KINDS = ["exec", "pie", "static", "aligned"]


@pytest.mark.check_all
@pytest.mark.parametrize("kind", KINDS)
def test_plain_then_attached(place, targets, kind):
    with started(place, targets[kind], "futex") as target:
        verdict, told = asks_alike(place, target, "small")
        assert told["attach"] is None and verdict["obstacle"] is None
        does_as_told(place, target, told)
        _, told = asks_alike(place, target, "copied")
        does_as_told(place, target, told)
        assert place.hugeld("detach", target.pid).returncode == 0
        asks_alike(place, target, "small")


@pytest.mark.parametrize("kind, backend", [("exec", "thp"), ("pie", "thp"), ("aligned", "thp"), ("exec", "hugetlb")])
def test_moved(place, targets, pool, thp, kind, backend):
    pool(16)
    prefix = [helpers.HUGELD, "run", "--via=preload", "-o", f"backend={backend}", "--"]
    with started(place, targets[kind], "futex", *prefix) as target:
        _, told = asks_alike(place, target, "moved")
        does_as_told(place, target, told)


@pytest.mark.parametrize("kind", ["exec", "static", "aligned", "pie"])
def test_by_its_commands(place, targets, kind):
    """The commands of the verdict, as they are printed, bring about its result."""
    verdict = place.inspect(targets[kind])["verdict"]
    *first, run = verdict["commands"].split(", then ")
    for command in first:  # into the named store instead of the machine's
        assert shlex.split(command)[:2] == ["hugeld", "enable"] and place.make(shlex.split(command)[2])["result"] == "made", command
    words = shlex.split(run)
    assert words[:2] == ["hugeld", "run"] and words[-1] == str(targets[kind])
    with started(place, targets[kind], "futex", helpers.HUGELD, *words[1:-1]) as target:
        now = "mapped" if verdict["way"] == "image" else "moved"
        _, told = asks_alike(place, target, now)
        does_as_told(place, target, told)


def test_executed(place, targets):
    """Its image is mounted over its file, as systemd does it for a unit."""
    assert place.make(targets["pie"])["result"] == "made"
    image = place.inspect(targets["pie"])["image"]["path"]
    mounted = ["unshare", "-m", "sh", "-c", f'mount --bind {image} {targets["pie"]} && exec "$0" "$@"']
    with started(place, targets["pie"], "futex", *mounted) as target:
        _, told = asks_alike(place, target, "executed")
        does_as_told(place, target, told)
        refused = place.hugeld("detach", target.pid)
        assert refused.returncode == 1 and "it was executed from its image" in refused.stderr


@pytest.mark.parametrize("kind", ["exec", "pie"])
def test_disabled(place, targets, kind):
    """It has switched transparent huge pages off: all commands say so, and text that was moved before stays."""
    with started(place, targets[kind], "small") as target:
        verdict, told = asks_alike(place, target, "small")
        assert verdict["obstacle"] == "attach-thp-disabled"
        does_as_told(place, target, told)
        assert "PR_SET_THP_DISABLE" in place.hugeld("status", target.pid).stdout
    prefix = [helpers.HUGELD, "run", "--via=preload", "-o", "backend=thp", "--"]
    with started(place, targets[kind], "small", *prefix) as target:
        verdict, told = asks_alike(place, target, "moved")
        assert verdict["obstacle"] == "attach-thp-disabled"
        does_as_told(place, target, told)


def test_traced_and_stopped(place, targets, strace):
    prefix = ["strace", "-D", "-o", "/dev/null", "-e", "trace=none"]
    with attaching.running(targets["exec"], "futex", prefix=prefix) as target:
        _, told = asks_alike(place, target, "small")
        assert told["attach"] == "attach-traced"
        does_as_told(place, target, told)
    with started(place, targets["exec"], "futex") as target:
        os.kill(target.pid, signal.SIGSTOP)
        helpers.wait_until(lambda: helpers.state_of(target.pid) == "T")
        _, told = asks_alike(place, target, "small")
        assert told["attach"] == "attach-stopped"
        does_as_told(place, target, told)


def test_small_programs(place):
    """Where nothing can be done, no number suggests that something could, and no command leads elsewhere."""
    for name in SMALL:
        text = place.hugeld("inspect", "-o", place.option, shutil.which(name)).stdout
        assert "leave it as it is" in text, text
        for word in "load addresses", "0 huge pages", "hugeld enable", "hugeld run", "image:":
            assert word not in text, text


def test_static_program_of_which_no_image_can_be_made(targets, tmp_path):
    """It stays because other users can write to its folder, and not because it is static."""
    app = tmp_path / "app"
    shutil.copy(targets["static"], app)
    tmp_path.chmod(0o777)
    text = helpers.hugeld("inspect", app).stdout
    assert "leave it as it is: the store takes no image of this file" in text and f"'hugeld enable {app}' says why" in text, text


def test_no_whole_page_of_text(place, tmp_path):
    """Each way of using the image of a text without a whole huge page puts all of it there."""
    source, app = tmp_path / "app.c", tmp_path / "app"
    source.write_text('__asm__(".section .rodata; .skip 2 << 20, 1; .text; .skip 3 << 20, 0x90"); int main(void) { return 0; }\n')
    subprocess.run(["gcc", "-pie", "-fPIE", "-o", app, source], check=True)
    file = place.make(app, "image")
    assert file["result"] == "made" and file["text_share"] == 1, file
    verdict = place.inspect(app)["verdict"]
    assert (verdict["way"], verdict["is_made"]) == ("image", True), verdict
    result = place.hugeld("run", "-o", f"verbose=2,{place.option}", "--", app)
    assert result.returncode == 0 and "at the exec stop from" in result.stderr, result


# --- forty programs ---


@pytest.fixture(scope="module")
def busy(tmp_path_factory):
    """The library that keeps a program at its start."""
    library = tmp_path_factory.mktemp("busy") / "busy.so"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, attaching.HERE / "busy.c"], check=True)
    return library


@contextlib.contextmanager
def kept(place, busy, path, *prefix):
    """The program at PATH, started by PREFIX."""
    process = helpers.start([*place.inside, "env", f"LD_PRELOAD={busy}", *prefix, path], stdin=subprocess.PIPE)
    try:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        yield attaching.Target(process, path)
    finally:
        helpers.end_process(process)


def said_by_run(place, busy, path):
    """The lines of `run` at verbose=1 about a program that ends at once."""
    result = place.hugeld_under(["env", f"LD_PRELOAD={busy}", "BUSY=no"], "run", "-o", f"verbose=1,{place.option}", "--", path)
    assert result.returncode == 0, result
    return [line for line in result.stderr.splitlines() if "more text is in" not in line]


def survey_and_verdict(place, path):
    """Survey's row, and the verdict of inspect, both without other stores, which others may fill meanwhile."""
    for seconds in (1, 1, 3, 9, 27):  # a busy machine gives few samples
        verdict = place.json("inspect", path)["files"][0]["verdict"]
        rows = place.json("survey", "--seconds", str(seconds), "--program", path)["programs"]
        if rows and rows[0]["samples"] > 0 and verdict == place.json("inspect", path)["files"][0]["verdict"]:
            break
    [row] = rows
    return row, verdict


def check_survey(place, path):
    """It enables what the verdict says can be shared, or it says why there is nothing to enable."""
    row, verdict = survey_and_verdict(place, path)
    advice = row["advice"]
    assert (advice["command"] is None) == (advice["reason"] is not None), row
    words = shlex.split(advice["command"] or "")[2:]
    assert str(path) not in words or verdict["way"] in ("in-place", "image") and not verdict["is_made"], (row, verdict)


def check_process(place, target):
    """The answers about the plain process, and that they come true: status, inspect, attach, detach and perf-map."""
    _, told = asks_alike(place, target)
    does_as_told(place, target, told)
    if told["attach"] is None:
        asks_alike(place, target, "copied")
        assert place.hugeld("detach", target.pid).returncode == 0
        asks_alike(place, target)
    return told["attach"]


def check_commands(place, busy, path, verdict):
    """A process that was started by the commands of the verdict is in the state that it promises."""
    words = shlex.split(verdict["commands"].split(", then ")[-1]) if verdict["way"] != "in-place" else [str(path)]
    prefix = [helpers.HUGELD, *words[1:-1]] if words[0] == "hugeld" else []
    with kept(place, busy, path, *prefix) as target:
        attaching.wait_in_call(target.pid)
        now = {"in-place": "cached", "image": "mapped"}.get(verdict["way"], "moved")
        _, told = asks_alike(place, target, now)
        does_as_told(place, target, told)


@pytest.mark.parametrize("number", [pytest.param(i, marks=pytest.mark.check_all(ci=i % 8 == 0)) for i in range(FORTY)])
def test_forty_programs(place, busy, pool, number):
    """Eight commands are asked about each, before anything is done for it and after their advice was followed: inspect, doctor,
    run, share and survey about the file, status, attach and perf-map about its processes."""
    pool(0)
    path = stock_programs()[number]
    verdict = place.inspect(path)["verdict"]
    [told] = said_by_run(place, busy, path) or [None]
    if verdict["is_made"]:
        assert verdict["way"] == "in-place"
    elif "is in a library" not in told:
        assert told.startswith(f"hugeld: {path}: started as it is: {helpers.reasons()[verdict['reason']]}"), (told, verdict)
    with kept(place, busy, path, "BUSY=yes"):
        check_survey(place, path)
    with kept(place, busy, path) as target:
        attaching.wait_in_call(target.pid)
        check_process(place, target)
    check_program(place, path)
    made = place.make(path)["result"] == "made"
    if made:
        check_commands(place, busy, path, place.inspect(path)["verdict"])


# Programs that print their version, and end.
VERSIONS = ["true", "cat", "sed", "python3", "git", "perf", "gdb", "node", "ruby", "php", "cc1"]


def cc1():
    return helpers.run(["gcc", "-print-prog-name=cc1"]).stdout.strip()


def started_by_run(place, path, *options):
    result = helpers.run([*place.inside, helpers.HUGELD, "run", *options, "--", path, "--version"], stdin=subprocess.DEVNULL,
                         timeout=120)
    lines = [line for line in result.stderr.splitlines() if line.startswith("hugeld: ") and "more text is in" not in line]
    return lines


def test_run_does_as_told(place):
    """At verbose=1 `run` gives the reason of inspect while nothing of it is done, and follows it once the image is made."""
    ways, reasons = set(), helpers.reasons()
    for name in VERSIONS:
        found = cc1() if name == "cc1" else shutil.which(name, path="/usr/bin:/bin")
        if not found or not is_elf(found):
            continue
        path = pathlib.Path(found).resolve()
        verdict, option = place.inspect(path)["verdict"], f"verbose=1,{place.option}"
        if verdict["is_made"]:  # by the machine's own store
            continue
        [told] = started_by_run(place, path, "-o", option)
        reason = "text-in-library" if "is in a library" in told else verdict["reason"]
        assert told.startswith(f"hugeld: {path}: started as it is: {reasons[reason]}"), (told, verdict)
        result = place.make(path)["result"]
        if result == "made":
            made = place.inspect(path)["verdict"]
            assert made["is_made"] and (made["pages"] == verdict["pages"] or made["way"] != verdict["way"]), (verdict, made)
            told = started_by_run(place, path, "-o", f"verbose=2,{place.option}")
            expected = {"in-place": "is kept on huge pages in place", "image": "at the exec stop from"}[made["way"]]
            assert any(expected in line for line in told), (made, told)
            assert started_by_run(place, path, "-o", f"verbose=1,{place.option}") == (told if made["way"] == "in-place" else [])
            ways.add(made["way"])
        else:  # pending: processes map a file that could be in place
            assert verdict["way"] == "nothing" or (verdict["way"], result) == ("in-place", "pending")
    assert ways


def test_run_names_a_library_only_if_it_helps(place, tmp_path):
    """The library with most text is judged as inspect judges it, and not named where nothing helps."""
    source = tmp_path / "main.c"
    source.write_text("int f(void); int main(void) { return f(); }\n")
    lib = tmp_path / "liblarge.so"
    for mib, is_named in ((0, False), (5, True)):
        code = f'__asm__(".text; .skip {mib} << 20, 0x90"); int f(void) {{ return 0; }}\n'
        (tmp_path / "lib.c").write_text(code)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", lib, tmp_path / "lib.c"], check=True)
        subprocess.run(["gcc", "-o", tmp_path / "main", source, lib, f"-Wl,-rpath,{tmp_path}"], check=True)
        verdict = place.inspect(lib)["verdict"]
        result = place.hugeld("run", "-o", f"verbose=1,{place.option}", "--", tmp_path / "main")
        assert (f"most of its text is in a library; 'hugeld inspect {lib}' " in result.stderr) == is_named == (verdict["way"] != "nothing"), result


def test_little_text_is_left(place, tmp_path):
    """A library with 30 MiB of data and little text (libicudata) is left by all, running or not; --way=image takes it all the same."""
    (tmp_path / "data.c").write_text('__asm__(".section .rodata; .skip 30 << 20, 1; .text"); int f(void) { return 0; }\n')
    lib = tmp_path / "libdata.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", lib, tmp_path / "data.c"], check=True)
    verdict = place.inspect("-o", "segments=text", lib)["verdict"]
    assert verdict["way"] == "nothing" and "too little text" in verdict["sentence"], json.dumps(verdict)
    assert place.make(lib)["result"] == "nothing"
    assert place.make(lib, "image")["result"] == "made"


def test_survey_agrees(place, tmp_path):
    """Where the verdict on the file is a private copy, since another user's file gets no image, survey enables nothing, and says so."""
    program = build_calls(tmp_path / "calls", "-no-pie")
    process = subprocess.Popen([program, "1000000000000"], stdout=subprocess.DEVNULL)
    try:
        verdict = place.json("inspect", program)["files"][0]["verdict"]
        for seconds in (1, 3, 9, 27):  # a busy machine gives few samples
            [row] = place.json("survey", "--seconds", seconds, "--program", program)["programs"]
            if row["likely_hot_bytes"] > 2 << 20:
                break
        assert verdict["way"] == "preload" and (row["advice"]["way"], row["advice"]["command"]) == ("nothing", None), (row, verdict)
        assert row["advice"]["reason"] == "calls: only a private copy in each process helps; hugeld inspect says more"
    finally:
        process.kill()
        process.wait()
