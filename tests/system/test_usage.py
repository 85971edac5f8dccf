# SPDX-License-Identifier: LGPL-2.1-or-later
"""Wrong use of every command, in each way that its --help tells of: one line that names the command, exit status 2, and nothing
begins.  A user runs them who could do no harm."""

import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import termios

import pytest

import helpers
from helpers import one_line
from test_json import compare

SHOWN = helpers.hugeld("--help").stdout
COMMANDS = re.findall(r"^  ([a-z-]+) .*  \S", SHOWN.partition("How do I use it?")[2], re.M)
FLAG = re.compile(r"^ +(?:(-\w), )? *--([a-z-]+)(?:=(\S+))?", re.M)
# By the name of a value in --help: values that it cannot have.
WRONG = {"PID": ["x", "0", "-1", "1x", "99999999999999999999"], "N": ["x", "0", "6.5", "-1"], "S": ["x", "0", "10%"], "BYTES": ["x", "0", "3"],
         "MIB": ["x"], "TIME": ["x", "0", "5y"], "auto|preload|ldso": ["sideways"], "image|in-place": ["sideways"],
         "NAME=VALUE,...": ["frob=1", "backend=x", "backend", "edges=x"]}
# What --help does not tell: the commands, and what is said.
OTHERS = {
    "no-such-command": "no-such-command: no such command",
    "appply": "did you mean 'apply'?",
    "--frob": "--frob: no such option; 'hugeld --help' lists commands, which have options of their own",
    "-a status": "-a: no such option; 'hugeld --help' lists commands, which have options of their own",
    "enable --way=copy true": "enable: --way copy: give image or in-place; hugeld run --copy makes private copies",
    "run --": "", "run --via=image true": "run: --via image: give auto, preload or ldso",
    "status --all 1": "", "status a-name": "status: 'a-name' is not a process ID; give a number as ps prints it, or --all",
    "bench --children --copy true": "bench: --children takes images alone; leave out --copy, --via and --ld-so",
    "bench --pid 1 --toggle --copy": "bench: --toggle goes with --json, --seconds, -n and --metric",
    "bench -n 5 true": "bench: --pairs 5: give a number from 6 to 10000",
    "bench -o backend=x true": "bench: --options backend=x: no such value; 'hugeld bench --help' lists names and values",
    "survey --seconds 10%": "survey: --seconds 10%: give a number from 0.1 to 86400",
    "doctor true": "doctor: true is one too many; give none",
    "image /bin/true out more": "image: more is one too many; give one FILE and one OUT",
}


def help_of(command):
    result = helpers.hugeld(command, "--help")
    assert (result.returncode, result.stderr) == (0, "") and result.stdout.startswith(f"Usage: hugeld {command} [OPTION...]"), result
    return result.stdout


def cases(command):
    """(the words behind COMMAND, what the line names)."""
    shown = help_of(command)
    needs = re.search(r"\[OPTION\.\.\.\] *(?:\[--\] )?(.*)", shown)[1].strip()
    yield ["--no-such-option"], (command, "--no-such-option")
    yield ["-Z"], (command, "Z")
    for letter, name, value in FLAG.findall(shown):
        if not value:
            yield [f"--{name}=x"], (command, f"--{name}")
            continue
        yield [f"--{name}"], (command, f"--{name}")
        if letter:
            yield [letter], (command,)
        for wrong in WRONG.get(value, []):
            yield [f"--{name}={wrong}", *(["/bin/true"] if needs else [])], (f"--{name}",)
    if not needs:
        yield ["true"], (command, "true", "give none")
    elif not needs.startswith("["):
        yield [], (command,)


@pytest.fixture(scope="module")
def refused(library):
    """refused(words, what the line names)."""
    def run(words, named):
        one_line(helpers.run([*helpers.become(65534), library.parent / "hugeld", *words]), 2, *named)

    return run


def test_commands():
    assert {"run", "apply", "reset", "attach", "bench", "perf-map"} < set(COMMANDS) and len(COMMANDS) >= 15


@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_use(root, refused, command):
    found = list(cases(command))
    assert len(found) >= 4
    for words, named in found:
        refused([command, *words], named)


