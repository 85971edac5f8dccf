# SPDX-License-Identifier: LGPL-2.1-or-later
"""`hugeld doctor -- PROGRAM`: how many pages, whether the pool has them, and the command that fixes it."""

import json
import os
import pathlib
import re
import signal

import pytest

import helpers
from helpers import hugeld, hugeld_json
from hugepages import NR_HUGEPAGES, free_pages, pool_counts

# app-nopie: five pages of text and one of read-only data, always.
TEXT, RODATA = 5, 1
APP = TEXT + RODATA


def ask(*arguments, env=None):
    """(exit status, "program" of the JSON without the parts that tests/images looks at), for a private copy."""
    result = hugeld("doctor", "--json", "--copy", *arguments, env=env)
    assert result.stderr == "", result.stderr
    told = json.loads(result.stdout)["program"]
    for found in told["objects"]:
        del found["image"], found["verdict"]
    return result.returncode, told


def pages_over_addresses(file, *options):
    """(least, most) pages of read-only spans, from `hugeld inspect`."""
    [found] = hugeld_json("inspect", "-o", "data=off", *options, file)["files"]
    range_ = found.get("range", {"pages_min": found["plan"]["pages"], "pages_max": found["plan"]["pages"]})
    return range_["pages_min"], range_["pages_max"]


def refused(result, status, *words):
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (status, "", 1), result
    for word in words:
        assert word in result.stderr


# --- hugeld's pages ---


def test_enough(builder, pool):
    pool(APP)
    app = builder.executable("nopie")
    status, told = ask("--", app)
    assert (status, told["enough"], told["remedy"]) == (0, True, None)
    assert (told["our_pages_min"], told["our_pages_max"], told["own_pages"]) == (APP, APP, 0)
    assert (told["needed_pages"], told["available_pages"]) == (APP, APP)
    assert told["objects"] == [{"path": str(app), "pages_min": APP, "pages_max": APP}]
    assert told["path"] == str(app) and "--own-pages" in told["own_source"] and told["reason"] is None
    words = hugeld("doctor", "--copy", "--", app)
    assert (words.returncode, words.stderr) == (0, "") and words.stdout.endswith("\nyes\n")


COPIES = {
    "nothing": ([], {}, False), "--copy": (["--copy"], {}, True), "a backend": (["-o", "backend=auto"], {}, True),
    "a backend, inherited": ([], {"LD_HUGEPAGES_OPTIONS": "backend=hugetlb"}, True), "an option": (["-o", "edges=small"], {}, False),
    "preloaded": ([], {"LD_PRELOAD": "libhugeld.so"}, True),
}


@pytest.mark.parametrize("asked", COPIES)
def test_as_run_does(builder, library, pool, asked):
    """Only a private copy takes pages; the answer agrees with `hugeld run`."""
    arguments, changes, copies = COPIES[asked]
    pool(APP - 1)
    app = builder.executable("nopie")
    changes = {name: str(library) if name == "LD_PRELOAD" else value for name, value in changes.items()}
    env = helpers.environment(**changes)
    told = json.loads(hugeld("doctor", "--json", *arguments, "--", app, env=env).stdout)["program"]
    assert (told["our_pages_max"], told["needed_pages"]) == ((APP, APP) if copies else (0, 0)), told
    words = hugeld("doctor", *arguments, "--", app, env=env).stdout
    assert ("makes no private copy without --copy" in words) == (not copies) and (not copies) <= words.endswith("\nyes\n")
    if asked != "preloaded":
        ran = hugeld("run", "-o", "verbose=2", *arguments, "--", app, env=env).stderr
        assert ("started as it is" in ran) == (not copies), ran


def test_one_page_less(builder, prove, pool):
    """After the command that it prints the answer is yes, and all of the program moves."""
    pool(APP - 1)
    app = builder.executable("nopie")
    status, told = ask("-o", "backend=hugetlb", "--", app)
    total = pool_counts()[0]
    assert (status, told["enough"], told["remedy"]) == (1, False, f"sysctl vm.nr_hugepages={total + 1}")
    words = hugeld("doctor", "-o", "backend=hugetlb", "--", app)
    assert words.returncode == 1 and f"1 page missing; fix: {told['remedy']}\n" in words.stdout
    NR_HUGEPAGES.write_text(told["remedy"].partition("=")[2])  # sysctl would change the real pool
    assert ask("-o", "backend=hugetlb", "--", app)[0] == 0
    prove([app], {app.name: ("text", "rodata")}, options="backend=hugetlb")


