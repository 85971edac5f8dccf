# SPDX-License-Identifier: LGPL-2.1-or-later
"""PostgreSQL with huge pages of its own, under libhugeld.so, with a pool of exactly the size that doc/services.md gives, the pages
of `hugeld inspect` and those of the server: everything is on huge pages, and it serves a query.  With less, the server, which insists
on its pages, gets them."""

import collections
import contextlib
import signal

import pytest

import databases
import helpers
from hugepages import free_pages
from proof import check_span, read_image, read_plans
from smaps import read_smaps


@pytest.fixture(scope="module")
def postgres(shared_folder):
    return databases.make_postgres(shared_folder, "postgres-pool")


Pages = collections.namedtuple("Pages", "path least most own needed")


def count_pages(path, own):
    """The pages of the server at PATH, which takes OWN for itself."""
    [found] = helpers.hugeld_json("inspect", "-o", "data=off", path)["files"]
    assert found["range"]["pages_max"] == found["pool_pages"] > 0 < own
    return Pages(path, found["range"]["pages_min"], found["pool_pages"], own, found["pool_pages"] + own)


def check_ours(pid, path):
    """All planned spans of the executable are on hugetlb; gives its pages and the other hugetlb mappings."""
    image = read_image(pid)
    [plan] = read_plans(pid, [path], "data=off").values()
    assert plan.spans
    for span in plan.spans:
        check_span(image, span, "hugetlb")
    others = [m for m in image.mappings
              if m.is_hugetlb and not any(m.start < s.end and s.start < m.end for s in plan.spans)]
    return plan.pages(), others


def has_text_on_hugetlb(pid):
    return any(m.is_hugetlb and "x" in m.permissions for m in read_smaps(pid))


class Postgres:
    def __init__(self, made, library, pause_library):
        self.folder, self.binaries, argv = made
        self.argv = [a.replace("huge_pages=off", "huge_pages=on") if isinstance(a, str) else a for a in argv]
        self.libraries = library, pause_library

    def query(self, text):
        psql = [f"{self.binaries}/psql", "-h", self.folder, "-U", "postgres", "-At", "-c", text]
        return helpers.run(psql, cwd=self.folder)

    def count_pages(self):
        told = helpers.run([*self.argv, "-C", "shared_memory_size_in_huge_pages"], cwd=self.folder)
        return count_pages(f"{self.binaries}/postgres", int(told.stdout))

    @contextlib.contextmanager
    def paused(self, options):
        env = helpers.preload(*self.libraries, options=options)
        with helpers.paused(self.argv, env, "postgres") as process:
            yield process

    def serve(self, process):
        """Lets it start, and looks at its answers and its shared memory."""
        process.resume()
        helpers.wait_until(lambda: self.query("SELECT 1").returncode == 0, what="postgres answering")
        assert self.query("SELECT SUM(x) FROM generate_series(1, 100000) AS x").stdout == "5000050000\n"
        assert self.query("SHOW huge_pages").stdout == "on\n"

    def end(self, process):
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=helpers.PATIENCE)
        assert process.returncode == 0 and "signal" not in stderr, stderr


@pytest.fixture
def server(postgres, library, pause_library):
    return Postgres(postgres, library, pause_library)


def test_postgres_exact(server, pool):
    pages = server.count_pages()
    pool(pages.needed)
    with server.paused(f"backend=hugetlb,reserve_pages={pages.own}") as process:
        ours, others = check_ours(process.pid, pages.path)
        assert pages.least <= ours <= pages.most and others == []
        server.serve(process)
        again, others = check_ours(process.pid, pages.path)
        assert again == ours and sum(m.bytes for m in others) == pages.own * helpers.HUGE
        assert all("s" in m.permissions for m in others)
        assert free_pages() == pages.most - ours
        server.end(process)


def test_postgres_without_reserve_pages(server, pool):
    """The purpose of reserve_pages: here hugeld is served first, and the server does not start."""
    pages = server.count_pages()
    pool(pages.own + pages.least - 1)
    with server.paused("backend=hugetlb") as process:
        assert has_text_on_hugetlb(process.pid)
        status, _, stderr = process.finish()
    assert status == 1 and "could not map anonymous shared memory" in stderr
