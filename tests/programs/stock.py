# SPDX-License-Identifier: LGPL-2.1-or-later
"""Large stock programs at a small piece of work.  Each is a function of a Run (test_programs.py), which starts it without
hugeld or on huge pages: it waits for a moment at which the program has loaded everything and cannot go on, lets the Run look
at its memory, and returns the program's output and the files that it made.

The moment is the end of its constructors (paused), or when it asks for input that is not there yet: a page that the server
holds back, or a FIFO.  That is how objects that come by dlopen are seen too."""

import collections
import concurrent.futures
import contextlib
import glob
import hashlib
import http.server
import os
import shutil
import signal
import socket
import ssl
import threading
import time
import typing

import pytest

import helpers
from installed import find_node


class Program(typing.NamedTuple):
    work: typing.Callable
    patterns: str  # a user's argument of hugeld run -p
    objects: list  # base names, as shell patterns: each is on huge pages in a process, and in all that have it


PROGRAMS = {}


def program(patterns, *objects):
    def add(work):
        PROGRAMS[work.__name__] = Program(work, patterns, objects)
        return work

    return add


def need(name):
    """The file of the command NAME, as Debian has it."""
    path = shutil.which(name, path="/usr/sbin:/usr/bin")
    if not path:
        pytest.skip(f"{name} is not installed (tools/install-packages programs)")
    return path


def digest(path):
    return f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}"


def said(process):
    """How PROCESS ends, and its standard output."""
    stdout, stderr = process.communicate(timeout=helpers.PATIENCE)
    process.told = stderr
    return f"exit {process.returncode}\n{stdout}"


# --- moments ---


class Page(threading.Event):
    """A page that is given only when this event is set."""

    def __init__(self, text, kind="text/html"):
        super().__init__()
        self.asked = threading.Event()
        page = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                page.asked.set()
                page.wait(timeout=helpers.PATIENCE)
                self.send_response(200)
                self.send_header("Content-Type", f"{kind}; charset=utf-8")
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *arguments):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}/page.html"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever).start()
        return self

    def __exit__(self, *exception):
        self.set()
        self.server.shutdown()
        self.server.server_close()


def wait_for(process, condition, what):
    """Waits for CONDITION() and returns its result; the process must not end before."""

    def look():
        found = condition()
        assert found or process.poll() is None, f"it has ended: {process.communicate()}"
        return found

    return helpers.wait_until(look, helpers.PATIENCE, what)


def make_gate(run):
    """A FIFO that every user may read."""
    path = run.folder / "gate"
    os.mkfifo(path)
    path.chmod(0o644)
    return path


def look_at_gate(run, process, path):
    """Waits until PROCESS reads from the FIFO at PATH, lets RUN look, and gives it something."""

    def try_to_open():
        with contextlib.suppress(OSError):
            return os.open(path, os.O_WRONLY | os.O_NONBLOCK)

    gate = wait_for(process, try_to_open, "its reading the FIFO")
    with open(gate, "w") as file:
        run.look(process)
        file.write("GATE")


# --- browsers ---

PAGE = """<!DOCTYPE html><title>A page</title><p id=p>text<canvas id=c width=300 height=100></canvas>
<script>
const words = [];
for (let i = 0; i < 2000; i++) words.push((i * 2654435761 % 4294967296).toString(36));
words.sort();
const c = document.getElementById('c').getContext('2d');
for (let i = 0; i < 300; i++) { c.fillStyle = `hsl(${i},80%,50%)`; c.fillRect(i, 0, 1, 100 * Math.abs(Math.sin(i / 30))); }
document.body.append(words.slice(0, 40).join(' '), new Intl.NumberFormat('de').format(1234567.89));
document.getElementById('p').append(' ', new TextEncoder().encode('\\u00e4\\u20ac').join());
</script>
"""


def browse(run, *argv):
    with Page(PAGE) as page, run.start([*argv, page.address]) as process:
        wait_for(process, page.asked.is_set, "its asking for the page")
        run.look(process)
        page.set()
        return said(process)


@program("main", "chromium")
def chromium(run):
    """Chromium with its sandbox, so not as root.  Its processes come by exec and by fork."""
    return browse(run, need("chromium"), "--headless", "--disable-gpu", "--dump-dom")


@program("main:libxul.so*", "libxul.so")
def firefox(run):
    text = browse(run, need("firefox-esr"), "--headless", "--window-size=400,300", "--screenshot", run.folder / "page.png")
    return text + digest(run.folder / "page.png")


# --- documents ---

# In one font: LibreOffice writes several in the order of their addresses in memory.
DOCUMENT = """<p>Some words: %s</p><img src="%s" width=200 height=100>
<table border=1>%s</table>"""
IMAGE = "<svg xmlns='http://www.w3.org/2000/svg' width='200' height='100'><circle cx='60' cy='50' r='40'/></svg>"


@program("main:libmergedlo.so*:libswlo.so*", "libmergedlo.so", "libswlo.so")
def libreoffice(run):
    """It asks for the picture after it has loaded its word processor."""
    with Page(IMAGE, "image/svg+xml") as picture:
        rows = "".join(f"<tr><td>{i}<td>{i * i}</tr>" for i in range(200))
        run.write("document.html", DOCUMENT % ("\u00e4\u20ac " * 500, picture.address, rows))
        argv = [need("soffice"), "--headless", "--convert-to", "pdf:writer_web_pdf_Export", "--outdir", run.folder,
                run.folder / "document.html"]
        with run.start(argv) as process:
            wait_for(process, picture.asked.is_set, "its asking for the picture")
            run.look(process)
            picture.set()
            return said(process) + (run.folder / "document.pdf").read_bytes().decode("latin1")


