/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Writable hugetlb spans of this process, until its first fork.

   After fork a write to a writable hugetlb page needs a new one.  Where the pool is empty the kernel takes
   the child's and kills it with SIGBUS, so the spans go back to small pages first.  Other threads could write
   meanwhile: then there is no safe way. */
#include "fork.h"
#include "heap.h"
#include "sys.h"
#include "text.h"

static struct hl_writable *writable; /* NULL: none was ever noted */
static struct hl_geometry geometry;
static bool verbose;

static void say(const char *line) {
    if (verbose)
        hl_write(2, line, hl_text_bytes(line));
}

void hl_before_fork(void) {
    if (writable == NULL || writable->n == 0)
        return;
    if (!hl_is_single_threaded()) {
        say("hugeld: fork with threads: data stays on hugetlb, and a child may die when the pool is empty; "
            "use data=thp\n");
        return;
    }
    uint64_t signals = hl_block_signals();
    while (writable->n > 0 && hl_move_back(&writable->range[writable->n - 1], &geometry) == 0)
        writable->n--;
    hl_restore_signals(signals);
    say(writable->n == 0 ? "hugeld: fork: data is back on small pages\n"
                         : "hugeld: fork: data stays on hugetlb, there is no memory for a copy\n");
}

static void note_range(struct hl_range range) {
    if (writable->n < HL_WRITABLE_MAX) {
        writable->range[writable->n++] = range;
        return;
    }
    uint64_t signals = hl_block_signals();
    hl_move_back(&range, &geometry);
    hl_restore_signals(signals);
}

bool hl_note_writable(struct hl_writable *room, const struct hl_process *process) {
    writable = room;
    geometry = process->geometry;
    verbose = process->options.verbose >= 1;
    for (size_t i = 0; i < process->n_work; i++) {
        const struct hl_work *work = &process->work[i];
        for (unsigned j = 0; j < work->plan.n_spans; j++) {
            const struct hl_span *span = &work->plan.span[j];
            if (hl_is_writable(span) && work->move[j].placed && work->move[j].backend == HL_HUGETLB)
                note_range((struct hl_range){span->start, span->end});
        }
    }
    return writable->n > 0;
}

void hl_forget_writable(uint64_t start, uint64_t end) {
    unsigned kept = 0;
    if (writable == NULL)
        return;
    for (unsigned i = 0; i < writable->n; i++)
        if (hl_overlap(writable->range[i].start, writable->range[i].end, start, end) == 0)
            writable->range[kept++] = writable->range[i];
    writable->n = kept;
}
