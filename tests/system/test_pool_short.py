# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pool runs out, before an object or in the middle of one: text goes first, the executable before its libraries,
an object's text moves as a whole or not at all, and verbose=1 names the missing pages and the command that adds
them."""

import re

import pytest

import helpers
from hugepages import NR_HUGEPAGES, pool_counts
from proof import check_span, read_image, read_plans, same_but_stderr
from smaps import read_smaps

ALL = ("text", "rodata")

# app-nopie: text 0x401000 to 0xc040e1 and read-only data up to 0x113e000, so the pages from 0x400000 and from 0xe00000.
TEXT, RODATA = 5, 1


def short_line(name, missing, needed, total, kind="text"):
    pages = "page" if needed == 1 else "pages"
    return (
        f"hugeld: {name}: {kind} stays: the huge page pool cannot serve it; {missing} of {needed} {pages} missing: "
        f"sysctl vm.nr_hugepages={total}\n"
    )


def total_pages():
    return pool_counts()[0]


@pytest.mark.parametrize("free", [0, TEXT - 1])
def test_text_does_not_fit(builder, prove, pool, free):
    """All or nothing; the read-only data, which fits, takes the free pages."""
    pool(free)
    app = builder.executable("nopie")
    moved = {app.name: ("rodata",)} if free >= RODATA else {}
    total = total_pages()
    _, _, stderr = prove([app], moved, options="backend=hugetlb,verbose=1", same=same_but_stderr).moved
    # Counted when everything is decided: the read-only data's page is missing too, whether it was taken or not there.
    missing = TEXT - free + (RODATA if moved else 0)
    lines = short_line(app.name, missing, TEXT, total + TEXT + RODATA - free)
    if not moved:
        lines += short_line(app.name, RODATA, RODATA, total + TEXT + RODATA - free, "rodata")
    assert stderr == lines


def test_remedy_helps(builder, prove, pool):
    """After the command that verbose=1 prints, it moves."""
    pool(2)
    app = builder.executable("nopie")
    stderr = helpers.run_preloaded([app], options="backend=hugetlb,verbose=1,segments=text").stderr
    wanted = int(re.search(r"sysctl vm.nr_hugepages=(\d+)$", stderr.strip())[1])
    NR_HUGEPAGES.write_text(str(wanted))
    prove([app], {app.name: ("text",)}, options="backend=hugetlb,segments=text")


def with_preloaded_library(builder):
    """(app, library, LD_PRELOAD's value for it): linked at 2 MiB, so that its pages are always the same number."""
    app = builder.executable("nopie")
    _, [library] = builder.with_library("dso-aligned")
    return app, library


@pytest.mark.parametrize("free, app_kinds, library_kinds", [
    (TEXT, ("text",), ()),
    (2 * TEXT - 1, ALL, ()),  # the library has four pages of read-only data
    (2 * TEXT, ("text",), ("text",)),
    (2 * TEXT + RODATA, ALL, ("text",)),
    (64, ALL, ALL),
])
def test_order(builder, pool, library, pause_library, free, app_kinds, library_kinds):
    """Texts first, the executable's before the library's; then read-only data in the same order."""
    pool(free)
    app, big = with_preloaded_library(builder)
    env = helpers.preload(library, big, pause_library, patterns="main:libbig*", options="backend=hugetlb,data=off")
    with helpers.paused([app], env, app.name) as process:
        image = read_image(process.pid)
        plans = read_plans(process.pid, [app, big], "data=off")
        expected = [(app.name, k) for k in app_kinds] + [(big.name, k) for k in library_kinds]
        assert plans[app.name].pages("text") == plans[big.name].pages("text") == TEXT
        for name in (app.name, big.name):
            for span in plans[name].spans:
                if (name, span.kind) in expected:
                    check_span(image, span, "hugetlb")
                else:
                    assert not any(m.is_hugetlb for m in image.mappings if m.start < span.end and m.end > span.start)
        status, stdout, _ = process.finish()
    assert (status, stdout) == (lambda r: (r.returncode, r.stdout))(helpers.run([app], helpers.preload(big)))


def test_reserve_pages(builder, prove, pool):
    pool(10)
    app = builder.executable("nopie")
    prove([app], {}, options=f"backend=hugetlb,segments=text,reserve_pages={10 - TEXT + 1}")
    prove([app], {app.name: ("text",)}, options=f"backend=hugetlb,reserve_pages={10 - TEXT}")


def test_two_programs_share_the_pool(builder, library, pause_library, pool):
    """The second one stays on small pages and both run."""
    pool(TEXT + RODATA)
    app = builder.executable("nopie")
    env = helpers.preload(library, pause_library, options="backend=hugetlb")
    with helpers.paused([app], env, app.name) as first, helpers.paused([app], env, app.name) as second:
        assert any(m.is_hugetlb for m in read_smaps(first.pid))
        assert not any(m.is_hugetlb for m in read_smaps(second.pid))
        assert first.finish() == second.finish()


# --- half-way ---


@pytest.fixture
def hugetlb_group(cgroup):
    """hugetlb_group(pages): a command prefix that joins a cgroup which gives that many huge pages and no more.  Unlike
    the pool's size, this limit shows only when a page is touched."""

    def limit(pages):
        wanted = pages * helpers.HUGE
        return cgroup("hugetlb", ("hugetlb.2MB.max", wanted), ("hugetlb.2MB.limit_in_bytes", wanted))

    return limit


@pytest.mark.parametrize("pages", [0, 1, TEXT - 1])
def test_limit_half_way(builder, prove, pool, hugetlb_group, pages):
    """As many pages as the limit gives are filled before it shows; then the text is back on its old pages, the huge
    ones are back in the pool, and the read-only data, which fits, moves."""
    pool(64)
    app = builder.executable("nopie")
    argv = [*hugetlb_group(pages), app]
    moved = {app.name: ("rodata",)} if pages >= RODATA else {}
    _, _, stderr = prove(argv, moved, options="backend=hugetlb,verbose=1", name=app.name, same=same_but_stderr).moved
    assert stderr.startswith(f"hugeld: {app.name}: text stays: the huge page pool cannot serve it; ")
    assert " 0 of " not in stderr, "says that nothing is missing"


def test_limit_half_way_auto(builder, prove, pool, thp, hugetlb_group):
    """backend=auto: the text that the pool could not serve goes to thp."""
    pool(64)
    app = builder.executable("nopie")
    argv = [*hugetlb_group(TEXT - 1), app]
    prove(argv, {app.name: ("text",)}, options="backend=auto,segments=text", name=app.name, backend="thp")


# --- strict=on ---


def strict(app, patterns=None, options="", library=helpers.LIBRARY):
    return helpers.run_preloaded([app], patterns, f"backend=hugetlb,strict=on,{options}", library)


@pytest.mark.parametrize("patterns", [None, "main", "app-nopie", "lib*:main"])
def test_strict_ends_the_program(builder, pool, patterns):
    pool(TEXT - 1)
    app = builder.executable("nopie")
    result = strict(app, patterns)
    assert (result.returncode, result.stdout) == (127, "")
    assert "hugeld: app-nopie: text stays: the huge page pool cannot serve it" in result.stderr


@pytest.mark.parametrize("patterns, options", [
    ("app*", ""), ("*", ""), ("main", "exe=other"), ("!*", ""),
])
def test_strict_lets_run(builder, pool, patterns, options):
    """strict=on lets a program run whose object is selected by a wildcard, not selected, or excluded by exe=."""
    pool(TEXT - 1)
    app = builder.executable("nopie")
    result = strict(app, patterns, options)
    assert (result.returncode, result.stdout) == (lambda r: (r.returncode, r.stdout))(helpers.run([app]))
    assert "stays" not in result.stderr


def test_strict_library(builder, pool):
    pool(0)
    app, _ = builder.with_library("dso")
    assert strict(app, "libbig.so.1").returncode == 127
    assert strict(app, "libbig*").returncode == 3
