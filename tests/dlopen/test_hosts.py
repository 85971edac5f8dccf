# SPDX-License-Identifier: LGPL-2.1-or-later
"""Stock programs whose large code comes as a plugin: `hugeld status` shows it moved, and they print the same as without hugeld."""

import contextlib
import glob
import os
import pathlib
import shutil
import socket
import subprocess
import urllib.request

import pytest

import databases
import helpers
from installed import cache_folder

PYTHON_CACHE = cache_folder() / "python"


def moved_pages(pid, pattern):
    """Pages on hugetlb of the objects whose base names match, as `hugeld status` tells."""
    result = {}
    for process in helpers.hugeld_json("status", str(pid))["processes"]:
        for found in process["objects"]:
            name = os.path.basename(found["path"])
            if pathlib.PurePath(name).match(pattern):
                result[name] = found["backends"]["hugetlb_pages"]
    return result


def run_stopped(argv, env, look=lambda pid: None, timeout=120):
    """The output of ARGV, which stops itself once; LOOK(pid) is called then."""
    process = helpers.start(argv, env)
    try:
        helpers.wait_until(lambda: helpers.state_of(process.pid) in ("T", "Z"), timeout, "stopping")
        look(process.pid)
        process.send_signal(18)  # SIGCONT
        stdout, stderr = process.communicate(timeout=timeout)
    finally:
        helpers.end_process(process)
    assert process.returncode == 0, stderr
    return stdout


def compare(argv, library, empty_library, patterns, expected, **variables):
    """Plain and moved runs print the same; each pattern of EXPECTED has that many pages at least."""
    plain = run_stopped(argv, helpers.preload(empty_library, **variables))

    def look(pid):
        for pattern, pages in expected.items():
            found = moved_pages(pid, pattern)
            assert found and all(n >= pages for n in found.values()), (pattern, found)

    assert run_stopped(argv, helpers.preload(library, patterns=patterns, **variables), look) == plain and plain


NUMPY = """
import numpy, os, signal
a = numpy.arange(90000, dtype=float).reshape(300, 300) / 90000
print(numpy.linalg.det(a @ a.T + numpy.eye(300)), numpy.fft.fft(a[0]).sum(), numpy.sort(a.ravel()[::-7])[:5])
os.kill(os.getpid(), signal.SIGSTOP)
"""

LLVMLITE = """
import ctypes, os, signal
import llvmlite.binding as llvm
llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
module = llvm.parse_assembly('define i32 @f(i32 %x) { %y = mul i32 %x, 7  ret i32 %y }')
engine = llvm.create_mcjit_compiler(module, llvm.Target.from_default_triple().create_target_machine())
engine.finalize_object()
print(ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(engine.get_function_address('f'))(6))
os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.mark.parametrize("module, script, expected", [
    ("numpy", NUMPY, {"_multiarray_umath*.so": 2, "libscipy_openblas*.so": 5}),
    ("llvmlite", LLVMLITE, {"libllvmlite.so": 20}),
])
def test_python(library, empty_library, pool, module, script, expected):
    if not (PYTHON_CACHE / module).exists():
        pytest.skip(f"{module} is not in the cache (tools/install-packages real)")
    pool(256)
    compare(["/usr/bin/python3", "-B", "-c", script], library, empty_library, ":".join(expected), expected,
            PYTHONPATH=PYTHON_CACHE, OPENBLAS_NUM_THREADS="2")


def test_perl(library, empty_library, pool):
    """Perl's own XS modules are too small; this one brings libcrypto."""
    if helpers.run(["perl", "-MNet::SSLeay", "-e", "1"]).returncode != 0:
        pytest.skip("perl has no Net::SSLeay (libnet-ssleay-perl)")
    pool(64)
    script = ('use Net::SSLeay; print unpack("H*", Net::SSLeay::SHA512(join ",", 1..999)), "\\n"; '
              'print unpack("H*", Net::SSLeay::RIPEMD160("x")), "\\n"; $| = 1; kill "STOP", $$;')
    compare(["perl", "-e", script], library, empty_library, "libcrypto.so.*", {"libcrypto.so.*": 1})


JAVA = """
public class Work {
    public static void main(String[] arguments) throws Exception {
        java.util.TreeMap<String, Integer> map = new java.util.TreeMap<>();
        for (int i = 0; i < 300000; i++)
            map.merge(Integer.toString(i * 31 % 9973), i, Integer::sum);
        System.gc();
        System.out.println(map.hashCode() + " " + map.firstKey());
        new ProcessBuilder("kill", "-STOP", Long.toString(ProcessHandle.current().pid())).start().waitFor();
    }
}
"""


