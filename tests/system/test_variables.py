# SPDX-License-Identifier: LGPL-2.1-or-later
"""LD_HUGEPAGES and LD_HUGEPAGES_OPTIONS as a user meets them: messages and their verbosity, mistakes, endless texts,
exe=, children, and secure mode, in which nothing happens."""

import re
import shutil

import pytest

import helpers
import programs

TINY = "hugeld: tiny: text stays: no whole huge page lies inside\n"


def outcome(result):
    return result.returncode, result.stdout, result.stderr


def test_empty_is_unset(builder, pool):
    pool(64)
    app = builder.executable("nopie")
    unset, empty = (outcome(helpers.run_preloaded([app], patterns, "backend=hugetlb,verbose=2")) for patterns in (None, ""))
    assert unset == empty and "text 5 pages hugetlb" in empty[2]
    assert helpers.run_preloaded([app], "!*", "verbose=2").stderr == ""


@pytest.mark.parametrize("more", [0, 1])
def test_names_that_are_not_checked(builder, more):
    """strict=on cannot promise what it did not look at."""
    patterns = ":".join(["main"] * 64 + ["no-such-library.so"] * more)
    result = helpers.run_preloaded([builder.tiny()], patterns, "strict=on")
    told = "hugeld: LD_HUGEPAGES: whether objects have these names is checked for the first 64 only\n"
    assert (told in result.stderr) == bool(more) and result.returncode == helpers.run([builder.tiny()]).returncode, result.stderr


# --- verbose ---


def test_silent_by_default(builder, pool):
    for free in (0, 64):
        pool(free)
        for options in (None, "", "verbose=0", "backend=hugetlb"):
            app = builder.executable("nopie")
            assert outcome(helpers.run_preloaded([app], options=options)) == outcome(helpers.run([app]))


def test_verbose_2(builder, pool):
    pool(64)
    app, libraries = builder.with_library("dso-aligned")
    stderr = helpers.run_preloaded([builder.executable("nopie")], options="backend=hugetlb,verbose=2").stderr
    assert stderr == "hugeld: app-nopie: text 5 pages hugetlb, rodata 1 page hugetlb\n"
    stderr = helpers.run_preloaded([app], "main:libbig*", "backend=hugetlb,verbose=2").stderr
    assert stderr == (
        "hugeld: small-dso-aligned: text stays: no whole huge page lies inside\n"
        "hugeld: libbig.so.1: text 5 pages hugetlb, rodata 4 pages hugetlb\n"
    )


def test_verbose_2_counts_what_is_too_small(builder):
    """One line for all objects that a wildcard selects; a named object has its own, and verbose=3 has one for each."""
    def lines(patterns, options):
        return helpers.run_preloaded([builder.tiny()], patterns, options).stderr.splitlines(keepends=True)

    each = [line for line in lines("*", "verbose=3") if line.endswith(": text stays: no whole huge page lies inside\n")]
    assert TINY in each and len(each) >= 2 and not any("objects stay" in line for line in lines("*", "verbose=3"))
    many = "hugeld: {} objects stay: no whole huge page lies inside; verbose=3 names each\n"
    assert lines("*", "verbose=2") == [many.format(len(each))]
    rest = len(each) - 1
    assert lines("main:*", "verbose=2") == [TINY, many.format(rest) if rest > 1 else many.replace("s stay", " stays").format(1)]
    assert lines("*", "verbose=1") == []


def test_verbose_3(builder, pool):
    pool(64)
    lines = helpers.run_preloaded([builder.executable("nopie")], options="backend=hugetlb,verbose=3,reserve_pages=2").stderr.splitlines()
    lines = [line for line in lines if "not mapped from an image" not in line]  # said where the machine has a store
    assert lines[:2] == ["hugeld: app-nopie: text needs 5 pages, 62 available", "hugeld: app-nopie: rodata needs 1 page, 57 available"]
    assert lines[2] == "hugeld: app-nopie: text 5 pages hugetlb, rodata 1 page hugetlb"
    assert "hugeld: app-nopie: 0x400000-0xe00000 r-x text 5 pages hugetlb" in lines
    assert "hugeld: app-nopie: 0xe00000-0x1000000 r-- rodata 1 page hugetlb" in lines
    stays = [line for line in lines if "stays" in line]
    assert len(stays) == 1 and re.fullmatch(r"hugeld: app-nopie: 0x[0-9a-f]+-0x[0-9a-f]+ rw- stays: .+", stays[0])


# --- little text ---


