/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Objects that come by dlopen(3) or dlmopen(3).

   dlopen looks at its return address to learn whose RUNPATH and namespace are meant, so no function can stand between it and its
   caller and run something afterwards.  The audit interface sees everything, but only LD_AUDIT turns it on, and it adds more to
   each start and dlopen.  The one way left is the notification for debuggers: the dynamic linker calls an empty
   function, r_brk of struct r_debug, whenever its lists begin or end to change, with the lock of dlopen and dlclose held.  Its
   return instruction becomes a jump to here:

       _dl_debug_state:   ret; nop...         ->   jmp notice
                          endbr64; ret; nop   ->   jmp notice
                          bti c; ret          ->   b notice; ret

   The page of ld.so that holds it becomes private to this process, as a debugger's breakpoint makes it.  It is written through
   /proc/self/mem, which needs no writable mapping.  A debugger that comes later puts its breakpoint over our jump and steps across
   it.  If a debugger was first and has its breakpoint there, nothing is done.

   AArch64's branch reaches 128 MiB only, which suffices where the kernel maps libraries below each other.

   musl has the same structures and calls its function under the same lock.  It never tells RT_DELETE: dlclose
   unloads nothing, and an object that cannot be linked is gone from the list before RT_CONSISTENT.  Where it
   is built for size, the next function may follow the ret at once: then there is no room for a jump.

   When RT_CONSISTENT is told (glibc before 2.41: before relocation, else and in musl after it; always before
   the object's constructors), no thread has run the new object's text, and relocation writes to none of the
   pages that move here.  (AArch64's glibc 2.32 protects branch targets after it has told, 4 KiB at a time;
   before, there is no such protection, and later ones protect while they map.)

   The handler runs in whatever thread opens an object, maybe on a small stack: so the work is done on a stack
   of its own.  It calls nothing of the dynamic linker and nothing of libc that could. */
#include "dlopen.h"
#include "dl-object.h"
#include "jump.h"
#include "elf/stack.h"
#include "elf/line.h"
#include "elf/move.h"
#include "elf/options.h"
#include "perf-maps/in-process.h"
#include "elf/report.h"
#include "elf/segments.h"
#include "elf/sys.h"

#include <linux/fcntl.h>
#include <linux/mman.h>
#include <link.h>

/* The number of namespaces in glibc (DL_NNS). */
#define NAMESPACES_MAX 16

/* The list of one namespace's objects, to whose end new ones are added. */
struct link_namespace {
    const struct hl_debug *debug;
    const struct link_map *last; /* the last that was seen; NULL if there was none */
    bool deleting;
};

static struct {
    const struct hl_debug *debug;
    struct hl_config config;
    struct hl_context context;
    struct hl_area
        strings; /* the patterns and the store: the environment's bytes may be overwritten (setproctitle) */
    struct link_namespace link_namespace[NAMESPACES_MAX];
    unsigned n_namespaces;
    const struct link_map *first; /* the first of those that move_objects looks at */
    volatile bool busy;
} watch;

struct hl_work hl_first_work[HL_FIRST_WORKS];

/* Prints why watch.first and the objects added after it stay. */
static void report_dropped_objects(enum hl_reason reason) {
    struct hl_names names;
    for (const struct link_map *map = watch.first; map != NULL; map = map->l_next)
        if (hl_is_linked_selected(&watch.context, &names, map, NULL))
            hl_report_dropped(&watch.context, names.path, reason);
}

/* Moves the selected ones of watch.first and the objects added after it. */
static void move_objects(void *unused) {
    long memory = watch.context.probed.status.filters == 0 ? HL_OWN_MEMORY
                                                           : hl_open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    (void)unused;
    hl_use_room(&watch.context, hl_first_work, HL_FIRST_WORKS);
    for (const struct link_map *map = watch.first; map != NULL; map = map->l_next)
        hl_add_linked(&watch.context, map, NULL, &memory);
    if (memory >= 0)
        hl_close((int)memory);
    if (hl_move_objects(&watch.context) != 0)
        HL_CALL(__NR_exit_group, 127, 0, 0, 0, 0, 0);
    hl_write_own_map(&watch.context);
    hl_close_files(&watch.context);
}

static struct link_namespace *find_namespace(const struct hl_debug *debug) {
    for (unsigned i = 0; i < watch.n_namespaces; i++)
        if (watch.link_namespace[i].debug == debug)
            return &watch.link_namespace[i];
    if (watch.n_namespaces == NAMESPACES_MAX)
        return NULL;
    struct link_namespace *new = &watch.link_namespace[watch.n_namespaces++];
    new->debug = debug;
    new->last = NULL;
    new->deleting = false;
    return new;
}

/* Notes the end of the list. */
static void note_last(struct link_namespace *list) {
    const struct link_map *map = list->last != NULL ? list->last : list->debug->base.r_map;
    for (; map != NULL; map = map->l_next)
        list->last = map;
}

static void look_at(struct link_namespace *list) {
    const struct r_debug *debug = &list->debug->base;
    struct hl_names names;
    if (debug->r_state == RT_DELETE) {
        list->deleting = true;
        list->last = NULL;
    }
    if (debug->r_state != RT_CONSISTENT)
        return;
    watch.first = list->last != NULL ? list->last->l_next : debug->r_map;
    if (list->deleting)
        watch.first = NULL;
    while (watch.first != NULL && !hl_is_linked_selected(&watch.context, &names, watch.first, NULL))
        watch.first = watch.first->l_next;
    hl_forget_process(&watch.context);
    if (watch.first != NULL) {
        int result = hl_read_process_status(&watch.context);
        void *stack_end = result == 0 ? hl_make_room(&watch.context) : NULL;
        if (stack_end == NULL || !hl_call_on_stack(move_objects, NULL, stack_end))
            report_dropped_objects(result != 0 ? (enum hl_reason)result : HL_REASON_NO_MEMORY);
        hl_end(&watch.context);
    }
    list->deleting = false;
    note_last(list);
}

/* Runs in the place of r_brk.  A signal handler that calls dlopen (the lock is recursive) must not come onto the same stack; its
   objects are looked at with the next ones.  A child that was forked while another thread was in here looks at no objects any
   more: it must not go on with the half-done work of that thread, such as its descriptors, which are of the parent's memory. */
static void notice(void) {
    if (watch.busy)
        return;
    watch.busy = true;
    for (const struct hl_debug *debug = watch.debug; debug != NULL; debug = hl_next_namespace(debug)) {
        struct link_namespace *list = find_namespace(debug);
        if (list != NULL)
            look_at(list);
    }
    watch.busy = false;
}

/* Writes the jump.  The mapping is not writable, and need not become so. */
static int write_jump(uint64_t at, long *memory) {
    unsigned char jump[HL_JUMP_BYTES];
    if (!hl_is_empty_function((const unsigned char *)at, 16) || !hl_make_jump(jump, at, (uint64_t)notice))
        return HL_REASON_NO_NOTICE;
    hl_open_memory(memory);
    return hl_pwrite((int)*memory, jump, sizeof jump, at) == sizeof jump ? 0 : HL_REASON_MEM_DENIED;
}

/* Copies the strings of the options to memory of their own.  The others are used at startup alone. */
static int keep_strings(void) {
    struct hl_string *objects = &watch.config.options.objects, *store = &watch.config.options.store;
    static char few[1024];
    uint64_t bytes = hl_round_up(objects->bytes + store->bytes, watch.config.geometry.page_bytes);
    bool is_long = objects->bytes + store->bytes > sizeof few;
    if (is_long && hl_map_area(&watch.strings, bytes, PROT_READ | PROT_WRITE, 0) != 0)
        return HL_REASON_NO_MEMORY;
    char *to = is_long ? (char *)watch.strings.start : few;
    hl_copy_bytes(to, objects->at, objects->bytes);
    hl_copy_bytes(to + objects->bytes, store->at, store->bytes);
    objects->at = to;
    store->at = to + objects->bytes;
    return 0;
}

static int start_watching(struct hl_context *context, long *memory) {
    const struct hl_debug *debug = hl_find_debug();
    if (debug == NULL || debug->base.r_brk == 0)
        return HL_REASON_NO_NOTICE;
    int result = context->probed.filters_are_known ? 0 : hl_read_process_status(context);
    if (result != 0)
        return result;
    watch.debug = debug;
    hl_copy_context(&watch.context, &watch.config, context);
    /* later objects will be looked at as soon as they are mapped; only auditors are told of them before */
    watch.context.others_ran = hl_next_namespace(debug) != NULL;
    if (watch.context.probed.status.filters == 0) /* else a filter may kill for fstat */
        hl_note_stderr(&watch.context);
    if (watch.context.probed.status.has_threads) /* another thread could be running r_brk */
        return HL_REASON_THREADS;
    watch.context.is_after_startup =
        true; /* from now on objects come later: a program is not ended in the middle */
    note_last(find_namespace(debug));
    result = keep_strings();
    if (result == 0)
        result = write_jump(debug->base.r_brk, memory);
    if (result != 0)
        hl_free_area(&watch.strings);
    return result;
}

void hl_watch_for_objects(struct hl_context *context, long *memory) {
    if (!hl_selects_other_objects(context->config->options.objects))
        return;
    int result = start_watching(context, memory);
    if (result != 0 && context->config->options.verbose >= 1)
        hl_report_unwatched(context, (enum hl_reason)result);
}
