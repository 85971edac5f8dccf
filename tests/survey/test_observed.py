# SPDX-License-Identifier: LGPL-2.1-or-later
"""`hugeld service` observes, by samples, the files of root's that run, and no others, despite all that a user can do."""

import contextlib
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import time

import pytest

import helpers
from test_samples import replaced
from watching import FOREVER, NOBODY, SECONDS, observed_row as row, replace_text, running

pytestmark = pytest.mark.check_all(ci=True)  # the service goes


HUGE = 2 << 20
STOP = "/run/hugeld-service/stop"


def test_ranking(observe, calls):
    """Samples are counted by 2 MiB of the file; the part that could be in place is known, and nothing was changed."""
    with running([calls, FOREVER]), observe(f"{pathlib.Path(calls).parent}/*") as service:
        observed = service.wait_for(calls)
        found = row(observed, calls)
        assert [file["path"] for file in observed["files"]] == [str(calls)]
        assert found["huge_samples"] == 0 and found["huge_bytes"] == 0
        assert 6 <= found["possible_bytes"] / HUGE <= 9 and 16 << 20 <= found["text_bytes"] < 20 << 20
        assert sum(chunk["samples"] for chunk in found["chunks"]) == found["samples"]
        possible = [chunk for chunk in found["chunks"] if chunk["can_be_huge"]]
        assert possible and all(chunk["offset"] % HUGE == 0 for chunk in possible)
        assert str(calls) in service.run("status").stdout
        dry = service.run("--dry-run")
        assert dry.returncode == 0 and str(calls) in dry.stdout


@pytest.mark.parametrize("what", ["user's", "writable", "excluded", "elsewhere", "disguised", "linked"])
def test_what_is_not_eligible(observe, calls, what):
    """No user gets a file into the table: not by owning it, and not by giving it the name of another one."""
    folder = pathlib.Path(calls).parent / "others"
    folder.mkdir()
    try:
        copy = folder / "copy"
        shutil.copy(calls, copy)
        if what == "user's":
            os.chown(copy, 65534, 65534)
        if what == "writable":
            copy.chmod(0o777)
        command = [str(copy), FOREVER]
        if what == "disguised":
            script = f"mount --bind {copy} {calls} && exec {calls} {FOREVER}"
            command = ["unshare", "-m", "sh", "-c", script]
        if what == "linked":  # by a link, which is a folder where it runs, the same file has a name that a user gave it
            (folder.parent / "linked").symlink_to("others")
            script = (f"mount -t tmpfs none /mnt && mkdir /mnt/linked && mount --bind {folder} /mnt/linked && "
                      f"mount --rbind /mnt {folder.parent} && exec {folder.parent}/linked/copy {FOREVER}")
            command = ["unshare", "-m", "sh", "-c", script]
        pattern = {"excluded": f"{folder.parent}/*", "disguised": calls, "linked": f"{folder.parent}/linked/*",
                   "elsewhere": folder.parent}.get(what, f"{folder}/*")
        lines = [f"excluded = {folder}/*"] if what == "excluded" else []
        with running(command), observe(pattern, lines=lines) as service:
            observed = service.wait(lambda observed: observed["ineligible"] >= 10)
            assert observed["files"] == []
    finally:
        shutil.rmtree(folder)
        (folder.parent / "linked").unlink(missing_ok=True)


def test_hostile_name(observe, roots_folder, calls):
    name = roots_folder / "a\n\x1b[2J\u202e\"\\{}\xff"
    shutil.copy(calls, name)
    try:
        with running([str(name), FOREVER]), observe(f"{roots_folder}/*") as service:
            # maps has a newline as \012, by which no file is found
            service.wait(lambda observed: observed["ineligible"] >= 10)
            assert "\x1b" not in service.run("status").stdout
        other = roots_folder / "\x1b[2J\u202e\"\\{}"
        name.rename(other)
        with running([str(other), FOREVER]), observe(f"{roots_folder}/*") as service:
            service.wait_for(other)
            said = service.run("status").stdout
            assert "?[2J" in said and "\x1b" not in said
    finally:
        for path in roots_folder.glob("*[[]2J*"):
            path.unlink()


STORM = "import os\nwhile True:\n    pid = os.fork()\n    if pid == 0: os._exit(0)\n    os.waitpid(pid, 0)\n"
MAPPER = "import mmap\nwhile True:\n    mmap.mmap(-1, 4096).close()\n"


