/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds whether a debugger could set breakpoints in text on hugetlb pages, by doing the same: a child is traced, and its read-only
   memory is written to.

   The child fills its page itself.  An inherited page would have to be copied first, and without a page in the pool for that the
   write fails, too. */
#include "command/doctor/breakpoints.h"
#include "elf/mapping.h"
#include "elf/sys.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static void run_child(uint64_t at, uint64_t bytes) {
    char byte = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (hl_read_memory((void *)at, (uint64_t)&byte, 1) == 1 && mprotect((void *)at, bytes, PROT_READ) == 0 &&
        ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0)
        raise(SIGSTOP);
    _exit(1);
}

enum hl_answer_of_kernel hl_try_breakpoint(const struct hl_geometry *geometry) {
    enum hl_answer_of_kernel answer = HL_UNKNOWN;
    uint64_t bytes = geometry->huge_page_bytes;
    int status = 0;
    long at = hl_mmap(0, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | hl_hugetlb_flags(geometry), -1, 0);
    if (hl_is_error(at))
        return HL_UNKNOWN;
    pid_t pid = fork();
    if (pid == 0)
        run_child((uint64_t)at, bytes);
    if (pid > 0 && waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
        answer = ptrace(PTRACE_POKEDATA, pid, at, NULL) == 0 ? HL_YES : HL_NO;
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
    }
    hl_munmap((uint64_t)at, bytes);
    return answer;
}