def test_one_page_less_by_default(builder, pool):
    """hugeld takes other memory then, so nothing keeps a service from being started; but for a program that insists on pages of
    its own it must leave them."""
    pool(APP - 1)
    app = builder.executable("nopie")
    words = hugeld("doctor", "--copy", "--", app)
    assert (words.returncode, words.stderr) == (0, "") and "\nyes: the pool has 1 page fewer than hugeld could take" in words.stdout
    status, told = ask("--own-pages", "2", "--", app)
    assert (status, told["enough"]) == (1, False)
    status, told = ask("-o", "reserve_pages=2", "--own-pages", "2", "--", app)
    assert (status, told["enough"], told["remedy"]) == (0, True, None)
    assert ask("-o", f"reserve_pages={APP}", "--own-pages", "2", "--", app)[0] == 1


def test_takes_and_starts_nothing(builder, pool, tmp_path):
    pool(2)
    app = builder.executable("nopie")
    mark = tmp_path / "started"
    hugeld("doctor", "--own-pages", "1", "--", "touch", mark)
    hugeld("doctor", "--copy", "-p", "*", "--", app)
    assert free_pages() == 2 and not mark.exists()


def test_any_load_address(builder, pool):
    app = builder.executable("pie")
    least, most = pages_over_addresses(app)
    assert least < most
    pool(most - 1)
    status, told = ask("-o", "backend=hugetlb", "--", app)
    assert (status, told["our_pages_min"], told["our_pages_max"], told["needed_pages"]) == (1, least, most, most)
    pool(most)
    assert ask("--", app)[0] == 0


@pytest.mark.parametrize("options, pages", [
    ("segments=text", TEXT), ("backend=hugetlb", APP), ("backend=thp", 0), ("edges=small,segments=text", 3),
    ("exe=other", 0), ("exe=app-*", APP), ("data=thp,bss=thp", APP),
])
def test_options(builder, options, pages):
    """Only text that goes to hugetlb counts."""
    told = ask("-o", options, "--", builder.executable("nopie"))[1]
    assert (told["our_pages_min"], told["our_pages_max"], told["needed_pages"]) == (pages, pages, pages)
    assert (told["reason"] is None) == (pages > 0)
    by_environment = helpers.environment(LD_HUGEPAGES_OPTIONS=options)
    assert ask("--", builder.executable("nopie"), env=by_environment)[1] == told


def test_writable_data_takes_no_pages(builder):
    app = builder.executable("nopie", words=640 * 1024)
    [planned] = hugeld_json("inspect", "-o", "data=thp,bss=thp", app)["files"]
    told = ask("-o", "data=thp,bss=thp", "--", app)[1]
    assert told["our_pages_max"] == ask("-o", "data=off", "--", app)[1]["our_pages_max"] < planned["plan"]["pages"]


def test_patterns(builder):
    """Libraries as the dynamic linker lists them; -p replaces LD_HUGEPAGES."""
    app, [big] = builder.with_library("dso")
    big = pathlib.Path(f"{big}.1")
    most = pages_over_addresses(big)[1]
    expected = [{"path": str(big), "pages_min": pages_over_addresses(big)[0], "pages_max": most}]
    told = ask("-p", "libbig*", "--", app)[1]
    assert (told["objects"], told["our_pages_max"]) == (expected, most)
    env = helpers.environment(LD_HUGEPAGES="libbig.so.1")
    assert ask("--", app, env=env)[1]["objects"] == expected
    told = ask("-p", "main", "--", app, env=env)[1]
    assert [o["path"] for o in told["objects"]] == [str(app)] and told["our_pages_max"] == 0
    everything = ask("-p", "*", "--", app)[1]
    assert everything["our_pages_max"] == sum(o["pages_max"] for o in everything["objects"]) >= most
    assert str(app) in [o["path"] for o in everything["objects"]]
    assert ask("-p", "", "--", app)[1]["objects"] == []
    assert ask("-p", "*:!libbig*", "--", app)[1]["our_pages_max"] == everything["our_pages_max"] - most


def test_preloaded_library(builder):
    app, [big] = builder.executable("nopie"), builder.with_library("dso")[1]
    env = helpers.environment(LD_PRELOAD=big)
    assert ask("-p", "main:libbig*", "--", app, env=env)[1]["our_pages_max"] == APP + pages_over_addresses(big)[1]


