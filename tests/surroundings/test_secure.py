# SPDX-License-Identifier: LGPL-2.1-or-later
"""Loaded through /etc/ld.so.preload into a program that gives its caller rights, hugeld does nothing at all, with any
variables of the caller.  All of it happens in a mount namespace of its own: no other process sees the file or the
library."""

import shutil

import pytest

import helpers
from surroundings import ALL

# Acts in the program alone, not in the commands that start it.
LOUD = "verbose=3,strict=on,backend=hugetlb,exe=*/app-nopie"

# $1 an empty folder, $2 the libraries, $3 the command that makes the program special, $4 the program.  The special
# copy takes the program's place here, so that the path means the same file to the rest of the machine.
NAMESPACE = r"""
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 none "$1"
mkdir "$1/up" "$1/work"
cp "$4" "$1/special"
chmod 755 "$1/special"
$3 "$1/special"
mount -t overlay -o "lowerdir=/etc,upperdir=$1/up,workdir=$1/work" none /etc
echo "$2" > /etc/ld.so.preload
mount --bind "$1/special" "$4"
shift 3
exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
"""

SPECIAL = {
    "set-user-ID": "chmod u+s",
    "set-group-ID": "chmod g+s",
    "capabilities": "setcap cap_net_bind_service+ep",
}


@pytest.fixture
def preloaded(root, tmp_path, builder, empty_library, library, pause_library, surround):
    """preloaded(special, moved): the program run by the user nobody, with hugeld in /etc/ld.so.preload."""
    for name in ("unshare", "setpriv", "setcap"):
        if not shutil.which(name):
            pytest.skip(f"needs {name}")
    app = builder.executable("nopie")

    def prefix(hugeld, special):
        # Each of these becomes the next one, so that the process is the program in the end.
        return ["unshare", "-m", "sh", "-c", NAMESPACE, "sh", tmp_path, f"{pause_library} {hugeld}", special]

    if helpers.run([*prefix("", "true"), "/bin/true"]).returncode != 0:
        pytest.skip("no namespace with an overlay over /etc can be made here")

    def run(special, moved):
        return surround([app], moved, prefix=prefix(library, special), plain_prefix=prefix(empty_library, special),
                        preload=False, options=LOUD, intact=app)

    return run


def test_preloaded_into_an_ordinary_program(preloaded, pool):
    """hugeld is there and works: the standard for the other tests."""
    pool(64)
    outcome = preloaded("true", {"app-nopie": ALL})
    assert "hugeld: app-nopie: text 5 pages hugetlb" in outcome.stderr


@pytest.mark.parametrize("special", SPECIAL)
def test_secure_mode(preloaded, pool, special):
    """Nothing moves, no line is written, strict=on ends nothing."""
    pool(64)
    outcome = preloaded(SPECIAL[special], {})
    assert outcome.stderr == "" == outcome.plain[2]


@pytest.mark.parametrize("special, kept", [("true", True), ("chmod u+s", False)], ids=["ordinary", "set-user-ID"])
def test_children_inherit_no_variables(root, tmp_path, shared_folder, library, special, kept):
    """A secure program's children need not be secure any more: its caller would choose the code that they execute."""
    program = shared_folder / "print-environment"
    shutil.copy("/usr/bin/env", program)
    command = ["unshare", "-m", "sh", "-c", NAMESPACE, "sh", tmp_path, library, special, program]
    if helpers.run([*command[:6], tmp_path, "", "true", "/bin/true"]).returncode != 0:
        pytest.skip("no namespace with an overlay over /etc can be made here")
    env = helpers.environment(LD_HUGEPAGES="main", LD_HUGEPAGES_OPTIONS="store=/dev/shm/theirs", LD_HUGEPAGES_X="1", OTHER="2")
    result = helpers.run(command, env)
    assert result.returncode == 0 and "OTHER=2\n" in result.stdout, result
    assert [name in result.stdout for name in ("LD_HUGEPAGES=", "LD_HUGEPAGES_OPTIONS=", "LD_HUGEPAGES_X=")] == 3 * [kept]
