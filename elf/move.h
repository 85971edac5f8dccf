/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The pipeline's state: everything the core knows about the process it works in. */
#ifndef HL_MOVE_H
#define HL_MOVE_H

#include "kernel.h"
#include "maps.h"
#include "pool.h"

enum hl_backend {
    HL_NO_BACKEND,
    HL_HUGETLB,
    HL_THP,
    HL_ADVISED, /* bss=thp: nothing moves, the kernel is told, after commit */
    HL_FILE,    /* backend=file: nothing moves, the page cache has huge pages */
    HL_BACKENDS
};

struct hl_range {
    uint64_t start, end;
};

/* A span on its way.  Prepare gives it new memory, commit brings that into place. */
struct hl_move {
    enum hl_backend backend; /* HL_NO_BACKEND: the span stays */
    enum hl_skip skip;       /* why it stays */
    enum hl_skip no_hugetlb; /* backend=auto: why it is on thp; else HL_MOVED */
    int prot;            /* what it will be mapped with: the plan's, and PROT_BTI where the old text has it */
    struct hl_area area; /* the new memory, and maybe address space around it */
    uint64_t memory;     /* its scratch address, span-sized and filled; 0: there is none, or it is in place */
    int memfd;           /* where mremap can't bring it: the MFD_HUGETLB to map; else -1 */
    uint64_t aside;      /* commit: where the old mappings are kept */
    bool emptied;        /* commit: the old mappings are aside */
    bool placed;         /* commit: the new memory is in place */
};

/* A selected object with everything that is decided about it. */
struct hl_work {
    struct hl_object object;
    struct hl_plan plan;
    enum hl_selection selection;
    enum hl_skip skip;                 /* why the whole object stays; HL_MOVED otherwise */
    struct hl_move move[HL_SPANS_MAX]; /* for each span of the plan */
};

/* What an open descriptor refers to; all 0: nothing. */
struct hl_file_id {
    uint64_t device, inode;
};

/* How hugeld came into the process. */
enum hl_way_in {
    HL_PRELOADER, /* takes main where LD_HUGEPAGES is unset */
    HL_LINKER     /* takes nothing then; knows backend=file, because it can choose addresses */
};

struct hl_process {
    enum hl_way_in way_in;
    struct hl_geometry geometry;
    struct hl_options options;
    struct hl_file_id standard_error; /* at the start */
    struct hl_kernel kernel;
    bool kernel_is_probed; /* set it to false when objects come later: the process may have restricted itself
                            */
    struct hl_status status;
    bool filters_are_known;
    uint64_t filters; /* of system calls, when the status was read first */
    struct hl_placement placement;
    struct hl_maps maps; /* as they were before anything moved */
    long pagemap;        /* descriptor, or a negated errno */
    struct hl_work *work;
    size_t n_work;
    struct hl_area work_area;
    uint64_t matched;   /* bit N: some object matches the Nth pattern; only 64 are looked at */
    unsigned n_small;   /* objects without a whole huge page that a wildcard selected at startup */
    bool has_started;   /* what moves now was loaded by dlopen */
    bool dropped_named; /* an object that strict=on means was dropped: no memory to plan it */
    void (*trace)(
        const char *line); /* gets what verbose=3 says, whatever verbose= is; or NULL, the default */
};

/* Begins: reads LD_HUGEPAGES and LD_HUGEPAGES_OPTIONS from ENVP and the page sizes from the kernel.
   False if hugeld has nothing to do in this process (only=, or no patterns); then nothing was taken.  ENVP's
   strings must live as long as PROCESS is used. */
bool hl_begin(struct hl_process *process, const char *const *envp, const char *executable,
              enum hl_way_in way_in, uint64_t page_bytes);

/* The same with OPTIONS that come from elsewhere.  What they point to must live as long. */
bool hl_begin_with(struct hl_process *process, const struct hl_options *options, const char *executable,
                   enum hl_way_in way_in, uint64_t page_bytes);

/* Selects and plans one object: everything in OBJECT before its load bias is set.  Objects come in the order
   in which they are served: the executable first.  The strings must live until hl_end. */
void hl_add_object(struct hl_process *process, const struct hl_object *object, const Elf64_Phdr *phdr,
                   size_t phnum);

/* Steps 3 to 6 for everything added; afterwards each object is either on huge pages or exactly as it was.
   Called with every signal blocked, on a stack of HL_STACK_BYTES (hl_call_on_stack).  Returns 0, or 127 when
   strict=on demands that the program ends. */
int hl_move_objects(struct hl_process *process);

/* Notes that OBJECT (its path, soname and is_main) is loaded at startup, whether it can move or not. */
void hl_note_object(struct hl_process *process, const struct hl_object *object);

/* When every object that is loaded at startup has been noted: says how many are too small, and which names
   have none.  0, or 127 when strict=on demands that the program ends. */
int hl_end_startup(const struct hl_process *process);

/* Reads PROCESS's status.  0, or HL_SKIP_RESTRICTED: its filters of system calls are not those that it had
   when this was called first, or it cannot read its status any more, and what it could do then says nothing
   now; or HL_SKIP_NO_PROC: it never could.

   It is called once at the start, even if nothing moves then, and before anything else is done for an object
   that comes later, on the stack of whoever loads that: a filter of the program's own may allow what
   dlopen(3) needs (openat, read, close, mmap, mprotect) and kill for the rest. */
int hl_read_process_status(struct hl_process *process);

/* Frees what the above took.  More objects may come then, those that a program loads later. */
void hl_end(struct hl_process *process);

/* Whether SPAN is writable data. */
static inline bool hl_is_writable(const struct hl_span *span) { return (span->flags & PF_W) != 0; }

/* Between plan and prepare: whether the object's mappings are what its program headers say and nobody wrote
   to its read-only pages.  0, or the reason why the object stays. */
