# SPDX-License-Identifier: LGPL-2.1-or-later
"""hugeld-json(5) lists each field that the commands print, with its type, and none that they don't."""

import json
import re

import pytest

import helpers
from helpers import hugeld_json

TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null", dict: "object", list: "array"}
# Their fields are the names of events.
EVENTS = ("counters", "counters.plain", "counters.huge")


def documented():
    """{section: {path: {type}}}"""
    sections = {}
    for line in (helpers.BUILD / "doc/hugeld-json.5").read_text().replace(r"\&", "").replace(r"\-", "-").splitlines():
        if line.startswith(".Ss "):
            fields = sections.setdefault(line[4:], {})
        elif found := re.fullmatch(r"\.It Va (\S+) Pq ([^,]+)(?:, .*)?", line):
            path, types = found.groups()
            while types.startswith("array of "):
                fields[path] = {"array"}
                path, types = f"{path}[]", types[len("array of "):]
            fields[path] = set(types.split(" or "))
        else:
            assert not line.startswith(".It"), line
    return sections


def walk(value, path=""):
    """(path, type) of everything in VALUE."""
    if path:
        yield path, TYPES[type(value)]
    if isinstance(value, dict) and path not in EVENTS:
        for name, member in value.items():
            yield from walk(member, f"{path}.{name}".lstrip("."))
    elif isinstance(value, list):
        for member in value:
            yield from walk(member, f"{path}[]")


def compare(section, answers, unseen=()):
    """ANSWERS have all fields of SECTION, with its types, and no others; those in UNSEEN need not be there."""
    fields, seen = documented()[section], set()
    for answer in answers:
        for path, type_ in walk(answer):
            assert path in fields, f"{path} is not in hugeld-json(5)"
            assert type_ in fields[path], f"{path} is of type {type_}"
            seen.add(path)
    assert set(fields) - seen == set(unseen)


def test_inspect(builder, tmp_path):
    source, marked, text = tmp_path / "one.c", tmp_path / "marked", tmp_path / "text"
    source.write_text("int main(void) { return 0; }\n")
    builder.compile(marked, source, "-fpatchable-function-entry=8")
    text.write_text("no ELF file\n")
    result = helpers.hugeld("inspect", "--json", builder.executable("nopie"), marked, text)
    compare("inspect", [json.loads(result.stdout)])


def test_status(builder, library, pause_library, pool):
    pool(64)
    app = builder.executable("nopie")
    with helpers.paused([app], helpers.preload(library, pause_library), app.name) as process:
        compare("status", [hugeld_json("status", process.pid)])


def test_doctor(builder):
    compare("doctor", [json.loads(helpers.hugeld("doctor", "--json", "--", builder.executable("nopie")).stdout)])


def test_bench(builder, pool):
    pool(64)
    answer = json.loads(helpers.hugeld("bench", "--json", "-n", "6", "-i", "--", builder.executable("nopie")).stdout)
    # The kernel may see no system time in a process of some milliseconds: then there is no ratio.
    unseen = () if answer["ratio"]["system"] else {f"ratio.system.{name}" for name in ("ratio", "low", "high")}
    compare("bench", [answer], unseen)


def test_bench_pid(builder, library, pause_library, pool):
    pool(64)
    app = builder.executable("nopie")
    with helpers.paused([app], helpers.preload(library, pause_library), app.name) as process:
        compare("bench --pid", [hugeld_json("bench", "--pid", process.pid, "--seconds", "1")])


def test_survey(tmp_path, curve):
    calls = helpers.build_calls(tmp_path / "calls")
    sampled, exact = (json.loads(helpers.hugeld("survey", "--json", "--seconds", "3", *way, "--", calls, "1000000000000").stdout)
                      for way in ([], ["--exact"]))
    counters = {f"programs[].counters.{name}" for name in ("cycles", "instructions", "itlb_misses", "walk_cycles")}
    compare("survey", [sampled, exact], counters if exact["no_counters"] else ())


@pytest.mark.whole
def test_survey_calibrate(root):
    script = 'mount -t tmpfs none /var/cache && exec "$0" survey --calibrate --json'
    compare("survey --calibrate", [json.loads(helpers.run(["unshare", "-m", "sh", "-c", script, helpers.HUGELD]).stdout)])


def test_share(builder, tmp_path, root):
    """In a store of its own, on the /dev/shm of a mount namespace that ends with it."""
    script = """
        mount -t tmpfs none /dev/shm && for action in "add $1 $2" list check "remove $1"; do
            "$0" share --json --store /dev/shm/store $action || :
        done
    """
    small = tmp_path / "small"
    small.write_text("no ELF file\n")
    result = helpers.run(["unshare", "-m", "sh", "-c", script, helpers.HUGELD, builder.executable("nopie"), small])
    answers, text = [], result.stdout
    while text.strip():
        answer, end = json.JSONDecoder().raw_decode(text.lstrip())
        answers.append(answer)
        text = text.lstrip()[end:]
    assert len(answers) == 4, result
    compare("share", [answer for answer in answers if "files" in answer])
    compare("share list", [answer for answer in answers if "stores" in answer])


def test_service():
    """Without a store; tests/images/test_service.py and tests/survey/test_observed.py look at the rest."""
    script = """
        mount -t tmpfs -o mode=0755 none /run && echo "enabled = /run/app" > /run/hugeld.conf &&
        "$0" service status --json --config /run/hugeld.conf
    """
    result = helpers.run(["unshare", "-Urm", "sh", "-c", script, helpers.HUGELD])
    absent = {path for path in documented()["service status"] if path.startswith(("files[]", "observed."))}
    compare("service status", [json.loads(result.stdout)], absent)


@pytest.mark.parametrize("wrong", ["unknown.field", "typed"])
def test_itself(wrong):
    """The comparison notices a field too many and a wrong type."""
    answer = {"kernel": 1} if wrong == "typed" else {"unknown": {"field": 1}}
    with pytest.raises(AssertionError, match="is of type integer" if wrong == "typed" else "unknown is not in"):
        compare("doctor", [answer])
