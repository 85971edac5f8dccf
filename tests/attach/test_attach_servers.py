# SPDX-License-Identifier: LGPL-2.1-or-later
"""Servers are attached to and detached from while they answer: no request fails, and their results are right.
T_ATTACH=500: the number of pairs for each, all of them under load."""

import contextlib
import itertools
import os
import pathlib
import re
import socket
import time

import databases
import helpers
import attaching
import pytest
from hugepages import SMALL_PAGES, compact_memory
from smaps import read_smaps

pytestmark = pytest.mark.check_all

PAIRS = int(os.environ.get("T_ATTACH", 20))
MAY_BE_SAID = f"try again|ended|no such process|it is not attached|no memory|no address space or memory|{SMALL_PAGES}"


def tool(*names):
    for name in names:
        for folder in "/usr/sbin", *os.environ["PATH"].split(":"):
            found = sorted(pathlib.Path(folder).glob(name))
            if found:
                return found[-1]
    return pytest.skip(f"{names[0]} is not installed")


@contextlib.contextmanager
def serving(*argv, **options):
    server = helpers.start(argv, **options)
    try:
        yield server
        assert server.poll() is None, server.communicate()
    finally:
        helpers.end_process(server)


def toggle(pid, again):
    """Pairs of attach and detach of PID and its children, each after a call of AGAIN; the number of texts that were attached."""
    moved = 0
    for _ in range(PAIRS):
        for command in "attach", "detach":
            again()
            result = helpers.hugeld(command, "--children", pid)
            for line in result.stderr.splitlines():
                assert re.search(MAY_BE_SAID, line), line
            if SMALL_PAGES in result.stderr:
                compact_memory()
            moved += result.stdout.count("of a copy made for it")
    return moved


@contextlib.contextmanager
def asking(argv):
    """A client that asks all the time, and its output at its end."""
    client, said = helpers.start(argv), []
    try:
        yield client, said
        said.append(client.communicate(timeout=300))
        assert client.returncode == 0, said
    finally:
        helpers.end_process(client)


def text_is_whole(pid, path):
    """Whether the process executes the bytes of the file at PATH again."""
    with open(path, "rb") as file, open(f"/proc/{pid}/mem", "rb") as memory:
        mapped = [m for m in read_smaps(pid) if m.name == str(path) and "x" in m.permissions]
        for m in mapped:
            file.seek(m.offset)
            memory.seek(m.start)
            wanted = file.read(m.end - m.start)
            if memory.read(len(wanted)) != wanted:
                return False
        return bool(mapped)


NGINX = """
daemon off; error_log {0}/error.log notice; pid {0}/pid; user root; worker_processes 2;
events {{ worker_connections 256; }}
http {{
    access_log off; client_body_temp_path {0}/body; fastcgi_temp_path {0}/fastcgi; proxy_temp_path {0}/proxy;
    uwsgi_temp_path {0}/uwsgi; scgi_temp_path {0}/scgi;
    server {{
        listen 127.0.0.1:{1};
        location / {{ return 200 "{2}"; }}
        location ~ php$ {{
            fastcgi_pass unix:{0}/fpm; fastcgi_param SCRIPT_FILENAME {0}/page.php; fastcgi_param REQUEST_METHOD GET;
        }}
    }}
}}
"""
FPM = """[global]
error_log = {0}/fpm.log
[www]
user = root
group = root
listen = {0}/fpm
pm = static
pm.max_children = 3
pm.max_requests = 300
"""
PAGE = """<?php $sum = 0; for ($i = 0; $i < 20000; $i++) $sum += crc32("$i"); echo $sum, "\\n", str_repeat("x", 1000);"""


@pytest.fixture
def nginx(tmp_path, root):
    """(nginx, PHP's server, URL)"""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "nginx.conf").write_text(NGINX.format(tmp_path, port, "x" * 1000))
    (tmp_path / "fpm.conf").write_text(FPM.format(tmp_path))
    (tmp_path / "page.php").write_text(PAGE)
    with serving(tool("php-fpm[0-9]*"), "-F", "-R", "-n", "-y", tmp_path / "fpm.conf") as php, \
            serving(tool("nginx"), "-c", tmp_path / "nginx.conf") as server:
        def is_up():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                return (tmp_path / "fpm").exists()
        helpers.wait_until(is_up, what="nginx")
        yield server, php, f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def requesting(url, n):
    """N requests again and again, none of which fails."""
    with attaching.asking_again([tool("ab"), "-q", "-n", n, "-c", "8", url]) as said:
        yield
    for result in said:
        assert re.search(r"Failed requests: +0$", result.stdout, re.M) and "Non-2xx" not in result.stdout, result


