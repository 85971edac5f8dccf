# SPDX-License-Identifier: LGPL-2.1-or-later
# make         builds build/hugeld, hugeld-command and libhugeld.so there; they run from there
# make demo    measures large programs of this machine, plain and on huge pages; DEMO=mysql measures MySQL
# make check   each test with a few of its cases, or TESTS='FILE...' with all
# make check-all   each test with all cases; installs what few tests want, too (T_REAL=all TESTS=tests/real: the long forms)
# make check-fuzz  unit tests by sanitizers and valgrind; hostile files and texts, a minute for each reader, or FUZZ_SECONDS=600
# make check-vm    boots Debian's kernels in QEMU and runs tests inside; SAMPLE=1: what each alone can catch (tests/vm/table.toml)
# make check-... SAMPLE=1    every test with a few of its cases, as in CI
# make check-glibc    glibc's own tests with the patched linker; SUITE=rfc: the series for upstream and the tests that it adds;
#                  SUITE='trixie sid': builds and tests the linker there
# make ldso    builds build/ldso/ld.so from the distribution's glibc source (glibc-patches/README.md)
# make lint    compilers, analysers, formatting; LINT=all: the slow analyser reads all files, not only the changed ones
# make bench   measures, and is part of no test; BENCH=--quick takes some minutes (bench/README.md)
# make install, make uninstall    DESTDIR= and the folders of ./configure
# make dist    build/hugeld-VERSION.tar.gz, the same bytes from the same commit
# make clean

VERSION = 0.1
B = build
CONFIG = config.mk
PYTHON = /usr/bin/python3
MAKEFLAGS += --no-print-directory
# One short line for each file; V=1 shows the commands.
Q = $(if $(V),,@echo "  $@";)
# The arguments of check-glibc: own, rfc, and suites of Debian.
SUITE = own
# With SAMPLE=1, tests run as in CI: each, but with few of its cases (tests/conftest.py).
ifneq ($(SAMPLE),)
export T_SAMPLE = ci
endif
# The arguments of check and check-all: files, folders and options of pytest.
TESTS = tests bench
# A line for each folder (harness/progress.py), and the reasons of skipped tests at the end.
PYTEST = PYTHONPYCACHEPREFIX=$B/pycache $(PYTHON) -m pytest -q -p no:cacheprovider -o console_output_style=classic -rs -n 6 --dist loadgroup

# These install their packages before anything is configured, and build by calling make again.
first_install = check check-all check-fuzz check-vm check-glibc check-rfc ldso demo lint bench dist clean
ifneq ($(filter-out $(first_install),$(or $(MAKECMDGOALS),all)),)
include $(CONFIG)
endif

WARNINGS = -Wall -Wextra -Wshadow -Wstrict-prototypes
BASE = -std=gnu11 $(WARNINGS) -iquote . -iquote elf -MMD -MP $(CFLAGS)
# The core runs where no libc may be called, so the compiler must not add calls of its own.
CORE = $(BASE) -ffreestanding -fno-builtin -fno-stack-protector -fno-exceptions -fPIC -fvisibility=hidden $(CORE_FLAGS)
HOSTED = -D_GNU_SOURCE -DHL_VERSION='"$(VERSION)"' -DHL_LIBDIR='"$(libdir)/hugeld"' -DHL_BINDIR='"$(bindir)"' -DHL_MORE_REASONS='"command/lib/reason.def"' $(if $(LZMA),-DHL_HAS_LZMA)

core = $(patsubst %.c,$B/%.o,$(wildcard elf/*.c perf-maps/*.c))
preload = $(patsubst %.c,$B/%.o,$(wildcard loader/*.c))
command = $(patsubst %.c,$B/%.o,$(filter-out command/hugeld.c command/run/start.c,$(wildcard command/*.c command/*/*.c)))
# The part that starts programs, once more for the libc of START_CC.
start = $(patsubst %,$B/start/%.o,hugeld run/start run/request run/ldso lib/file-plan lib/launcher lib/section lib/process lib/objects lib/status \
    image/find lib/elf-file lib/program lib/remedy image/name lib/basics lib/reason) $(patsubst command/%.c,$B/start/%.o,$(wildcard command/inject/exec-*.c command/inject/tracee*.c) command/inject/instructions.c command/inject/pieces.c)