@pytest.mark.parametrize("script", [STORM, MAPPER], ids=["fork", "mmap"])
def test_storms(observe, calls, script):
    """Neither a loop of forks nor one of mmap pushes samples out."""
    with running([calls, FOREVER]):
        with running([*NOBODY, "/usr/bin/python3", "-c", script]), observe(f"{pathlib.Path(calls).parent}/*") as service:
            observed = service.wait_for(calls)
            assert observed["windows_lost"] < observed["windows"]


@pytest.mark.check_all
def test_many_executables(observe, calls, roots_folder):
    """A user's executables, one after the other, get no entry, and push none out."""
    folder = roots_folder / "user"
    folder.mkdir()
    shutil.copy("/bin/dash", folder / "shell")
    os.chown(folder, 65534, 65534)
    script = f"""
        while :; do
            i=$(((${{i:-0}} + 1) % 300)); cp {folder}/shell {folder}/shell-$i
            {folder}/shell-$i -c 'n=0; while [ $n -lt 20000 ]; do n=$((n + 1)); done'
        done"""
    try:
        with running([calls, FOREVER], [*NOBODY, "sh", "-c", script]), observe("/*") as service:
            service.wait_for(calls)
            observed = service.wait(lambda observed: observed["ineligible"] >= 10)
            assert not [file for file in observed["files"] if file["path"].startswith(str(folder))]
            assert row(service.next_windows(), calls)["samples"] > 0
    finally:
        shutil.rmtree(folder)


def windows(path):
    """The number of windows, by the metrics."""
    return int(re.search(r"^hugeld_windows_total (\d+)$", path.read_text(), re.M)[1])


@pytest.mark.check_all
def test_stopped_and_configured_anew(observe, calls, tmp_path):
    """Nothing is sampled while the kill switch is there; `observe = no` the same, also if something else wakes the service."""
    with running([calls, FOREVER]), observe(f"{pathlib.Path(calls).parent}/*") as service:
        service.wait_for(calls, 1)
        stop = service.root / STOP.lstrip("/")
        stop.touch()
        assert helpers.wait_until(lambda: is_quiet(service), SECONDS, "its rest")
        stop.unlink()
        service.next_windows()
        metrics = tmp_path / "hugeld.prom"
        service.configuration.write_text(f"observe = no\nwindow = 1\ninterval = 2\nmetrics = {metrics}\n")
        service.process.send_signal(signal.SIGHUP)
        assert helpers.wait_until(lambda: is_quiet(service) and metrics.exists(), SECONDS, "its rest")
        before = windows(metrics)
        for _ in range(4):
            time.sleep(1.5)
            metrics.unlink()
            service.process.send_signal(signal.SIGHUP)
            helpers.wait_until(metrics.exists, SECONDS, "metrics")
        assert windows(metrics) == before


@pytest.mark.parametrize("how", ["kill switch", "configuration"])
def test_ended_in_a_window(observe, calls, how):
    """The window ends at once, however long it would be."""
    with running([calls, FOREVER]), observe("/none/*", lines=["window = 60", "interval = 120"]) as service:
        helpers.wait_until(lambda: rings(service.process), SECONDS, "a window")
        if how == "kill switch":
            (service.root / STOP.lstrip("/")).touch()
        else:
            service.configuration.write_text("observe = no\n")
            service.process.send_signal(signal.SIGHUP)
        helpers.wait_until(lambda: not rings(service.process), 30, "its end")


@pytest.mark.check_all
def test_windows_and_rests(observe, calls):
    """One window is as long as the configuration says, and the next one begins when that says, within a quarter."""
    with running([calls, FOREVER]), observe(f"{pathlib.Path(calls).parent}/*", lines=["window = 6", "interval = 24"]) as service:
        helpers.wait_until(lambda: rings(service.process), SECONDS, "a window")
        began = time.monotonic()
        helpers.wait_until(lambda: not any(rings(service.process) or time.sleep(0.1) for _ in range(5)), SECONDS, "its end")
        ended = time.monotonic()
        helpers.wait_until(lambda: rings(service.process), SECONDS, "the next one")
        # A busy machine shows the rings late, so the window seems shorter than it was.
        assert ended - began > 1 and time.monotonic() - began > 12


