# SPDX-License-Identifier: LGPL-2.1-or-later
"""PostgreSQL is attached to and detached from again and again while it works.  T_ATTACH=500: the number of pairs."""

import os
import re

import databases
import helpers
import attaching
import pytest
from hugepages import SMALL_PAGES, compact_memory


PAIRS = int(os.environ.get("T_ATTACH", 20))


@pytest.fixture(scope="module")
def postgres(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attach-postgres")
    for parent in [folder, *folder.parents][:3]:
        if parent.stat().st_uid == os.getuid() and str(parent) != "/tmp":
            parent.chmod(0o755)
    return databases.make_postgres(folder)


@pytest.mark.check_all
def test_postgres(pool, postgres):
    """The server and its backends, under pgbench: no transaction fails."""
    with databases.serving(postgres) as words:
        result = helpers.run(words("pgbench", "-q", "-i", "-s", "1", "postgres"))
        assert result.returncode == 0, result.stderr
        pid = int((postgres[0] / "data/postmaster.pid").read_text().split()[0])
        counted = 0
        with attaching.asking_again(words("pgbench", "-n", "-S", "-c", "4", "-j", "2", "-T", "5", "postgres")) as said:
            for _ in range(PAIRS):
                attached = helpers.hugeld("attach", "--children", pid)
                counted += attached.stdout.count(" huge page")
                detached = helpers.hugeld("detach", "--children", pid)
                for line in (attached.stderr + detached.stderr).splitlines():
                    assert re.search(f"try again|no such process|ended|no memory|it is not attached|{SMALL_PAGES}", line), line
                if SMALL_PAGES in attached.stderr:
                    compact_memory()
        assert counted > PAIRS // 2 and all("number of failed transactions: 0" in result.stdout for result in said), (counted, said)