def test_php(nginx):
    """Its workers end after some requests, and others come."""
    _, server, url = nginx
    with requesting(f"{url}/page.php", 600):
        moved = toggle(server.pid, lambda: time.sleep(0.05))
    assert moved > 0 and text_is_whole(server.pid, os.readlink(f"/proc/{server.pid}/exe"))


def test_tokio(tmp_path, root):
    """sccache's server, which compiles when it is asked; each object equals the compiler's own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = helpers.environment(SCCACHE_NO_DAEMON="1", SCCACHE_SERVER_PORT=port, SCCACHE_DIR=tmp_path / "cache", HOME=tmp_path)
    sccache, source, wanted = tool("sccache"), tmp_path / "a.c", tmp_path / "wanted.o"
    with serving(sccache, env={**env, "SCCACHE_START_SERVER": "1"}, cwd=tmp_path) as server:
        def ask(*words):
            return helpers.run([sccache, *words], env=env, cwd=tmp_path)
        helpers.wait_until(lambda: ask("--show-stats").returncode == 0, what="sccache")
        asked = itertools.count(1)

        def again():
            """The object is compiled once anew, and once comes from the cache."""
            source.write_text(f"int number(void) {{ return {next(asked)}; }}\n")
            assert helpers.run(["gcc", "-c", "a.c", "-o", wanted], cwd=tmp_path).returncode == 0
            for _ in range(2):
                result = ask("gcc", "-c", "a.c", "-o", "a.o")
                assert result.returncode == 0, result
                assert (tmp_path / "a.o").read_bytes() == wanted.read_bytes()
        moved = toggle(server.pid, again)
        again()
        stats = ask("--show-stats").stdout
        assert re.search(rf"^Cache hits +{2 * PAIRS + 1}$", stats, re.M), stats
    assert moved > 0


ADDER = """<p id="sum"></p><script>
let sum = 0;
for (let i = 0; i < {}; i++) sum = (sum * 31 + i) % 1000003;
document.getElementById("sum").textContent = "the sum is " + sum;
</script>"""


def test_chromium(tmp_path):
    """All of Chromium's processes are attached to, while a page computes."""
    page = tmp_path / "page.html"
    page.write_text(ADDER.format(1_000_000_000))
    argv = [tool("chromium"), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/data", "--timeout=300000",
            "--dump-dom", f"file://{page}"]
    plain = helpers.run(argv, timeout=300)
    assert "the sum is " in plain.stdout, plain
    moved = 0
    with asking(argv) as (client, said):
        while client.poll() is None:
            for command in "attach", "detach":
                result = helpers.hugeld(command, "--children", client.pid, timeout=120)
                for line in result.stderr.splitlines():
                    # A process that executes another program meanwhile is not mapped as the first one was.
                    assert re.search(f"{MAY_BE_SAID}|no whole huge page|mapped between its segments", line), line
                if SMALL_PAGES in result.stderr:
                    compact_memory()
                moved += result.stdout.count("of a copy made for it")
    assert said[0][0] == plain.stdout and moved > 0


def test_mariadb(tmp_path, root):
    """It is refused: it has switched off transparent huge pages, and a thread of it waits for input and output all the time."""
    for folder in [tmp_path, *tmp_path.parents][:3]:
        if folder.stat().st_uid == os.getuid() and str(folder) != "/tmp":
            folder.chmod(0o755)
    folder, argv = databases.make_mariadb(tmp_path)
    with serving(*argv) as server:
        words = [f"--socket={folder}/socket"]
        helpers.wait_until(lambda: helpers.run(["mariadb", *words, "-e", "SELECT 1"]).returncode == 0, what="MariaDB")
        slap = ["mariadb-slap", *words, "--auto-generate-sql", "--concurrency=4", "--number-of-queries=4000", "--iterations=2"]
        with asking(slap) as (client, said):
            while client.poll() is None:
                result = helpers.hugeld("attach", server.pid)
                assert result.returncode == 1, result.stdout
        assert "error" not in (said[0][0] + said[0][1]).lower(), said