units = $(patsubst %,$B/%,$(wildcard data/*.service data/*.timer data/*.slice data/hugeld-generator data/user/*))
unit_tests = $(patsubst tests/unit/%.c,$B/tests/%,$(wildcard tests/unit/test-*.c))
manual = $(patsubst %,$B/doc/%,hugeld.1 hugeld.7 libhugeld.so.8)
filled = $(manual) $(patsubst %,$B/doc/%,hugeld.bash hugeld.zsh hugeld.fish)
fuzzers = $(patsubst tests/fuzz/%.c,$B/fuzz/%,$(filter-out %/world.c,$(wildcard tests/fuzz/*.c)))

all: $B/libhugeld.so $(if $(filter yes,$(COMMAND)),$B/hugeld $B/hugeld-command) $(if $(filter yes,$(CHILDREN_32)),$B/preload) $(filled) \
    $(units)
unit-tests: $(unit_tests) $(if $(filter yes,$(COMMAND)),$B/hugeld-glibc)
fuzzers: $(fuzzers)
core: $B/core.o

$(CONFIG): configure
	./configure $(CONFIGURE_ARGS)

# No symbol is looked up after the library is loaded (now), and its constructor runs before all others (initfirst).
# libc's crti.o is not marked for CET or BTI, and the linker sets only marks that all its input has: nostartfiles.
$B/libhugeld.so: $(core) $(preload)
	$(Q)$(CC) -shared -nostartfiles $(CFLAGS) $(LDFLAGS) -Wl,-soname,libhugeld.so \
	    -Wl,-z,now,-z,relro,-z,initfirst,-z,nodelete,-z,noexecstack,-z,defs \
	    -Wl,--hash-style=gnu -o $@ $^

# 32-bit children inherit LD_PRELOAD and complain of a 64-bit library.  preload/$$LIB/libhugeld.so, where each dynamic
# linker puts its own folder for $$LIB, leads them to an empty one.  musl knows no $$LIB and takes the folder with that name.
libs_32 = $(filter-out $(NATIVE_LIB),lib lib32 lib/i386-linux-gnu)
$B/preload: $B/libhugeld.so
	@rm -rf $@
	@mkdir -p $@/$(NATIVE_LIB)
	@ln -s $(abspath $<) $@/$(NATIVE_LIB)/libhugeld.so
	@ln -s $(NATIVE_LIB) '$@/$$LIB'
	$(Q)for lib in $(libs_32); do mkdir -p $@/$$lib && \
	    $(CC) -m32 $(CORE_FLAGS) -shared -nostdlib -Wl,-soname,libhugeld.so -x c -o $@/$$lib/libhugeld.so /dev/null || exit 1; \
	done

# Of these files only the called functions are linked; the rest may call functions that this libc does not have.
$B/hugeld: $(core) $(start)
	$(Q)$(START_CC) $(CFLAGS) $(LDFLAGS) $(START_LDFLAGS) -Wl,--gc-sections,-z,noseparate-code -o $@ $^

$B/hugeld-command: $(core) $(command)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -pthread -o $@ $^ $(LZMA) -ljansson -lm

# hugeld for tests that preload something into it.
$B/hugeld-glibc: $B/command/hugeld.o $B/command/run/start.o $(filter-out %/hugeld-command.o,$(command)) $(core)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -pthread -o $@ $^ $(LZMA) -ljansson -lm

# All of the core in one object, in which no symbol may be undefined (tools/lint).
$B/core.o: $(core)
	$(Q)$(CC) -r -nostdlib -o $@ $^

$B/elf/%.o: elf/%.c $(CONFIG)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CORE) -c -o $@ $<

$B/perf-maps/%.o: perf-maps/%.c $(CONFIG)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CORE) -c -o $@ $<

$(preload): $B/%.o: %.c $(CONFIG)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CORE) $(HOSTED) -c -o $@ $<

$B/command/lib/html.o: data/report.html
$B/command/%.o: command/%.c $(CONFIG)
	@mkdir -p $(@D)
	$(Q)$(CC) $(BASE) $(HOSTED) -c -o $@ $<

$B/start/%.o: command/%.c $(CONFIG)
	@mkdir -p $(@D)
	$(Q)$(START_CC) $(BASE) $(HOSTED) $(START_CPPFLAGS) -ffunction-sections -fdata-sections -c -o $@ $<

$B/tests/%: tests/unit/%.c $(core) $B/loader/jump.o $(CONFIG)
	@mkdir -p $(@D)
	$(Q)$(CC) $(BASE) $(HOSTED) $(LDFLAGS) -MF $@.d -MT $@ -o $@ $(filter %.c %.o,$^) -lcmocka -ljansson -lm $(LIBRARIES)

# The parts of the command that need no library.
$B/tests/test-tlb: $(patsubst %,$B/command/%.o,measure/tlb lib/basics lib/common)
$B/tests/test-dl-object: $B/loader/dl-object.o
$B/tests/test-read: $(patsubst %,$B/command/%.o,lib/reason)
$B/tests/test-sample: $(patsubst %,$B/command/%.o,measure/sample-read)
$B/tests/test-process: $(patsubst %,$B/command/%.o,lib/basics lib/local lib/elf-file lib/process lib/objects lib/status)
$B/tests/test-local: $(patsubst %,$B/command/%.o,lib/local lib/basics lib/elf-file lib/program lib/process lib/objects lib/status lib/subprocess image/eligible)
$B/tests/test-local: override LDFLAGS += -Wl,--wrap=fdopendir
# These need most of it.
$B/tests/test-bench $B/tests/test-survey: $(filter-out %/hugeld-command.o,$(command))
$B/tests/test-bench $B/tests/test-survey: LIBRARIES = -pthread $(LZMA)
$B/tests/test-apply: $(patsubst %,$B/command/%.o,keep/record lib/lock lib/basics lib/common)

$(units): $B/%: % $(CONFIG)
	@mkdir -p $(@D)
	$(Q)sed 's|@bindir@|$(bindir)|' $< > $@

$(filled): $B/doc/%: doc/% doc/fill elf/option.def elf/reason.def command/lib/reason.def $(CONFIG)
	@mkdir -p $(@D)
	$(Q)doc/fill '$(CC)' $< prefix=$(prefix) > $@.new && mv $@.new $@

# The installed files: MODE:FILE:WHERE, link:TARGET:WHERE.
data = $(prefix)/share
docdir = $(data)/doc/hugeld
unitdir = $(prefix)/lib/systemd/system
userunitdir = $(prefix)/lib/systemd/user
generatordir = $(unitdir)-generators
installed = 644:$B/libhugeld.so:$(libdir)/hugeld/libhugeld.so link:hugeld/libhugeld.so:$(libdir)/libhugeld.so \
    644:$B/doc/hugeld.7:$(mandir)/man7/hugeld.7 644:$B/doc/libhugeld.so.8:$(mandir)/man8/libhugeld.so.8 \
    link:libhugeld.so.8:$(mandir)/man8/ld-hugeld.so.8 \
    $(foreach file,README.md NEWS.md CONTRIBUTING.md $(wildcard doc/*.md) bench/RESULTS.md,644:$(file):$(docdir)/$(file))
ifeq ($(COMMAND),yes)
installed += 755:$B/hugeld:$(bindir)/hugeld 755:$B/hugeld-command:$(libdir)/hugeld/hugeld-command \
    644:$B/doc/hugeld.1:$(mandir)/man1/hugeld.1 \
    644:data/hugeld.schema.json:$(data)/hugeld/hugeld.schema.json \
    644:$B/doc/hugeld.bash:$(data)/bash-completion/completions/hugeld 644:$B/doc/hugeld.zsh:$(zshdir)/_hugeld \
    644:$B/doc/hugeld.fish:$(data)/fish/vendor_completions.d/hugeld.fish \
    $(foreach unit,hugeld.service hugeld.timer hugeld-boot.service hugeld.slice,644:$B/data/$(unit):$(unitdir)/$(unit)) \
    $(foreach unit,hugeld.service hugeld.timer,644:$B/data/user/$(unit):$(userunitdir)/$(unit)) \
    755:$B/data/hugeld-generator:$(generatordir)/hugeld-generator
endif
ifeq ($(CHILDREN_32),yes)
installed += link:$(libdir)/hugeld/libhugeld.so:$(libdir)/hugeld/preload/$(NATIVE_LIB)/libhugeld.so \
    link:$(NATIVE_LIB):$(libdir)/hugeld/preload/\$$LIB $(foreach lib,$(libs_32),644:$B/preload/$(lib)/libhugeld.so:$(libdir)/hugeld/preload/$(lib)/libhugeld.so)
endif
ifneq ($(wildcard $B/ldso/ld.so),)
installed += 755:$B/ldso/ld.so:$(libdir)/hugeld/ld.so
endif

install: all
	@doc/install '$(DESTDIR)' '$(libdir)/hugeld/folders' $(installed)

# hugeld's timer and all that it holds on the machine itself end first. What is enabled is the administrator's, and stays; so do
# images in other stores and copies in processes.
uninstall:
	@[ -n '$(DESTDIR)' ] || [ ! -e '$(unitdir)/hugeld.timer' ] || ! command -v systemctl > /dev/null || \
	    systemctl --quiet disable $$([ ! -d /run/systemd/system ] || echo --now) hugeld.timer hugeld-boot.service || true
	@[ -n '$(DESTDIR)' ] || [ ! -x '$(bindir)/hugeld' ] || '$(bindir)/hugeld' reset
	@doc/install -u '$(DESTDIR)' '$(libdir)/hugeld/folders' $(installed) 755::$(libdir)/hugeld/ld.so
	@for left in '$(DESTDIR)/etc/hugeld'; do [ ! -e "$$left" ] || echo "stays: $$left"; done

dist:
	@mkdir -p $B
	$(Q)git archive --format=tar --prefix=hugeld-$(VERSION)/ HEAD | gzip -9n > $B/hugeld-$(VERSION).tar.gz

# Everything once more for the fuzzers, with sanitizers and without system calls (tests/fuzz/world.h).
FUZZ = clang -g -O2 -fno-omit-frame-pointer -fno-sanitize-recover=all -fsanitize-ignorelist=tests/fuzz/ignore
wrapped = $(addprefix -Wl$(comma)--wrap=,open openat fdopen close readlinkat)
comma = ,

$(fuzzers): $B/fuzz/%: $B/fuzz/tests/fuzz/%.o $B/fuzz/parts.a
	$(Q)$(FUZZ) -fsanitize=fuzzer,address,undefined -o $@ $^ $(if $(filter %/process,$@),$(wrapped)) \
	    -pthread $(LZMA) -ljansson -lm

$B/fuzz/parts.a: $(patsubst $B/%,$B/fuzz/%,$(core) $(command)) $B/fuzz/tests/fuzz/world.o
	@rm -f $@
	$(Q)ar qc $@ $^

$B/fuzz/%.o: %.c tests/fuzz/ignore $(CONFIG)
	@mkdir -p $(@D)
	$(Q)$(FUZZ) $(BASE) $(HOSTED) -fsanitize=fuzzer-no-link,address,undefined -include tests/fuzz/world.h \
	    $(if $(filter command/%,$<),-Dmain=command_main,-ffreestanding -fno-builtin) -c -o $@ $<

demo:
	@tools/install-packages build demo $(DEMO:%=demo-%)
	@$(MAKE) -j2 all
	@tools/demo $(DEMO)

check:
	@tools/install-packages build check
	@echo "== make check: about 4 minutes on 2 processors, once packages are installed (make check-all: 25)"
	@$(MAKE) -j2 all unit-tests
	@$(if $(filter tests,$(TESTS)),T_SAMPLE=1) tools/with-pool 1024 -- $(PYTEST) $(TESTS)

# Another suite's linker is for the container of tests/programs.
check-all:
	@tools/install-packages build check ldso rfc suites real package programs
	@echo "== make check-all: about 25 minutes on 2 processors, once packages are installed"
	@$(MAKE) -j2 all unit-tests
	@glibc-patches/build -d $B/ldso
	@tests/ldso/suite trixie -- sh -euc 'tools/install-packages build ldso && make ldso'
	@tools/with-pool 1024 -- $(PYTEST) $(TESTS)

check-fuzz:
	@tools/install-packages build fuzz
	@tools/sanitizers
	@$(MAKE) -j2 fuzzers
	@tests/fuzz/run $(if $(FUZZ_SECONDS),--seconds $(FUZZ_SECONDS))

check-vm:
	@tools/install-packages build check vm ldso
	@$(MAKE) -j2 all $B/hugeld-glibc
	@glibc-patches/build -d $B/ldso
	@tests/vm/run $(if $(SAMPLE),--sample) $(VM)

ldso:
	@tools/install-packages build ldso
	@glibc-patches/build -d $B/ldso

suites = $(filter-out own rfc,$(SUITE))
check-glibc:
	@tools/install-packages build ldso $(filter rfc,$(SUITE)) $(if $(suites),suites)
	@$(if $(filter own,$(SUITE)),glibc-patches/build -d $B/ldso && tools/with-pool 256 -- glibc-patches/check $B/ldso/ld.so)
	@$(if $(filter rfc,$(SUITE)),glibc-patches/rfc/check)
	@$(if $(suites),tests/ldso/suite $(suites))

check-rfc:
	@$(MAKE) check-glibc SUITE=rfc

lint:
	@tools/install-packages build check lint
	@tools/lint $(LINT)

bench:
	@tools/install-packages build bench ldso
	@$(MAKE) -j2 all
	@glibc-patches/build -d $B/ldso
	@tools/with-pool 768 -- bench/run $(BENCH)

clean:
	rm -rf $B $(CONFIG)

.PHONY: all install uninstall dist unit-tests core demo check check-all check-fuzz check-vm check-glibc check-rfc ldso lint bench clean fuzzers
-include $(wildcard $B/*/*.d $B/*/*/*.d $B/fuzz/*/*/*.d)
