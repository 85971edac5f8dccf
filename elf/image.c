/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* An object's read-only spans from an image: its file laid out anew, in a store, where the kernel has it on huge
   pages, one copy for every process (elf/store.c).

       object     rrrrrr TTTTTTTTTTTTTTTTTTTTTTT rrrrrrrr wwwww
       image      rrrrrr.TTTTTTTTTTTTTTTTTTTTTTT.rrrrrrrr.wwwww      offset = address - base, base % 2 MiB = 0
       huge pages |         |         |         |         |

   Nothing is copied, and nothing is kept aside: the image's ranges are mapped straight over the spans, each by one
   call.  That is allowed because both hold the same bytes, so a failure at a later span takes nothing back, and other
   threads see no difference and no hole.  It has been proved before:

   - The image is one of the file that is mapped, and at this moment.  Its key says so (the file's device, inode, size
     and ctime, which no user can set), as long as the file that is asked for its state is the one that is mapped; that
     is looked up in maps.  No build ID and no path decides anything.
   - Nothing wrote to the mapping there (pagemap), and nothing was set for it that a new mapping would not have
     (hl_check_object, check_way below).
   - The file can be mapped a second time, which is the way back: a call may fail after it has unmapped the old pages.
     Then the file is mapped (map-again.c), and where that fails too the text is lost.

   A write of another thread or a debugger to a span between the look at pagemap and the call is lost: a breakpoint
   that is set in these microseconds is not hit, as is one that was set on the file by a uprobe.  Nothing else can be,
   since these pages are not writable.

   The page with the ELF header has the file's bytes.  The image's header and program headers say where things are in
   the image, and debuggers compare those in memory with those of the program's file.  So the page is not mapped over;
   or the image has that huge page twice, and the second one is mapped. */
#include "image.h"
#include "backing-file.h"
#include "check.h"
#include "map-again.h"
#include "mapping.h"
#include "move.h"
#include "plan.h"
#include "prepare.h"
#include "report.h"
#include "segments.h"
#include "store.h"
#include "sys.h"

#include <linux/mman.h>

#define HEADERS_BYTES ((size_t)4096)

/* Why a store, or an image in one, could not be opened. */
static enum hl_reason explain_store(long result) {
    switch (-result) {
    case EACCES:
    case ENOTDIR:
        return HL_REASON_STORE_UNSAFE;
    case EOVERFLOW:
        return HL_REASON_STORE_FOREIGN;
    case EOPNOTSUPP:
        return HL_REASON_STORE_FILE_SYSTEM;
    default:
        return result == -EMFILE || result == -ENFILE ? HL_REASON_NO_DESCRIPTOR : HL_REASON_NO_IMAGE;
    }
}

bool hl_open_stores(struct hl_stores *stores, struct hl_context *context) {
    struct hl_string named = context->config->options.store;
    stores->store[0].folder = stores->store[1].folder = -ENOENT;
    stores->store[0].owner = stores->store[1].owner = 0;
    if (context->probed.has_no_store)
        return false;
    if (named.bytes > 0) {
        hl_set_line(&context->path, "");
        hl_add_bytes(&context->path, named.at, named.bytes);
        stores->store[0].owner = hl_find_trusted_user(&context->probed.status);
        stores->store[0].folder =
            hl_open_store_at(context->path.at, stores->store[0].owner, &stores->store[0].state);
    }
    stores->is_second_open = hl_is_error(stores->store[0].folder);
    if (stores->is_second_open)
        stores->store[1].folder = hl_open_store_at(HL_SYSTEM_STORE, 0, &stores->store[1].state);
    context->probed.has_no_store = stores->store[0].folder == -ENOENT && stores->store[1].folder == -ENOENT;
    return !context->probed.has_no_store;
}

void hl_close_stores(const struct hl_stores *stores) {
    for (unsigned i = 0; i < 2; i++)
        if (!hl_is_error(stores->store[i].folder))
            hl_close((int)stores->store[i].folder);
}

