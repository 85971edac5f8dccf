# SPDX-License-Identifier: LGPL-2.1-or-later
"""`hugeld run --via=ldso`: over the interpreter in a mount namespace, for root and for nobody, for programs and scripts;
and the refusals where that is not possible."""

import shutil

import pytest

import helpers

NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


@pytest.fixture
def folder(shared_folder, ldso, request):
    """The command, libhugeld.so and ldso/ld.so where every user can run them."""
    folder = shared_folder / request.node.name.replace("/", "-")
    (folder / "ldso").mkdir(parents=True)
    for file, copy in ((helpers.HUGELD, "hugeld"), (helpers.COMMAND, "hugeld-command"), (helpers.LIBRARY, "libhugeld.so"), (ldso, "ldso/ld.so")):
        shutil.copy(file, folder / copy)
    yield folder
    shutil.rmtree(folder)


def run(folder, *arguments, prefix=(), **changes):
    return helpers.run([*prefix, folder / "hugeld", "run", *arguments], helpers.environment(**changes))


@pytest.mark.parametrize("user", [[], NOBODY], ids=["root", "nobody"])
def test_in_a_namespace(folder, builder, pool, root, user):
    """/proc/self/exe and comm are the program's, and nothing stays mounted."""
    pool(64)
    app = builder.executable("nopie")
    if user and helpers.run([*user, "unshare", "-U", "true"]).returncode != 0:
        pytest.skip("this machine allows no user namespaces")
    shutil.copy(app, folder / app.name)
    plain = helpers.run([folder / app.name])
    done = run(folder, "-l", "ldso", "-o", "verbose=2", "--", folder / app.name, prefix=user)
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)
    assert done.stderr == "hugeld: app-nopie: text 5 pages hugetlb, rodata 1 page hugetlb\n"
    script = builder.write("names.sh", "#!/bin/sh\nreadlink /proc/$$/exe\ncat /proc/$$/comm\nid -u\nid -g\n")
    script.chmod(0o755)
    shutil.copy(script, folder / "names.sh")
    plain = helpers.run([*user, folder / "names.sh"])
    done = run(folder, "-l", "ldso", "--", folder / "names.sh", prefix=user)
    assert (done.returncode, done.stdout, done.stderr) == (0, plain.stdout, "")
    with open("/proc/self/mounts") as mounts:
        assert "ld-linux" not in mounts.read()


def test_another_libc(folder, builder, pool, installed):
    """A file that was not made for the installed libc never runs: libhugeld.so does its work."""
    pool(64)
    app = builder.executable("nopie")
    done = run(folder, "--ld-so", installed, "-o", "verbose=2", "--", app)
    assert done.returncode == 3
    assert done.stderr == (f"hugeld: {app}: {installed} was not made by 'make ldso'; libhugeld.so is preloaded instead\n"
                           "hugeld: app-nopie: text 5 pages hugetlb, rodata 1 page hugetlb\n")


def test_none_built(folder, builder, pool):
    pool(64)
    app = builder.executable("nopie")
    (folder / "ldso/ld.so").unlink()
    done = run(folder, "-l", "ldso", "--", app)
    assert done.returncode == 3
    assert "there is no patched dynamic linker; install hugeld-ldso, or build it with make ldso; libhugeld.so is preloaded" in done.stderr


def test_no_namespace(folder, builder, pool, root, strace):
    """Mounting is forbidden: ld.so is the command, with a warning, and a script gets libhugeld.so."""
    pool(64)
    app = builder.executable("nopie")
    prefix = ["strace", "-f", "-o", "/dev/null", "-e", "trace=unshare", "-e", "inject=unshare:error=EPERM"]
    plain = helpers.run([app, "one"])
    done = run(folder, "-l", "ldso", "-o", "verbose=2", "--", app, "one", prefix=prefix)
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)
    assert "a mount namespace is not allowed here (Operation not permitted), so /proc/self/exe is ld.so" in done.stderr
    assert done.stderr.endswith("hugeld: app-nopie: text 5 pages hugetlb, rodata 1 page hugetlb\n")
    script = builder.write("once.sh", f"#!/bin/sh\nexec {app}\n")
    script.chmod(0o755)
    done = run(folder, "-l", "ldso", "-p", "app-*", "-o", "verbose=2", "--", script, prefix=prefix)
    assert done.returncode == 3 and "cannot be mounted here" in done.stderr
    assert done.stderr.endswith("hugeld: app-nopie: text 5 pages hugetlb, rodata 1 page hugetlb\n")


def test_static_program(folder, builder):
    done = run(folder, "-l", "ldso", "--", builder.tiny("-static"))
    assert done.returncode == 4 and done.stderr.count("\n") == 1 and "static, the dynamic linker never runs" in done.stderr
