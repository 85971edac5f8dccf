# SPDX-License-Identifier: LGPL-2.1-or-later
# make         builds build/hugeld and build/libhugeld.so; they run from there
# make demo    shows it: the C++ compiler, plainly and on huge pages
# make check   runs every test          make check-unit   only those of the core
# make check-vm    boots Debian's kernels in QEMU and runs tests inside
# make ldso    builds build/ldso/ld.so from the distribution's glibc source (glibc-patches/README.md)
# make check-glibc    runs glibc's own tests with it
# make lint    compilers, analysers, formatting
# make bench   measures, and is part of no test
# make clean

VERSION = 0.1
B = build
CONFIG = config.mk
PYTHON = /usr/bin/python3
MAKEFLAGS += --no-print-directory
# One short line for each file; V=1 shows the commands.
Q = $(if $(V),,@echo "  $@";)

# These install what they need before anything is configured, and build by calling make again.
first_install = check check-unit check-vm check-glibc ldso demo lint bench clean
ifneq ($(filter-out $(first_install),$(or $(MAKECMDGOALS),all)),)
include $(CONFIG)
endif

WARNINGS = -Wall -Wextra -Wshadow -Wstrict-prototypes
BASE = -std=gnu11 $(WARNINGS) -iquote . -iquote elf -MMD -MP $(CFLAGS)
# The core runs where no libc may be called, so the compiler must not think of calls of its own.
CORE = $(BASE) -ffreestanding -fno-builtin -fno-stack-protector -fno-exceptions -fPIC -fvisibility=hidden $(CORE_FLAGS)
HOSTED = -D_GNU_SOURCE -DHL_VERSION='"$(VERSION)"' -DHL_LIBDIR='"$(libdir)"'

core = $(patsubst %.c,$B/%.o,$(wildcard elf/*.c perf-maps/*.c))
preload = $B/loader/preload.o $B/loader/later.o $B/loader/linked.o
command = $(filter-out $(preload),$(patsubst %.c,$B/%.o,$(wildcard loader/*.c)))
unit_tests = $(patsubst tests/unit/%.c,$B/tests/%,$(wildcard tests/unit/test-*.c))

all: $B/libhugeld.so $(if $(filter yes,$(COMMAND)),$B/hugeld) $(if $(filter yes,$(CHILDREN_32)),$B/preload)
unit-tests: $(unit_tests)
core: $B/core.o

$(CONFIG): configure
	./configure $(CONFIGURE_ARGS)

# No symbol is looked up after the library is loaded (now), and its constructor runs before all others (initfirst).
$B/libhugeld.so: $(core) $(preload)
	$(Q)$(CC) -shared $(CFLAGS) $(LDFLAGS) -Wl,-soname,libhugeld.so -Wl,-z,now,-z,relro,-z,initfirst,-z,nodelete,-z,noexecstack,-z,defs \
	    -Wl,--hash-style=gnu -o $@ $^

# 32-bit children inherit LD_PRELOAD and complain of a 64-bit library.  preload/$$LIB/libhugeld.so, where each dynamic
# linker puts its own folder for $$LIB, leads them to an empty one.
$B/preload: $B/libhugeld.so
	@rm -rf $@
	@mkdir -p $@/$(NATIVE_LIB)
	@ln -s $(abspath $<) $@/$(NATIVE_LIB)/libhugeld.so
	$(Q)for lib in lib lib32 lib/i386-linux-gnu; do \
	    if [ ! -e $@/$$lib/libhugeld.so ]; then mkdir -p $@/$$lib && \
	    $(CC) -m32 -shared -nostdlib -Wl,-soname,libhugeld.so -x c -o $@/$$lib/libhugeld.so /dev/null; fi || exit 1; \
	done

$B/hugeld: $(core) $(command)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ -ldw -lelf -liberty -ljansson -lm

# All of the core in one object, for looking at what it leaves undefined (tests/lint): nothing.
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

$B/loader/%.o: loader/%.c $(CONFIG)
	@mkdir -p $(@D)
	$(Q)$(CC) $(BASE) $(HOSTED) -c -o $@ $<

$B/tests/%: tests/unit/%.c $(core) $(CONFIG)
	@mkdir -p $(@D)
	$(Q)$(CC) $(BASE) $(HOSTED) $(LDFLAGS) -MF $@.d -MT $@ -o $@ $< $(core) -lcmocka

demo:
	@tests/install-packages build demo
	@$(MAKE) all
	@tests/demo

check:
	@tests/install-packages build check ldso $(if $(filter 1,$(STRICT)),real)
	@$(MAKE) all unit-tests
	@tests/with-pool 1024 -- $(PYTHON) -B -m pytest -q -p no:cacheprovider tests

check-unit:
	@tests/install-packages build check
	@$(MAKE) unit-tests
	@$(PYTHON) -B -m pytest -q -p no:cacheprovider tests/unit

check-vm:
	@tests/install-packages build check vm ldso
	@$(MAKE) all
	@glibc-patches/build -d $B/ldso
	@tests/vm/run $(VM)

ldso:
	@tests/install-packages build ldso
	@glibc-patches/build -d $B/ldso

check-glibc: ldso
	@tests/with-pool 256 -- glibc-patches/check $B/ldso/ld.so

lint:
	@tests/install-packages build check lint
	@tests/lint

bench:
	@tests/install-packages build bench ldso
	@$(MAKE) all
	@glibc-patches/build -d $B/ldso
	@tests/with-pool 256 -- bench/start
	@tests/with-pool 640 -- bench/arrays
	@tests/with-pool 256 -- bench/perf-map
	@bench/later
	@bench/ldso

clean:
	rm -rf $B $(CONFIG)

.PHONY: all unit-tests core demo check check-unit check-vm ldso check-glibc lint bench clean
-include $(wildcard $B/*/*.d)