def test_program_is_found_as_by_execvp(builder):
    app = builder.executable("nopie")
    env = helpers.environment(PATH=f"/no/such/folder:{app.parent}:{os.environ['PATH']}")
    assert ask("--", app.name, "-o", "an argument", env=env)[1]["path"] == str(app)
    assert ask(app.name, env=env)[1]["path"] == str(app)


def test_script(builder, tmp_path):
    """hugeld acts in the interpreter's process, also when the interpreter is a script."""
    app = builder.executable("nopie")
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    for script, interpreter in ((inner, f"{app} -x"), (outer, inner)):
        script.write_text(f"#! {interpreter}\n")
        script.chmod(0o755)
    for script in (inner, outer):
        told = ask("--", script)[1]
        assert (told["path"], told["our_pages_max"]) == (str(app), APP)


LAUNCHERS = {
    "env": "#!/usr/bin/env app-nopie\n", "env-S": "#!/usr/bin/env -S T_ANY=1 app-nopie -x\n",
}


@pytest.mark.parametrize("how", LAUNCHERS)
def test_launchers(builder, pool, tmp_path, how):
    """The program that a launcher starts takes the pages: npm is a script of env."""
    app = builder.executable("nopie")
    pool(APP)
    script = tmp_path / "launcher"
    script.write_text(LAUNCHERS[how])
    script.chmod(0o755)
    env = helpers.environment(PATH=f"{app.parent}:{os.environ['PATH']}")
    told = ask("--", script, env=env)[1]
    assert (told["path"], told["launcher"], told["our_pages_max"]) == (str(app), str(script), APP)
    words = hugeld("doctor", "--copy", "--", script, env=env).stdout
    assert words.startswith(f"{script} starts another program: {APP} pages for each process of it\n")
    assert words.endswith("\nyes\n")


def test_env_as_the_program(builder):
    app = builder.executable("nopie")
    told = ask("--", "env", "-i", "T_ANY=1", "T_OTHER=1", app, "argument")[1]
    assert (told["path"], told["our_pages_max"]) == (str(app), APP)


@pytest.mark.parametrize("option", [["--split-string=true a"], ["-u", "true"], ["-C", "/"]], ids=" ".join)
def test_options_of_env(builder, option):
    """The program may be in an option's value, so it is not known."""
    assert ask("--", "env", *option, builder.executable("nopie"))[1]["starts_unknown"]


def test_program_behind_env_is_asked(postgres):
    argv, answers = postgres
    answer(answers, huge_pages="on\n", huge_page_size="0\n", shared_memory_size_in_huge_pages="77\n")
    assert ask("--", "env", "T_ANY=1", *argv)[1]["own_pages"] == 77


@pytest.mark.parametrize("text", ["#!/bin/sh\nexec true\n", "#!/usr/bin/env bash\nexec true\n", "#!/usr/bin/env -S nice true\n",
                                  "#!/usr/bin/env no-such-program-anywhere\n"])
def test_script_that_starts_something_unknown(tmp_path, text):
    script = tmp_path / "launcher"
    script.write_text(text)
    script.chmod(0o755)
    result = hugeld("doctor", "--copy", "--", script)
    assert f"\nwhich programs {script} starts is not known; name one of them\n" in result.stdout
    assert not result.stdout.endswith("\nyes\n")
    assert ask("--", script)[1]["starts_unknown"]


def test_little_text(builder):
    result = hugeld("doctor", "--", "true")
    last = "hugeld moves no text here, because no whole huge page lies inside the selected objects"
    assert result.stdout.splitlines()[-1] == f"{last}; see all of its libraries with -p '*'"
    assert hugeld("doctor", "-p", "libc.so.6", "--", "true").stdout.splitlines()[-1] == last


def test_where_hugeld_does_nothing(builder, root, tmp_path):
    static = builder.tiny("-static")
    told = ask("--", static)[1]
    assert told["our_pages_max"] == 0 and "static" in told["reason"]
    result = hugeld("doctor", "--", static)
    assert result.stdout.endswith("\nhugeld does nothing here, because it is static, the dynamic linker never runs\n")
    assert result.returncode == 0  # it needs no page: a unit's ExecStartPre= lets it start
    whole = bytearray(static.read_bytes()[:52])
    whole[4], whole[18] = 1, 3  # ELFCLASS32, EM_386
    small = tmp_path / "32-bit"
    small.write_bytes(whole)
    small.chmod(0o755)
    assert "hugeld does nothing here, because it is a 32-bit program" in hugeld("doctor", "--", small).stdout
    app = tmp_path / "privileged"
    app.write_bytes(builder.executable("nopie").read_bytes())
    os.chown(app, 65534, 65534)
    app.chmod(0o4755)
    told = ask("-p", "*", "--", app)[1]
    assert told["our_pages_max"] == 0 and "set-user-ID" in told["reason"]


