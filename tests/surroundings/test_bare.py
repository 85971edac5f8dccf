# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs in bare surroundings, which lack /proc, /sys, descriptors, a large stack or a writable root.  By the preloader
and by the patched dynamic linker: a program that runs without hugeld runs, says the same, and moves where it can."""

import os
import pathlib
import subprocess

import pytest

import helpers
from surroundings import RODATA, TEXT

MOVED = f"text {TEXT} pages hugetlb, rodata {RODATA} page hugetlb"
NOBODY = "setpriv --reuid=65534 --regid=65534 --clear-groups"
IN_NAMESPACE = ["unshare", "-m", "sh", "-ec"]


def in_namespace(script):
    """A command prefix: SCRIPT in a mount namespace of its own, and then the program."""
    return [*IN_NAMESPACE, f'mount --make-rprivate /; {script}; exec "$@"', "sh"]


def in_bash(script):
    return ["bash", "-c", f'{script}; exec "$@"', "bash"]


# the lack -> (command prefix, whether text moves); None: as it comes
BARE = {
    "no proc": (in_namespace("umount -l /proc"), False),
    "an empty proc": (in_namespace("mount -t tmpfs none /proc"), False),
    "hidepid": (in_namespace(f"mount -t proc -o hidepid=2 proc /proc; set -- {NOBODY} \"$@\""), True),
    "no sys": (in_namespace("umount -l /sys"), True),  # the kernel itself gives the pool's pages
    "chroot without proc and sys": (in_namespace('mount --bind / /mnt; set -- chroot /mnt "$@"'), False),
    "chroot without sys": (
        in_namespace('mount --bind / /mnt; mount -t proc proc /mnt/proc; set -- chroot /mnt "$@"'), True),
    "read-only root": (in_namespace("mount -o remount,bind,ro /"), True),
    "a stack of 32 KiB": (in_bash("ulimit -s 32"), None),
    "a stack of 64 KiB": (in_bash("ulimit -s 64"), None),
    "an environment in most of the stack": (in_bash("ulimit -s 64; export T=$(yes | head -c 40000)"), None),
    "a stack of 128 KiB": (in_bash("ulimit -s 128"), None),
    "a stack of 1 MiB": (in_bash("ulimit -s 1024"), True),
    "no descriptor left": (in_bash("ulimit -n 3"), None),
    "one descriptor left": (in_bash("ulimit -n 4"), None),
    "two descriptors left": (in_bash("ulimit -n 5"), None),
    "four descriptors left": (in_bash("ulimit -n 7"), None),
    "no standard input": (in_bash("exec <&-"), True),
    "no file size": (in_bash("ulimit -f 0"), True),
    "no locked memory": (in_bash("ulimit -l 0"), True),
    "no core": (in_bash("ulimit -c 0"), True),
    "no signals pending": (in_bash("ulimit -i 0"), True),
}


def preloaded(library, options):
    """Sets LD_PRELOAD for the program alone: the commands that make the surroundings do without it."""
    return ["env", f"LD_PRELOAD={library}", f"LD_HUGEPAGES_OPTIONS={helpers.ALL_SEGMENTS},{options}"]


def linked(options):
    linker = helpers.BUILD / "ldso" / "ld.so"
    if not linker.exists():
        pytest.skip("needs build/ldso/ld.so: make ldso")
    return [helpers.HUGELD, "run", "--ld-so", linker, "-o", options, "--"]


@pytest.fixture(params=["preload", "ldso"])
def way(request, library):
    """way(options): a command prefix."""
    return (lambda options: preloaded(library, options)) if request.param == "preload" else linked


@pytest.mark.parametrize("bare", BARE)
def test_bare(builder, pool, root, way, bare):
    pool(64)
    prefix, moves = BARE[bare]
    app = builder.executable("nopie")
    plain = helpers.run([*prefix, app, "one"])
    result = helpers.run([*prefix, *way(f"verbose=2,exe=*/{app.name}"), app, "one"])
    if plain.returncode != 3:  # it does not run at all: nor does it now
        assert result.returncode != 3
        return
    assert (result.returncode, result.stdout) == (plain.returncode, plain.stdout), result.stderr
    if moves is not None:
        assert (MOVED in result.stderr) == moves, result.stderr


@pytest.mark.parametrize("limit, few", [("data", 16), ("as", 64)])
def test_least_limit(builder, root, library, tmp_path, limit, few):
    """Where the memory suffices for a program with any other preloaded library, and a FEW pages more, it suffices with hugeld."""
    app, empty = builder.executable("nopie"), tmp_path / "empty.so"
    subprocess.run(["gcc", "-shared", "-o", empty, "-x", "c", "/dev/null"], check=True, timeout=60)

    def run(preloaded, n_bytes):
        return helpers.run(["prlimit", f"--{limit}={n_bytes}", "env", f"LD_PRELOAD={preloaded}", app, "one"])
    plain = helpers.run([app, "one"])
    too_little, enough = 0, 1 << 30
    while enough - too_little > helpers.PAGE:
        middle = (too_little + enough) // 2
        result = run(empty, middle)
        if (result.returncode, result.stdout) == (plain.returncode, plain.stdout):
            enough = middle
        else:
            too_little = middle
    for more in range(few, 4096, 160):
        result = run(library, enough + more * helpers.PAGE)
        assert (result.returncode, result.stdout) == (plain.returncode, plain.stdout), (enough, more, result.stderr)


def take_map(pid):
    """The contents of the map of PID, which has ended.  It is removed."""
    path = pathlib.Path(f"/tmp/perf-{pid}.map")
    text = path.read_text()
    path.unlink()
    return text


CLOSED = ["0", "1", "2", "01", "02", "12", "012"]


@pytest.mark.parametrize("closed", CLOSED)
def test_closed_descriptors(builder, pool, way, closed, tmp_path):
    """A file that hugeld opens has one of these numbers for a while: none stays open, and the program's own files are
    whole.  So is its map for perf."""
    pool(64)
    source = builder.write("open.c", r"""
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
unsigned long big_sum(unsigned long x);
int main(int argc, char **argv) {
    FILE *out = fopen(argv[1], "w");
    DIR *folder = opendir("/proc/self/fd");
    struct dirent *entry;
    fprintf(out, "%d %lx", argc, big_sum(1));
    while ((entry = readdir(folder)) != NULL)
        fprintf(out, " %s", entry->d_name);
    return fclose(out) != 0 ? 1 : 3;
}
""")
    app = builder.once("open", lambda folder: builder.compile(folder / "open", source, *builder.object(), "-no-pie",
                                                              "-s"))
    closing = " ".join(f"{n}{'<' if n == '0' else '>'}&-" for n in closed)
    prefix = in_bash(f"echo $$ > {tmp_path}/pid; exec {closing}")
    options = "verbose=3,perf_map=on,exe=*/open"
    for way_prefix, out in (([], "plain"), (way(options), "moved")):
        result = helpers.run([*prefix, *way_prefix, app, tmp_path / out])
        assert result.returncode == 3, result
    assert (tmp_path / "moved").read_text() == (tmp_path / "plain").read_text()
    assert " opendir@plt\n" in take_map((tmp_path / "pid").read_text().strip())


@pytest.mark.parametrize("closed", [False, True], ids=["by itself", "before it starts"])
def test_data_file_for_standard_error(builder, tool, pool, way, closed, tmp_path):
    """A daemon has a data file where standard error was: not a byte of hugeld's goes there, also when objects come later;
    and not one while nothing is there yet."""
    pool(64)
    app, big = tool("database"), builder.with_library("dso")[1][0]
    prefix = in_bash("exec 2>&-") if closed else []
    env = helpers.environment(LD_HUGEPAGES="*")
    result = helpers.run([*prefix, *way("verbose=3,backend=hugetlb"), app, tmp_path / "records", big], env)
    assert (result.returncode, result.stdout) == (3, "opened 1, more huge pages 1\n"), result
    assert (tmp_path / "records").read_text() == "RECORD1\nRECORD2\nRECORD3\nRECORD4\n"
    assert (f"hugeld: {app.name}: " in result.stderr) != closed and big.name not in result.stderr, result.stderr


OTHERS = {
    "libasan": ("libasan.so.8", {"ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0"}),
    "jemalloc": ("libjemalloc.so.2", {}),
    "faketime": ("faketime/libfaketime.so.1", {"FAKETIME": "2001-02-03 04:05:06", "FAKETIME_DONT_RESET": "1"}),
    "libhugetlbfs": ("libhugetlbfs.so.0", {"HUGETLB_MORECORE": "yes", "HUGETLB_VERBOSE": "0"}),
    "libhugetlbfs by THP": ("libhugetlbfs.so.0", {"HUGETLB_MORECORE": "thp", "HUGETLB_VERBOSE": "0"}),
}


@pytest.mark.parametrize("order", ["before", "behind", "ldso"])
@pytest.mark.parametrize("other", OTHERS)
def test_other_libraries(builder, pool, library, other, order):
    """Another library is preloaded too: the program does the same with both as with that one, and moves."""
    name, changes = OTHERS[other]
    path = next((p for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu")
                 for p in [pathlib.Path(folder, name)] if p.exists()), None)
    if path is None:
        pytest.skip(f"{name} is not installed")
    pool(128)
    app = builder.executable("nopie")
    options = f"verbose=2,exe=*/{app.name},backend=hugetlb"
    variables = [f"{key}={value}" for key, value in changes.items()]
    plain = helpers.run(["env", *variables, f"LD_PRELOAD={path}", app, "one"])
    preload = {"before": f"{library}:{path}", "behind": f"{path}:{library}", "ldso": f"{path}"}[order]
    prefix = linked(options) if order == "ldso" else []
    if order != "ldso":
        variables.append(f"LD_HUGEPAGES_OPTIONS={helpers.ALL_SEGMENTS},{options}")
    result = helpers.run(["env", *variables, f"LD_PRELOAD={preload}", *prefix, app, "one"])
    assert (result.returncode, result.stdout) == (plain.returncode, plain.stdout), result.stderr
    assert plain.returncode == 3 and MOVED in result.stderr, result.stderr


SPECIAL = {
    "set-user-ID": "chmod u+s",
    "set-group-ID": "chmod g+s",
    "capabilities": "setcap cap_net_bind_service+ep",
    "ordinary": "true",
}
SECURE = r"""
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 none /mnt
cp "$3" /mnt/special
chmod 755 /mnt/special
$2 /mnt/special
mount --bind "$1" "$4"
exec setpriv --reuid=65534 --regid=65534 --clear-groups /mnt/special
"""


@pytest.mark.parametrize("special", SPECIAL)
def test_patched_linker_in_secure_mode(builder, pool, root, special):
    """A program that gives rights runs with the patched linker (it is installed): the variables mean nothing
    and its children don't see them."""
    pool(64)
    linker = helpers.BUILD / "ldso" / "ld.so"
    if not linker.exists():
        pytest.skip("needs build/ldso/ld.so: make ldso")
    source = builder.write("secure.c", r"""
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <unistd.h>
unsigned long big_sum(unsigned long x);
int main(void) {
    printf("%d %lx secure %lu %s %s\n", getpid(), big_sum(1), getauxval(AT_SECURE),
           getenv("LD_HUGEPAGES") ? "seen" : "unset", getenv("LD_HUGEPAGES_OPTIONS") ? "seen" : "unset");
    return 3;
}
""")
    objects = builder.object()
    app = builder.once("secure", lambda folder: builder.compile(folder / "secure", source, *objects, "-no-pie"))
    interpreter = pathlib.Path("/lib64/ld-linux-x86-64.so.2")
    if not interpreter.exists():
        pytest.skip("x86-64's interpreter")
    command = ["unshare", "-m", "sh", "-c", SECURE, "sh", linker, SPECIAL[special], app, interpreter.resolve()]
    options = "verbose=3,strict=on,backend=hugetlb,perf_map=on,exe=special"
    result = helpers.run(command, helpers.environment(LD_HUGEPAGES="special", LD_HUGEPAGES_OPTIONS=options))
    assert result.returncode == 3, result
    pid = result.stdout.split()[0]
    if special == "ordinary":
        assert "secure 0 seen seen" in result.stdout and MOVED in result.stderr
        assert " big_sum\n" in take_map(pid)
    else:
        assert "secure 1 unset unset" in result.stdout and result.stderr == ""
        assert not os.path.exists(f"/tmp/perf-{pid}.map")