@pytest.mark.check_all
def test_java(library, empty_library, pool, tmp_path):
    """The launcher opens libjvm.so, and runs it in a thread of its own."""
    java = shutil.which("java")
    if not java or not shutil.which("javac"):
        pytest.skip("java is not installed (default-jdk-headless)")
    pool(64)
    (tmp_path / "Work.java").write_text(JAVA)
    assert helpers.run(["javac", "-d", tmp_path, tmp_path / "Work.java"], timeout=120).returncode == 0
    compare([java, "-Xmx256m", "-cp", tmp_path, "Work"], library, empty_library, "libjvm.so", {"libjvm.so": 4})


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@contextlib.contextmanager
def apache(folder, env):
    """(pid, port) of an apache2 with one process and PHP in it."""
    [module] = glob.glob("/usr/lib/apache2/modules/libphp*.so")
    port = free_port()
    page = "<?php echo array_sum(range(1, 999)), md5(json_encode([1, 'a' => 2])), PHP_OS; ?>"
    (folder / "index.php").write_text(page)
    modules = "".join(f"LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n"
                      for name in ("mpm_prefork", "authz_core", "dir"))
    (folder / "conf").write_text(
        f"ServerName localhost\nServerRoot {folder}\nPidFile {folder}/pid\nListen 127.0.0.1:{port}\n{modules}"
        f"LoadModule php_module {module}\nErrorLog {folder}/log\nDocumentRoot {folder}\nDirectoryIndex index.php\n"
        f"<FilesMatch \\.php$>\nSetHandler application/x-httpd-php\n</FilesMatch>\n<Directory {folder}>\n"
        f"Require all granted\n</Directory>\nUser www-data\nGroup www-data\n")
    process = helpers.start(["/usr/sbin/apache2", "-X", "-f", folder / "conf"], env)
    try:
        yield process.pid, port
        process.terminate()
        process.wait(timeout=helpers.PATIENCE)
    finally:
        helpers.end_process(process)


def ask(port):
    def read():
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as page:
                return page.read()
        return None

    return helpers.wait_until(read, what="apache2 answering")


def test_apache(library, empty_library, pool, shared_folder, root):
    """It loads its modules, unloads them, and loads them again."""
    if not os.path.exists("/usr/sbin/apache2") or not glob.glob("/usr/lib/apache2/modules/libphp*.so"):
        pytest.skip("apache2 or its PHP is not installed (apache2, libapache2-mod-php)")
    pool(64)
    folder = shared_folder / "apache"
    folder.mkdir()
    with apache(folder, helpers.preload(empty_library)) as (_, port):
        plain = ask(port)
    with apache(folder, helpers.preload(library, patterns="libphp*.so")) as (pid, port):
        moved = ask(port)
        found = moved_pages(pid, "libphp*.so")
    assert moved == plain and plain.startswith(b"499500")
    assert found and min(found.values()) >= 1, found


@contextlib.contextmanager
def postgres(folder, binaries, argv, env):
    """A postmaster that answers."""
    process = helpers.start(argv, env, cwd=folder, stdout=subprocess.DEVNULL, stderr=helpers.subprocess.DEVNULL)
    psql = [f"{binaries}/psql", "-h", folder, "-U", "postgres", "-At"]
    try:
        helpers.wait_until(lambda: helpers.run([*psql, "-c", "SELECT 1"]).returncode == 0, what="postgres answering")
        yield psql
        process.terminate()
        process.wait(timeout=helpers.PATIENCE)
    finally:
        helpers.end_process(process)


QUERY = "SELECT sum(x * 2 + length(x::text)), max(md5(x::text)) FROM generate_series(1, 20000) AS x WHERE x % 3 <> 1"


def query(psql, look=lambda pid: None):
    """The answer of a query that is compiled; LOOK(pid) sees the process that did it."""
    session = helpers.start([*psql], stdin=subprocess.PIPE)
    try:
        session.stdin.write(f"SET jit_above_cost = 0; {QUERY}; SELECT pg_backend_pid();\n")
        session.stdin.flush()
        answer = [session.stdout.readline().strip() for _ in range(3)]
        look(int(answer[2]))
        session.communicate(timeout=helpers.PATIENCE)
    finally:
        helpers.end_process(session)
    return answer[:2]


@pytest.mark.check_all
def test_postgres_jit(library, empty_library, pool, shared_folder):
    """Each backend opens llvmjit.so when it compiles its first query, and with it libLLVM."""
    folder, binaries, argv = databases.make_postgres(shared_folder, "postgres-jit")
    if not os.path.exists(f"{binaries}/../lib/llvmjit.so"):
        pytest.skip("postgres has no llvmjit.so")
    pool(128)
    with postgres(folder, binaries, argv, helpers.preload(empty_library)) as psql:
        plain = query(psql)
    found = {}
    with postgres(folder, binaries, argv, helpers.preload(library, patterns="libLLVM*")) as psql:
        moved = query(psql, lambda pid: found.update(moved_pages(pid, "libLLVM*")))
    assert moved == plain and plain[0] == "SET" and "|" in plain[1]
    assert found and min(found.values()) >= 20, found
