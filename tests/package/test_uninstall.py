# SPDX-License-Identifier: LGPL-2.1-or-later
"""`make install`, everything that hugeld can hold on a machine, then `hugeld reset` or `make uninstall`: the machine is as before.

In a clean Debian, in a mount namespace of its own: a store is a mount."""

import platform
import re
import shutil

import pytest

import helpers

pytestmark = [pytest.mark.check_all, pytest.mark.skipif(platform.machine() != "x86_64", reason="attach is for x86-64")]

APP, OTHER = "/usr/lib/disk/app", "/usr/lib/disk/other"
# The libraries of the command, and the tools of `make install`.
PACKAGES = ("make", "libjansson4", "liblzma5", "libxxhash0", "systemd")
# Large text; it says when it has begun, and waits until its input ends.
WAITS = """
#include <stdio.h>
unsigned long big_sum(unsigned long x);
int main(void) {
    puts("ready");
    fflush(stdout);
    getchar();
    return big_sum(1) == 0;
}
"""
# Every file with its contents but the administrator's lists, and every mount.
SNAPSHOT = """
snapshot() {
    find / -xdev \\( -path /hugeld -o -path /etc/hugeld -o -path /proc -o -path /tmp \\) -prune -o -type l -printf '%M %U %p %l\\n' \\
        -o -printf '%M %U %p\\n' -type f -exec sha256sum '{}' + > /tmp/files
    sort /tmp/files
    cut -d ' ' -f 2-3 /proc/self/mounts
    echo ====
}
await() {
    for i in $(seq 600); do ! grep -q ready "$1" || return 0; sleep 0.1; done
    exit 1
}
"""
# Everything that there is: enabled files, a unit that starts at boot, images, a process that is attached and one that was executed
# from its image, and the links of a unit that starts.
HOLD = f"""
hugeld enable {APP}
systemctl enable --quiet hugeld.timer
hugeld enable --way=image {OTHER}
rm -f /tmp/lines
mkfifo /tmp/lines
exec 9<> /tmp/lines
{APP} < /tmp/lines > /tmp/attached 9>&- &
attached=$!
unshare -m sh -c "mount --bind /run/hugeld/0x*/{OTHER.rpartition("/")[2]} {OTHER} && exec {OTHER}" < /tmp/lines > /tmp/executed 9>&- &
executed=$!
await /tmp/attached
await /tmp/executed
for i in 1 2 3 4 5; do ! hugeld attach $attached || break; done
hugeld status $attached $executed | grep now:
hugeld unit-begin demo.service {APP}
hugeld disable {APP}
ls -d /run/hugeld/0x* /run/hugeld-units/demo.service/0 /etc/systemd/system/*/hugeld.timer
echo ====
"""
# Both processes go on, and their input ends.
END = """
grep -c ' /run/hugeld' /proc/$attached/maps || true
exec 9>&-
wait $attached
wait $executed
echo ended
echo ====
"""


def add_build(folder):
    """The files that were built here go into the copy of the source, so that `make install` has nothing to compile."""
    shutil.copy2(helpers.ROOT / "config.mk", folder)
    unwanted = shutil.ignore_patterns("vm", "suites", "tests", "fuzz", "ldso", "*.gz", "machines")
    shutil.copytree(helpers.ROOT / "build", folder / "build", symlinks=True, ignore=unwanted)


@pytest.fixture
def debian(clean_debian, builder, source_copy):
    settings = (helpers.ROOT / "config.mk").read_text()
    if not re.search(r"^prefix = /usr/local$", settings, re.M):
        pytest.skip("this tree is configured for another prefix than /usr/local")
    program = builder.once("waits", lambda folder: builder.compile(folder / "waits", builder.write("waits.c", WAITS), "-no-pie",
                                                                   *builder.object()))
    debian = clean_debian("bookworm")
    debian.put(source_copy, "/hugeld")
    add_build(debian.upper / "hugeld")
    debian.install(*PACKAGES)
    for path in APP, OTHER:
        debian.do(f"mkdir -p /etc/hugeld; echo 'any_disk = yes' > /etc/hugeld/hugeld.conf; touch {path}")
        shutil.copy(program, debian.folder / "disk" / path.rpartition("/")[2])
    return debian


def parts(said):
    return [part.strip("\n").split("\n") for part in said.split("====\n")]


def check_round(held, given_back, ended, detaches):
    """The held images were there, and both processes have ended well; the attached one without its image if that DETACHES."""
    assert [line for line in held if "now:" in line] == ["    now: on a copy that attach made for it", "    now: executed from its image"], held
    for path in "/run/hugeld-units/demo.service/0", "hugeld.timer":
        assert any(path in line for line in held), held
    assert any(f"{APP}: back on its own file" in line for line in given_back) == detaches, given_back
    assert detaches or any("still maps huge pages of hugeld" in line for line in given_back), given_back
    assert any("unmounted" in line for line in given_back), given_back
    assert (ended[0] == "0" or not detaches) and ended[-1] == "ended", ended


def test_all_is_given_back(debian):
    """All is given back by reset, and by uninstall with the installed files."""
    said = debian.do(f"""{SNAPSHOT} snapshot
make -C /hugeld install > /dev/null; snapshot
{HOLD} systemctl disable --quiet hugeld.timer hugeld-boot.service; hugeld reset --detach; echo ====; {END} snapshot
{HOLD} make -s -C /hugeld uninstall; echo ====; {END} snapshot
""")
    clean, installed, *first, again, held, given_back, ended, after, _ = parts(said)
    check_round(*first, detaches=True)
    assert again == installed != clean, sorted(set(again) ^ set(installed))
    check_round(held, given_back, ended, detaches=False)
    assert any("/etc/hugeld" in line for line in given_back), given_back  # the lists stay, and it says so
    assert after == clean, sorted(set(after) ^ set(clean))
    assert "enabled" not in debian.do("cat /etc/hugeld/hugeld.conf")
