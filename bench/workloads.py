# SPDX-License-Identifier: LGPL-2.1-or-later
"""Shared by the groups: how much is measured, the programs that are run, and the store of their images."""

import contextlib
import os
import pathlib
import shutil
import subprocess

import alternatives
import pagecache
from helpers import ROOT
from installed import find_cc1plus, find_node
from measure import OUT, Variant, compile_c, copy_of, find_libhugetlbfs, hugeld, libhugetlbfs, plain_files
from stores import image_key, make_images, origins

TMPFS = OUT / "tmpfs"
STORE = OUT / "store"


class Plan:
    """The amount of work: rounds for runs of ms, tenths of a second, and seconds; the sizes of text, and its places."""

    def __init__(self, quick):
        self.quick = quick
        self.tiny, self.short, self.long = (201, 7, 3) if quick else (2001, 31, 7)
        self.texts = [(size, "disk") for size in ((2, 32, 128) if quick else (2, 8, 32, 128, 512))] + ([] if quick else [(128, "tmpfs")])


def pairs_for(plan, seconds):
    """The number of pairs: some 10 seconds', 30 where one takes long, or a second's."""
    if plan.quick:
        return max(12, min(30, int(1 / seconds)))
    return max(20, min(60, int(30 / seconds)), min(600, int(10 / seconds)))


def put_large(ways, files=None):
    """Puts the files of the plain one of WAYS into large folios of the page cache, as if they were read in order: plain results are
    of that state, unless a row says otherwise."""
    pagecache.put("large", *(plain_files(ways) if files is None else files))


def data_folder(name):
    folder = pathlib.Path("/var/tmp") / f"hugeld-bench-{os.getpid()}" / name
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    folder.parent.chmod(0o755)
    return folder


# --- generated programs ---


def calls(size, place="disk", aligned=False, pie=True):
    """calls.c with SIZE MiB of text, linked as any (or as no PIE), or at 2 MiB."""
    name = f"calls-{size}" + ("-2m" if aligned else "" if pie else "-nopie")
    program = OUT / name
    sources = [ROOT / "harness/calls.c", ROOT / "harness/text.S"]
    if not program.exists() or program.stat().st_mtime < max(s.stat().st_mtime for s in sources):
        compile_c(program, "-pthread", f"-DTEXT_MIB={size}", *(alternatives.ALIGNED if aligned else [] if pie else ["-no-pie"]),
                  *sources)
        pagecache.make(program, "large")
    return copy_of(program, "calls", TMPFS) if place == "tmpfs" else program


def calls_ways(size, place, words):
    """Every way to run the program of SIZE with WORDS."""
    stock, aligned = [calls(size, place), *words], [calls(size, place, True), *words]
    ways = [Variant("plain", stock), hugeld("hugetlb", stock, "backend=hugetlb"),
            hugeld("edges=small", stock, "backend=hugetlb,edges=small"), hugeld("thp", stock, "backend=thp"),
            Variant("linked", aligned), hugeld("linked-auto", aligned, base="linked"),
            hugeld("linked-hugetlb", aligned, "backend=hugetlb", base="linked")]
    if find_libhugetlbfs():
        ways.append(libhugetlbfs("linked-libhugetlbfs", aligned, base="linked"))
    return ways


def where(ways):
    """The kernel's figures of each, after all of the text was called."""
    found = {}
    for way in ways:
        result = subprocess.run([way.argv[0], "0", "where"], env=way.env, capture_output=True, text=True, check=True)
        found[way.name] = result.stdout.rpartition("of ")[0].rpartition("of ")[0].strip().replace(":", "")
    return found


def write_nothing():
    (OUT / "nothing.c").write_text("int main(void) { return 0; }\n")
    return OUT / "nothing.c"


def make_empty_library():
    """To be preloaded: its time is that of any preloaded library."""
    return compile_c(OUT / "empty.so", "-shared", "-nostdlib", "-x", "c", "/dev/null")


def small_libraries(n):
    """N copies of one DSO."""
    folder, source = OUT / "dsos", OUT / "one.c"
    folder.mkdir(exist_ok=True)
    source.write_text("int one(void) { return 1; }\n")
    one = compile_c(OUT / "libone.so", "-shared", "-fPIC", source)
    for i in range(n):
        if not (folder / f"libf{i}.so").exists():
            shutil.copy(one, folder / f"libf{i}.so")
    return [folder / f"libf{i}.so" for i in range(n)]


