/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finds and checks the image of a file with the same code as in a process.  Only the load address, which the process knows, cannot
   be read from the file: an image fits only addresses at multiples of a huge page. */
#include "command/image/find.h"
#include "command/lib/basics.h"
#include "command/image/eligible.h"
#include "elf/image.h"
#include "command/image/layout.h"
#include "elf/plan.h"
#include "command/lib/remedy.h"
#include "elf/reason.h"
#include "elf/status.h"
#include "command/image/store.h"

#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

struct hl_options hl_options_for_image(const struct hl_options *options) {
    struct hl_options all = *options;
    hl_set_image_options(&all);
    return all;
}

/* OPTIONS with the store that `hugeld run` would name for this user, whose path the caller frees. */
static struct hl_options name_store(const struct hl_options *options, char **path) {
    struct hl_options all = *options;
    *path = hl_choose_store(options);
    if (*path != NULL && strcmp(*path, HL_SYSTEM_STORE) != 0)
        all.store = (struct hl_string){*path, strlen(*path)};
    return all;
}

/* The bound of the default options, since an image's own plan has none. */
uint64_t hl_find_least_text_bytes(const struct hl_geometry *geometry) {
    const struct hl_options defaults = {0};
    return hl_least_text_bytes(&defaults, geometry);
}

long hl_open_image_as(const struct hl_status *status, const struct hl_file_state *state,
                      const struct hl_options *options) {
    static struct hl_config config; /* hl_open_image looks at the options, the user and the filters */
    static struct hl_context context = {.config = &config};
    char *path;
    config.options = name_store(options, &path);
    context.probed.status = *status;
    struct hl_stores stores;
    long image = -HL_REASON_NO_IMAGE;
    context.probed.has_no_store = false;
    if (hl_open_stores(&stores, &context)) {
        image = hl_open_image(&stores, &context, state);
        hl_close_stores(&stores);
    }
    free(path);
    return image;
}

/* Where AArch64 has permission overlays, sigreturn writes POR_EL0 even if the frame has no record of it, on some kernels (Linux 6.12 and
   later). */
int hl_check_exec_stop_machine(void) {
#if defined __aarch64__
    const uint64_t overlays = UINT64_C(1) << 63; /* arch/arm64/include/uapi/asm/hwcap.h: HWCAP2_POE */
    return getauxval(AT_HWCAP2) & overlays ? HL_REASON_EXEC_OVERLAYS : 0;
#else
    return 0;
#endif
}

uint64_t hl_find_header_page(int image, const struct hl_elf_file *file, uint64_t header,
                             const struct hl_geometry *geometry) {
    char own[4096], copy[sizeof own];
    struct hl_file_state state;
    uint64_t huge = geometry->huge_page_bytes;
    uint64_t bytes = file->header.e_phoff + file->phnum * sizeof(Elf64_Phdr);
    if (hl_read_file_state(&state, image) != 0 || state.bytes % huge != 0 || state.bytes <= huge ||
        bytes > sizeof own || pread(file->fd, own, bytes, 0) != (ssize_t)bytes ||
        pread(image, copy, bytes, (off_t)(state.bytes - huge + header % huge)) != (ssize_t)bytes)
        return 0;
    return memcmp(own, copy, bytes) == 0 ? state.bytes - huge : 0;
}

/* Why the open IMAGE would not be mapped; HL_MOVED: it would, as far as the address is known. */
static enum hl_reason check_image(const struct hl_file_plan *file_plan, int image, bool knows_address) {
    struct hl_object object = file_plan->object;
    if (!knows_address && hl_gets_any_address(file_plan->file, &file_plan->geometry))
        hl_load_object(&object, file_plan->file, file_plan->path, 0, &file_plan->geometry);
    int result = hl_check_image(&object, image, &file_plan->geometry);
    return result == 0 && hl_forbids_execution(image) ? HL_REASON_STORE_NOEXEC : (enum hl_reason)result;
}