long hl_open_image(struct hl_stores *stores, struct hl_context *context, const struct hl_file_state *state) {
    enum hl_reason reason = HL_REASON_NO_IMAGE;
    struct hl_file_state found;
    for (unsigned i = 0; i < 2; i++) {
        if (i == 1 && !stores->is_second_open) {
            stores->store[1].folder = hl_open_store_at(HL_SYSTEM_STORE, 0, &stores->store[1].state);
            stores->is_second_open = true;
        }
        long image = stores->store[i].folder;
        found.device = stores->store[i].state.device;
        found.bytes = 0;
        if (!hl_is_error(image))
            image = hl_open_image_in_store((int)image, stores->store[i].owner, state, &context->path, &found);
        stores->image_bytes = found.bytes;
        if (!hl_is_error(image) && !context->probed.status.thp_disabled)
            return image;
        if (!hl_is_error(image)) {
            hl_close((int)image);
            return -(long)HL_REASON_THP_DISABLED;
        }
        reason = reason == HL_REASON_NO_IMAGE ? explain_store(image) : reason;
    }
    return -(long)reason;
}

uint64_t hl_find_image_base(const struct hl_object *object, const struct hl_geometry *geometry) {
    const struct hl_segment *first = &object->segment[0];
    uint64_t base = hl_round_down(first->start, geometry->huge_page_bytes);
    bool has_header = first->offset == 0 && first->file_end > first->start;
    return first->first_page == base && !has_header ? base - geometry->huge_page_bytes : base;
}

/* Whether the image has all of SEGMENT, which is read-only: it is in one segment of LAID_OUT, or in neighbours. */
static bool has_read_only(const struct hl_object *laid_out, const struct hl_segment *segment) {
    uint64_t at = segment->start;
    for (unsigned i = 0; i < laid_out->n_segments && at < segment->file_end; i++) {
        const struct hl_segment *part = &laid_out->segment[i];
        if ((part->flags & PF_W) == 0 && (segment->flags & ~part->flags) == 0 && part->start <= at &&
            part->file_end > at)
            at = part->file_end;
    }
    return at >= segment->file_end;
}

/* Whether the image has SEGMENT as it is. */
static bool has_same(const struct hl_object *laid_out, const struct hl_segment *segment) {
    for (unsigned i = 0; i < laid_out->n_segments; i++) {
        const struct hl_segment *part = &laid_out->segment[i];
        if (part->start == segment->start && part->end == segment->end &&
            part->file_end == segment->file_end && part->flags == segment->flags)
            return true;
    }
    return false;
}

static unsigned count_writable(const struct hl_object *object) {
    unsigned n = 0;
    for (unsigned i = 0; i < object->n_segments; i++)
        n += (object->segment[i].flags & PF_W) != 0;
    return n;
}

int hl_compare_image(const struct hl_object *object, const struct hl_object *laid_out, uint64_t bytes,
                     const struct hl_geometry *geometry) {
    uint64_t base = hl_find_image_base(object, geometry);
    if (object->load_bias % geometry->huge_page_bytes != 0)
        return HL_REASON_IMAGE_PLACE;
    if (count_writable(laid_out) != count_writable(object))
        return HL_REASON_IMAGE_MISMATCH;
    for (unsigned i = 0; i < laid_out->n_segments; i++) {
        const struct hl_segment *part = &laid_out->segment[i];
        if (part->file_end > part->start && (part->offset != part->first_page - base ||
                                             part->offset + (part->file_end - part->first_page) > bytes))
            return HL_REASON_IMAGE_MISMATCH;
    }
    for (unsigned i = 0; i < object->n_segments; i++) {
        const struct hl_segment *segment = &object->segment[i];
        bool may_be_joined = (segment->flags & PF_W) == 0 && segment->file_end == segment->end;
        if (!has_same(laid_out, segment) && !(may_be_joined && has_read_only(laid_out, segment)))
            return HL_REASON_IMAGE_MISMATCH;
    }
    return 0;
}

/* hl_check_image, for an image of BYTES. */
static int check_image(const struct hl_object *object, int image, uint64_t bytes,
                       const struct hl_geometry *geometry) {
    struct hl_headers headers;
    struct hl_object laid_out;
    if (hl_read_headers(&headers, image, 0) != 0 ||
        hl_read_segments(&laid_out, headers.header, headers.file.e_phnum, object->load_bias, geometry) != 0)
        return HL_REASON_IMAGE_MISMATCH;
    return hl_compare_image(object, &laid_out, bytes, geometry);
}

