# SPDX-License-Identifier: LGPL-2.1-or-later
"""The Debian packages: lintian, installed and removed in a clean Debian, and upgrades of libc6 under hugeld-ldso."""

import hashlib
import platform
import re
import shutil
import subprocess

import pytest

import helpers

# In one worker, which builds the packages once.
pytestmark = [pytest.mark.xdist_group("packages"), pytest.mark.check_all,
              pytest.mark.skipif(platform.machine() != "x86_64", reason="hugeld-ldso is for amd64")]

FOLDER = "/usr/lib/x86_64-linux-gnu/hugeld"
LINK = f"{FOLDER}/ld-hugeld.so"
SYSTEM = "/lib64/ld-linux-x86-64.so.2"


def dpkg_deb(*arguments):
    subprocess.run(["dpkg-deb", *arguments], check=True, capture_output=True, timeout=helpers.PATIENCE)


def test_lintian(debian_packages):
    if not shutil.which("lintian"):
        pytest.skip("lintian is not installed")
    [changes] = debian_packages.glob("*.changes")
    result = helpers.run(["lintian", "--allow-root", changes], timeout=helpers.PATIENCE)
    errors = [line for line in result.stdout.splitlines() if line.startswith("E:")]
    assert (result.returncode, errors) == (0, []), result.stderr


def test_sources_of_others(debian_packages):
    """glibc's licence demands the source of its linker: the archive keeps the sources that Built-Using names."""
    [package] = debian_packages.glob("hugeld-ldso_*.deb")
    source = helpers.run(["dpkg-query", "-W", "-f", "${source:Package} (= ${source:Version})", "libc6"]).stdout
    assert helpers.run(["dpkg-deb", "-f", package, "Built-Using"]).stdout == f"{source}\n"


def build_id(path):
    notes = subprocess.run(["readelf", "-n", path], check=True, capture_output=True, text=True).stdout
    return re.search(r"Build ID: (\w+)", notes)[1]


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def ours(debian):
    """hugeld's files in DEBIAN, but for dpkg's own records."""
    return debian.do("find / -xdev -name '*hugeld*' ! -path '/var/lib/dpkg/*' ! -path '/packages*' ! -path '/etc/hugeld-clean' "
                     "! -path '/sys/*' ! -path '/var/log/*'").split()


def start(debian):
    """Runs the program that names ld-hugeld.so; the dynamic linker that it got."""
    maps = debian.do("/root/cat /proc/self/maps")
    [linker] = set(re.findall(r"(/\S*/ld[-.]\S*)$", maps, re.M))
    return linker


@pytest.fixture
def debian(clean_debian, debian_packages, tmp_path):
    """A clean bookworm with the packages' files in /packages and a program that names ld-hugeld.so."""
    if not shutil.which("patchelf"):
        pytest.skip("patchelf is not installed")
    if helpers.run(["dpkg-query", "-W", "-f", "${Version}", "libc6"]).stdout.split("-")[0] != "2.36":
        pytest.skip("the packages were not built for bookworm's libc6")
    debian = clean_debian("bookworm")
    for name in ("hugeld", "hugeld-ldso"):
        [file] = debian_packages.glob(f"{name}_*.deb")
        debian.put(file, f"/packages/{name}.deb")
    debian.put("/usr/bin/cat", "/root/cat")
    subprocess.run(["patchelf", "--set-interpreter", LINK, debian.upper / "root/cat"], check=True)
    return debian


@pytest.fixture
def other_libc6(debian, tmp_path):
    """/packages/libc6-other.deb, a later version with other build IDs, and libc6-same.deb, the one that is there."""
    version = debian.do("dpkg-query -W -f '${Version}' libc6")
    debian.do("apt-get -q update && cd /packages && apt-get -q download libc6 && mv libc6_*.deb libc6-same.deb")
    unpacked = tmp_path / "libc6"
    dpkg_deb("-R", debian.upper / "packages/libc6-same.deb", unpacked)
    control = unpacked / "DEBIAN/control"
    control.write_text(control.read_text().replace(f"Version: {version}\n", f"Version: {version}+other\n"))
    for name in ("ld-linux-x86-64.so.2", "libc.so.6"):
        [file] = (p for p in unpacked.glob(f"**/{name}") if not p.is_symlink())
        found = bytes.fromhex(build_id(file))
        file.write_bytes(file.read_bytes().replace(found, bytes(255 - b for b in found)))
    dpkg_deb("-Znone", "-b", unpacked, debian.upper / "packages/libc6-other.deb")


