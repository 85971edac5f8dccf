# SPDX-License-Identifier: LGPL-2.1-or-later
"""Units of systemd, each for one test, and the proof that a service's text is on huge pages."""

import os
import pathlib
import shutil
import time

import pytest

import helpers
from proof import check_span, read_image, read_plans

HERE = pathlib.Path(__file__).resolve().parent
UNITS = pathlib.Path("/run/systemd/system")
# A moment's work takes an emulated processor longer, and one that shares its processors with another guest longer still.  A
# guest in which nothing is reported for three minutes is ended.
REPORT_SECONDS = 120


@pytest.fixture(scope="session", autouse=True)
def boot():
    """How the machine booted with a list that names two services (guest_systemd.py); then nothing is enabled any more."""
    helpers.wait_until(lambda: systemctl("is-active", "boot-late.service").stdout == "active\n", REPORT_SECONDS, "the service's start")
    states = {name: systemctl("show", "-p", "ActiveState,Result,MainPID", f"{name}.service").stdout
              for name in ("boot-early", "boot-late", "hugeld-boot")}
    pid = int(states["boot-late"].partition("MainPID=")[2].split()[0])
    smaps = pathlib.Path(f"/proc/{pid}/smaps").read_text()
    helpers.run(["journalctl", "--sync"])
    journal = helpers.run(["journalctl", "-q", "-b", "-o", "cat"]).stdout
    systemctl("stop", "boot-late.service")
    pathlib.Path("/etc/hugeld/enabled.d/boot.list").unlink()
    for command in ["apply"], ["reset"]:
        result = helpers.hugeld(*command)
        assert result.returncode == 0, result
    systemctl("daemon-reload")
    return states, smaps, journal


@pytest.fixture(scope="session")
def service(builder):
    """service.c with the large text inside."""
    return builder.once("service", lambda folder: builder.compile(folder / "service", HERE / "service.c", "-no-pie",
                                                                  *builder.object()))


@pytest.fixture(scope="session")
def pie_service(builder):
    """The same, position-independent."""
    return builder.once("pie-service", lambda folder: builder.compile(folder / "service", HERE / "service.c", "-fPIE", "-pie",
                                                                      *builder.object()))


def systemctl(*arguments):
    return helpers.run(["systemctl", *arguments], timeout=helpers.PATIENCE)


class Unit:
    """NAME.service: its output goes to a file, its standard error to the journal."""

    def __init__(self, name, settings, drop_in):
        self.name = f"{name}.service"
        self.output = pathlib.Path(f"/run/{self.name}.out")
        text = ["[Service]", f"StandardOutput=truncate:{self.output}", "StandardError=journal", *settings]
        (UNITS / self.name).write_text("\n".join(text) + "\n")
        if drop_in:
            (UNITS / f"{self.name}.d").mkdir()
            (UNITS / f"{self.name}.d" / "hugeld.conf").write_text("\n".join(drop_in) + "\n")

    def show(self, what):
        return systemctl("show", "--value", "-p", what, self.name).stdout.strip()

    def pid(self):
        return int(self.show("MainPID"))

    def printed(self):
        return self.output.read_text().splitlines() if self.output.exists() else []

    def said(self, lines):
        """The lines that it printed, once there are LINES: as long as it is active, and no longer."""
        end = time.monotonic() + REPORT_SECONDS
        while len(self.printed()) < lines:
            is_active = self.show("ActiveState") in ("activating", "active", "reloading", "deactivating")
            text = self.printed()
            if len(text) < lines:
                assert is_active and time.monotonic() < end, f"line {lines} of {self.name} is missing: {self.journal()}"
            time.sleep(0.1)
        return self.printed()

    def journal(self):
        assert helpers.run(["journalctl", "--sync"]).returncode == 0
        return helpers.run(["journalctl", "-q", "-o", "cat", "-u", self.name]).stdout

    def start(self):
        return systemctl("start", self.name)

    def signal(self, name):
        assert systemctl("kill", "-s", name, self.name).returncode == 0

    def reset(self):
        systemctl("reset-failed", self.name)

    def stop(self):
        """It ended because it was told to, and well."""
        result = systemctl("stop", self.name)
        assert result.returncode == 0, result.stderr
        found = self.show("Result"), self.show("ExecMainStatus"), self.show("NRestarts")
        assert found == ("success", "0", "0"), (found, self.journal())

    def remove(self):
        systemctl("kill", "-s", "KILL", self.name)
        systemctl("stop", self.name)
        (UNITS / self.name).unlink()
        shutil.rmtree(UNITS / f"{self.name}.d", ignore_errors=True)


@pytest.fixture
def unit(request):
    """unit(settings, drop_in): a Unit with these lines under [Service] and DROP_IN as hugeld.conf; not started."""
    UNITS.mkdir(parents=True, exist_ok=True)
    made = []

    def make(settings, drop_in=()):
        made.append(Unit(f"t{os.urandom(4).hex()}", settings, drop_in))
        assert systemctl("daemon-reload").returncode == 0
        return made[-1]

    yield make
    for one in made:
        one.remove()
    systemctl("daemon-reload")


@pytest.fixture
def huge():
    """huge(pid, kinds, backend): proves that the spans of these KINDS of PID's executable, as they are planned by default,
    are on pages of BACKEND, and no other private memory on hugetlb pages; gives the number of pages and the names of the
    mappings that its text is in."""
    def prove(pid, kinds=("text",), backend="hugetlb"):
        image = read_image(pid)
        executable = image.objects[0]
        [plan] = read_plans(pid, [executable.path], f"backend={backend},segments=text").values()
        spans = [s for s in plan.spans if s.kind in kinds]
        assert not kinds or spans, plan.json
        for span in spans:
            check_span(image, span, backend)
        for mapping in image.mappings:
            assert not ("w" in mapping.permissions and "x" in mapping.permissions), mapping
            assert not mapping.is_hugetlb or mapping.permissions.endswith("s") or any(s.start <= mapping.start < s.end for s in spans), mapping
        text = {m.name for m in image.mappings for s in spans if s.kind == "text" and s.start <= m.start < s.end}
        return sum(s.pages for s in spans), text

    return prove