@pytest.mark.parametrize("words", OTHERS)
def test_other_wrong_use(root, refused, words):
    refused(words.split(), [OTHERS[words]])


def test_help():
    """By its letter, too; where it cannot be written, that is a failure."""
    assert helpers.hugeld("-h").stdout == helpers.hugeld("help").stdout == helpers.hugeld().stdout == SHOWN != ""
    assert helpers.hugeld("help", "run").stdout == helpers.hugeld("run", "-h").stdout == help_of("run")
    for command in [], ["run"]:
        with open("/dev/full", "w", encoding="ascii") as full:
            result = subprocess.run([helpers.HUGELD, *command, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert result.returncode == 1 and "cannot write the answer" in result.stderr, result


# --- what all commands have ---


@pytest.mark.parametrize("words", ["apply --frob --json", "no-such-command --json", "--frob --json", "image -j /bin/true out more", "perf-map --json",
                                   "survey -j --seconds", "list -jZ", "run --json --frob true", "run --json --", "run -j /none/program", "bench -j -n 5 true",
                                   "reset --detach=x --json", "perf-map --json --output=- 1"])
def test_mistakes_as_json(words):
    """Wherever --json stands, the line of standard error is the answer's error."""
    result = helpers.hugeld(*words.split())
    answer = json.loads(result.stdout)
    compare("error", [answer])
    assert result.returncode in (2, 127) and answer == {"error": {"message": result.stderr[len("hugeld: "):-1]}}, result


def test_run_as_json():
    """A program that runs writes all of the output; one that strict=on refuses is an error."""
    result = helpers.hugeld("run", "--json", "echo", "its own")
    assert (result.returncode, result.stdout) == (0, "its own\n")
    result = helpers.hugeld("run", "--json", "-o", "strict=on", "true")
    assert result.returncode == 127 and json.loads(result.stdout)["error"]["message"] in result.stderr != "", result


def test_quiet(tmp_path):
    """The exit status is the answer; errors are printed all the same."""
    for words in ["doctor"], ["inspect", "/bin/true"], ["status", str(os.getpid())], ["list", "--list=/dev/null", f"--store={tmp_path}/none"]:
        loud, quiet = helpers.hugeld(*words), helpers.hugeld(words[0], "-q", *words[1:])
        assert loud.stdout != "" and (quiet.returncode, quiet.stdout) == (loud.returncode, ""), words
    assert "no such process" in helpers.hugeld("status", "-q", "4194304").stderr


def test_run_says_more_or_less():
    """On a terminal a line says why nothing moved; with -q none does, and with -v one does elsewhere, too."""
    assert "started as it is" in helpers.shown_on_terminal([helpers.HUGELD, "run", "true"])
    assert helpers.shown_on_terminal([helpers.HUGELD, "run", "-q", "true"]) == ""
    assert [helpers.hugeld("run", *words, "true").stderr.count("started as it is") for words in ([], ["-v"], ["-q", "-o", "verbose=1"])] == [0, 1, 0]


def shown_as_table(words):
    """What hugeld prints on a terminal of 80 columns."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = helpers.start([helpers.HUGELD, *words], stdout=slave, stderr=subprocess.DEVNULL)
    os.close(slave)
    text = b""
    try:
        while more := os.read(master, 65536):
            text += more
    except OSError:  # the end
        pass
    process.wait()
    os.close(master)
    return text.decode().replace("\r\n", "\n")


def test_wide(builder, tmp_path):
    """A row of a table is as wide as the terminal at most: the beginning of its path is left out, but not with --wide, nor in a pipe."""
    path = tmp_path / ("a-long-name-" * 5) / "program"
    path.parent.mkdir()
    shutil.copy(builder.executable("nopie"), path)
    (tmp_path / "list").write_text(f"{path}\n")
    words = ["list", f"--list={tmp_path}/list", f"--store={tmp_path}/none"]
    [row] = [line for line in shown_as_table(words).splitlines() if "/program" in line]
    assert len(row) == 80 and "…" in row and row.endswith("/program"), row
    for text in shown_as_table([*words, "--wide"]), helpers.hugeld(*words).stdout:
        assert f"  {path}\n" in text, text
