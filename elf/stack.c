/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Unwinding goes on through the frame pointer, so backtraces of profilers and debuggers see the caller.

   Signals are blocked from before the switch until after it: a handler is the program's code, and it may
   depend on the stack pointer.  Garbage collectors look for references from there to the end of the
   thread's stack, and coroutine libraries tell by it which coroutine runs. */
#include "stack.h"
#include "sys.h"

#if defined __x86_64__
#include "arch/x86_64/switch-stack.h"
#elif defined __aarch64__
#include "arch/aarch64/switch-stack.h"
#endif

bool hl_call_on_stack(void (*function)(void *), void *argument, void *stack_end) {
    uint64_t signals;
    if (!hl_block_signals(&signals))
        return false;
    hl_switch_stack(function, argument, stack_end);
    hl_restore_signals(signals);
    return true;
}
