/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Step 4, prepare, from an image: the object's file laid out anew, in a store, where the kernel has it on huge
   pages, one copy for every process (elf/store.c).

       object     rrrrrr TTTTTTTTTTTTTTTTTTTTTTT rrrrrrrr wwwww
       image      rrrrrr.TTTTTTTTTTTTTTTTTTTTTTT.rrrrrrrr.wwwww      offset = address - base, base % 2 MiB = 0
       huge pages |         |         |         |         |

   Nothing is copied: the spans' ranges of the image are mapped at a scratch address, and commit brings them
   into place as it brings any other memory.  What must be certain is that the image is one of the file that
   is mapped, and at this moment.  Its key says so (the file's device, inode, size and ctime, which no user can
   set), as long as the file that is asked for its state is the one that is mapped; that is looked up in maps.
   No build ID and no path decides anything. */
#include "image.h"
#include "backing-file.h"
#include "check.h"
#include "map-again.h"
#include "mapping.h"
#include "plan.h"
#include "prepare.h"
#include "segments.h"
#include "store.h"
#include "sys.h"

#include <linux/fcntl.h>
#include <linux/mman.h>

#define HEADERS_MAX (2 * HL_SEGMENTS_MAX)

/* What a search has met. */
struct search {
    const struct hl_file_state *state;
    unsigned node;
    enum hl_skip skip; /* why there is no image */
};

/* Why a store, or an image in one, could not be opened. */
static enum hl_skip explain_store(long result) {
    switch (-result) {
    case EACCES:
    case ENOTDIR:
        return HL_SKIP_STORE_UNSAFE;
    case EOVERFLOW:
        return HL_SKIP_STORE_FOREIGN;
    case EOPNOTSUPP:
        return HL_SKIP_STORE_FILE_SYSTEM;
    default:
        return HL_SKIP_NO_IMAGE;
    }
}

/* The image in the store at PATH, or a negated errno. */
static long search_store(struct search *search, const char *path, uint64_t owner) {
    long store = hl_open_store(path, owner), image = store;
    if (!hl_is_error(store)) {
        image = hl_open_stored_image((int)store, owner, search->node, search->state);
        hl_close((int)store);
    }
    if (hl_is_error(image) && search->skip == HL_SKIP_NO_IMAGE)
        search->skip = explain_store(image);
    return image;
}

/* The node that this thread runs on.  A filter may kill for asking. */
static unsigned find_node(const struct hl_context *context) {
    unsigned processor, node = 0;
    if (context->status.filters == 0)
        HL_CALL(__NR_getcpu, &processor, &node, 0, 0, 0, 0);
    return node;
}

static void set_named_store(struct hl_line *path, const struct hl_context *context) {
    hl_set_line(path, "");
    hl_add_bytes(path, context->options.store.at, context->options.store.bytes);
}

static bool is_there(const char *path) {
    long store = hl_open(path, O_PATH | O_CLOEXEC);
    if (!hl_is_error(store))
        hl_close((int)store);
    return store != -ENOENT;
}

bool hl_has_store(struct hl_context *context) {
    struct hl_line path;
    if (context->stores != HL_STORES_UNKNOWN)
        return context->stores == HL_SOME_STORE;
    set_named_store(&path, context);
    bool found = (path.bytes > 0 && is_there(path.at)) || is_there(HL_SYSTEM_STORE);
    context->stores = found ? HL_SOME_STORE : HL_NO_STORE;
    return found;
}

long hl_open_image(const struct hl_context *context, const struct hl_file_state *state) {
    struct search search = {state, find_node(context), HL_SKIP_NO_IMAGE};
    struct hl_line path;
    long image = -ENOENT;
    set_named_store(&path, context);
    if (path.bytes > 0)
        image = search_store(&search, path.at, hl_find_trusted_user(&context->status));
    if (hl_is_error(image))
        image = search_store(&search, HL_SYSTEM_STORE, 0);
    return hl_is_error(image) ? -(long)search.skip : image;
}

/* The address of the byte at offset 0 of OBJECT's image. */
static uint64_t find_base(const struct hl_object *object, const struct hl_geometry *geometry) {
    return hl_round_down(object->segment[0].start, geometry->huge_page_bytes);
}

int hl_compare_image(const struct hl_object *object, const struct hl_object *laid_out, uint64_t bytes,
                     const struct hl_geometry *geometry) {
    uint64_t base = find_base(object, geometry);
    if (object->load_bias % geometry->huge_page_bytes != 0)
        return HL_SKIP_IMAGE_PLACE;
    if (laid_out->n_segments != object->n_segments)
        return HL_SKIP_IMAGE_MISMATCH;
    for (unsigned i = 0; i < object->n_segments; i++) {
        const struct hl_segment *a = &object->segment[i], *b = &laid_out->segment[i];
        if (a->start != b->start || a->end != b->end || a->file_end != b->file_end || a->flags != b->flags)
            return HL_SKIP_IMAGE_MISMATCH;
        if (a->file_end > a->start &&
            (b->offset != b->first_page - base || b->offset + (b->file_end - b->first_page) > bytes))
            return HL_SKIP_IMAGE_MISMATCH;
    }
    return 0;
}