def test_install_use_remove_purge(debian):
    assert ours(debian) == []
    debian.install("/packages/hugeld.deb", "/packages/hugeld-ldso.deb")
    version = debian.do("hugeld --version")
    assert f"preloader: {FOLDER}/libhugeld.so" in version
    assert f"patched dynamic linker: {FOLDER}/ld.so, for {SYSTEM}" in version
    assert "stays" in debian.do("LD_PRELOAD=libhugeld.so LD_HUGEPAGES_OPTIONS=verbose=2 /bin/true")
    assert start(debian) == f"{FOLDER}/ld.so"
    assert debian.do("hugeld run --via=ldso -- sh -c 'echo [$LD_PRELOAD]'") == "[]\n"

    debian.do("apt-get -q -y remove hugeld hugeld-ldso")
    kept = ("/etc/apparmor.d", "/etc/hugeld", "/etc/needrestart", "/var/lib/systemd")  # until purge
    assert [path for path in ours(debian) if not path.startswith(kept)] == [FOLDER, LINK]
    debian.do("apt-get -q -y purge hugeld")
    assert ours(debian) == [FOLDER, LINK]
    assert start(debian).endswith("/ld-linux-x86-64.so.2")
    debian.do("cp /root/cat /usr/local/bin/names-it")
    said = debian.do("apt-get -q -y purge hugeld-ldso")
    assert f"these name {LINK}, which is gone, and start no more: /usr/local/bin/names-it\n" in said
    debian.do("rm /usr/local/bin/names-it")
    assert ours(debian) == []
    assert debian.run("/root/cat /dev/null").returncode == 127  # the link is gone, as it should


def test_libc6_changes_under_it(debian, other_libc6):
    """dpkg puts another libc6 there, ignoring dependencies on the old one, and the old one back."""
    debian.install("/packages/hugeld.deb", "/packages/hugeld-ldso.deb")
    assert start(debian) == f"{FOLDER}/ld.so"
    told = "hugeld-ldso: libc6 has changed; programs that name"
    assert debian.do("dpkg -i /packages/libc6-other.deb").count(told) == 1
    assert told not in debian.do("dpkg-trigger --by-package=libc6 /lib64/ld-linux-x86-64.so.2; dpkg --configure --pending")
    assert start(debian).endswith("/ld-linux-x86-64.so.2")
    assert "was not made for" in debian.do("hugeld --version")
    assert "was not made for" in debian.do("hugeld run --via=ldso -- /bin/true")
    debian.do("dpkg -i --force-downgrade /packages/libc6-same.deb")
    assert start(debian) == f"{FOLDER}/ld.so"


# Only the packages of the fixture archive.
APT = "apt-get -q -y -o Dir::Etc::sourcelist=/etc/apt/other.list -o Dir::Etc::sourceparts=-"
# As unattended-upgrades does it, from this archive.
UNATTENDED = """
cat > /etc/apt/apt.conf.d/52other << .
Unattended-Upgrade::Origins-Pattern { "origin=hl-other"; };
.
mv /etc/apt/other.list /etc/apt/sources.list.d
apt-get -q update
unattended-upgrade --verbose --debug
"""


@pytest.fixture
def archive(debian, other_libc6):
    """An archive that has libc6-other.deb, and nothing else."""
    folder = debian.upper / "packages"
    package = folder / "libc6-other.deb"
    control = subprocess.run(["dpkg-deb", "-f", package], check=True, capture_output=True, text=True).stdout
    index = f"{control}Filename: ./{package.name}\nSize: {package.stat().st_size}\nSHA256: {sha256(package)}\n"
    (folder / "Packages").write_text(index)
    (folder / "Release").write_text(f"Origin: hl-other\nDate: Mon, 02 Jan 2023 00:00:00 UTC\nSHA256:\n {sha256(folder / 'Packages')} "
                                    f"{len(index.encode())} Packages\n")
    (debian.upper / "etc/apt").mkdir(parents=True, exist_ok=True)
    (debian.upper / "etc/apt/other.list").write_text("deb [trusted=yes] file:/packages ./\n")