def test_other_dynamic_linker(builder, tmp_path):
    """Another dynamic linker is not run: a file may name anything as its interpreter.  The executable counts all the same."""
    mark, linker = tmp_path / "mark", tmp_path / "linker"
    linker.write_text(f"#!/bin/sh\ntouch {mark}\necho 'libc.so.6 => /lib/libc.so.6 (0x0)'\n")
    linker.chmod(0o755)
    app = builder.once("other-linker", lambda folder: builder.compile(
        folder / "app", builder.write("main.c", "") , "-no-pie", *builder.object(), f"-Wl,-I,{linker}"))
    told = ask("-p", "*", "--", app)[1]
    assert told["our_pages_max"] == APP and "dynamic linker" in told["reason"]
    assert not mark.exists()


def test_unusual_programs(builder, tmp_path):
    refused(hugeld("doctor", "--", "no-such-program-anywhere"), 2, "no-such-program-anywhere")
    refused(hugeld("doctor", "--", ""), 2)
    refused(hugeld("doctor", "--", tmp_path), 2)
    text = tmp_path / "text"
    text.write_text("no ELF file\n")
    refused(hugeld("doctor", "--", text), 2, "Permission denied")
    text.chmod(0o755)
    refused(hugeld("doctor", "--", text), 2, "ELF")
    loop = tmp_path / "loop"
    loop.write_text(f"#!{loop}\n")
    loop.chmod(0o755)
    refused(hugeld("doctor", "--", loop), 2, "interpreter")


@pytest.mark.parametrize("arguments", [
    ["-o", "data=off"], ["-p", "main"], ["--own-pages", "3"], ["--own-pages", "x", "--", "true"],
    ["--own-pages", "-1", "--", "true"], ["--own-pages", "", "--", "true"], ["--own-pages=9999999999", "--", "true"],
    ["-o", "backend=nonsense", "--", "true"], ["--no-such-option", "--", "true"], ["--own-pages"],
], ids=" ".join)
def test_wrong_use(arguments):
    refused(hugeld("doctor", *arguments), 2)


# --- the program's own ---


def test_own_pages_by_hand(builder, pool):
    app = builder.executable("nopie")
    pool(APP + 3)
    status, told = ask("--own-pages", "3", "--", app)
    assert (status, told["own_pages"], told["own_source"], told["needed_pages"]) == (0, 3, "--own-pages", APP + 3)
    assert told["reserve_pages"] == 3
    assert "set reserve_pages=3," in hugeld("doctor", "--copy", "--own-pages", "3", "--", app).stdout
    pool(APP + 2)
    assert ask("--own-pages", "3", "--", app)[0] == 1


@pytest.mark.check_all
@pytest.mark.parametrize("reserve, needed", [(2, APP + 3), (3, APP + 3), (7, APP + 7)])
def test_reserve_pages(builder, pool, reserve, needed):
    """The pages that reserve_pages leaves alone hold the program's own, and more where it is more."""
    app = builder.executable("nopie")
    arguments = ["--own-pages", "3", "-o", f"backend=hugetlb,reserve_pages={reserve}", "--", app]
    pool(needed)
    status, told = ask(*arguments)
    assert (status, told["needed_pages"]) == (0, needed)
    assert ("set reserve_pages=" in hugeld("doctor", "--copy", *arguments).stdout) == (reserve < 3)
    pool(needed - 1)
    assert ask(*arguments)[0] == 1


@pytest.fixture
def postgres(pretender, root, shared_folder, monkeypatch):
    """(program with its arguments, folder of its answers); the data directory belongs to the user nobody."""
    folder = shared_folder / "pretender"
    answers = folder / "answers"
    answers.mkdir(parents=True, exist_ok=True)
    for old in answers.iterdir():
        old.unlink()
    os.chown(folder, 65534, 65534)
    copy = folder / "postgres"
    copy.write_bytes(pretender("postgres").read_bytes())
    copy.chmod(0o755)
    monkeypatch.setenv("T_ANSWERS", str(answers))
    return [copy, "-D", folder], answers


def answer(folder, **answers):
    for name, text in answers.items():
        (folder / name).write_text(text)


