# SPDX-License-Identifier: LGPL-2.1-or-later
"""Private database servers for tests, each as a user of its own, on a socket in a temporary folder."""

import contextlib
import glob
import os
import pwd
import shutil
import signal

import pytest

import helpers

AS_POSTGRES = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]


def user_or_skip(name):
    try:
        return pwd.getpwnam(name)
    except KeyError:
        pytest.skip(f"there is no user {name}")


def make_folder(parent, name, user):
    folder = parent / name
    folder.mkdir()
    os.chown(folder, user.pw_uid, user.pw_gid)
    return folder


def make_mariadb(parent, name="mariadb"):
    """(folder, argv) of a server with an empty database in the folder NAME of PARENT."""
    if os.getuid() != 0 or not shutil.which("mariadbd") or not shutil.which("mariadb-install-db"):
        pytest.skip("needs root and mariadbd with its client (mariadb-server, mariadb-client)")
    folder = make_folder(parent, name, user_or_skip("mysql"))
    result = helpers.run(["mariadb-install-db", "--no-defaults", "--user=mysql", f"--datadir={folder}/data",
                          "--auth-root-authentication-method=socket", "--skip-test-db"])
    assert result.returncode == 0, result.stdout + result.stderr
    return folder, [shutil.which("mariadbd"), "--no-defaults", "--user=mysql", f"--datadir={folder}/data",
                    f"--socket={folder}/socket", f"--pid-file={folder}/pid", "--skip-networking",
                    "--innodb-buffer-pool-size=16M", "--performance-schema=OFF"]


def make_postgres(parent, name="postgres"):
    """(folder, bin, argv) of a cluster in the folder NAME of PARENT."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"))
    if os.getuid() != 0 or not found:
        pytest.skip("needs root and postgres (postgresql)")
    binaries = os.path.dirname(found[-1])
    folder = make_folder(parent, name, user_or_skip("postgres"))
    result = helpers.run([*AS_POSTGRES, f"{binaries}/initdb", "-A", "trust", "-N", "-D", folder / "data"], cwd=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    argv = [*AS_POSTGRES, f"{binaries}/postgres", "-D", folder / "data", "-k", folder, "-c", "listen_addresses=", "-c",
            "shared_buffers=16MB", "-c", "huge_pages=off", "-c", "fsync=off"]
    return folder, binaries, argv


@contextlib.contextmanager
def serving(postgres):
    """make_postgres's server, which answers, and words(PROGRAM, ARGUMENTS): how a client is called."""
    folder, binaries, argv = postgres
    server = helpers.start(argv, cwd=folder)
    try:
        def words(program, *arguments):
            return [f"{binaries}/{program}", "-h", folder, "-U", "postgres", *arguments]
        helpers.wait_until(lambda: helpers.run(words("psql", "-c", "SELECT 1"), cwd=folder).returncode == 0,
                           what="postgres answering")
        yield words
        server.send_signal(signal.SIGINT)
        _, err = server.communicate(timeout=helpers.PATIENCE)
        assert server.returncode == 0 and "terminated by signal" not in err, err
    finally:
        helpers.end_process(server)
