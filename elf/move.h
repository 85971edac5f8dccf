/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Drives the pipeline: objects in; out come huge pages, or exactly the old mappings. */
#ifndef HL_MOVE_H
#define HL_MOVE_H

#include "context.h"

/* Whether ENVP asks for the executable alone, without output in any case, and the executable, whose program headers are PHDR, is
   smaller than a huge page.  It makes no system call: most programs are like that, and begin a hundred times a second in
   scripts. */
bool hl_has_nothing_to_do(const char *const *envp, const Elf64_Phdr *phdr, size_t phnum);

/* Whether the executable's path makes a difference to the settings in ENVP, or might be printed: LD_HUGEPAGES may name it, exe=
   compares it, and so on.  It makes no system call. */
bool hl_needs_path(const char *const *envp);

/* Begins: reads LD_HUGEPAGES and LD_HUGEPAGES_OPTIONS from ENVP and the page sizes from the kernel into CONFIG.
   False if hugeld has nothing to do in this process (exe=, or no patterns); then nothing was taken.  CONFIG and ENVP's
   strings must live as long as CONTEXT is used. */
bool hl_begin(struct hl_context *context, struct hl_config *config, const char *const *envp,
              const char *executable, enum hl_loader loader, uint64_t page_bytes);

/* Makes TO, with a CONFIG of its own, from the settings and facts of FROM, for objects that come later. */
void hl_copy_context(struct hl_context *to, struct hl_config *config, const struct hl_context *from);

/* Lends CONTEXT N works for the first objects that are added, until hl_end. */
void hl_use_room(struct hl_context *context, struct hl_work *work, size_t n);

/* Selects and plans one object: the caller has set OBJECT's load bias and all fields before that.  Objects come in the order in
   which they are served: the executable first.  The strings must live until hl_end. */
void hl_add_object(struct hl_context *context, const struct hl_object *object, const Elf64_Phdr *phdr,
                   size_t phnum);

/* Whether hl_move_objects would do or print anything; else it need not be called. */
bool hl_is_anything_to_do(const struct hl_context *context);

/* Checks, prepares and commits everything added; afterwards each object is either on huge pages or exactly as it was.  Called with
   every signal blocked if other code has run before, on a stack of HL_STACK_BYTES (hl_call_on_stack).  Returns 0; 127 when the
   program must end, after a line, because strict=on demands that or its text is gone; or HL_LOST: a new object's text or data is
   gone, and the dynamic linker must give it up and unmap nothing of it, since some of its place may be another thread's by now. */
#define HL_LOST (-1)
int hl_move_objects(struct hl_context *context);

/* After HL_LOST: unmaps the rest of the new object, except the span whose place may be another thread's. */
void hl_unmap_rest(const struct hl_context *context);

/* Maps a stack for hl_move_objects, and room for the first objects that are added, unless that was lent; hl_end frees both.  The
   stack's end, or NULL. */
void *hl_make_room(struct hl_context *context);

/* The program has run: its status and its permissions are probed anew. */
void hl_forget_process(struct hl_context *context);

/* Notes that an object with NAMES is loaded at startup, whether it can move or not. */
void hl_note_object(struct hl_context *context, const struct hl_names *names);

/* After every object that is loaded at startup was noted: prints how many are too small, and which names have none.  0, or 127
   when strict=on demands that the program ends. */
int hl_end_startup(const struct hl_context *context);

/* Reads CONTEXT's status, unless it holds.  0, or HL_REASON_RESTRICTED: its filters of system calls are not those that it had when
   this was called first, or it cannot read its status any more, and the features probed then may be gone; or HL_REASON_NO_PROC: it
   never could.

   It is called once at the start, even if nothing moves then, and before anything else is done for an object
   that comes later, on the stack of the thread that loads it: a filter of the program's own may allow what
   dlopen(3) needs (openat, read, close, mmap, mprotect) and kill for the rest. */
int hl_read_process_status(struct hl_context *context);

/* FILE is not needed any more, or was not opened: then it is negative. */
void hl_close_later(struct hl_context *context, long file);

/* Closes all files: signal handlers should not see them. */
void hl_close_files(struct hl_context *context);

/* Frees the memory of the functions above, and closes all files; not to be called on hl_make_room's stack.  More objects may come then,
   those that a program loads later. */
void hl_end(struct hl_context *context);

#endif
