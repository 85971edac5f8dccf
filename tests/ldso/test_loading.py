# SPDX-License-Identifier: LGPL-2.1-or-later
"""Objects that come later, how they are linked, and the dynamic linker's other work with them: the same results as without hugeld, on
huge pages or mapped from their images.  Namespaces, threads, small stacks and rounds of dlclose: ../dlopen, by this way too."""

import re
import subprocess

import pytest

import helpers
from linkers import LINKED

ON_HUGE_PAGES = re.compile(r"^hugeld: libbig[\w-]*\.so: text \d+ pages (hugetlb|image)", re.M)


@pytest.fixture(params=["hugetlb", "image"])
def same(request, linked, features, pool):
    """same(argv, library): ARGV does the same with everything on huge pages as without hugeld; how often it said so of LIBRARY."""

    def run(argv, library=None, **changes):
        options = "backend=hugetlb,verbose=2"
        if request.param == "image":
            images = request.getfixturevalue("images")
            images.add(library or features())
            options = images.options("verbose=2")
        pool(64)
        plain = helpers.run(argv, helpers.environment(**changes))
        done = linked.run(argv, "*", options, **changes)
        assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout), done.stderr
        return len(ON_HUGE_PAGES.findall(done.stderr)) if plain.returncode == 0 else None

    return run


@pytest.mark.parametrize("link", LINKED)
def test_linked(same, features, loads, link):
    """RELRO, TLS, IFUNCs, constructors and more; dlopen refuses an executable stack since glibc 2.41."""
    assert same([loads, "once", features(link)], features(link)) == 1 or link == "execstack"


VARIABLES = [{"LD_PROFILE": "libc.so.6"}, {"LD_BIND_NOW": "1"}, {"LD_BIND_NOT": "1"}, {"LD_DYNAMIC_WEAK": "1"},
             {"GLIBC_TUNABLES": "glibc.malloc.perturb=85:glibc.rtld.optional_static_tls=1024:glibc.elf.thp=1"},  # thp: since 2.44
             {"LD_DEBUG": "bindings,libs,reloc,scopes,statistics,symbols,versions"}]


@pytest.mark.parametrize("variables", VARIABLES, ids=lambda v: "-".join(v))
def test_other_variables(same, features, loads, tmp_path, variables):
    """LD_PROFILE counts calls between objects, also from and to moved ones."""
    assert same([loads, "once", features("lazy")], features("lazy"), LD_PROFILE_OUTPUT=tmp_path, **variables) == 1
    assert ("LD_PROFILE" in variables) == any(tmp_path.glob("libc.so.6.profile"))


def test_forked_while_it_is_loaded(linked, builder, loads, thp, tmp_path):
    """A child loads something while its parent's other thread is in the middle of that."""
    _, [library] = builder.with_library("dso")
    (tmp_path / "small.c").write_text("int small = 1;")
    small = builder.compile(tmp_path / "small.so", tmp_path / "small.c", "-shared", "-fPIC")
    done = linked.run([loads, "forks", library, "20", small], "*", "backend=thp")
    assert (done.returncode, done.stdout) == (0, ""), done


def test_auditor(linked, auditor, loads, features, pool):
    """The auditor itself, in its own namespace, and the objects that it audits."""
    pool(64)
    argv = [loads, "once", features()]
    plain = helpers.run(argv, helpers.environment(LD_AUDIT=auditor))
    done = linked.run(argv, "*", "backend=hugetlb,verbose=2", LD_AUDIT=auditor)
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout), done.stderr
    assert len(ON_HUGE_PAGES.findall(done.stderr)) == 2
    assert plain.stderr in done.stderr and plain.stderr.startswith("audited 1")


def test_strict_is_for_the_start(linked, features, loads, pool, tmp_path):
    """A library that dlopen loads ends no program, and no line says that it does; a small library of the same name is
    there at startup."""
    pool(0)
    same = tmp_path / features().name
    subprocess.run(["gcc", "-shared", "-x", "c", "/dev/null", "-o", same], check=True)
    argv = [loads, "once", features()]
    plain = helpers.run(argv)
    done = linked.run(argv, features().name, "backend=hugetlb,strict=on,exe=loads*", preloaded=[same])
    assert (done.returncode, done.stdout, done.stderr) == (plain.returncode, plain.stdout, plain.stderr)


def test_debug_output(linked, features, loads, pool):
    """LD_DEBUG=files gives the lines of verbose=3, also where verbose is 0."""
    pool(64)
    plain = helpers.run([loads, "once", features()])
    done = linked.run([loads, "once", features()], "*", "verbose=0", LD_DEBUG="files")
    assert (done.returncode, done.stdout) == (0, plain.stdout)
    lines = [line.split("\t", 1)[1] for line in done.stderr.splitlines() if "\t" in line]
    assert any(re.match(r"hugeld: libbig-now.so: 0x\w+-0x\w+ r-x text 5 pages hugetlb$", line) for line in lines)
    assert "hugeld: libc.so.6: text stays: no whole huge page lies inside" in lines
    assert not any(line.startswith("hugeld:") for line in done.stderr.splitlines())


def test_listing_moves_nothing(linked, loads, pool):
    pool(64)
    for command, variables in [(["--list"], {}), (["--verify"], {}), ([], {"LD_TRACE_LOADED_OBJECTS": "1"})]:
        done = helpers.run([linked.ldso, *command, loads], linked.environment("*", "verbose=3", **variables))
        assert (done.returncode, done.stderr) == (0, "") and ("--verify" in command or "libc.so.6" in done.stdout)
