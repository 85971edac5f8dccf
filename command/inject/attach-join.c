/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The text of a running process, joined in the page cache of its own file.

   If the kernel can do that (ext4 and xfs since Linux 7.2), no thread is stopped, nothing is copied, and every process that maps
   the file gains.  An image is then needed only for text outside the file's whole huge pages. */
#include "command/base/common.h"
#include "command/image/in-place.h"
#include "command/inject/attachment.h"
#include "elf/maps.h"
#include "command/inject/tracee.h"

#if defined __x86_64__

#include <stdlib.h>
#include <unistd.h>

/* The address of the byte at OFFSET of the file, in OBJECT's text; 0: it has none. */
static uint64_t find_address(const struct hl_object *object, uint64_t offset) {
    for (unsigned i = 0; i < object->n_segments; i++) {
        const struct hl_segment *segment = &object->segment[i];
        if ((segment->flags & PF_X) && offset >= segment->offset &&
            offset - segment->offset < segment->end_page - segment->first_page)
            return segment->first_page + (offset - segment->offset);
    }
    return 0;
}

/* The addresses of all chunks of PLACE, if they are one run. */
static bool find_run(const struct hl_place *place, const struct hl_object *object, struct hl_range *run) {
    *run = (struct hl_range){find_address(object, place->chunk[0].offset), 0};
    run->end = run->start;
    for (size_t i = 0; i < place->n_chunks; i++, run->end += place->chunk_bytes)
        if (find_address(object, place->chunk[i].offset) != run->end)
            return false;
    return run->start != 0;
}

static bool is_huge(const struct hl_place *place) {
    return hl_huge_text_bytes(place) == place->n_chunks * place->chunk_bytes;
}

/* Whether ATTACHMENT's process maps all of RUN by huge entries, after a byte of each has been read, which makes it map them. */
static bool is_mapped_huge(const struct hl_attachment *attachment, const struct hl_range *run,
                           uint64_t huge_page_bytes) {
    char byte;
    for (uint64_t at = run->start; at < run->end; at += huge_page_bytes)
        if (hl_read_thread(attachment->process.pid, at, &byte, 1) != 0)
            return false;
    int pagemap = hl_open_process_file(&attachment->process, "pagemap");
    bool result = pagemap >= 0 && hl_check_huge(pagemap, run->start, run->end) == 0;
    if (pagemap >= 0)
        close(pagemap);
    return result;
}

bool hl_join_attached_text(const struct hl_attachment *attachment, struct hl_range *joined) {
    struct hl_attach_request *request = attachment->request;
    const struct hl_loaded *loaded = attachment->loaded;
    struct hl_place place;
    char *path = hl_find_file_path(loaded->file->fd), *why = NULL;
    int result = hl_look_in_place(&place, loaded->file, &request->geometry);
    bool is_joined = false;
    if (result == 0 && path != NULL) {
        request->placer.only_looks = request->dry_run;
        why = hl_make_huge_in_place(&request->placer, &place, loaded->file, path);
        is_joined = find_run(&place, &loaded->object, joined) &&
                    (request->dry_run ? why == NULL
                                      : is_huge(&place) && is_mapped_huge(attachment, joined,
                                                                          request->geometry.huge_page_bytes));
    }
    if (result == 0 || result == -EPERM)
        hl_free_place(&place);
    free(why);
    free(path);
    return is_joined;
}

#endif