@pytest.mark.parametrize("huge_pages", ["on", "try"])
def test_postgres_tells(postgres, huge_pages):
    argv, answers = postgres
    answer(answers, huge_pages=f"{huge_pages}\n", huge_page_size="0\n", shared_memory_size_in_huge_pages="77\n")
    told = ask("--", *argv)[1]
    assert (told["own_pages"], told["reserve_pages"]) == (77, 77) and f"huge_pages={huge_pages}" in told["own_source"]
    assert not (answers / "started").exists()


def test_postgres_without(postgres):
    argv, answers = postgres
    answer(answers, huge_pages="off\n")
    assert ask("--", *argv)[1]["own_pages"] == 0
    answer(answers, huge_pages="try\n", huge_page_size="0\n", shared_memory_size_in_huge_pages="-1\n")
    assert ask("--", *argv)[1]["own_pages"] == 0


@pytest.mark.parametrize("size, pages", [("2048", 77), ("1048576", 0)])
def test_postgres_page_size(postgres, size, pages):
    """Pages of another size come from another pool."""
    argv, answers = postgres
    answer(answers, huge_pages="on\n", huge_page_size=f"{size}\n", shared_memory_size_in_huge_pages="77\n")
    told = ask("--", *argv)[1]
    assert told["own_pages"] == pages and ("another pool" in told["own_source"] or pages)


@pytest.mark.check_all
@pytest.mark.parametrize("present", [[], ["huge_pages"], ["huge_pages", "huge_page_size"]], ids=len)
def test_postgres_does_not_tell(postgres, pool, present):
    """The server is too old, or running: the answer is no, with the reason; --own-pages helps."""
    argv, answers = postgres
    pool(64)
    answer(answers, **{name: {"huge_pages": "on\n", "huge_page_size": "0\n"}[name] for name in present})
    status, told = ask("--", *argv)
    assert (status, told["own_pages"], told["enough"]) == (1, None, False)
    assert "unrecognized configuration parameter" in told["own_source"] and "second line" not in told["own_source"]
    assert "--own-pages" in told["remedy"] and "--own-pages" in hugeld("doctor", "--copy", "--", *argv).stdout
    assert ask("--own-pages", "5", "--", *argv)[0] == 0


@pytest.mark.parametrize("how", ["-D", "-Djoined", "--data_directory=", "-c", "PGDATA"])
def test_postgres_as_the_data_directory_s_owner(postgres, how):
    """Root may not ask."""
    (program, _, folder), answers = postgres
    answer(answers, huge_pages="on\n", huge_page_size="0\n", shared_memory_size_in_huge_pages="77\n")
    arguments = {"-D": ["-D", folder], "-Djoined": [f"-D{folder}"], "--data_directory=": [f"--data_directory={folder}"],
                 "-c": ["-c", f"data_directory={folder}"], "PGDATA": []}[how]
    env = helpers.environment(PGDATA=folder if how == "PGDATA" else None)
    assert ask("--", program, *arguments, env=env)[1]["own_pages"] == 77
    if how == "PGDATA":
        told = ask("--", program)[1]
        assert told["own_pages"] is None and "data directory" in told["own_source"]


HELP = """
Variables (--variable-name=value)
and boolean options {FALSE|TRUE}  Value (after reading options)
--------------------------------- ----------------------------------------
aria-pagecache-buffer-size        3145729
innodb-buffer-pool-size           17825792
innodb-buffer-pool-size-max       8796093022208
innodb-log-buffer-size            1048576
key-buffer-size                   10485760
key-cache-segments                0
large-pages                       TRUE
"""


@pytest.mark.parametrize("change, pages", [
    ((), 16 + 0 + 5 + 2),
    (("key-cache-segments                0", "key-cache-segments 2"), 16 + 0 + 5 + 2 + 2),
    (("1048576\n", "2097153\n"), 16 + 2 * 2 + 5 + 2),
    (("17825792", "16777216"), 15 + 0 + 5 + 2),
    (("key-buffer-size                   10485760", "key-buffer-size 0"), 16 + 0 + 0 + 2),
    (("TRUE", "FALSE"), 0),
])
def test_mariadb_tells(pretender, tmp_path, monkeypatch, change, pages):
    monkeypatch.setenv("T_ANSWERS", str(tmp_path))
    (tmp_path / "help").write_text(HELP.replace(*change) if change else HELP)
    for name in ("mysqld", "mariadbd"):
        told = ask("--", pretender(name), "--datadir=x")[1]
        assert told["own_pages"] == pages, told
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("text", [None, "", HELP.replace("innodb-buffer-pool-size-max", "something-else")],
                         ids=["fails", "empty", "other version"])
