# SPDX-License-Identifier: LGPL-2.1-or-later
"""Other projects that put text onto huge pages, each as its users would use it: where it is found, and how a program has to be
changed before it works. Nothing here stands in for another's work: if one is not installed, or refuses a program, the result
says so.

libhugetlbfs and glibc's tunable want a program that was linked at 2 MiB; BOLT wants relocations and a profile.  iodlr's preload
library takes any program; it is no package of Debian's, so HUGELD_IODLR names it (bench/README.md)."""

import glob
import os
import pathlib
import shutil
import subprocess

import pagecache
from helpers import ROOT
from installed import cache_folder
from measure import OUT, Variant, compile_c, copy_of, environment, find_libhugetlbfs, libhugetlbfs

ALIGNED = ["-no-pie", "-Wl,-z,max-page-size=0x200000,-z,common-page-size=0x200000"]
CACHE = cache_folder()
GLIBC = "2.44"
RELINKED, REWRITTEN = "relinked", "relinked, relocations, a profile"


# --- installed alternatives ---


def find_iodlr():
    library = pathlib.Path(os.environ.get("HUGELD_IODLR", CACHE / "iodlr/liblppreload.so"))
    return library if library.exists() else None


def find_bolt():
    """The program itself, since it looks for its runtime beside itself."""
    found = sorted(glob.glob("/usr/lib/llvm-*/bin/llvm-bolt"), key=lambda path: int(path.split("-")[1].split("/")[0]))
    found = [path for path in found if os.path.exists(os.path.dirname(path) + "/../lib/libbolt_rt_hugify.a")]
    return found[-1] if found else None


def find_llvm_config():
    found = [path for path in glob.glob("/usr/lib/llvm-*/bin/llvm-config")
             if glob.glob(os.path.dirname(path) + "/../lib/libLLVMX86CodeGen.a")]
    return sorted(found)[-1] if found else None


def make_glibc():
    """The folder with the ld.so and libraries of a glibc without our series, as glibc-patches/rfc/check built it; or None."""
    objects = CACHE / f"glibc/{GLIBC}-upstream/plain/objects"
    files = [objects / name for name in ("elf/ld.so", "libc.so.6", "math/libm.so.6")]
    if not all(file.exists() for file in files):
        return None
    folder = OUT / f"glibc-{GLIBC}"
    folder.mkdir(exist_ok=True)
    for file in files:
        shutil.copy(file, folder)
    return folder


THP = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")


def missing_in_kernel():
    """A sentence, if the kernel lacks the transparent huge pages that three of them need."""
    if THP.exists() and "[never]" not in THP.read_text():
        return ""
    what = "Transparent huge pages are switched off" if THP.exists() else "This kernel has no transparent huge pages"
    return f"{what}: iodlr, glibc-thp and bolt-hugify can do nothing here."


# --- changes to the program ---


def is_older(file, *sources):
    return not file.exists() or file.stat().st_mtime < max(os.stat(source).st_mtime for source in sources)


def write_module():
    """Code for compile-ir, some tenths of a second's work."""
    source, module = OUT / "module.cc", OUT / "module.bc"
    source.write_text("#include <algorithm>\n#include <string>\n#include <vector>\nint main(int n, char **v) {\n"
                      "std::vector<std::string> m(v, v + n); std::sort(m.begin(), m.end()); return m.size(); }\n")
    subprocess.run(["clang", "-O2", "-Xclang", "-disable-llvm-passes", "-emit-llvm", "-c", source, "-o", module], check=True)
    return module


def link_compiler(name, *flags):
    """bench/compile-ir.c with all of LLVM in it; None where its static libraries are not."""
    config, output = find_llvm_config(), OUT / name
    if not config:
        return None
    source = ROOT / "bench/compile-ir.c"
    if is_older(output, source):
        words = ["--link-static", "--includedir", "--ldflags", "--libs", "native", "irreader", "passes", "--system-libs"]
        folder, *libraries = subprocess.run([config, *words], capture_output=True, text=True, check=True).stdout.split()
        compile_c(output, f"-I{folder}", source, *(flags or ["-no-pie"]), *libraries, "-lstdc++")
        pagecache.make(output, "large")
    return output


