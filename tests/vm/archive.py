# SPDX-License-Identifier: LGPL-2.1-or-later
"""Debian's archive, for any suite and architecture, without touching the machine's own apt.

Each architecture and set of suites has an apt configuration of its own in the cache: sources, lists, downloads.  Only
the mirror's address and how to get there (Acquire::*: proxies, certificates; auth.conf) come from the machine's.  The result of
resolving is kept: while its index is fresh nothing is asked of the network, when it is old it is asked again, and when that fails
the old answer serves.

Every file is made under another name and renamed when it is complete, under a lock for each configuration, so that runs
at the same time, and killed ones, leave the cache whole."""

import contextlib
import fcntl
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
FRESH_DAYS = 7


class Unavailable(Exception):
    """Something cannot be had; the message is for the user."""


def cache_folder(name="vm"):
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "hugeld" / name


def run(argv, **options):
    argv = [str(a) for a in argv]
    try:
        result = subprocess.run(argv, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL, **options)
        return result.stdout
    except FileNotFoundError as error:
        raise Unavailable(f"{argv[0]} is not installed") from error
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout).strip().splitlines() or [f"exit status {error.returncode}"]
        wrong = [line for line in lines if line.startswith("E:")] or lines
        raise Unavailable(f"{' '.join(argv[:2])}: {wrong[0]}") from error


def find_mirrors():
    """(address of the mirror, address of the security updates' mirror or None), as the machine's own apt has them."""
    suites = {}
    for line in run(["apt-get", "update", "--print-uris"]).splitlines():
        found = re.match(r"'(.*/)dists/([^/']+)/InRelease'", line)
        if found:
            suites.setdefault(found[1], set()).add(found[2])
    # Others have suites of Debian's names too, but no updates for them.
    mirrors = [a for a, names in suites.items() if any(f"{n}-updates" in names for n in names) or "sid" in names]
    security = [a for a, names in suites.items() if any(n.endswith("-security") for n in names)]
    if not mirrors:
        raise Unavailable("no mirror of Debian in apt's sources")
    return mirrors[0], security[0] if security else None


def acquire_settings():
    """How the machine's apt gets to its mirrors."""
    return run(["apt-config", "dump", "Acquire"])


def is_fresh(path):
    return path.exists() and time.time() - path.stat().st_mtime < FRESH_DAYS * 24 * 3600


