# SPDX-License-Identifier: LGPL-2.1-or-later
"""Policies of service managers and container engines: the program moves by the route that is allowed, or stays with the
reason, and is never killed.  confine.c sets them."""

import re

import pytest

import helpers
from surroundings import ALL

ANONYMOUS, MEMFD = "/anon_hugepage", "/memfd:hugeld"
EXEC_DENIED = "a policy forbids making written memory executable"


def expand_group(name):
    """The system calls of one of systemd's groups, as the installed systemd has it."""
    try:
        result = helpers.run(["systemd-analyze", "syscall-filter", name])
    except FileNotFoundError:
        pytest.skip("needs systemd-analyze")
    calls = set()
    for line in result.stdout.splitlines():
        line = line.strip()
        if line.startswith("@") and line != name and not line.startswith(f"{name} "):
            calls |= expand_group(line.split()[0])
        elif re.fullmatch(r"[a-z]\w*", line):
            calls.add(line)
    assert calls, result
    return calls


@pytest.fixture(scope="module")
def system_service():
    return "only=" + ",".join(sorted(expand_group("@system-service")))


# rules -> the route that text on hugetlb takes, and the reason on thp (None: it moves)
POLICIES = {
    "mdwe": (["mdwe"], MEMFD, EXEC_DENIED),
    "MemoryDenyWriteExecute": (["no-write-execute"], MEMFD, EXEC_DENIED),
    "both": (["mdwe", "no-write-execute"], MEMFD, EXEC_DENIED),
    "docker": (["DOCKER"], ANONYMOUS, None),
    "no populate": (["no-populate"], ANONYMOUS, "no address space or memory for the copy"),
    "no memfd": (["deny=memfd_create"], ANONYMOUS, None),
    "system-service": (["SYSTEM-SERVICE"], ANONYMOUS, None),
    "hardened service": (["mdwe", "no-write-execute", "SYSTEM-SERVICE"], MEMFD, EXEC_DENIED),
    "hardened container": (["no-write-execute", "DOCKER"], MEMFD, EXEC_DENIED),
    "hardened container, mdwe": (["mdwe", "DOCKER"], MEMFD, EXEC_DENIED),
    "nothing allowed": (["mdwe", "deny=memfd_create"], None, EXEC_DENIED),
    "no mremap": (["deny=mremap"], None, "the kernel does not let huge pages into its place"),
}


@pytest.fixture(params=POLICIES)
def policy(request, confine):
    rules, route, thp_reason = POLICIES[request.param]
    lists = {"SYSTEM-SERVICE": "system_service", "DOCKER": "docker_filter"}
    rules = [request.getfixturevalue(lists[r]) if r in lists else r for r in rules]
    return confine(*rules), route, thp_reason


def test_hugetlb(builder, surround, pool, policy):
    """Text moves by the allowed route. Read-only data never becomes executable and moves in any case, unless the object
    as a whole cannot."""
    pool(64)
    prefix, route, _ = policy
    app = builder.executable("nopie")
    moved = ALL if route else ("rodata",) if "mdwe" in prefix else ()
    outcome = surround([app], {app.name: moved} if moved else {}, prefix=prefix, route=route or "",
                       options="backend=hugetlb,verbose=1")
    assert (outcome.stderr == "") == bool(route), outcome.stderr


def test_thp(builder, surround, pool, thp, policy):
    pool(0)
    prefix, _, reason = policy
    app = builder.executable("nopie")
    moved = ("rodata",) if reason == EXEC_DENIED else () if reason else ALL
    outcome = surround([app], {app.name: moved} if moved else {}, prefix=prefix, options="backend=thp,verbose=1",
                       backend="thp")
    assert reason in outcome.stderr if reason else outcome.stderr == ""


@pytest.mark.parametrize("rules", [["mdwe"], ["no-write-execute"]], ids=lambda r: r[0])
def test_library(builder, surround, pool, confine, rules):
    """A library, and an executable with holes, move by memfd too."""
    pool(64)
    app, [library] = builder.with_library("dso-six")
    surround([app], {library.name: ALL}, prefix=confine(*rules), patterns="libbig*", options="backend=hugetlb", route=MEMFD)
    app = builder.executable("six")
    surround([app], {app.name: ALL}, prefix=confine(*rules), options="backend=hugetlb", route=MEMFD)


@pytest.mark.parametrize("kib", [0, 9 << 10, 10 << 10])
def test_limit_of_files(builder, confine, library, pool, kib):
    """RLIMIT_FSIZE limits a memfd, too: beyond it the kernel sends SIGXFSZ."""
    pool(64)
    app = builder.executable("nopie")  # five pages of text
    limited = ["sh", "-c", 'ulimit -f $1; shift; exec "$@"', "sh", kib * 1024 // 512, *confine("mdwe")]
    result = helpers.run([*limited, app], helpers.preload(library, options="backend=hugetlb,verbose=2,data=off"))
    plain = helpers.run([app])
    assert (result.returncode, result.stdout) == (plain.returncode, plain.stdout), result
    assert ("text 5 pages hugetlb" in result.stderr) == (kib == 10 << 10), result.stderr
    assert "rodata 1 page hugetlb" in result.stderr


def test_the_filter_kills(confine, system_service):
    """The tests above rely on this: a call outside the list is the end."""
    result = helpers.run([*confine(system_service), "/usr/bin/unshare", "-m", "true"])
    assert result.returncode == -31, "SIGSYS"  # and nothing that these programs need is missing:
    assert helpers.run([*confine(system_service), "/bin/true"]).returncode == 0


def test_docker_refuses(confine, docker_filter):
    """The filter is there: a call that needs a capability is refused, and nothing that these programs need."""
    result = helpers.run([*confine(docker_filter), "/usr/bin/unshare", "-m", "true"])
    assert result.returncode == 1 and "Operation not permitted" in result.stderr
    assert helpers.run([*confine(docker_filter), "/bin/true"]).returncode == 0