def test_little_text(builder, prove, pool, tmp_path):
    """Debian 12's libXdmcp is like this: 2 MiB to itself for a few KiB of text.  That stays, and of larger text the page in which
    it ends, if little of it is there.  No option changes that."""
    pool(64)
    tiny, little = builder.tiny("-Wl,-z,max-page-size=0x200000"), tmp_path / "little.s"
    little.write_text(programs.TEXT.replace("4096+128", "4096").replace("DATA_WORDS", "8"))
    app = builder.compile(tmp_path / "app-little", builder.write("main.c", programs.MAIN), "-fPIE", "-rdynamic", "-no-pie",
                          little, builder.object()[1])
    options = "backend=hugetlb,segments=text"
    stays = "hugeld: tiny: text stays: too little text to be worth a huge page (less than 1/32)\n"
    assert helpers.run_preloaded([tiny], options=f"{options},verbose=2").stderr == stays
    assert prove([app], {app.name: ("text",)}, options=options).pages == 4
    assert prove([builder.executable("nopie")], {"app-nopie": ("text",)}, options=options).pages == 5
    [file] = helpers.hugeld_json("inspect", "-o", options, tiny)["files"]
    assert file["plan"]["reason"] == "sparse-text" and file["plan"]["remedy"] is None
    assert "KiB: too little text to be" in helpers.hugeld("inspect", "-o", options, app).stdout


# --- mistakes ---


@pytest.mark.parametrize("option", [
    "backend=huge", "backend", "bakcend=thp", "verbose=7", "reserve_pages=x", "=", "exe=", "store=", "store=run/hugeld",
    "sparse_text=on",
])
def test_wrong_option(builder, option):
    """One line with variable, option and value; everything else counts."""
    result = helpers.run_preloaded([builder.tiny()], options=f"{option},verbose=2")
    assert (result.returncode, result.stdout) == (4, "tiny\n")
    complaint, said = result.stderr.splitlines(keepends=True)
    assert complaint.startswith(f"hugeld: LD_HUGEPAGES_OPTIONS: {option}: ")
    assert said == TINY


# --- names ---

NOBODY = "hugeld: LD_HUGEPAGES: {}: no object that is loaded at startup has this name{}\n"
LATER = "; objects that are opened later are still looked at"


def names(app, patterns, options):
    return outcome(helpers.run_preloaded([app], patterns, options))


@pytest.mark.parametrize("options", ["verbose=1", "verbose=3"])
def test_name_that_nothing_has(builder, options):
    """One line for each name, and none for a loaded object, even if it cannot move."""
    there = "main:libc.so.6:ld-linux-x86-64.so.2:linux-vdso.so.1:lib*"
    code, stdout, stderr = names(builder.tiny(), f"nod:{there}:!excluded:nothing*:libssl.so.1.1", options)
    lines = [line for line in stderr.splitlines(keepends=True) if "LD_HUGEPAGES" in line]
    assert lines == [NOBODY.format(name, LATER) for name in ("nod", "libssl.so.1.1")]
    assert (code, stdout) == (4, "tiny\n")


@pytest.mark.parametrize("patterns", ["main,libc.so.6", "main,lib*"])
def test_comma_between_names(builder, patterns):
    colons = "; names are separated by colons"
    assert names(builder.tiny(), patterns, "verbose=1") == (4, "tiny\n", NOBODY.format(patterns, colons))
    end = f"{colons}; strict=on ends the program"
    assert names(builder.tiny(), patterns, "strict=on") == (127, "", NOBODY.format(patterns, end))


def test_comma_in_a_name(builder, tmp_path):
    shutil.copy(builder.tiny(), tmp_path / "a,b")
    assert names(tmp_path / "a,b", "a,b", "strict=on,verbose=1") == (4, "tiny\n", "")


# --- exe=, children ---


@pytest.mark.parametrize("only, moves", [
    ("*", True), ("app-nopie", True), ("app-*", True), ("*/app-nopie", True), ("{path}", True),
    ("app", False), ("main", False), ("/usr/*", False), ("sh", False),
])
def test_only(builder, pool, only, moves):
    pool(64)
    app = builder.executable("nopie")
    stderr = helpers.run_preloaded([app], options=f"backend=hugetlb,verbose=2,exe={only.format(path=app)}").stderr
    assert stderr == ("hugeld: app-nopie: text 5 pages hugetlb, rodata 1 page hugetlb\n" if moves else "")


def test_children_do_the_same(builder, pool):
    """A shell starts a program, which becomes another one: each moves its own text."""
    pool(64)
    one, two = builder.executable("nopie"), builder.executable("six")
    argv = ["/bin/sh", "-c", f'"{one}" exec "{two}"; exit 9']
    result = helpers.run_preloaded(argv, options="backend=hugetlb,verbose=2")
    plain = helpers.run(argv)
    assert (result.returncode, result.stdout) == (plain.returncode, plain.stdout)
    said = [line.split(":")[1].strip() for line in result.stderr.splitlines()]
    assert said[-2:] == ["app-nopie", "app-six"] and said[:-2] in (["dash"], ["sh"], ["bash"])


# --- other ways to start ---


@pytest.mark.parametrize("options", ["", "bss=thp"])
def test_nothing_to_move_touches_nothing(strace, library, empty_library, options):
    """Where nothing is planned the break stays untouched, and no mapping is moved or reprotected."""
    def calls(preloaded):
        env = helpers.preload(preloaded, options=f"{options},exe=true")
        result = helpers.run(["strace", "-e", "trace=brk,mremap,madvise", "/bin/true"], env)
        assert result.returncode == 0
        return re.findall(r"^(brk|mremap|madvise)\(", result.stderr, re.M)

    assert calls(library) == calls(empty_library)