@contextlib.contextmanager
def new_folder(path):
    """A temporary folder that becomes PATH if the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield folder
        folder.chmod(0o755)
        if path.exists():
            shutil.rmtree(path)
        folder.rename(path)
    finally:
        if folder.exists():
            shutil.rmtree(folder)


def write_whole(path, text):
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        file.write(text)
    os.rename(file.name, path)


class Archive:
    """SUITES of Debian's archive for ARCHITECTURE (Debian's name of it)."""

    def __init__(self, architecture, suites):
        self.architecture = architecture
        self.suites = suites
        self.folder = cache_folder() / f"{architecture}-{'+'.join(suites)}"

    @contextlib.contextmanager
    def locked(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    # --- apt ---

    def sources(self):
        """The lines of sources.list."""
        if not os.path.exists(KEYRING):
            raise Unavailable(f"{KEYRING} is not there (debian-archive-keyring)")
        mirror, security = find_mirrors()
        addresses = [(security if suite.endswith("-security") else mirror, suite) for suite in self.suites]
        return "".join(f"deb [signed-by={KEYRING}] {address} {suite} main\n" for address, suite in addresses if address)

    def configure(self):
        """Writes the configuration.  The machine's own is not read after this: it has hooks, pins and other sources."""
        sources = self.sources()
        for name in ("lists/partial", "archives/partial"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / "sources.list", sources)
        settings = {
            "APT::Architecture": self.architecture, "APT::Architectures": self.architecture,
            "APT::Sandbox::User": "root", "Acquire::Languages": "none",
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
            "Dir::Etc::Main": "/nonexistent", "Dir::Etc::Parts": "/nonexistent",
            "Dir::Etc::Preferences": "/nonexistent", "Dir::Etc::PreferencesParts": "/nonexistent",
            "Dir::Etc::SourceList": self.folder / "sources.list", "Dir::Etc::SourceParts": "/nonexistent",
            "Dir::State::Lists": self.folder / "lists", "Dir::State::Status": "/dev/null", "Dir::Cache": self.folder,
        }
        write_whole(self.folder / "apt.conf", acquire_settings() +
                    "".join(f'{name} "{value}";\n' for name, value in settings.items()))

    def apt(self, *argv, **options):
        return run(argv, env={**os.environ, "APT_CONFIG": str(self.folder / "apt.conf"), "LC_ALL": "C"}, **options)

    def update(self):
        self.configure()
        self.apt("apt-get", "-q", "-o", "Acquire::Retries=2", "-o", "APT::Update::Error-Mode=any", "update")

    def newest(self, package):
        """The fields of the newest version of PACKAGE in any of the suites, or None."""
        try:
            text = self.apt("apt-cache", "show", "--all-versions", package)
        except Unavailable:
            return None
        found = [dict(re.findall(r"^([\w-]+): (.*)", entry, re.M)) for entry in text.split("\n\n")]
        best = None
        for fields in found:
            if fields.get("Package") == package and (best is None or is_newer(fields["Version"], best["Version"])):
                best = fields
        return best

    def download(self, fields, folder):
        """The .deb of the version in FIELDS, checked by apt."""
        self.apt("apt-get", "-q", "-o", "Acquire::Retries=2", "download", f"{fields['Package']}={fields['Version']}",
                 cwd=folder)
        [deb] = folder.glob("*.deb")
        return deb

    # --- kernels ---

    def unpack_behind(self, package, kinds, scratch):
        """(fields, folder) of each package that PACKAGE, a meta package, depends on, and of those that these depend on, unpacked:
        linux-KIND-... of the same source.  Since 7.0 the image is in a package of its own behind another."""
        queue, seen = [package], set()
        while queue:
            fields = self.newest(queue.pop(0))
            if fields is None or fields["Package"] in seen:
                continue
            seen.add(fields["Package"])
            if fields["Package"] != package:
                folder = pathlib.Path(tempfile.mkdtemp(dir=scratch))
                self.apt("dpkg-deb", "-x", self.download(fields, folder), folder / "x")
                yield fields, folder / "x"
            queue += re.findall(rf"(linux-(?:{kinds})-[\w.+-]+) \(= ", fields.get("Depends", ""))

    def find_image(self, package, unpacked):
        """(version, vmlinuz) of the kernel that PACKAGE leads to, among the UNPACKED packages."""
        for fields, folder in unpacked:
            for image in folder.glob("**/vmlinuz*"):
                return fields["Version"], image
        raise Unavailable(f"{package} of {' '.join(self.suites)} leads to no vmlinuz")

    def kernel(self, package, to):
        """Copies the kernel image of the newest PACKAGE, like linux-image-cloud-amd64, to the path TO; its version."""
        folder = self.folder / "kernels" / package
        record = folder / "newest.json"
        with self.locked():
            if not is_fresh(record):
                try:
                    self.refresh_kernel(package, folder, record)
                except Unavailable as error:
                    if not record.exists():
                        raise
                    age = (time.time() - record.stat().st_mtime) / 24 / 3600
                    print(f"vm: {package}: {error}; the index of {age:.0f} days ago serves", file=sys.stderr)
            version = json.loads(record.read_text())["version"]
            shutil.copy(folder / version / "vmlinuz", to)
        return version

    def refresh_kernel(self, package, folder, record):
        print(f"vm: {package}: asking the archive ({' '.join(self.suites)})", file=sys.stderr)
        folder.mkdir(parents=True, exist_ok=True)
        self.update()
        fields = self.newest(package)
        if fields is None:
            raise Unavailable(f"{package} is not in {' '.join(self.suites)}")
        version = fields["Version"]
        there = folder / version
        if not (there / "vmlinuz").exists():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                unpacked = list(self.unpack_behind(package, "image|binary", scratch))
                version, image = self.find_image(package, unpacked)
                with new_folder(folder / version) as new:
                    shutil.copy(image, new / "vmlinuz")
        write_whole(record, json.dumps({"version": version}))
        for old in folder.iterdir():
            if old.is_dir() and old.name != version:
                shutil.rmtree(old)

    # --- other packages ---

    @contextlib.contextmanager
    def packages(self, names):
        """A folder with the contents of the packages NAMES, exactly these: dependencies are the caller's to list.  It
        stays as it is until the block ends."""
        folder = self.folder / "packages" / "+".join(sorted(names))
        with self.locked():
            if not is_fresh(folder):
                try:
                    self.refresh_packages(names, folder)
                except Unavailable as error:
                    if not folder.exists():
                        raise
                    print(f"vm: {' '.join(names)}: {error}; the old ones serve", file=sys.stderr)
            yield folder

    def refresh_packages(self, names, folder):
        print(f"vm: {' '.join(names)} for {self.architecture}: asking the archive", file=sys.stderr)
        self.update()
        with new_folder(folder) as new, tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            for name in names:
                fields = self.newest(name)
                if fields is None:
                    raise Unavailable(f"{name} is not in {' '.join(self.suites)}")
                deb = self.download(fields, pathlib.Path(tempfile.mkdtemp(dir=scratch)))
                self.apt("dpkg-deb", "-x", deb, new)
            new.touch()


def is_newer(version, than):
    return subprocess.run(["dpkg", "--compare-versions", version, "gt", than], check=False).returncode == 0