# --- languages ---

JAVA = """
import java.nio.file.*;
import java.util.*;
import java.util.stream.*;
public class Work {
    public static void main(String[] arguments) throws Exception {
        System.out.println(new String(Files.newInputStream(Path.of(arguments[0])).readAllBytes()));
        Map<String, Integer> map = new TreeMap<>();
        for (int i = 0; i < 200000; i++)
            map.merge(Integer.toString(i * 31 % 7919, 36), i, Integer::sum);
        System.out.println(map.hashCode() + " " + IntStream.range(0, 1000000).parallel().filter(i -> i % 7 == 3).count());
        try {
            Object nothing = arguments.length > 5 ? "" : null;
            nothing.hashCode();
        } catch (NullPointerException e) { // a signal, where the text has been compiled
            System.out.println(e.getMessage());
        }
        System.gc();
        System.exit(3);
    }
}
"""


@program("main:libjvm.so*", "libjvm.so")
def java(run):
    """With the archive of classes that the package brings."""
    found = glob.glob("/usr/lib/jvm/java-17-openjdk-*/bin/java")
    if not found:
        pytest.skip("Java 17 is not installed (openjdk-17-jdk-headless)")
    run.write("Work.java", JAVA)
    made = helpers.run([need("javac"), "-d", run.folder, run.folder / "Work.java"])
    assert made.returncode == 0, made.stderr
    gate = make_gate(run)
    with run.start([found[0], "-Xshare:on", "-cp", run.folder, "Work", gate]) as process:
        look_at_gate(run, process, gate)
        return said(process)


NODE = """
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
function work(n) {
    let x = 1;
    for (let i = 0; i < 300000; i++) x = Math.imul(x, 31) + (i ^ n) | 0;
    return [x, require('zlib').deflateSync(Buffer.alloc(100000, n)).length,
            require('crypto').createHash('sha256').update(String(x)).digest('hex')].join(' ');
}
if (!isMainThread) {
    parentPort.postMessage(work(workerData));
} else {
    console.log(require('fs').readFileSync(process.argv[2], 'utf8'), process.execPath);
    console.log(require('child_process').execFileSync(process.execPath, ['-p', '6*7']).toString());
    for (let i = 0, left = 4, results = []; i < 4; i++)
        new Worker(__filename, { workerData: i }).on('message', m => { results[i] = m; })
            .on('exit', () => { if (--left === 0) console.log(results.join('\\n')); });
    try { null.x } catch (e) { console.log(e.message) }
}
"""


@program("main", "node")
def node(run):
    """Holes between its segments, threads, generated code, and itself again as a child."""
    run.write("script.js", NODE)
    gate = make_gate(run)
    with run.start([find_node() or pytest.skip("node is not installed"), run.folder / "script.js", gate]) as process:
        look_at_gate(run, process, gate)
        return said(process)


@program("main:libLLVM*:libclang-cpp*", "libLLVM-*.so.*", "libclang-cpp.so.*")
def clang(run):
    run.write("work.c", "#include <stdio.h>\nint f(int a) { int x = 0; while (a--) x = x * 31 + a; return printf(\"%d\", x); }\n")
    with run.paused([need("clang"), "-O2", "-S", run.folder / "work.c", "-o", "-"]) as process:
        return said(process)


# --- servers and tools ---


NGINX = """
daemon off;
worker_processes 2;
error_log stderr crit;
pid nginx.pid;
events { }
http {
    access_log off;
    client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;
    server {
        listen unix:%s/socket ssl;
        ssl_certificate certificate;
        ssl_certificate_key key;
        location / { root .; }
    }
}
"""


@program("main:libcrypto.so.3", "libcrypto.so.3")
def nginx(run):
    """nginx under load reads its configuration again and again; no answer is missing or wrong."""
    argv = [need("nginx"), "-p", run.folder, "-c", run.folder / "nginx.conf"]
    made = helpers.run([need("openssl"), "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-subj", "/CN=localhost",
                        "-keyout", run.folder / "key", "-out", run.folder / "certificate"])
    assert made.returncode == 0, made.stderr
    (run.folder / "key").chmod(0o644)
    run.write("nginx.conf", NGINX % run.folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    run.write("file", "0123456789abcdef" * 5000)
    with run.start(argv) as process:
        wait_for(process, (run.folder / "nginx.pid").exists, "its being ready")
        with concurrent.futures.ThreadPoolExecutor(4) as clients:
            answers = [clients.submit(ask, context, run.folder / "socket") for _ in range(2000)]
            while not all(answer.done() for answer in answers):
                process.send_signal(signal.SIGHUP)
                time.sleep(0.05)
        run.look(process)
        process.send_signal(signal.SIGQUIT)
        return said(process) + repr(collections.Counter(answer.result() for answer in answers))


def ask(context, path):
    """The answer of the server at PATH."""
    with socket.socket(socket.AF_UNIX) as plain:
        plain.settimeout(60)
        plain.connect(str(path))
        with context.wrap_socket(plain) as client:
            client.sendall(b"GET /file HTTP/1.0\r\n\r\n")
            answer = b"".join(iter(lambda: client.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0].decode(), hashlib.sha256(body).hexdigest()