@pytest.mark.check_all
@pytest.mark.parametrize(("chance", "too_early", "due"), [(0, 4000, 4600), (255, 7000, 7600)])
def test_next_window_is_drawn(observe, tmp_path, clock, chance, too_early, due):
    """Windows begin up to a quarter earlier or later than configured, so that those of a thousand machines do not begin
    together."""
    forward = tmp_path / "forward"
    forward.write_text("0")
    prefix = ["env", f"LD_PRELOAD={clock}", f"FORWARD={forward}", f"CHANCE={chance}"]
    with observe("/none/*", lines=["window = 1", "interval = 6000"], prefix=prefix) as service:
        first = service.wait(lambda observed: True)["windows"]
        replace_text(forward, str(too_early))
        service.process.send_signal(signal.SIGHUP)
        time.sleep(2)
        assert service.look()["windows"] == first and not rings(service.process)
        replace_text(forward, str(due))
        service.process.send_signal(signal.SIGHUP)
        service.wait(lambda observed: observed["windows"] > first)


def is_quiet(service):
    """Whether two or three windows would have been and were not.  If nothing is to be observed, the status has no windows."""
    before = service.look() or {"windows": 0}
    time.sleep(6)
    return (service.look() or {"windows": 0})["windows"] == before["windows"] and not rings(service.process)


def rings(process):
    return helpers.descriptors(process.pid, "perf_event")


@pytest.mark.check_all
def test_suspended(observe, calls):
    """A machine that sleeps in a window: its samples are lost, and the next windows are as usual."""
    with running([calls, FOREVER]), observe(f"{pathlib.Path(calls).parent}/*") as service:
        for _ in range(2):
            assert helpers.wait_until(lambda: rings(service.process), SECONDS, "a window")
            service.process.send_signal(signal.SIGSTOP)
            time.sleep(4)  # four windows
            service.process.send_signal(signal.SIGCONT)
        before = service.wait(lambda observed: True)["windows"]
        observed = service.wait(lambda observed: observed["windows"] >= before + 3 and row(observed, calls)["samples"] >= 3)
        assert observed["windows_lost"] < observed["windows"]


@pytest.mark.check_all
def test_lost(observe, calls):
    """A window that has lost too many samples does not count, nor do those before it."""
    with running([calls, FOREVER]), observe(f"{pathlib.Path(calls).parent}/*", lines=["window = 4", "interval = 8"]) as service:
        service.wait_for(calls)
        assert helpers.wait_until(lambda: rings(service.process), SECONDS, "a window")
        service.process.send_signal(signal.SIGSTOP)
        time.sleep(10)  # longer than a ring lasts
        service.process.send_signal(signal.SIGCONT)
        observed = service.wait(lambda observed: observed["windows_lost"] > 0)
        assert observed["files"] == [] and observed["lost"] > 0.01 * observed["samples"]
        service.wait_for(calls)


@pytest.mark.check_all
def test_too_costly(observe, calls, tmp_path):
    """A window that takes too much of a processor is ended, and the next one comes much later."""
    burn = tmp_path / "burn.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", burn, pathlib.Path(__file__).with_name("burn.c")], check=True, timeout=60)
    with running([calls, FOREVER]), observe("/none/*", prefix=["env", f"LD_PRELOAD={burn}"]) as service:
        service.wait(lambda observed: observed["windows_cut"] >= 5)
        before, ticks = service.look()["windows"], helpers.ticks(service.process.pid)
        time.sleep(20)
        assert service.look()["windows"] <= before + 1  # at 2 s between two it would be ten
        assert helpers.ticks(service.process.pid) - ticks < 0.02 * 20 * os.sysconf("SC_CLK_TCK")


def test_killed_in_a_window(observe, calls):
    """A service killed in a window leaves nothing that hinders the next one."""
    with running([calls, FOREVER]):
        for _ in range(3):
            with contextlib.suppress(AssertionError), observe(f"{pathlib.Path(calls).parent}/*") as service:
                assert helpers.wait_until(lambda s=service: rings(s.process), SECONDS, "a window")
                service.process.kill()
                service.process.wait(helpers.PATIENCE)
        with observe(f"{pathlib.Path(calls).parent}/*") as service:
            service.wait_for(calls, 1)


def test_nothing_to_sample_with(observe, calls):
    """A line says so once, and the service goes on."""
    with running([calls, FOREVER]), observe(f"{pathlib.Path(calls).parent}/*",
                                            prefix=replaced({"perf_event_open": (1, None)})) as service:
        assert "nothing can be observed" in helpers.next_line(service.process)
        time.sleep(3)
        assert not select.select([service.process.stderr], [], [], 0)[0] and service.look() is None