# --- images: one copy for all processes ---


def share(*files):
    """Makes images of FILES in a store of the bench's own, a tmpfs that goes with its mount namespace (bench/run), and keeps those that
    are there: without a way they could be put in place instead."""
    result = make_images(STORE, *origins(STORE, "/"), *files, way="image", any_disk=False)
    if result.returncode != 0:
        raise RuntimeError(f"hugeld apply: {result.stderr.strip()}")


def image_of(file):
    """The path of FILE's image."""
    return (STORE / image_key(file) / ".image").resolve(True)


def mapped(name, argv, objects=None):
    return hugeld(name, argv, f"backend=image,store={STORE}", objects)


@contextlib.contextmanager
def namespace_with(program=None):
    """The words that run a command in a mount namespace of its own, where PROGRAM is its image."""
    script = 'if [ -n "$1" ]; then mount --bind "$1" "$2"; fi; echo ready; read -r _'
    words = [str(image_of(program)), program] if program else ["", ""]
    process = subprocess.Popen(["unshare", "--mount", "sh", "-ec", script, "sh", *words], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE)
    try:
        if process.stdout.readline() != b"ready\n":
            raise RuntimeError("image: no mount namespace")
        yield [shutil.which("nsenter"), f"--mount=/proc/{process.pid}/ns/mnt"]
    finally:
        process.stdin.close()
        process.wait(timeout=60)
        process.stdout.close()


# --- programs that all users have ---


def find_rustc():
    rustc = shutil.which("rustc")
    if not rustc:
        return None
    root = subprocess.run([rustc, "--print", "sysroot"], capture_output=True, text=True).stdout.strip()
    return os.path.join(root, "bin/rustc") if root else None


def find_jvm():
    java = shutil.which("java")
    found = java and sorted(pathlib.Path(os.path.realpath(java)).parents[1].glob("**/libjvm.so"))
    return (os.path.realpath(java), str(found[0])) if found else None


def libraries_of(program, *patterns):
    """Those libraries that PROGRAM is linked with whose names begin with one of PATTERNS."""
    lines = subprocess.run(["ldd", program], capture_output=True, text=True).stdout.splitlines()
    paths = [line.split("=>")[1].split()[0] for line in lines if "=>" in line and "/" in line]
    return [os.path.realpath(path) for path in paths if os.path.basename(path).startswith(patterns)]


def write_sources():
    """A C++ file, preprocessed, a C file and a Rust file."""
    cxx, rust = OUT / "source.cc", OUT / "source.rs"
    cxx.write_text("#include <algorithm>\n#include <map>\n#include <string>\n#include <vector>\n"
                   "int main(int n, char **v) { std::map<std::string, std::vector<int>> m;\n"
                   "while (n-- > 0) m[v[n]].push_back(n);\n"
                   "for (auto &i : m) std::sort(i.second.begin(), i.second.end()); return m.size(); }\n")
    rust.write_text("use std::collections::BTreeMap;\nfn main() { let mut m: BTreeMap<String, Vec<u64>> = BTreeMap::new();\n"
                    "for i in 0..100u64 { m.entry(format!(\"{}\", i % 7)).or_default().push(i * i); }\n"
                    "for (k, v) in &m { println!(\"{} {}\", k, v.iter().sum::<u64>()); } }\n")
    subprocess.run(["g++", "-E", cxx, "-o", OUT / "source.ii"], check=True)
    return OUT / "source.ii", rust


def write_short_source():
    """A C++ file, preprocessed, for some tenths of a second."""
    source = OUT / "short.ii"
    subprocess.run(["g++", "-E", "-x", "c++", "-o", source, "-"], input=b"#include <string>\n#include <map>\n", check=True)
    return source