def rewrite(program, words):
    """BOLT's way: PROGRAM, linked with relocations, is run once with WORDS to find its hot text, and laid out anew, without
    huge pages and with them.  The machine may have no branch records, so the profile is an instrumented program's."""
    bolt, profile, instrumented = find_bolt(), OUT / f"{program.name}.fdata", OUT / f"{program.name}-instrumented"
    outputs = {"bolt": OUT / f"{program.name}-bolt", "bolt-hugify": OUT / f"{program.name}-hugify"}

    def run(*arguments):
        subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    if any(is_older(output, program) for output in outputs.values()):
        run(bolt, program, "-o", instrumented, "--instrument", f"--instrumentation-file={profile}")
        run(instrumented, *words)
        for name, output in outputs.items():
            run(bolt, program, "-o", output, f"--data={profile}", "--reorder-blocks=ext-tsp", "--reorder-functions=cdsort",
                "--split-functions", "--split-all-cold", *(["--hugify"] if name == "bolt-hugify" else []))
            pagecache.make(output, "large")
        instrumented.unlink()
    return outputs


# --- the ways ---


def glibc_thp(name, argv):
    folder = make_glibc()
    return Variant(name, [folder / "ld.so", "--library-path", folder, *argv], GLIBC_TUNABLES="glibc.elf.thp=1")


def needing(needs, way):
    way.needs = needs
    return way


def ways_of_others(stock, words, linked=None, rewritten=None):
    """(ways, {name: why there is none}) of the program STOCK with WORDS, of which LINKED was linked at 2 MiB and REWRITTEN are
    BOLT's; where there is none, each one's answer about STOCK is the reason."""
    ways, absent = [], {}
    if find_iodlr():
        ways.append(Variant("iodlr", [stock, *words], LD_PRELOAD=find_iodlr()))
    else:
        absent["iodlr"] = "not measured: no package of Debian has its preload library, and HUGELD_IODLR names none"
    if linked:
        ways.append(needing(RELINKED, Variant("linked", [linked, *words])))
    else:
        absent["linked"] = "cannot be done with the stock binary: what it was linked from is needed"
    if not find_libhugetlbfs():
        absent["libhugetlbfs"] = "not measured: it is not installed, or this is not root"
    elif linked:
        ways.append(needing(RELINKED, libhugetlbfs("libhugetlbfs", [linked, *words])))
    else:
        absent["libhugetlbfs"] = said_by_libhugetlbfs(find_libhugetlbfs(), [stock, *words])
    ways += thp_ways(stock, words, linked, absent)
    if rewritten:
        return ways + [needing(REWRITTEN, Variant(name, [file, *words])) for name, file in rewritten.items()], absent
    if not find_bolt():
        absent["bolt-hugify"] = "not measured: no llvm-bolt with its runtime library is installed"
        return ways, absent
    rewritten, error = rewrite_stock(stock)
    if error:
        absent["bolt-hugify"] = f"cannot rewrite the stock binary: \"{error}\""
        return ways, absent
    return [*ways, Variant("bolt-hugify", [rewritten, *words])], absent


def thp_ways(stock, words, linked, absent):
    """glibc's tunable, on a tmpfs of huge pages and on the disk, where the program is read anew once the kernel was advised."""
    if not make_glibc():
        absent["glibc-thp"] = f"not measured: there is no glibc {GLIBC}; make check-glibc SUITE=rfc builds it"
        return []
    if not linked:
        return [glibc_thp("glibc-thp", [stock, *words])]
    cold = copy_of(linked, "glibc-disk")
    disk = glibc_thp("glibc-thp-disk", [cold, *words])
    pagecache.evict(cold)
    subprocess.run(disk.argv, env=disk.env, stdout=subprocess.DEVNULL, check=True)
    return [needing(RELINKED, glibc_thp("glibc-thp", [copy_of(linked, "glibc", OUT / "huge-tmpfs"), *words])), needing(RELINKED, disk)]


def said_by_libhugetlbfs(library, argv, inside=()):
    """Why it does nothing with the program ARGV as it is, in its own words.  INSIDE: what enters a chroot."""
    preloaded = ["env", f"LD_PRELOAD={library}", "HUGETLB_ELFMAP=R", "HUGETLB_VERBOSE=3", *argv]
    said = subprocess.run([*inside, *preloaded], env=environment(), capture_output=True, text=True).stderr
    lines = [line.rpartition(": ")[2] for line in said.splitlines() if "segments" in line]
    return f"does nothing with the stock binary: \"{(lines or ['nothing'])[0]}\""


def rewrite_stock(program):
    """(BOLT's output for PROGRAM without relocations or profile, None), or (None, its error)."""
    output = OUT / f"{program.name}-stock-hugify"
    result = subprocess.run([find_bolt(), program, "--hugify", "-o", output], capture_output=True, text=True)
    if result.returncode == 0:
        return output, None
    said = (result.stdout + result.stderr).splitlines()
    return None, next((line.partition("ERROR: ")[2] for line in said if "ERROR: " in line), f"status {result.returncode}")