def test_mariadb_does_not_tell(pretender, tmp_path, monkeypatch, pool, text):
    pool(64)
    monkeypatch.setenv("T_ANSWERS", str(tmp_path))
    if text is not None:
        (tmp_path / "help").write_text(text)
    status, told = ask("--", pretender("mysqld"))
    assert (status, told["own_pages"]) == (1, None) and told["own_source"]


def test_ignored_signals(postgres):
    """A process that ignores SIGCHLD gets no exit status of a child; doctor inherits that and asks all the same."""
    argv, answers = postgres
    answer(answers, huge_pages="on\n", huge_page_size="0\n", shared_memory_size_in_huge_pages="77\n")
    result = helpers.run(["env", "--ignore-signal=CHLD", helpers.HUGELD, "doctor", "--json", "--", *argv])
    assert json.loads(result.stdout)["program"]["own_pages"] == 77


def test_one_that_does_not_end(pretender, tmp_path, monkeypatch):
    """SIGALRM ends it (here earlier than the 30 s that doctor waits), and the answer is no."""
    monkeypatch.setenv("T_ANSWERS", str(tmp_path))
    os.mkfifo(tmp_path / "help")  # opening it waits
    doctor = helpers.start([helpers.HUGELD, "doctor", "--", pretender("mysqld")])
    try:
        children = pathlib.Path(f"/proc/{doctor.pid}/task/{doctor.pid}/children")
        child = int(helpers.wait_until(lambda: children.read_text().strip(), what="doctor asking"))
        helpers.wait_until(lambda: os.readlink(f"/proc/{child}/exe").endswith("/mysqld"), what="mysqld answering")
        os.kill(child, signal.SIGALRM)
        stdout, _ = doctor.communicate(timeout=60)
    finally:
        helpers.end_process(doctor)
    assert doctor.returncode == 1 and "mysqld --verbose --help fails" in stdout


# --- as ExecStartPre= ---


@pytest.mark.parametrize("free, runs", [(APP, True), (APP - 1, False)])
def test_in_front_of_exec(builder, library, pool, free, runs):
    pool(free)
    app = builder.executable("nopie")
    script = 'hugeld doctor -- "$0" >&2 && exec env LD_PRELOAD=$LIBRARY "$0"'
    env = helpers.environment(PATH=f"{library.parent}:{os.environ['PATH']}", LIBRARY=library,
                              LD_HUGEPAGES_OPTIONS="backend=hugetlb,verbose=2")
    result = helpers.run(["sh", "-c", script, app], env)
    assert result.returncode == (3 if runs else 1)
    assert ("text 5 pages hugetlb, rodata 1 page hugetlb" in result.stderr) == runs
    assert result.stdout == (helpers.run([app]).stdout if runs else "")


def test_inside_a_preloaded_environment(builder, library, pool):
    """systemd gives ExecStartPre= the unit's environment: doctor, and whom it asks, run with libhugeld.so too."""
    pool(APP)
    app = builder.executable("nopie")
    env = helpers.preload(library, patterns="*", options="backend=hugetlb,verbose=3")
    result = helpers.run([library.parent / "hugeld", "doctor", "-p", "main", "--", app], env)
    assert result.returncode == 0 and re.search(r"available +6 pages", result.stdout)


# --- nodes ---


def fake_nodes(folder, online, **pages):
    (folder / "online").write_text(f"{online}\n")
    for node, free in pages.items():
        counts = folder / node / "hugepages" / "hugepages-2048kB"
        counts.mkdir(parents=True)
        for name, number in (("nr_hugepages", free + 2), ("free_hugepages", free), ("surplus_hugepages", 0)):
            (counts / name).write_text(f"{number}\n")


def test_nodes_that_are_not_allowed(builder, root, pool, tmp_path):
    """A second node, made up, outside the cpuset: its pages don't count, and the remedy is the first node's."""
    app = builder.executable("nopie")
    pool(8)
    fake_nodes(tmp_path, "0-1", node0=4, node1=4)
    argv = ["unshare", "-m", "sh", "-c", f'mount --bind {tmp_path} /sys/devices/system/node && exec "$@"', "sh",
            helpers.HUGELD, "doctor", "--json", "-o", "backend=hugetlb", "--", app]
    result = helpers.run(argv)
    assert result.stderr == "", result.stderr
    told = json.loads(result.stdout)["program"]
    assert (result.returncode, told["available_pages"]) == (1, 4)
    assert told["remedy"] == "echo 8 > /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"