JAVASCRIPT = """
const words = []; for (let i = 0; i < 60000; i++) words.push("w" + (i * 7919 % 10007).toString(36));
let s = 0; for (let k = 0; k < 6; k++) { const o = JSON.parse(JSON.stringify(words.map((w, i) => ({w, i}))));
o.sort((a, b) => a.w < b.w ? -1 : 1); s += o.filter(x => /^w[a-m].*\\d$/.test(x.w)).length; } console.log(s);
"""
PYTHON = """
import ast, json, re
source = open(ast.__file__).read()
for i in range(6):
    tree = ast.dump(ast.parse(source)); names = re.findall(r"id='(\\w+)'", tree)
    text = json.dumps({str(i): n for i, n in enumerate(names)}); json.loads(text); sorted(names)
"""
PERL = """
my %h; for my $i (1 .. 250000) { my $w = join("-", map { $_ * $i % 97 } 1 .. 4); $h{$w}++ if $w =~ /^(\\d+)-\\d*[13579]/; }
print scalar(keys %h), "\n";
"""


def programs():
    """(name, argv, LD_HUGEPAGES, files that get an image); rounds of tenths of a second."""
    source, rust = write_sources()
    cc1plus = os.path.realpath(find_cc1plus())
    yield "cc1plus", [cc1plus, "-quiet", "-O1", source, "-o", "/dev/null"], None, [cc1plus]
    if shutil.which("clang"):
        clang = os.path.realpath(shutil.which("clang"))
        yield ("clang", [clang, "-O1", "-c", OUT / "source.cc", "-o", "/dev/null"], "main:libLLVM*:libclang*",
               libraries_of(clang, "libLLVM", "libclang") or [clang])
    if find_rustc():
        rustc = find_rustc()
        yield ("rustc", [rustc, "-O", "--emit=obj", "-o", OUT / "@.o", rust], "main:librustc_driver*:libLLVM*",
               libraries_of(rustc, "librustc_driver", "libLLVM"))
    if find_node():
        node = os.path.realpath(find_node())
        yield "node", [node, "-e", JAVASCRIPT], None, [node]
    for name, words in ("python3", ["-S", "-c", PYTHON]), ("perl", ["-e", PERL]):
        program = os.path.realpath(shutil.which(name, path="/usr/bin"))
        yield name, [program, *words], None, [program]


def short_programs():
    """(name, what, argv, LD_HUGEPAGES, files that get an image, whether the program itself is executed from one, seconds)."""
    two_lines, small = OUT / "two-lines.cc", OUT / "small.cc"
    two_lines.write_text("int f(int x) { return x; }\nint main() { return f(3); }\n")
    small.write_text("#include <string>\nint main(int n, char **v) { return std::string(v[0]).size() + n; }\n")
    function = OUT / "function.rs"
    function.write_text("pub fn f(x: u32) -> u32 { x + 1 }\n")
    if find_cc1plus():
        cc1plus = os.path.realpath(find_cc1plus())
        yield "cc1plus", "of two lines", [cc1plus, "-quiet", "-O2", two_lines, "-o", "/dev/null"], None, [cc1plus], True, 0.012
    if find_node():
        node = os.path.realpath(find_node())
        yield "node", "`-e 0`", [node, "-e", "0"], None, [node], True, 0.04
    if shutil.which("clang"):
        clang = os.path.realpath(shutil.which("clang"))
        files = libraries_of(clang, "libLLVM", "libclang")
        yield ("clang", "`-c` of a small file", [clang, "-O2", "-c", small, "-o", "/dev/null"], "main:libLLVM*:libclang*",
               files or [clang], False, 0.2)
    if find_jvm():
        java, jvm = find_jvm()
        yield "java", "`-version`", [java, "-version"], "main:libjvm.so", [jvm], False, 0.06
    if find_rustc():
        rustc = find_rustc()
        files = libraries_of(rustc, "librustc_driver", "libLLVM")
        yield ("rustc", "of one function", [rustc, "--crate-type=lib", "--emit=obj", "-o", OUT / "@.o", function],
               "main:librustc_driver*:libLLVM*", files, False, 0.06)
    if shutil.which("git"):
        git = os.path.realpath(shutil.which("git"))
        yield "git", "`--version`", [git, "--version"], None, [git], True, 0.002


def with_own_output(ways):
    """Ways that run at the same time must not write one file: @ in a word becomes the way's name."""
    for way in ways:
        way.argv = [word.replace("@", way.name) for word in way.argv]
    return ways
