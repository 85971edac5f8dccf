# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs that are large enough for huge pages, generated and linked in every way that matters.

Text is an assembler loop: N functions of 1 KiB that mix a number each; read-only and writable data are numbers too.
A program calls all of them through computed addresses and prints the checksum, so a byte that got lost shows.
"""

import pathlib
import shutil
import struct
import subprocess

import pytest

from objects import PF_X, PT_LOAD, read_headers
from pagecache import on_small_pages

HERE = pathlib.Path(__file__).resolve().parent

TEXT = """
    .macro functions section, name, count
    .section \\section, "ax", @progbits
    .p2align 12
    .globl \\name
    .type \\name, @function
\\name:
    .set i, 0
    .rept \\count
    .cfi_startproc
    leaq 12345+i*7(%rdi,%rdi,2), %rax
    ret
    .cfi_endproc
    .p2align 10, 0xcc
    .set i, i+1
    .endr
    .size \\name, . - \\name
    .endm

    # calls its argument from the middle of the large text, for unwinding through it
    .macro trampoline section, name
    .section \\section, "ax", @progbits
    .globl \\name
    .type \\name, @function
\\name:
    .cfi_startproc
    subq $8, %rsp
    .cfi_adjust_cfa_offset 8
    call *%rdi
    addq $8, %rsp
    .cfi_adjust_cfa_offset -8
    ret
    .cfi_endproc
    .size \\name, . - \\name
    .endm

    functions big_a, text_a, 4096+128
    trampoline big_b, trampoline
    functions big_c, text_c, 4096+128

    .section .rodata.big, "a", @progbits
    .globl rodata_big
    .p2align 12
rodata_big:
    .set i, 0
    .rept 640*1024
    .quad i*0x9e3779b97f4a7c15
    .set i, i+1
    .endr

    .data
    .globl data_big
    .p2align 12
data_big:
    .set i, 0
    .rept DATA_WORDS
    .quad i*0x9e3779b1
    .set i, i+1
    .endr
    .section .note.GNU-stack,"",@progbits
"""

BIG = r"""
#include <stdint.h>
#define HIDDEN __attribute__((visibility("hidden")))
extern const char text_a[] HIDDEN, text_c[] HIDDEN;
extern const uint64_t rodata_big[] HIDDEN;
extern uint64_t data_big[] HIDDEN;
void trampoline(void (*call)(void)) HIDDEN;
uint64_t bss_big[BSS_WORDS] HIDDEN;

static uint64_t call_all(const char *text, uint64_t x) {
    for (int i = 0; i < 4096; i++)
        x = ((uint64_t(*)(uint64_t))(text + 1024 * i))(x);
    return x;
}

uint64_t big_sum(uint64_t x) {
    x = call_all(text_c, call_all(text_a, x));
    for (int i = 0; i < 640 * 1024; i++)
        x = x * 31 + rodata_big[i];
    for (int i = 0; i < DATA_WORDS; i++) {
        x = x * 31 + data_big[i];
        data_big[i] = x;
    }
    for (int i = 0; i < BSS_WORDS; i += 512)
        x += bss_big[i]++ + i;
    return x;
}

