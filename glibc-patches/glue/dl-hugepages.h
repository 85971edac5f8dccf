/* Objects on huge pages.  Call sites in the dynamic linker.
   This file is part of hugeld, for the GNU C Library.

   This library is free software; you can redistribute it and/or
   modify it under the terms of the GNU Lesser General Public
   License as published by the Free Software Foundation; either
   version 2.1 of the License, or (at your option) any later version.

   This library is distributed in the hope that it will be useful,
   but WITHOUT ANY WARRANTY; without even the implied warranty of
   MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE.  See the GNU
   Lesser General Public License for more details.

   You should have received a copy of the GNU Lesser General Public
   License along with the GNU C Library; if not, see
   <https://www.gnu.org/licenses/>.  */

#ifndef _DL_HUGEPAGES_H
#define _DL_HUGEPAGES_H 1

#include <link.h>
#include <stdbool.h>

/* What is known of an object while it is mapped, from one call below to the
   next.  */
struct dl_hugepages_object
{
  /* LD_HUGEPAGES selects it by its path.  */
  bool is_selected;
  /* It is mapped from its image.  */
  bool is_image;
  /* Its image was looked for in vain, and this is why (enum hl_reason); or
     zero.  */
  int no_image;
};

/* Where the makefiles build it.  */
#if (IS_IN (rtld) \
     && ((defined __x86_64__ && defined __LP64__) || defined __aarch64__))

/* True if LD_HUGEPAGES selects something in this process.  It is false
   in programs that do not know of it, and then nothing below does
   anything.  */
extern bool _dl_hugepages_active attribute_hidden;

/* Start with LD_HUGEPAGES and LD_HUGEPAGES_OPTIONS from the environment; in
   secure mode remove both.  PROGRAM is what ld.so was told to run, or null
   if the kernel has mapped the program; it will not run unless IS_RUN, and
   then nothing is done.  */
void _dl_hugepages_init (const char *program, bool is_run) attribute_hidden;

/* Move the executable L, which the kernel has mapped, if it is selected.
   It is not relocated yet.  */
void _dl_hugepages_move_executable (struct link_map *l) attribute_hidden;

/* The first call for an object: begin MAPPED.  If a store has an image of
   the file FD, whose first LENGTH bytes are START, and LD_HUGEPAGES selects
   it by PATH, close FD, return the image's descriptor, and change START to
   its first bytes.  Otherwise return FD.  MODE is what it is loaded
   with.  */
int _dl_hugepages_open_image (struct dl_hugepages_object *mapped, int fd,
			      char *start, size_t length, const char *path,
			      int mode) attribute_hidden;

/* Return the alignment with which the object is mapped, whose segments
   begin at START, have LENGTH bytes and ask for ALIGN: that of a huge page,
   or ALIGN.  */
ElfW(Addr) _dl_hugepages_align (const struct dl_hugepages_object *mapped,
				ElfW(Addr) start, size_t length,
				ElfW(Addr) align, int mode)
  attribute_hidden;

/* Move L, which has just been mapped from FD.  Nothing else knows of it
   yet, but other threads may run.  Return false if a part of it has got
   lost: then it cannot be loaded, and L says that nothing of it is to be
   unmapped.  */
bool _dl_hugepages_move_mapped (const struct dl_hugepages_object *mapped,
				struct link_map *l, int fd, int mode)
  attribute_hidden;

/* L is libc.so.6, and has just been mapped with MODE.  If the process has
   had none and it is not the one that this ld.so was made for, leave the
   program to the system's ld.so, or end it.  */
void _dl_hugepages_check_libc (struct link_map *l, int mode)
  attribute_hidden;

/* If LD_HUGEPAGES selects something, report that L is another libc.so.6,
   for which the system's ld.so takes over; end the program if strict=on.  */
void _dl_hugepages_report_libc (const struct link_map *l) attribute_hidden;

/* MAIN_MAP and everything that it needs is mapped: look whether that is
   what was named.  */
void _dl_hugepages_end_startup (const struct link_map *main_map)
  attribute_hidden;

#else

/* Static programs that use dlopen do without, and other machines.  */
# define _dl_hugepages_active false
# define _dl_hugepages_init(program, is_run) ((void) 0)
# define _dl_hugepages_move_executable(l) ((void) 0)
# define _dl_hugepages_end_startup(main_map) ((void) 0)
# define _dl_hugepages_open_image(mapped, fd, start, length, path, mode) (fd)
# define _dl_hugepages_align(mapped, start, length, align, mode) (align)
# define _dl_hugepages_move_mapped(mapped, l, fd, mode) true
# define _dl_hugepages_check_libc(l, mode) ((void) 0)

#endif

#endif /* dl-hugepages.h */
