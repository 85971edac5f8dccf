# SPDX-License-Identifier: LGPL-2.1-or-later
"""One guest: its command line of QEMU, and its output.

The guest writes its results to a serial port, one line each, fields separated by tabs:

    vm: begin   KERNEL RELEASE
    vm: ok      TEST  SECONDS
    vm: n/a     TEST  SECONDS  REASON       the kernel lacks the tested feature; found out by trying
    vm: skipped TEST  SECONDS  REASON       a failure with STRICT=1
    vm: FAILED  TEST  SECONDS  REASON
    vm: |       DETAIL                      any number of them, about the line before
    vm: end     STATUS                      the last one; a guest that ends without it has failed

and then reboots, which ends QEMU (-no-reboot).  The kernel's messages go to another serial port, where there is one."""

import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import threading
import time
import typing

from archive import Unavailable
from image import DISK_SIGNATURE

ACCELERATED_BEGIN_SECONDS = 30  # KVM may be there and useless
BOOTS = 3  # a kernel panics now and then that patches itself while it is emulated, most often before it runs /init
SILENT_SECONDS = 900  # more than a test takes, on a busy machine too
ASK_SECONDS = 20  # more than a guest sleeps

stop = threading.Event()  # set: guests are killed, no more lines are printed


@dataclasses.dataclass
class Guest:
    name: str  # the column of the table
    architecture: str  # Debian's name
    suites: typing.List[str]  # where its kernel is looked for; the newest of all of them
    package: str  # the meta package of the kernel
    qemu: typing.List[str]  # emulator, machine and CPU
    image: typing.Callable  # image(folder): makes the root file system in the empty FOLDER and returns its path
    initramfs: bool = False  # the image is one, and holds /init; else it is an ext4 file system on an NVMe disk
    memory: str = "1024M"  # of each node; /tmp, where the tests' folders stay, is memory, too
    console: str = "ttyS0"
    results: str = "ttyS1"  # the console itself on machines that have no other port
    words: typing.Sequence[str] = ()  # more for the kernel's command line
    tests: str = ""  # the kind of its tests (table.toml)
    huge_bytes: int = 2 << 20  # the size of its huge page
    native: str = ""  # the machine (uname -m) on which KVM can run it
    limit: int = 3600  # seconds: several times its time on an idle machine


class Result(typing.NamedTuple):
    status: str
    test: str
    seconds: float
    reason: str
    details: list


def accelerators(guest):
    can = guest.native == os.uname().machine and re.search(r"\b(vmx|svm)\b", pathlib.Path("/proc/cpuinfo").read_text())
    usable = can and os.access("/dev/kvm", os.R_OK | os.W_OK)
    return ["kvm", "tcg,thread=multi"] if usable else ["tcg,thread=multi"]


def qemu_command(guest, kernel, image, accelerator, serial, arguments=()):
    if shutil.which(guest.qemu[0]) is None:
        raise Unavailable(f"{guest.qemu[0]} is not installed")
    nodes = []
    for node in (0, 1):
        nodes += ["-object", f"memory-backend-ram,id=m{node},size={guest.memory}",
                  "-numa", f"node,nodeid={node},cpus={node},memdev=m{node}"]
    megabytes = 2 * int(guest.memory[:-1])
    if guest.initramfs:
        words, disk = ["rdinit=/init"], ["-initrd", str(image)]
    else:
        words = [f"root=PARTUUID={DISK_SIGNATURE:08x}-01", "rw", "init=/init"]
        disk = ["-device", "nvme,id=disks,serial=disks", "-drive", f"file={image},format=raw,if=none,id=disk,snapshot=on",
                "-device", "nvme-ns,drive=disk,bus=disks,nsid=1"]
    # smaps of Debian's 6.1 leaves out huge pages that NUMA balancing has just unmapped, to learn who uses them.
    words += [*guest.words, f"console={guest.console}", "quiet", "panic=-1", "mitigations=off", "numa_balancing=disable",
             "nokaslr", f"hugeld.results={guest.results}", f"hugeld.cases={guest.name}", *arguments]
    emulator = guest.qemu if accelerator != "kvm" else ["host" if a.startswith("max") else a for a in guest.qemu]
    return [*emulator, "-accel", accelerator, "-smp", "2", "-m", f"{megabytes}M", *nodes, "-nodefaults",
            "-no-user-config", "-display", "none", "-no-reboot", *serial, "-kernel", str(kernel),
            "-append", " ".join(words), *disk]


