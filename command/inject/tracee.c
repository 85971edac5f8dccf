/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What the exec stop and attach ask of a thread by ptrace(2), and calls that both make in it. */
#include "command/inject/machine.h"
#include "command/lib/basics.h"
#include "elf/sys.h"

#include <elf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>

int hl_trace(pid_t tid, int request, uintptr_t address, uintptr_t data) {
    return ptrace(request, tid, address, data) >= 0 ? 0 : -errno;
}

int hl_check_transfer(ssize_t done, size_t bytes) {
    if (done < 0)
        return -errno;
    return (size_t)done == bytes ? 0 : -EFAULT;
}

int hl_read_thread(pid_t tid, uint64_t at, void *to, size_t bytes) {
    struct iovec local = {to, bytes}, remote = {(void *)(uintptr_t)at, bytes};
    return hl_check_transfer(process_vm_readv(tid, &local, 1, &remote, 1, 0), bytes);
}

int hl_read_registers(pid_t tid, struct user_regs_struct *registers) {
    struct iovec data = {registers, sizeof *registers};
    int result = hl_trace(tid, PTRACE_GETREGSET, NT_PRSTATUS, (uintptr_t)&data);
    return result == 0 && data.iov_len != sizeof *registers ? HL_REASON_ATTACH_32_BIT : result;
}

int hl_write_registers(pid_t tid, struct user_regs_struct *registers) {
    struct iovec data = {registers, sizeof *registers};
    return hl_trace(tid, PTRACE_SETREGSET, NT_PRSTATUS, (uintptr_t)&data);
}

pid_t hl_find_tracer(pid_t pid, pid_t tid) {
    struct hl_task_status status;
    hl_read_thread_status(&status, pid, tid);
    return status.state == 'Z' || status.state == 'X' ? -ESRCH : status.tracer;
}

int hl_read_stat_fields(const struct hl_process *process, uint64_t field[HL_STAT_FIELDS]) {
    char text[2048];
    ssize_t bytes = hl_read_process_file(process, "stat", text, sizeof text - 1);
    text[bytes > 0 ? bytes : 0] = '\0';
    char *at = strrchr(text, ')'); /* a name may hold spaces and parentheses */
    if (at == NULL || strlen(at) < 4)
        return HL_REASON_NO_PROC;
    at += 3; /* behind the state, which is field 3 */
    for (unsigned i = 4; i < HL_STAT_FIELDS; i++)
        field[i] = strtoull(at, &at, 10);
    return 0;
}

int hl_call(struct hl_tracee *tracee, long *result, long number, uint64_t a, uint64_t b, uint64_t c,
            uint64_t d, uint64_t e, uint64_t f) {
    int error = tracee->call(tracee, result, number, (const uint64_t[6]){a, b, c, d, e, f});
    return error == 0 && hl_is_error(*result) ? HL_REASON_ATTACH_CALL : error;
}

bool hl_close_in_tracee(struct hl_tracee *tracee, int file) {
    long closed;
    return file < 0 || hl_call(tracee, &closed, SYS_close, (uint64_t)file, 0, 0, 0, 0, 0) == 0;
}

void hl_unmap_in_tracee(struct hl_tracee *tracee, uint64_t start, uint64_t end) {
    long unmapped;
    if (start < end)
        hl_call(tracee, &unmapped, SYS_munmap, start, end - start, 0, 0, 0, 0);
}
