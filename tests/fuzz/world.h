/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Stands before every file of a fuzzing build (-include).  The core's system calls become calls of
   t_syscall6, which answers from memory: no input reaches the kernel, reads beyond scratch memory are seen,
   and an execution costs microseconds. */
#ifndef T_WORLD_H
#define T_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined __x86_64__
#include "elf/arch/x86_64/sys.h"
#else
#include "elf/arch/aarch64/sys.h"
#endif

#define hl_syscall6 t_syscall6
#define hl_copy_bytes t_copy_bytes

long t_syscall6(long number, long a, long b, long c, long d, long e, long f);
void t_copy_bytes(void *to, const void *from, size_t bytes);

#endif