class Output:
    """Complete lines of a growing file."""

    def __init__(self, path):
        path.write_bytes(b"")
        self.file = open(path, "rb")  # closed with the object
        self.rest = b""

    def lines(self):
        self.rest += self.file.read()
        *whole, self.rest = self.rest.split(b"\n")
        return [line.decode(errors="replace").rstrip("\r") for line in whole]


class Monitor:
    """QEMU's monitor.  On a busy machine a guest can be asleep only after the alarm that would wake it: a guest that QEMU has
    called suspended twice is woken."""

    def __init__(self, process, output):
        self.process, self.output, self.asked, self.asleep = process, output, 0, 0

    def watch(self, seconds):
        for line in self.output.lines():
            if "VM status:" in line:
                self.asleep = self.asleep + 1 if "suspended" in line else 0
        if seconds < self.asked + ASK_SECONDS:
            return
        self.asked = seconds
        command = b"info status\n" if self.asleep < 2 else b"system_wakeup\n"
        if self.asleep >= 2:
            self.asleep = 0
        with contextlib.suppress(OSError):  # it has ended
            self.process.stdin.write(command)


class Lines:
    """The contents of the guest's lines."""

    def __init__(self):
        self.begun, self.status, self.pending = False, None, None

    def take(self, line):
        """The results that are complete with LINE: a result is when the next one begins."""
        if not line.startswith("vm: "):
            return []
        kind, _, text = line[4:].partition("\t")
        if kind.strip() == "|":
            if self.pending:
                self.pending.details.append(text)
            return []
        complete = self.flush()
        if kind == "begin":
            self.begun = True
        elif kind == "end":
            self.status = text
        else:
            test, seconds, reason = (text + "\t\t").split("\t")[:3]
            self.pending = Result(kind, test, float(seconds or 0), reason, [])
        return complete

    def flush(self):
        complete, self.pending = [self.pending] if self.pending else [], None
        return complete


# That panic: one of two emulated processors still executes the int3 of perf's and tracing's static keys when the kernel has taken it
# back (QEMU 7.2, seen once in some hundred boots after /init).  No process can cause it.
EMULATED_INT3 = "Oops: int3: 0000"


def boot(guest, kernel, image, folder):
    """Boots GUEST and gives its results one by one; console.log, results.log and qemu.log stay in FOLDER."""
    left = accelerators(guest)
    left += [left[-1]] * (BOOTS - len(left))
    while left:
        accelerator, *left = left
        begun = yield from boot_with(accelerator, guest, kernel, image, folder, not left)
        if begun:
            return


def boot_with(accelerator, guest, kernel, image, folder, is_last):
    """False if the guest did not begin, and should be tried again unless this IS_LAST."""
    console = folder / "console.log"
    ports = ["-monitor", "stdio", "-serial", f"file:{console}"]
    output = Output(console)
    if guest.results != guest.console:
        ports += ["-serial", f"file:{folder}/results.log"]
        output = Output(folder / "results.log")
    command = qemu_command(guest, kernel, image, accelerator, ports)
    lines, start, heard, why = Lines(), time.monotonic(), 0, None
    said_by_qemu = Output(folder / "qemu.log")
    with open(folder / "qemu.log", "a") as log:
        log.write(" ".join(command) + "\n")
        log.flush()
        # However this process ends, the guest ends with it.
        process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *command],
                                   stdin=subprocess.PIPE, stdout=log, stderr=log, bufsize=0)
    monitor = Monitor(process, said_by_qemu)
    try:
        while why is None:
            running, seconds = process.poll() is None, time.monotonic() - start
            for line in output.lines():
                heard = seconds
                yield from lines.take(line)
            monitor.watch(seconds)
            if stop.is_set():
                return True
            if not running:
                why = "" if lines.status == "0" else f"ended without its last line (QEMU {process.returncode})"
            elif seconds > guest.limit or seconds > heard + SILENT_SECONDS:
                why = f"killed after {seconds:.0f} s, silent for {seconds - heard:.0f} s"
            elif accelerator == "kvm" and not lines.begun and seconds > ACCELERATED_BEGIN_SECONDS:
                break
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
    said = console.read_text(errors="replace") if console.exists() else ""
    if why is None or not (lines.begun or is_last) or (why and EMULATED_INT3 in said and accelerator != "kvm" and not is_last):
        return False
    yield from lines.flush()
    if why:
        last = said.splitlines()[-30:]
        yield Result("FAILED", "guest", time.monotonic() - start, why, last)
    return True