int hl_check_image(const struct hl_object *object, int image, const struct hl_geometry *geometry) {
    struct hl_file_state state;
    int result = hl_read_file_state(&state, image);
    return result != 0 ? HL_REASON_IMAGE_MISMATCH : check_image(object, image, state.bytes, geometry);
}

/* An object's file and its image. */
struct source {
    long file, image;           /* open, or negative */
    struct hl_file_state state; /* the file's */
    uint64_t image_bytes;       /* the size of the image */
};

static void close_source(struct hl_context *context, const struct source *source,
                         const struct hl_object *object) {
    hl_close_later(context, source->image);
    if (source->file != object->file)
        hl_close_later(context, source->file);
}

/* Opens the file that OBJECT should be mapped from, and its image.  0, or why there is none. */
static int open_source(struct hl_context *context, struct hl_work *work, struct source *source) {
    const struct hl_object *object = &work->object;
    struct hl_stores stores;
    if (object->no_image != HL_MOVED)
        return (int)object->no_image;
    if (object->load_bias % context->config->geometry.huge_page_bytes != 0 && !hl_is_wanted(context, 1) &&
        !context->config->options.strict)
        return HL_REASON_IMAGE_PLACE; /* else the user is told whether there is one */
    if (!hl_open_stores(&stores, context))
        return HL_REASON_NO_IMAGE;
    source->file = hl_find_file(context, work) >= 0 ? object->file : hl_open_object_file(object);
    if (source->file >= 0 && hl_read_file_state(&source->state, (int)source->file) == 0)
        source->image = hl_open_image(&stores, context, &source->state);
    source->image_bytes = stores.image_bytes;
    for (unsigned i = 0; i < 2; i++)
        hl_close_later(context, stores.store[i].folder);
    return source->image < 0 ? (int)-source->image : 0;
}

/* Whether the image is OBJECT laid out, and the mapped file is the one that it is an image of. */
static int check_files(const struct hl_context *context, struct hl_work *work, struct source *source) {
    const struct hl_object *object = &work->object;
    int result = check_image(object, (int)source->image, source->image_bytes, &context->config->geometry);
    if (result != 0)
        return result;
    result = hl_look_at_object(context, work);
    if (result == 0 && !hl_holds_its_place(object) && !hl_is_as_loaded(&work->maps, object))
        result = HL_REASON_MAPPING_CHANGED;
    /* Last, because it may have to map the file. */
    if (result == 0 && !object->is_new && !hl_is_just_executed(context, object) &&
        !hl_is_mapped_from(context, work, (int)source->file, &source->state))
        result = HL_REASON_NO_IMAGE;
    return result;
}

static void plan_with(const struct hl_context *context, struct hl_work *work,
                      const struct hl_options *options) {
    work->reason =
        (enum hl_reason)hl_plan_object(&work->plan, &work->object, options, &context->config->geometry);
    hl_clear_moves(work);
}

/* For an image, read-only data and pages with little text cost nothing. */
void hl_set_image_options(struct hl_options *options) {
    options->segments = HL_SEGMENTS_ALL;
    options->sparse_text = 1;
}

static void plan_spans(const struct hl_context *context, struct hl_work *work) {
    struct hl_options options = context->config->options;
    hl_set_image_options(&options);
    plan_with(context, work, &options);
}

/* Checks that the image has all spans, before anything is mapped. */
static int check_spans(const struct hl_context *context, const struct hl_work *work,
                       const struct source *source) {
    uint64_t base = hl_find_image_base(&work->object, &context->config->geometry);
    for (unsigned i = 0; i < work->plan.n_spans; i++) {
        const struct hl_span *span = &work->plan.span[i];
        if (!hl_is_writable(span) && span->end - base > source->image_bytes)
            return HL_REASON_IMAGE_MISMATCH;
    }
    return 0;
}

/* Whether mapping over the spans can be undone, and gives the image's mapping no flags that the old ones don't have:
   mlockall(MCL_FUTURE) locks all that comes. */
