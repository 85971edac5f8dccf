/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* For libraries that are preloaded into hugeld attach: calls hooks before and after each ptrace(2). */
#include <dlfcn.h>
#include <sys/ptrace.h>
#include <sys/types.h>

static void before_ptrace(enum __ptrace_request request, pid_t pid);
static void after_ptrace(enum __ptrace_request request, pid_t pid);

long ptrace(enum __ptrace_request request, ...) {
    long (*real)(enum __ptrace_request, ...) =
        (long (*)(enum __ptrace_request, ...))dlsym(RTLD_NEXT, "ptrace");
    __builtin_va_list arguments;
    __builtin_va_start(arguments, request);
    pid_t pid = __builtin_va_arg(arguments, pid_t);
    void *address = __builtin_va_arg(arguments, void *), *data = __builtin_va_arg(arguments, void *);
    __builtin_va_end(arguments);
    before_ptrace(request, pid);
    long result = real(request, pid, address, data);
    after_ptrace(request, pid);
    return result;
}