void big_call(void (*call)(void)) { trampoline(call); }
const void *big_address(void) { return text_c + 1024; }
"""

# The work of a user's program: constructors and main call through the PLT, unwinding and introspection work.
MAIN = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

uint64_t big_sum(uint64_t x);
void big_call(void (*call)(void));
const void *big_address(void);

static volatile sig_atomic_t signals;
static unsigned constructed;
__attribute__((constructor)) static void construct(void) { constructed = strlen(getenv("PATH") ? "ab" : "abc"); }

static int count_object(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    int loads = 0;
    for (int i = 0; i < info->dlpi_phnum; i++)
        loads += info->dlpi_phdr[i].p_type == PT_LOAD;
    if (strstr(info->dlpi_name, "libbig") || info->dlpi_name[0] == 0)
        *(int *)data += loads;
    return 0;
}

static void handle(int signal) { (void)signal; signals++; }
static void send(void) { raise(SIGUSR1); }

static int frames;
static void trace(void) {
    void *at[64];
    frames = backtrace(at, 64);
}

/* The heap grows from the end of .bss. */
static const char *use_break(void) {
    char *begin = sbrk(0), *more = sbrk(5 << 20);
    if (more == (void *)-1)
        return "limited";
    memset(more, 2, 5 << 20);
    if (more != begin || more[(5 << 20) - 1] != 2 || sbrk(-(5 << 20)) == (void *)-1)
        return "broken";
    return sbrk(0) == begin ? "grows and shrinks" : "moves";
}

static void ask_dladdr(void) {
    Dl_info info;
    int found = dladdr(big_address(), &info);
    printf("dladdr %d %s\n", found, found ? strrchr(info.dli_fname, '/') + 1 : "");
}

int main(int argc, char **argv) {
    uint64_t x = big_sum(1);
    int loads = 0, status = 0;
    printf("sum %016lx, constructed %u\n", (unsigned long)x, constructed);
    dl_iterate_phdr(count_object, &loads);
    printf("loads %d\n", loads);
    ask_dladdr();
    big_call(trace);
    printf("frames %d\n", frames > 3);
    signal(SIGUSR1, handle);
    big_call(send);
    printf("signals %d\n", (int)signals);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        printf("child %016lx\n", (unsigned long)big_sum(x));
        fflush(stdout);
        _exit(7);
    }
    waitpid(child, &status, 0);
    x = big_sum(x);
    printf("status %d, sum %016lx\n", WEXITSTATUS(status), (unsigned long)x);
    char *heap = malloc(3 << 20);
    memset(heap, 1, 3 << 20);
    printf("heap %d, args %d %s\n", heap[12345], argc, argc > 1 ? argv[1] : "");
    free(heap);
    printf("break %s\n", use_break());
    if (argc > 2) { /* run another program, or wait to be looked at */
        fflush(stdout);
        if (strcmp(argv[1], "exec") == 0)
            execv(argv[2], argv + 2);
        pause();
    }
    return 3;
}
"""

EXCEPTIONS = r"""
#include <cstdio>
#include <stdexcept>
#include <string>
extern "C" void big_call(void (*call)());
static int depth;
static void thrower() {
    if (++depth < 5)
        big_call(thrower);
    throw std::runtime_error("thrown " + std::to_string(depth));
}
int main() {
    for (int i = 0; i < 100; i++) {
        depth = 0;
        try {
            big_call(thrower);
        } catch (const std::exception &e) {
            if (i == 99)
                std::printf("caught: %s\n", e.what());
        }
    }
}
"""

TINY = '#include <stdio.h>\nint main(void) { puts("tiny"); return 4; }\n'

# Added to the linker's own script, behind .fini.  HOLES is node's shape: several text segments with holes of some pages
# between them, inside huge pages; CHASM has a hole of many huge pages, which begins and ends inside one.
HOLES = """
    . = ALIGN(0x1000) + 0x3000; big_a : { *(big_a) }
    . = ALIGN(0x1000) + 0x3000; big_b : { *(big_b) }
    . = ALIGN(0x1000) + 0x3000; big_c : { *(big_c) }
"""
CHASM = """
    big_a : { *(big_a) }
    . = ALIGN(0x1000) + 0x3123000; big_c : { *(big_b) *(big_c) }
"""

# How they are linked: options that change where segments lie, or their kinds.
EXECUTABLES = {
    "pie": ["-pie"],
    "nopie": ["-no-pie"],
    "lazy": ["-no-pie", "-Wl,-z,lazy"],
    "now": ["-pie", "-Wl,-z,now"],
    "aligned": ["-no-pie", "-Wl,-z,max-page-size=0x200000"],
    "aligned-pie": ["-pie", "-Wl,-z,max-page-size=0x200000"],
    "huge": ["-no-pie", "-Wl,-z,common-page-size=0x200000,-z,max-page-size=0x200000"],
    "noseparate": ["-pie", "-Wl,-z,noseparate-code"],
    "norosegment": ["-pie", "-fuse-ld=lld", "-Wl,--no-rosegment"],
    "lld": ["-pie", "-fuse-ld=lld"],
    "six": ["-no-pie", HOLES],
    "hole": ["-no-pie", CHASM],
    "hole-pie": ["-pie", CHASM],
}
LIBRARIES = {
    "dso": [],
    "dso-aligned": ["-Wl,-z,max-page-size=0x200000"],
    "dso-norosegment": ["-fuse-ld=lld", "-Wl,--no-rosegment"],
    "dso-noseparate": ["-Wl,-z,noseparate-code"],
    "dso-six": [HOLES],
    "dso-hole": [CHASM],
    "dso-textrel": ["-Wl,-z,notext"],
}


