/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Uses systemd's own socket for root, which exists without a message bus.  libsystemd is loaded only here and in `hugeld
   service`. */
#include "command/image/slice.h"
#include "command/base/common.h"
#include "elf/line.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SLICE "hugeld.slice"
#define SOCKET "unix:path=/run/systemd/private"
#define CALL_TIMEOUT_MICROSECONDS UINT64_C(5000000)
#define MOVE_TIMEOUT_MS 2000.0

/* As in sd-bus(3); the pointers are to its own types. */
struct sd_bus_functions {
    int (*make)(void **bus);
    int (*set_address)(void *bus, const char *address);
    int (*set_timeout)(void *bus, uint64_t microseconds);
    int (*start)(void *bus);
    int (*call)(void *bus, const char *destination, const char *path, const char *interface,
                const char *member, void *error, void **reply, const char *types, ...);
    void *(*end)(void *bus);
};

static bool load_functions(struct sd_bus_functions *f) {
    void *library = dlopen("libsystemd.so.0", RTLD_NOW);
    if (library == NULL)
        return false;
    *(void **)&f->make = dlsym(library, "sd_bus_new");
    *(void **)&f->set_address = dlsym(library, "sd_bus_set_address");
    *(void **)&f->set_timeout = dlsym(library, "sd_bus_set_method_call_timeout");
    *(void **)&f->start = dlsym(library, "sd_bus_start");
    *(void **)&f->call = dlsym(library, "sd_bus_call_method");
    *(void **)&f->end = dlsym(library, "sd_bus_flush_close_unref");
    return f->make != NULL && f->set_address != NULL && f->set_timeout != NULL && f->start != NULL &&
           f->call != NULL && f->end != NULL;
}

static bool is_in_slice(void) {
    char text[8192];
    long bytes = hl_read_file("/proc/self/cgroup", text, sizeof text - 1);
    text[bytes > 0 ? bytes : 0] = '\0';
    return strstr(text, "/" SLICE "/") != NULL;
}

bool hl_has_slice(void) {
    /* As sd_booted(3) asks. */
    return geteuid() == 0 && faccessat(AT_FDCWD, "/run/systemd/system", F_OK, AT_SYMLINK_NOFOLLOW) == 0 &&
           !is_in_slice();
}

/* False: there will be no scope. */
static bool ask_for_scope(const struct sd_bus_functions *f, void *bus) {
    char *name = hl_xasprintf("hugeld-%d-%.0f.scope", getpid(), hl_now_ms());
    /* Process 0 is the caller, in any namespace. */
    int result =
        f->call(bus, "org.freedesktop.systemd1", "/org/freedesktop/systemd1",
                "org.freedesktop.systemd1.Manager", "StartTransientUnit", NULL, NULL, "ssa(sv)a(sa(sv))",
                name, "fail", 4, "Description", "s", "Images of programs for huge pages", "PIDs", "au", 1,
                (uint32_t)0, "Slice", "s", SLICE, "CollectMode", "s", "inactive-or-failed", 0);
    free(name);
    return result >= 0;
}

void hl_enter_slice(void) {
    struct sd_bus_functions f;
    void *bus = NULL;
    if (!hl_has_slice() || !load_functions(&f) || f.make(&bus) < 0)
        return;
    bool is_asked = f.set_address(bus, SOCKET) >= 0 && f.set_timeout(bus, CALL_TIMEOUT_MICROSECONDS) >= 0 &&
                    f.start(bus) >= 0 && ask_for_scope(&f, bus);
    double end = hl_now_ms() + MOVE_TIMEOUT_MS;
    while (is_asked && !is_in_slice() && hl_now_ms() < end)
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    f.end(bus);
}
