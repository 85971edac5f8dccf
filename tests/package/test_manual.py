# SPDX-License-Identifier: LGPL-2.1-or-later
"""The manual: groff and mandoc find no fault in it, and it has every option and every reason."""

import json
import os
import re
import shutil

import pytest

import helpers


PATH = f"{helpers.BUILD}:{os.environ['PATH']}"  # completions ask the command
PAGES = ("hugeld.1", "hugeld.7", "libhugeld.so.8")
COMMANDS = re.findall(r"^  ([a-z-]+) ", helpers.hugeld("--help").stdout, re.M)


def need(*names):
    for name in names:
        if not shutil.which(name):
            pytest.skip(f"{name} is not installed")


def render(page, width=80):
    need("man", "groff")
    env = helpers.environment(MANWIDTH=width, LC_ALL="C.UTF-8", MAN_KEEP_FORMATTING=None)
    result = helpers.run(["man", "--warnings", "-E", "UTF-8", "-l", helpers.BUILD / "doc" / page], env)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


@pytest.mark.parametrize("page", PAGES)
def test_groff_has_no_warning(page):
    for width in (80, 200):
        text = render(page, width)
        assert max(map(len, text.splitlines())) <= width
        assert "@" not in text


@pytest.mark.parametrize("page", PAGES)
def test_mandoc_has_no_warning(page):
    need("mandoc")
    result = helpers.run(["mandoc", "-T", "lint", page], cwd=helpers.BUILD / "doc")
    # It also tells which other pages are not in its index, depending on the machine.
    lines = [line for line in result.stdout.splitlines() + result.stderr.splitlines() if "mandoc.db" not in line]
    assert (result.returncode, lines) == (0, [])


def option_rows():
    """(name, values, help) as --help prints them, from the same table."""
    text = helpers.hugeld("run", "--help").stdout
    return re.findall(r"^  ([a-z_]+)=(\S+)\n      (.+)$", text, re.M)


def test_every_option_is_explained():
    text = re.sub(r"\s+", " ", render("hugeld.7"))
    rows = option_rows()
    assert len(rows) > 10
    for name, values, words in rows:
        assert f" {name}={values} " in text or f" {name}=" in text and values in ("N", "GLOB", "FOLDER")
        assert words.replace(" ", "")[1:] in text.replace("‐ ", "").replace(" ", ""), name


def test_every_reason_is_explained():
    table = helpers.reason_rows()
    reasons = re.findall(r'^REASON\(\w+, "([\w-]+)",(.+?)"\)$', table, re.M | re.S)
    assert len(reasons) > 30
    text = render("hugeld.7").partition("DIAGNOSTICS")[2]
    for reason, rest in reasons:
        found = re.search(rf"^     {reason}(?:\n|  )((?:.+\n)+)", text, re.M)
        has_remedy = not rest.endswith('"none')
        assert found and found[1].count(".") + found[1].count(" > ") >= 1 + has_remedy, reason


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_is_explained(command):
    flags = re.findall(r"(?:^|[ ,])(--?[a-zA-Z][\w-]*)", helpers.hugeld(command, "--help").stdout.partition("Mandatory")[0], re.M)
    assert "--help" in flags
    text = render("hugeld.1")
    for flag in flags:
        assert re.search(rf"(?<![\w-]){flag}(?![\w-])", text), flag


def test_every_command_is_explained():
    headings = re.findall(r"^   hugeld (.+)$", render("hugeld.1").partition("\nCOMMANDS")[2], re.M)
    assert sorted(", ".join(headings).split(", ")) == sorted(COMMANDS) and len(COMMANDS) >= 15


# --- completions ---


def complete_bash(words):
    """The completions of bash for the last of WORDS."""
    script = f"""
        . /usr/share/bash-completion/bash_completion
        . {helpers.BUILD}/doc/hugeld.bash
        COMP_LINE={json.dumps(" ".join(words))} COMP_POINT=${{#COMP_LINE}}
        COMP_WORDS=({" ".join(split_for_bash(words))}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _hugeld hugeld {json.dumps(words[-1])} {json.dumps(words[-2])}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    result = helpers.run(["bash", "--norc", "-c", script], helpers.environment(PATH=PATH))
    assert result.stderr == "", result.stderr
    return result.stdout.split()


def split_for_bash(words):
    """WORDS as readline cuts them, at "=" too."""
    return [json.dumps(part) for word in words for part in (re.findall(r"=|[^=]+", word) or [""])]


def complete_fish(words, tmp_path):
    script = f"source {helpers.BUILD}/doc/hugeld.fish; complete -C {json.dumps(' '.join(words))}"
    result = helpers.run(["fish", "--no-config", "-c", script], helpers.environment(HOME=tmp_path, PATH=PATH))
    assert result.stderr == "", result.stderr
    return [line.split("\t")[0] for line in result.stdout.splitlines()]


@pytest.fixture(params=("bash", "fish"))
def complete(request, tmp_path):
    need(request.param)
    if request.param == "bash" and not os.path.exists("/usr/share/bash-completion/bash_completion"):
        pytest.skip("bash-completion is not installed")
    functions = {"bash": complete_bash, "fish": lambda words: complete_fish(words, tmp_path)}
    return functions[request.param]


def test_completes_commands(complete):
    assert set(COMMANDS) <= set(complete(["hugeld", ""]))


def test_completes_options(complete):
    found = complete(["hugeld", "run", "-o", "back"])
    assert any(word.endswith("hugetlb") for word in found) and not any("bss" in word for word in found)
    found = complete(["hugeld", "run", "-o", "verbose=2,edg"])
    assert any(word.endswith("merge") for word in found)


@pytest.mark.parametrize("command", COMMANDS)
def test_completes_flags(complete, command):
    """All flags are completed, and none of another command's."""
    known = set(re.findall(r"(--[a-z][\w-]*)", helpers.hugeld(command, "--help").stdout.partition("Mandatory")[0]))
    found = {re.match(r"(--[\w-]*)?", word)[0] for word in complete(["hugeld", command, "--"])}
    found -= {"", "--"} - known
    assert found == known