def test_metrics(observe, calls, tmp_path):
    """promtool takes them with any file name; nothing is written through a link; they go with the service."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool (Debian's package prometheus)")
    name = pathlib.Path(calls).with_name('a"b\\c{}\x1b\udcff')
    shutil.copy(calls, name)
    path, victim = tmp_path / "hugeld.prom", tmp_path / "victim"
    victim.write_text("mine\n")
    (tmp_path / "hugeld.prom.new").symlink_to(victim)
    try:
        with running([str(name), FOREVER]), observe(f"{name.parent}/*", lines=[f"metrics = {path}"]) as service:
            service.wait(lambda observed: observed["files"])
            service.process.send_signal(signal.SIGHUP)
            assert helpers.wait_until(lambda: path.exists() and "hugeld_file_info{" in path.read_text(), SECONDS)
            text = path.read_text()
            assert '\\"b\\\\c{}\x1b?"} 1\n' in text and "hugeld_service_stopped 0\n" in text
            checked = helpers.run([promtool, "check", "metrics"], input=text)
            assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", ""), checked
            assert victim.read_text() == "mine\n" and path.stat().st_mode & 0o777 == 0o644
        assert not path.exists()
    finally:
        name.unlink()


def test_metrics_through_no_link(observe, tmp_path):
    """The metrics follow no link, not even one that is made just after the old file was removed."""
    path, victim = tmp_path / "hugeld.prom", tmp_path / "victim"
    victim.write_text("mine\n")
    (tmp_path / "hugeld.prom.new").symlink_to(victim)
    with observe("/none/*", lines=[f"metrics = {path}"], prefix=replaced({"unlinkat": (0, None)})) as service:
        service.next_windows(1)
        assert victim.read_text() == "mine\n" and not path.exists()
        assert "the metrics cannot be written: File exists" in helpers.next_line(service.process)


def test_metrics_that_cannot_be_written(observe, tmp_path):
    """A line says so once."""
    with observe("/usr/*", lines=[f"metrics = {tmp_path}/none/hugeld.prom"]) as service:
        assert "the metrics cannot be written: No such file" in helpers.next_line(service.process)
        service.next_windows(1)
        service.process.send_signal(signal.SIGHUP)
        service.next_windows(1)
        assert not select.select([service.process.stderr], [], [], 0)[0]


def test_counters_are_of_ended_windows(observe, calls, tmp_path):
    """Counts written in a window must not be taken back when the window has lost too many samples."""
    path = tmp_path / "hugeld.prom"
    lines = [f"metrics = {path}", "window = 60", "interval = 600"]

    with running([calls, FOREVER]), observe("/none/*", lines=lines) as service:
        helpers.wait_until(lambda: rings(service.process), SECONDS, "a window")
        time.sleep(3)
        path.unlink(missing_ok=True)
        service.process.send_signal(signal.SIGHUP)
        helpers.wait_until(path.exists, SECONDS, "metrics")
        text = path.read_text()
        assert "hugeld_windows_total 0\n" in text and 'reason="ineligible"} 0\n' in text


@pytest.mark.parametrize(("line", "words"), [
    ("metrics = hugeld.prom", "NAME.prom"), ("metrics = /run/.prom2", "NAME.prom"), ("observe = maybe", "yes or no"), ("window = 0", "from 0.1 to 60"), ("window = ten", "from 0.1 to 60"),
    ("interval = 1e9", "from 1 to 86400"), ("interval = 5", "shorter than two windows"), ("eligible = usr/*", "absolute"),
    ("excluded = *", "absolute"), ("window = nan", "from 0.1 to 60"), ("interval = 300 s", "from 1 to 86400"),
])
def test_mistakes(tmp_path, root, line, words):
    (tmp_path / "hugeld.conf").write_text(f"{line}\n")
    result = helpers.hugeld("service", "--dry-run", "--config", tmp_path / "hugeld.conf")
    helpers.one_line(result, 2, words)


def test_no_such_configuration(tmp_path, root):
    result = helpers.hugeld("service", "--dry-run", "--config", tmp_path / "hugeld.conf")
    helpers.one_line(result, 2, "hugeld.conf: there is no such configuration; check its name")
