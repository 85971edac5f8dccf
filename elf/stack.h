/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Another stack to work on: dlopen(3) may be called on a small one, a thread's, a coroutine's or a signal
   handler's, and its size cannot be found out. */
#ifndef HL_STACK_H
#define HL_STACK_H

#include <stdbool.h>

/* Enough for hl_move_objects and hl_write_own_map. */
#define HL_STACK_BYTES (256 << 10)

/* Calls FUNCTION(ARGUMENT) with the stack that ends at STACK_END, a multiple of 16, and with every signal
   blocked.  False, and FUNCTION was not called: signals cannot be blocked. */
bool hl_call_on_stack(void (*function)(void *), void *argument, void *stack_end);

/* The same without blocking signals, for when there can be no handler. */
void hl_switch_stack(void (*function)(void *), void *argument, void *stack_end)
    __attribute__((visibility("hidden")));

#endif
