/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Names of the dynamic linkers, and one of libc, that a program uses for something else. */
#if defined NUMBERS
long _r_debug[8] = {1, 2, 3, 4, 5, 6, 7, 8};
#elif defined POINTER
long _dl_debug_addr = 1;
#else
unsigned long getauxval(unsigned long type) { return type & 0; }
#endif