/* Whether `hugeld apply` would take FILE into the store that this user fills, perhaps with any_disk, of which enable tells. */
static bool is_eligible(const struct hl_elf_file *file, const struct hl_options *options) {
    char *store = hl_choose_store(options), *path = hl_find_file_path(file->fd);
    char *problem = path != NULL ? hl_explain_unsteady(file->fd, true) : hl_xasprintf("%s", "");
    if (problem == NULL && store != NULL && strcmp(store, HL_SYSTEM_STORE) == 0)
        problem = hl_explain_private(file->fd, path, NULL);
    bool is = problem == NULL;
    free(problem);
    free(path);
    free(store);
    return is;
}

enum hl_reason hl_consider_image(enum hl_reason reason, const struct hl_elf_file *file,
                                 const struct hl_options *options, const struct hl_geometry *geometry,
                                 uint64_t *pages) {
    struct hl_image image;
    struct hl_coverage coverage;
    uint64_t bytes;
    *pages = 0;
    int result = hl_has_privileges(file) ? HL_REASON_PRIVILEGED : hl_plan_image(&image, file, geometry);
    if (result != 0)
        return (enum hl_reason)result;
    if (hl_find_coverage(&coverage, file, geometry) != 0 ||
        coverage.mapped_bytes + coverage.executed_bytes == 0)
        result = HL_REASON_IMAGE_USELESS;
    else if (!hl_fits_store(&image, geometry, &bytes))
        result = HL_REASON_TOO_SPARSE;
    else if (coverage.text_bytes < hl_find_least_text_bytes(geometry))
        result = HL_REASON_SPARSE_TEXT;
    else if (reason == HL_REASON_STORE_FOREIGN) /* no image of any file can be used */
        result = reason;
    else if (!is_eligible(file, options))
        result = HL_REASON_IMAGE_INELIGIBLE;
    else
        *pages = image.huge_pages;
    hl_free_image(&image);
    return result != 0 ? (enum hl_reason)result : reason;
}

void hl_find_image(struct hl_found_image *found, const struct hl_file_plan *file_plan,
                   const struct hl_options *options, bool knows_address) {
    struct hl_file_state state, image_state;
    struct hl_status status;
    bool is_anywhere = !knows_address && hl_gets_any_address(file_plan->file, &file_plan->geometry);
    struct hl_options all = hl_options_for_image(options);
    *found = (struct hl_found_image){.reason = (enum hl_reason)file_plan->reason};
    if (file_plan->object.n_segments == 0 || !hl_is_native(file_plan->file))
        return;
    found->is_placed_anywhere = is_anywhere && strcmp(hl_elf_type(file_plan->file), "pie") == 0;
    hl_plan_object(&found->plan, &file_plan->object, &all, &file_plan->geometry);
    hl_read_status(&status, &hl_system_roots);
    status.thp_disabled = false; /* it is this process's, and another one may be asked about */
    long image = hl_read_file_state(&state, file_plan->file->fd) == 0
                     ? hl_open_image_as(&status, &state, options)
                     : -HL_REASON_NO_IMAGE;
    if (image < 0) {
        found->reason = hl_consider_image((enum hl_reason) - image, file_plan->file, options,
                                          &file_plan->geometry, &found->needed_pages);
        return;
    }
    found->path = hl_find_file_path((int)image);
    if (found->path == NULL)
        found->path = hl_xasprintf("?");
    found->bytes = hl_read_file_state(&image_state, (int)image) == 0 ? image_state.bytes : 0;
    found->reason =
        found->is_placed_anywhere ? HL_REASON_IMAGE_PLACE : check_image(file_plan, (int)image, knows_address);
    found->is_unwanted = !hl_uses_images(options->backend);
    if (found->is_unwanted)
        found->reason = HL_MOVED;
    else if (found->reason == HL_MOVED)
        found->use = is_anywhere ? HL_IMAGE_DEPENDS : HL_IMAGE_USED;
    close((int)image);
}

char *hl_format_image_remedy(const struct hl_found_image *found, const char *path) {
    if (found->is_unwanted)
        return hl_xasprintf("set backend=image");
    /* An image is laid out anew, regardless of edges= and of how the file was linked. */
    bool has_remedy = found->reason != HL_MOVED && found->reason != HL_REASON_TOO_SMALL;
    const char *remedy = has_remedy ? hl_reason_remedy(found->reason) : NULL;
    return remedy != NULL ? hl_name_file(remedy, path) : NULL;
}