/* An image's first bytes, in which its program headers mostly are. */
struct headers {
    Elf64_Ehdr file;
    Elf64_Phdr header[HEADERS_MAX];
};

/* Reads the program headers of IMAGE. */
static bool read_headers(struct headers *headers, int image) {
    long got = hl_pread(image, headers, sizeof *headers, 0);
    const Elf64_Ehdr *file = &headers->file;
    if (got < (long)sizeof *file || !hl_same_bytes((const char *)file->e_ident, ELFMAG, SELFMAG) ||
        file->e_phentsize != sizeof *headers->header || file->e_phnum > HEADERS_MAX)
        return false;
    long bytes = (long)(file->e_phnum * sizeof *headers->header);
    if (file->e_phoff == sizeof *file && got >= (long)sizeof *file + bytes)
        return true;
    return hl_pread(image, headers->header, (size_t)bytes, file->e_phoff) == bytes;
}

int hl_check_image(const struct hl_object *object, int image, const struct hl_geometry *geometry) {
    struct headers headers;
    struct hl_object laid_out;
    struct hl_file_state state;
    if (!read_headers(&headers, image) ||
        hl_read_segments(&laid_out, headers.header, headers.file.e_phnum, object->load_bias, geometry) != 0 ||
        hl_read_file_state(&state, image) != 0)
        return HL_SKIP_IMAGE_MISMATCH;
    return hl_compare_image(object, &laid_out, state.bytes, geometry);
}

/* Whether nothing but its own file is mapped at OBJECT's read-only segments, each at its offset: what somebody
   has put there instead is not what the image holds. */
static bool is_as_loaded(const struct hl_maps *maps, const struct hl_object *object) {
    const struct hl_mapping *first = NULL;
    for (unsigned i = 0; i < object->n_segments; i++) {
        const struct hl_segment *segment = &object->segment[i];
        if (segment->flags & PF_W)
            continue;
        for (size_t j = hl_find_mapping(maps, segment->first_page);
             j < maps->n && maps->mapping[j].start < segment->end_page; j++) {
            const struct hl_mapping *mapping = &maps->mapping[j];
            if (first == NULL)
                first = mapping;
            if (mapping->inode == 0 || mapping->inode != first->inode || mapping->device != first->device ||
                mapping->offset - segment->offset != mapping->start - segment->first_page)
                return false;
        }
    }
    return first != NULL;
}

/* *IMAGE, which is a negated reason, becomes a descriptor where there is an image; the caller closes it. */
static int open_and_check(struct hl_context *context, const struct hl_object *object, long *image) {
    struct hl_file_state state;
    int result = object->no_image != HL_MOVED ? (int)object->no_image : HL_SKIP_NO_IMAGE;
    if (object->no_image != HL_MOVED || !hl_has_store(context))
        return result;
    if (!hl_holds_its_place(object) && !is_as_loaded(&context->maps, object))
        return HL_SKIP_MAPPING_CHANGED;
    long file = object->is_new ? object->file : hl_open_object_file(object);
    if (hl_is_error(file))
        return result;
    if (hl_read_file_state(&state, (int)file) == 0)
        *image = hl_open_image(context, &state);
    if (!hl_is_error(*image))
        result = hl_check_image(object, (int)*image, &context->geometry);
    else
        result = (int)-*image;
    /* Last, because it may have to read maps again. */
    if (result == 0 && !object->is_new && !hl_is_mapped_from(context, object, (int)file, &state))
        result = HL_SKIP_NO_IMAGE;
    if (!object->is_new)
        hl_close((int)file);
    return result;
}

/* Zeros that no file has are not in the image either. */
static bool has_zeros(const struct hl_object *object, const struct hl_span *span) {
    for (unsigned i = 0; i < object->n_segments; i++)
        if (hl_overlap(object->segment[i].file_end, object->segment[i].end, span->start, span->end) > 0)
            return true;
    return false;
}

/* Maps the range of IMAGE that SPAN is. */
static int map_span(struct hl_move *move, const struct hl_span *span, int image, uint64_t base,
                    uint64_t image_bytes) {
    uint64_t offset = span->start - base;
    if (offset + hl_span_bytes(span) > image_bytes)
        return HL_SKIP_IMAGE_MISMATCH;
    int result = hl_map_file_area(&move->area, hl_span_bytes(span), move->prot, MAP_PRIVATE | MAP_NORESERVE,
                                  image, offset);
    if (result != 0)
        return result == -EPERM    ? HL_SKIP_STORE_NOEXEC
               : result == -EACCES ? HL_SKIP_EXEC_DENIED
                                   : HL_SKIP_NO_MEMORY;
    move->memory = move->area.start;
    move->backend = HL_SHARED;
    return 0;
}