static int check_way(const struct hl_context *context, const struct hl_work *work,
                     const struct source *source) {
    const struct hl_object *object = &work->object;
    const struct hl_segment *text = &object->segment[0];
    struct hl_area page;
    int prot = PROT_READ;
    if (hl_is_just_executed(context, object)) /* the kernel has just done that */
        return 0;
    for (unsigned i = 0; i < work->plan.n_spans; i++)
        if (!hl_is_writable(&work->plan.span[i]))
            prot |= hl_protection(work->plan.span[i].flags);
    for (unsigned i = 0; i < object->n_segments && !(text->flags & PF_X); i++)
        text = &object->segment[i];
    if (hl_map_file_area(&page, context->config->geometry.page_bytes, prot, MAP_PRIVATE, (int)source->file,
                         text->offset) != 0)
        return HL_REASON_NO_WAY_BACK;
    int result = context->others_ran ? hl_check_flags(page.start, page.end) : 0;
    hl_free_area(&page);
    return result;
}

/* Why IMAGE could not be mapped over old mappings. */
static int explain_mapping(long result, int image) {
    if (result == -EPERM)
        return hl_forbids_execution(image) ? HL_REASON_STORE_NOEXEC : HL_REASON_SEALED;
    return result == -EACCES ? HL_REASON_EXEC_DENIED : HL_REASON_NO_MEMORY;
}

/* Maps IMAGE from OFFSET over PART of a span, with PROT.  FILE is the way back.  0; or a reason, and the mappings are as they
   were; or HL_REASON_LOST. */
static int map_over(const struct hl_context *context, const struct hl_work *work, const struct hl_span *part,
                    int prot, int image, uint64_t offset, int file) {
    const struct hl_maps *was = hl_needs_no_maps(context, &work->object) ? NULL : &work->maps;
    long at = hl_mmap(part->start, hl_span_bytes(part), prot, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, image,
                      offset);
    if (!hl_is_error(at))
        return 0;
    /* It is not tried again: another thread may have mapped something where it has left a hole. */
    int result = hl_map_again(&work->object, file, was, part, false, prot);
    return result != 0 ? result : explain_mapping(at, image);
}

/* The page in which OBJECT's ELF header is mapped; 0: none. */
static uint64_t find_header_page(const struct hl_object *object) {
    for (unsigned i = 0; i < object->n_segments; i++)
        if (object->segment[i].offset == 0 && object->segment[i].file_end > object->segment[i].start)
            return object->segment[i].first_page;
    return 0;
}

/* An image may have the huge page with the headers once more, as its last one, with the headers of the file, which are in memory at
   HEADER and unchanged.  The offset of that in the image; 0: there is none. */
static uint64_t find_original_headers(const struct source *source, uint64_t header, uint64_t huge) {
    char in_image[HEADERS_BYTES];
    uint64_t at = hl_subtract(source->image_bytes, huge);
    bool is_there = at > 0 && at % huge == 0 &&
                    hl_pread((int)source->image, in_image, sizeof in_image, at) == sizeof in_image &&
                    hl_same_bytes((const char *)(uintptr_t)header, in_image, sizeof in_image);
    return is_there ? at : 0;
}

/* Maps span I: the parts before and behind the headers, and last the headers, if the image has the file's; else, and if that
   fails, the old ones stay, which does not harm the rest. */
static int map_span(const struct hl_context *context, const struct hl_work *work, unsigned i,
                    const struct source *source) {
    const struct hl_span *span = &work->plan.span[i];
    uint64_t header = find_header_page(&work->object), huge = context->config->geometry.huge_page_bytes;
    uint64_t base = hl_find_image_base(&work->object, &context->config->geometry), original = 0;
    struct hl_span part[3] = {*span, *span, *span};
    bool is_any = false;
    int result = 0;
    if (header < span->start || header >= span->end)
        header = span->end;
    else if (header % huge == 0)
        original = find_original_headers(source, header, huge);
    part[0].end = part[2].start = header;
    part[2].end = part[1].start = header + (original != 0 ? huge : context->config->geometry.page_bytes);
    for (unsigned j = 0; result == 0 && j < 3; j++) {
        uint64_t offset = j == 2 ? original : part[j].start - base;
        if (part[j].start >= part[j].end || (j == 2 && original == 0))
            continue;
        result = map_over(context, work, &part[j], work->move[i].prot, (int)source->image, offset,
                          (int)source->file);
        is_any = is_any || result == 0;
    }
    return is_any && result != HL_REASON_LOST ? 0 : result;
}