int hl_check_object(struct hl_process *process, struct hl_work *work);

/* Whether edges=keep would leave out what is mapped between the segments of WORK's object, and still plan
   something of KIND. */
bool hl_helps_to_keep_edges(const struct hl_process *process, const struct hl_work *work, enum hl_kind kind);

/* Whether OBJECT's file has a mark that it rewrites its own text (rewrites.h). */
bool hl_rewrites_text(const struct hl_object *object);

/* Step 4, prepare: new memory, filled and with its final protection, for the spans of one KIND of one object,
   all or none.  0, or the reason, which then stands in each of these spans' moves; nothing is left behind. */
int hl_prepare_spans(struct hl_process *process, struct hl_work *work, enum hl_kind kind);

/* Step 4: fills MOVE's memory with what SPAN holds.  0, HL_SKIP_POOL_SHORT, HL_SKIP_SOURCE_UNREADABLE,
   HL_SKIP_NO_MEMORY, HL_SKIP_NO_PROC. */
int hl_fill_span(struct hl_process *process, const struct hl_object *object, const struct hl_span *span,
                 struct hl_move *move);

/* The file behind a read-only span, as long as it is filled. */
struct hl_source {
    int file;     /* open for reading, and proved to be what is mapped; or -1: there is only the memory */
    bool is_ours; /* to be closed */
    uint64_t at;  /* it is mapped here as it is at the span's start: */
    unsigned n_mapped; /* what is in the span of the object's first so many segments */
};

/* Opens and maps the file, if it is at hand.  The caller closes SOURCE in any case. */
void hl_open_source(struct hl_source *source, const struct hl_process *process,
                    const struct hl_object *object, const struct hl_span *span);
void hl_close_source(struct hl_source *source, const struct hl_object *object, const struct hl_span *span);

/* Whether something of the SPAN would have to come from the disk.  SOURCE has a file.  False under a filter
   of system calls. */
bool hl_is_cold(const struct hl_source *source, const struct hl_process *process,
                const struct hl_object *object, const struct hl_span *span);

/* Where SPAN's file is not cached, reads it into huge pages of the page cache, as far as the file system has
   any.  Only a hint. */
void hl_read_into_cache(const struct hl_process *process, const struct hl_object *object,
                        const struct hl_span *span);

/* Instead of step 4 and 5, for backend=file: asks for huge pages in the page cache for the read-only spans of
   an object.  Those that have none stay, with the reason in their moves. */
void hl_collapse_spans(const struct hl_process *process, struct hl_work *work);

/* How many bytes of SPAN are in segments whose addresses go with their offsets in the file, modulo the size
   of a huge page: only these can be on huge pages of the page cache. */
uint64_t hl_congruent_bytes(const struct hl_object *object, const struct hl_span *span,
                            uint64_t huge_page_bytes);

/* Whether WORK's object is linked at the size of a huge page and the kernel has mapped huge pages of the page
   cache to three quarters of its spans of one KIND, or more.  Reads them from the file. */
bool hl_is_huge_already(const struct hl_process *process, const struct hl_work *work, enum hl_kind kind);

/* Whether MOVE's new memory, anonymous or a memfd's, is kept from children until it is placed. */
static inline bool hl_is_kept_from_children(const struct hl_process *process, const struct hl_move *move) {
    return move->backend != HL_HUGETLB || move->memfd >= 0 || process->kernel.hugetlb_dofork;
}

/* Gives back the new memory of a move that is not in place. */
void hl_free_memory(struct hl_move *move);

/* Step 5, commit: all prepared spans of an object come into place, or none and everything is as it was
   before.  0, or the reason. */
int hl_commit_object(struct hl_process *process, struct hl_work *work);

/* Step 3, the pool check: what it saw and decided for NEEDED pages of one KIND; from verbose=3. */
void hl_report_pool(const struct hl_process *process, const struct hl_work *work, enum hl_kind kind,
                    uint64_t needed, const struct hl_pool *pool);

/* Step 6, report: the lines that verbose= asks for. */
void hl_report_object(const struct hl_process *process, const struct hl_work *work);

/* Says why OBJECT cannot even be planned; from verbose=1. */
void hl_report_dropped(const struct hl_process *process, const struct hl_object *object, enum hl_skip skip);

/* Notes what standard error is; lines are written there as long as it is that. */
void hl_note_stderr(struct hl_process *process);

/* Ends LINE and writes it, by one write(2), unless something else is open at descriptor 2 by now.  Everything
   that is written to there in a program's process is written by this. */
void hl_write_line(const struct hl_process *process, struct hl_text *line);

/* Complains about a variable; shown at every verbosity. */
void hl_report_mistake(const struct hl_process *process, const char *variable, struct hl_string option,
                       const char *what);

/* Whether WORK is one of many that a wildcard selected, and too small: only verbose=3 has a line for it. */
static inline bool hl_is_just_small(const struct hl_work *work) {
    return work->skip == HL_SKIP_TOO_SMALL && work->selection == HL_SELECTED_BY_WILDCARD;
}

/* Says at verbose=2 how many of these there are. */
void hl_report_small(const struct hl_process *process);

/* Says that no object that is loaded at startup has this NAME. */
void hl_report_name(const struct hl_process *process, const struct hl_pattern *name);

/* Says that rolling back did not restore the mappings: a bug, or a kernel's.  Shown at every verbosity. */
void hl_report_broken(const struct hl_process *process, const struct hl_work *work);

/* Says why objects that come later will stay. */
void hl_report_unwatched(const struct hl_process *process, enum hl_skip skip);

/* Says that strict=on ends the program because of WORK. */
void hl_report_strict(const struct hl_process *process, const struct hl_work *work);

#endif
