/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which remedy helps a segment of a file is not a question of the reason alone: another value of an option
   may be set already, and would not help where the segment is too short.  So each remedy is tried, by
   planning again, and the first one that covers more of the segment is named. */
#include "command/file/remedy.h"
#include "command/base/basics.h"
#include "elf/plan.h"
#include "elf/skip.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Each for segments with that flag. */
static const struct {
    uint32_t flag;
    const char *option;
} settings[] = {
    {PF_X, "edges=merge"}, {PF_X, "sparse_text=on"}, {PF_R, "segments=text+rodata"},
    {PF_W, "data=thp"},    {PF_W, "bss=thp"},
};

char *hl_name_file(const char *remedy, const char *path) {
    const char *word = strstr(remedy, "FILE");
    if (word == NULL)
        return hl_xasprintf("%s", remedy);
    char *quoted = hl_xasprintf("%s", "");
    hl_add_word(&quoted, path);
    char *named = hl_xasprintf("%.*s%s%s", (int)(word - remedy), remedy, quoted, word + strlen("FILE"));
    free(quoted);
    return named;
}

char *hl_explain_skip(enum hl_skip skip, const char *path) {
    const char *remedy = hl_skip_remedy(skip);
    if (remedy == NULL)
        return hl_xasprintf("%s", hl_skip_sentence(skip));
    char *named = hl_name_file(remedy, path);
    char *text = hl_xasprintf("%s; %s", hl_skip_sentence(skip), named);
    free(named);
    return text;
}

static uint64_t count_covered(const struct hl_forecast *forecast, const struct hl_object *object, unsigned i,
                              const struct hl_options *options) {
    struct hl_plan plan;
    hl_plan_object(&plan, object, options, &forecast->geometry);
    return plan.covered_bytes[i];
}

/* OBJECT as it would be, linked with -z max-page-size=HUGE: each segment begins on a boundary. */
static void relink(struct hl_object *object, uint64_t huge) {
    uint64_t end = object->segment[0].first_page;
    for (unsigned i = 0; i < object->n_segments; i++) {
        struct hl_segment *segment = &object->segment[i];
        uint64_t shift = hl_round_up(end, huge) - segment->first_page;
        segment->start += shift;
        segment->end += shift;
        segment->file_end += shift;
        segment->first_page += shift;
        segment->end_page += shift;
        end = segment->end_page;
    }
    object->relro_start = object->relro_end = 0; /* part of a writable segment, which is not asked about */
    object->alignment = huge;
}

/* Text that does not fill a huge page is better off beside its neighbours. */
static bool helps_to_relink(const struct hl_forecast *forecast, unsigned i,
                            const struct hl_options *options) {
    const struct hl_segment *segment = &forecast->object.segment[i];
    struct hl_object relinked = forecast->object;
    uint64_t huge = forecast->geometry.huge_page_bytes;
    if (segment->flags & PF_W || segment->end - segment->start < huge || forecast->object.alignment >= huge)
        return false;
    relink(&relinked, huge);
    return count_covered(forecast, &relinked, i, options) > forecast->plan.covered_bytes[i];
}

static char *try_remedies(const struct hl_forecast *forecast, unsigned i, const struct hl_options *options) {
    for (size_t j = 0; j < sizeof settings / sizeof settings[0]; j++) {
        struct hl_options with = *options;
        hl_parse_options(&with, settings[j].option, NULL);
        if (forecast->object.segment[i].flags & settings[j].flag &&
            count_covered(forecast, &forecast->object, i, &with) > forecast->plan.covered_bytes[i])
            return hl_xasprintf("set %s", settings[j].option);
    }
    return helps_to_relink(forecast, i, options)
               ? hl_xasprintf("link it with -z max-page-size=0x%" PRIx64, forecast->geometry.huge_page_bytes)
               : NULL;
}

static char *copy_remedy(enum hl_skip skip) {
    const char *remedy = hl_skip_remedy(skip);
    return remedy != NULL ? hl_xasprintf("%s", remedy) : NULL;
}

char *hl_find_remedy(const struct hl_forecast *forecast, unsigned i, const struct hl_options *options) {
    switch (forecast->plan.skip[i]) {
    case HL_MOVED:
    case HL_SKIP_TOO_SMALL:
    case HL_SKIP_OPTION_SEGMENTS:
    case HL_SKIP_OPTION_DATA:
    case HL_SKIP_OPTION_BSS:
        return try_remedies(forecast, i, options);
    default:
        return copy_remedy(forecast->plan.skip[i]);
    }
}

char *hl_find_object_remedy(const struct hl_forecast *forecast, const struct hl_options *options) {
    for (unsigned i = 0; forecast->skip != 0 && i < forecast->object.n_segments; i++)
        if (forecast->object.segment[i].flags & PF_X)
            return hl_find_remedy(forecast, i, options);
    return copy_remedy((enum hl_skip)forecast->skip);
}