/* Maps the spans, each as far as that works.  0 if at least one is mapped. */
static int map_spans(const struct hl_context *context, struct hl_work *work, const struct source *source) {
    bool is_any = false;
    int result = 0;
    for (unsigned i = 0; result != HL_REASON_LOST && i < work->plan.n_spans; i++) {
        struct hl_move *move = &work->move[i];
        if (hl_is_writable(&work->plan.span[i]))
            continue;
        result = map_span(context, work, i, source);
        move->reason = (enum hl_reason)result;
        move->placed = result == 0;
        move->backend = move->placed ? HL_IMAGE : HL_NO_BACKEND;
        is_any = is_any || move->placed;
    }
    if (result == HL_REASON_LOST)
        work->reason = HL_REASON_LOST;
    return is_any || result == HL_REASON_LOST ? 0 : result;
}

static int plan_image(struct hl_context *context, struct hl_work *work, const struct source *source) {
    plan_spans(context, work);
    int result = work->reason != HL_MOVED ? (int)work->reason : check_spans(context, work, source);
    result = result != 0 ? result : check_way(context, work, source);
    result = result != 0 ? result : hl_check_object(context, work);
    return result != 0 ? result : map_spans(context, work, source);
}

int hl_use_image(struct hl_context *context, struct hl_work *work) {
    struct source source = {.file = -1, .image = -HL_REASON_NO_IMAGE};
    int result = open_source(context, work, &source);
    if (result == 0)
        result = check_files(context, work, &source);
    bool is_planned_anew = result == 0;
    if (result == 0)
        result = plan_image(context, work, &source);
    close_source(context, &source, &work->object);
    work->no_image = (enum hl_reason)result;
    if (result != 0 && is_planned_anew)
        plan_with(context, work, &context->config->options);
    return result;
}

void hl_adopt_image(const struct hl_context *context, struct hl_work *work) {
    plan_spans(context, work);
    work->no_image = HL_MOVED;
    for (unsigned i = 0; i < work->plan.n_spans; i++) {
        struct hl_move *move = &work->move[i];
        if (hl_is_writable(&work->plan.span[i]))
            continue;
        move->backend = HL_IMAGE;
        move->placed = true;
    }
}

/* Whether all of SPAN lies in one segment. */
static bool is_one_mapping(const struct hl_object *object, const struct hl_span *span) {
    for (unsigned i = 0; i < object->n_segments; i++) {
        const struct hl_segment *segment = &object->segment[i];
        if (hl_segment_overlap(segment, span->start, span->end) > 0)
            return segment->first_page <= span->start && span->end <= segment->end_page;
    }
    return false;
}

/* A dynamic linker has set PROT_BTI where the text needs it. */
static int join_span(const struct hl_context *context, const struct hl_work *work,
                     const struct hl_span *span) {
    int branches = 0, result = 0;
    if (HL_PROT_BTI != 0 && (span->flags & PF_X))
        result = hl_read_branch_protection(span->start, span->end, &branches);
    int prot = hl_protection(span->flags) | branches, image = work->object.file;
    uint64_t offset = span->start - hl_find_image_base(&work->object, &context->config->geometry);
    return result != 0 ? result : map_over(context, work, span, prot, image, offset, image);
}

void hl_join_image(const struct hl_context *context, struct hl_work *work) {
    for (unsigned i = 0; i < work->plan.n_spans; i++) {
        const struct hl_span *span = &work->plan.span[i];
        struct hl_move *move = &work->move[i];
        if (move->backend != HL_IMAGE || is_one_mapping(&work->object, span))
            continue;
        move->reason = (enum hl_reason)join_span(context, work, span);
        if (move->reason != HL_MOVED)
            move->backend = HL_NO_BACKEND;
        if (move->reason == HL_REASON_LOST)
            work->reason = HL_REASON_LOST;
    }
}