@pytest.mark.parametrize("how", [f"{APT} update && {APT} dist-upgrade", UNATTENDED], ids=["dist-upgrade", "unattended"])
def test_apt_upgrades_libc6(debian, archive, how):
    """The package neither holds libc6 back nor goes, and its programs go on with libc6's own linker."""
    debian.install("/packages/hugeld.deb", "/packages/hugeld-ldso.deb", *(["unattended-upgrades"] if how == UNATTENDED else []))
    assert start(debian) == f"{FOLDER}/ld.so"
    said = debian.do(how)
    assert "+other" in debian.do("dpkg-query -W -f '${Version}' libc6"), said
    assert debian.do("dpkg-query -W -f '${db:Status-Abbrev}' hugeld-ldso").strip() == "ii", said
    assert start(debian).endswith("/ld-linux-x86-64.so.2")
    assert "stays" in debian.do("LD_PRELOAD=libhugeld.so LD_HUGEPAGES_OPTIONS=verbose=2 /bin/true")


# --- the store ---

ENABLED = "/etc/systemd/system/timers.target.wants/hugeld.timer"
# A package's program, larger than a huge page; then another version of it.
LARGE = """
mkdir -p /large/DEBIAN /large/usr/lib/disk && cp /root/large /large/usr/lib/disk/hl-large && printf 'Package: hl-large\\nVersion: %s\\n\
Architecture: all\\nMaintainer: nobody <nobody@hugeld.example>\\nDescription: large\\n' "$version" > /large/DEBIAN/control &&
echo "$version" >> /large/usr/lib/disk/hl-large-version && dpkg-deb -Znone -b /large /large.deb > /dev/null && dpkg -i /large.deb
"""
# Large text, and it stays as many seconds as it is told.
STAYS = """
#include <stdlib.h>
#include <unistd.h>
unsigned long big_sum(unsigned long x);
int main(int argc, char **argv) {
    if (argc > 1)
        sleep(atoi(argv[1]));
    return big_sum(1) == 0;
}
"""


@pytest.fixture
def large(builder):
    return builder.once("stays", lambda folder: builder.compile(folder / "stays", builder.write("stays.c", STAYS), "-pie", "-fPIE",
                                                                *builder.object()))


def test_nothing_is_enabled(debian):
    """The package enables nothing, makes no store, and leaves nothing of it."""
    debian.install("/packages/hugeld.deb", "systemd")
    debian.do(f"[ ! -e {ENABLED} ] && [ ! -e /run/hugeld ]")
    assert "disabled" in debian.run("systemctl is-enabled hugeld.timer").stdout
    assert "hugeld/hugeld.conf" not in debian.do("dpkg-query -W -f '${Conffiles}' hugeld")
    units = "hugeld.service hugeld.timer hugeld-boot.service hugeld.slice"
    debian.do(f"cd /lib/systemd/system && systemd-analyze verify --man=no {units}")
    debian.do("[ -x /lib/systemd/system-generators/hugeld-generator ]")
    debian.do("hugeld apply && [ ! -e /run/hugeld ]")


def test_apply_after_an_upgrade(debian, large):
    """What is enabled gets a new image by the next apply; without systemd dpkg makes none.  Removing the package empties the store.
    All in one namespace, because a store is a mount."""
    debian.put(large, "/root/large")
    debian.install("/packages/hugeld.deb", "systemd")
    said = debian.do(f"""
version=1; {LARGE}
echo 'any_disk = yes' > /etc/hugeld/hugeld.conf
hugeld enable --way=image /usr/lib/disk/hl-large
version=2; {LARGE}
echo; echo "off: $(hugeld list | grep -o 'changed.*large')"
hugeld apply
echo; echo "on: $(hugeld list | grep -o 'fresh.*large')"
hugeld run -o verbose=2 -- /usr/lib/disk/hl-large > /dev/null
apt-get -q -y remove hugeld
ls -d /run/hugeld /run/hugeld-units || echo gone
""")
    assert re.search("off: changed .*/usr/lib/disk/hl-large", said), said
    assert re.search("on: fresh .*/usr/lib/disk/hl-large", said), said
    assert " image, at the exec stop from /run/hugeld/" in said
    assert said.endswith("gone\n"), said