class Builder:
    """Builds each program once per test run."""

    def __init__(self, folder):
        self.folder = folder
        self.built = {}
        folder.chmod(0o755)

    def write(self, name, text):
        path = self.folder / name
        if not path.exists():
            path.write_text(text)
        return path

    def compile(self, output, *arguments, compiler="gcc"):
        if any("lld" in str(a) for a in arguments) and not shutil.which("ld.lld"):
            pytest.skip("ld.lld is not installed")
        command = [compiler, "-O1", "-g0", "-o", output, *arguments]
        result = subprocess.run(command, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        on_small_pages(output)
        return output

    def linker_script(self, name, extra, *mode):
        """The default linker script for MODE with EXTRA inside."""
        result = subprocess.run(["ld", "-z", "separate-code", *mode, "--verbose"], capture_output=True, text=True)
        script = result.stdout.split("=" * 50)[1]
        place = "  PROVIDE (__etext = .);"
        assert place in script
        path = self.folder / name
        path.write_text(script.replace(place, extra + place))
        return path

    def link_arguments(self, name, arguments, *mode):
        """ARGUMENTS with the placeholder of a linker script replaced by one."""
        return [f"-Wl,-T,{self.linker_script(f'{name}.ld', a, *mode)}" if a in (HOLES, CHASM) else a for a in arguments]

    def object(self, words=8):
        """The large text and data, with WORDS numbers of writable data, as objects to link; .bss is 8 KiB, or 5 MiB if
        there is more data than usual."""
        stem = f"big-{words}"
        if stem not in self.built:
            text = self.write(f"{stem}.s", TEXT.replace("DATA_WORDS", str(words)))
            bss_words = 1024 if words == 8 else 5 * 2**17
            code = self.write(f"{stem}.c", BIG.replace("DATA_WORDS", str(words)).replace("BSS_WORDS", str(bss_words)))
            big, calls = self.folder / f"{stem}.s.o", self.folder / f"{stem}.c.o"
            self.compile(big, "-c", text)
            self.compile(calls, "-c", "-fPIC", code)
            self.built[stem] = [big, calls]
        return self.built[stem]

    def once(self, name, make):
        if name not in self.built:
            folder = self.folder / name
            folder.mkdir(exist_ok=True)
            self.built[name] = make(folder)
        return self.built[name]

    def executable(self, variant, words=8):
        """An executable with everything inside; its base name is app-VARIANT."""
        name = f"app-{variant}" + (f"-{words}" if words != 8 else "")

        def make(folder):
            main = self.write("main.c", MAIN)
            arguments = EXECUTABLES[variant]
            arguments = self.link_arguments(name, arguments, *(["-pie"] if "-pie" in arguments else []))
            return self.compile(folder / name, main, "-fPIE", "-rdynamic", *self.object(words), *arguments)

        return self.once(name, make)

    def with_library(self, variant, count=1):
        """(executable, [libraries]): a small program whose large text is in libbig.so (and libbig2.so, ...)."""

        def make(folder):
            arguments = self.link_arguments(variant, LIBRARIES[variant], "-shared")
            if variant == "dso-textrel":
                arguments.append(self.write("textrel.s", ".text\nhere: .quad here\n.section .note.GNU-stack,\"\"\n"))
            libraries = []
            for i in range(1, count + 1):
                library = folder / f"libbig{i if i > 1 else ''}.so"
                self.compile(library, "-shared", f"-Wl,-soname,{library.name}.1", *self.object(), *arguments)
                (folder / f"{library.name}.1").symlink_to(library.name)
                libraries.append(library)
            main = self.write("main.c", MAIN)
            app = self.compile(folder / f"small-{variant}", main, "-Wl,--no-as-needed", *libraries,
                               "-Wl,-rpath,$ORIGIN")
            return app, libraries

        return self.once(f"{variant}-{count}", make)

    def exceptions(self):
        def make(folder):
            return self.compile(folder / "exceptions", "-x", "c++", self.write("exceptions.cc", EXCEPTIONS), "-x",
                                "none", *self.object(), "-lstdc++")

        return self.once("exceptions", make)

    def tiny(self, *arguments):
        name = "tiny" + "".join(arguments)
        return self.once(name, lambda folder: self.compile(folder / "tiny", self.write("tiny.c", TINY), *arguments))

    def poke(self):
        source = HERE.parent / "surroundings" / "poke.c"
        return self.once("poke", lambda folder: self.compile(folder / "poke", "-Wall", source))

    def patched(self, path, name, flags):
        """A copy of PATH whose PT_LOADs with PF_X have FLAGS instead."""
        copy = self.folder / name
        shutil.copy(path, copy)
        with open(copy, "r+b") as file:
            for header in read_headers(path):
                if header.type == PT_LOAD and header.flags & PF_X:
                    file.seek(header.position + 4)
                    file.write(struct.pack("<I", flags))
        return pathlib.Path(copy)
