# SPDX-License-Identifier: LGPL-2.1-or-later
"""The JSON Schema of data/ lists each field that the commands print, with its type, and none that they don't."""

import functools
import json
import subprocess

import helpers
from calls import build_calls
from helpers import hugeld_json


@functools.cache
def schema():
    """Its definitions, by name."""
    return json.loads((helpers.ROOT / "data/hugeld.schema.json").read_text())["$defs"]


def close(node):
    """NODE of the schema, where no object may have other fields than those listed, if any are."""
    if isinstance(node, list):
        return [close(member) for member in node]
    if not isinstance(node, dict):
        return node
    closed = {name: close(member) for name, member in node.items()}
    if isinstance(node.get("properties"), dict) and node["properties"]:
        closed["additionalProperties"] = False
    return closed


def fields_of(node, path=""):
    """The path of each field below NODE."""
    if "$ref" in node:
        node = schema()[node["$ref"].rpartition("/")[2]]
    for name, member in node.get("properties", {}).items():
        yield f"{path}.{name}"
        yield from fields_of(member, f"{path}.{name}")
    if "items" in node:
        yield from fields_of(node["items"], f"{path}[]")


def paths_in(value, path=""):
    """The path of each member of VALUE."""
    for name, member in value.items() if isinstance(value, dict) else ():
        yield f"{path}.{name}"
        yield from paths_in(member, f"{path}.{name}")
    for member in value if isinstance(value, list) else ():
        yield from paths_in(member, f"{path}[]")


def compare(section, answers, unseen=()):
    """ANSWERS have all fields of SECTION, with its types, and no others; those in UNSEEN need not be there."""
    import jsonschema  # which a guest does not have

    validator = jsonschema.Draft202012Validator({"$defs": close(schema()), "$ref": f"#/$defs/{section}"})
    for answer in answers:
        validator.validate(answer)
    seen = {path for answer in answers for path in paths_in(answer)}
    assert {path for path in fields_of(schema()[section]) if path not in seen} == {f".{path}" for path in unseen}


def test_schema():
    import jsonschema

    jsonschema.Draft202012Validator.check_schema({"$defs": schema()})


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
        compare("status", [hugeld_json("status", process.pid)], {"error", "error.message"})


def test_doctor():
    compare("doctor", [json.loads(helpers.hugeld("doctor", "--json").stdout)])


def test_bench(builder, pool):
    pool(64)
    answer = json.loads(helpers.hugeld("bench", "--copy", "--json", "-n", "6", "-i", "--", builder.executable("nopie")).stdout)
    # The kernel may see no system time, or nothing else, in a process of some milliseconds: then there is no ratio.
    unseen = {f"ratio.{time}.{name}" for time in ("user", "system") if not answer["ratio"][time] for name in ("ratio", "low", "high")}
    compare("bench", [answer], unseen)


def test_survey(tmp_path):
    calls = build_calls(tmp_path / "calls")
    process = helpers.start([calls, "1000000000000"], stdout=subprocess.DEVNULL)
    try:
        compare("survey", [json.loads(helpers.hugeld("survey", "--json", "--seconds", "3", "--program", calls).stdout)])
    finally:
        helpers.end_process(process)


def test_image(builder, tmp_path):
    compare("image", [hugeld_json("image", builder.executable("nopie"), tmp_path / "out")])


def test_perf_map(builder, library, pause_library, pool, tmp_path):
    pool(64)
    app = builder.executable("nopie")
    with helpers.paused([app], helpers.preload(library, pause_library), app.name) as process:
        compare("perf-map", [hugeld_json("perf-map", f"--output={tmp_path}/map", process.pid)], {"error", "error.message"})


def test_lists(builder, root, tmp_path):
    """In a mount namespace with a /run, /etc and /dev/shm of its own."""
    script = """
        mount -t tmpfs -o mode=0755 none /run && mount -t tmpfs -o mode=0755 none /etc && mount -t tmpfs none /dev/shm || exit
        mkdir /run/programs && cp "$1" /run/programs/app && printf '/run/programs/app\n/run/none\n' > /run/list || exit
        for words in "enable /bin/true" "disable /bin/true" "apply --list=/run/list --store=/dev/shm/store --any-disk" \
            "list --check --list=/run/list --store=/dev/shm/store" reset; do
            "$0" $words --json || :
        done
        chmod 777 /dev/shm/store && "$0" apply --json --list=/run/list --store=/dev/shm/store || :
    """
    result = helpers.run(["unshare", "-m", "sh", "-c", script, helpers.HUGELD, builder.executable("nopie")])
    answers, text = [], result.stdout
    while text.strip():
        answer, end = json.JSONDecoder().raw_decode(text.lstrip())
        answers.append(answer)
        text = text.lstrip()[end:]
    assert len(answers) == 6, result
    compare("enable", answers[:2])
    compare("apply", [answers[2], answers[5]])
    compare("list", [answers[3]])
    compare("reset", [answers[4]], {"error", "error.message"})
