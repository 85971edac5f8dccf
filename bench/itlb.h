/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A model of the instruction TLBs of named processors (itlb.c), which a trace is run through: one on standard input
   (itlb.c's main), or that of a program under QEMU (itlb-qemu.c).

   Layouts tell which ranges are on huge pages.  A program's own addresses are the same on every machine only inside of its
   objects, so the model has addresses of its own: objects follow each other in the order in which they were first executed, each
   at a multiple of 2 MiB of the address that it was linked at. */
#ifndef BENCH_ITLB_H
#define BENCH_ITLB_H

#include <stdint.h>
#include <stdio.h>

struct model; /* the layouts, and the objects so far */
struct core;  /* the TLBs that one thread has for itself: of each processor in each layout */

/* A page of 4 KiB: its number in the model's addresses; bit N of huge is set where it is part of a huge page in layout N. */
struct place {
    uint64_t page;
    uint32_t huge;
};

/* Reads a plan; ends the process with a message if it is none.  Its lines, addresses being those that objects were
   linked at:
       layout NAME separate|contiguous    a layout, and how its small pages lie in memory: whether any four coalesce
       huge NAME PATH START END           a range of the object PATH on huge pages there */
struct model *model_read(const char *plan);

/* The object PATH, which ends at END; the same again if it is known. */
unsigned model_object(struct model *, const char *path, uint64_t end);

/* Code that belongs to no file. */
unsigned model_anonymous(struct model *);

struct place model_place(const struct model *, unsigned object, uint64_t address);

struct core *core_new(const struct model *);
void core_execute(struct core *, uint64_t instructions); /* on the page touched last */
void core_touch(struct core *, struct place);            /* the next instruction is there */

/* The sums over COUNT cores, as one line of JSON. */
void model_print(FILE *, const struct model *, struct core *const *cores, unsigned count);

#endif