static int map_spans(struct hl_context *context, struct hl_work *work, int image) {
    uint64_t base = find_base(&work->object, &context->geometry);
    struct hl_file_state state;
    int result = hl_read_file_state(&state, image) != 0 ? HL_SKIP_IMAGE_MISMATCH : 0;
    for (unsigned i = 0; result == 0 && i < work->plan.n_spans; i++) {
        const struct hl_span *span = &work->plan.span[i];
        if (hl_is_writable(span))
            continue;
        result = has_zeros(&work->object, span) ? HL_SKIP_IMAGE_MISMATCH
                                                : map_span(&work->move[i], span, image, base, state.bytes);
    }
    return result;
}

static void plan_with(const struct hl_context *context, struct hl_work *work,
                      const struct hl_options *options) {
    work->skip = (enum hl_skip)hl_plan_object(&work->plan, &work->object, options, &context->geometry);
    hl_clear_moves(work);
}

/* Of an image, read-only data and pages with little text are for nothing. */
void hl_set_image_options(struct hl_options *options) {
    options->segments = HL_SEGMENTS_ALL;
    options->sparse_text = HL_SPARSE_TEXT_ON;
}

static void plan_spans(const struct hl_context *context, struct hl_work *work) {
    struct hl_options options = context->options;
    hl_set_image_options(&options);
    plan_with(context, work, &options);
}

static int plan_image(struct hl_context *context, struct hl_work *work, int image) {
    plan_spans(context, work);
    int result = work->skip != HL_MOVED ? (int)work->skip : hl_check_object(context, work);
    return result == 0 ? map_spans(context, work, image) : result;
}

int hl_prepare_image(struct hl_context *context, struct hl_work *work) {
    long image = -HL_SKIP_NO_IMAGE;
    int result = open_and_check(context, &work->object, &image);
    bool is_planned_anew = result == 0;
    if (result == 0)
        result = plan_image(context, work, (int)image);
    if (!hl_is_error(image))
        hl_close((int)image);
    work->no_image = (enum hl_skip)result;
    if (result != 0 && is_planned_anew) {
        for (unsigned i = 0; i < work->plan.n_spans; i++)
            hl_free_memory(&work->move[i]);
        plan_with(context, work, &context->options);
    }
    return result;
}

void hl_take_image(const struct hl_context *context, struct hl_work *work) {
    plan_spans(context, work);
    work->no_image = HL_MOVED;
    for (unsigned i = 0; i < work->plan.n_spans; i++) {
        struct hl_move *move = &work->move[i];
        if (hl_is_writable(&work->plan.span[i]))
            continue;
        move->backend = HL_SHARED;
        move->placed = true;
    }
}

/* Whether one segment alone is what SPAN holds. */
static bool is_one_mapping(const struct hl_object *object, const struct hl_span *span) {
    for (unsigned i = 0; i < object->n_segments; i++) {
        const struct hl_segment *segment = &object->segment[i];
        if (hl_segment_overlap(segment, span->start, span->end) > 0)
            return segment->first_page <= span->start && span->end <= segment->end_page;
    }
    return false;
}

/* A dynamic linker has put PROT_BTI where the text wants it. */
static int join_span(const struct hl_context *context, const struct hl_object *object,
                     const struct hl_span *span) {
    uint64_t base = find_base(object, &context->geometry);
    int branches = 0, result = 0;
    if (has_zeros(object, span))
        return HL_SKIP_IMAGE_MISMATCH;
    if (HL_PROT_BTI != 0 && (span->flags & PF_X))
        result = hl_read_branch_protection(span->start, span->end, &branches);
    if (result != 0)
        return result;
    int prot = hl_protection(span->flags) | branches;
    long at = hl_mmap(span->start, hl_span_bytes(span), prot, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
                      object->file, span->start - base);
    if (!hl_is_error(at))
        return 0;
    result = hl_map_again(object, span, prot, &context->geometry);
    return result != 0 ? result : HL_SKIP_MAP_COUNT;
}

void hl_join_image(const struct hl_context *context, struct hl_work *work) {
    for (unsigned i = 0; i < work->plan.n_spans; i++) {
        const struct hl_span *span = &work->plan.span[i];
        struct hl_move *move = &work->move[i];
        if (move->backend != HL_SHARED || is_one_mapping(&work->object, span))
            continue;
        move->skip = (enum hl_skip)join_span(context, &work->object, span);
        if (move->skip != HL_MOVED)
            move->backend = HL_NO_BACKEND;
        if (move->skip == HL_SKIP_LOST)
            work->skip = HL_SKIP_LOST;
    }
}
