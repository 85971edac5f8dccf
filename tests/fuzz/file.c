/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A whole file as inspect, doctor and perf-map read it: refused with a sentence, or planned for all its load addresses. */
#include "fuzz.h"

#include "command/lib/file-plan.h"
#include "command/lib/section.h"
#include "../unit/plan-model.h"

#include <sys/mman.h>
#include <unistd.h>

static void plan_file(const struct hl_elf_file *file, const char *path) {
    struct hl_file_plan file_plan;
    struct hl_options options;
    struct hl_starts starts;
    hl_default_options(&options);
    options.segments = HL_SEGMENTS_ALL;
    options.bss = HL_BSS_THP;
    hl_plan_file(&file_plan, path, file, &options, hl_is_position_independent(file) ? T_HUGE : 0);
    assert_int_equal(file_plan.reason == 0, file_plan.plan.n_spans > 0);
    if (file_plan.object.n_segments == 0)
        return;
    check_spans(&file_plan.plan, &file_plan.object);
    check_numbers(&file_plan.plan, &file_plan.object);
    hl_measure_starts(&starts, &file_plan, &options);
    assert_true(starts.starts > 0 && starts.full_starts <= starts.starts);
    assert_true(starts.pages_min <= starts.pages_max && starts.covered_min <= starts.covered_max);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static int fd = -1;
    static char path[40];
    struct hl_elf_file file;
    if (fd < 0) {
        fd = memfd_create("file", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (ftruncate(fd, 0) != 0 || pwrite(fd, data, bytes, 0) != (ssize_t)bytes)
        abort();
    enum hl_elf_problem problem = hl_open_elf(&file, -1, path);
    assert_true(problem < HL_ELF_PROBLEMS);
    assert_true(strlen(hl_elf_problem_sentence(problem)) > 3);
    if (problem != HL_ELF_FINE)
        return 0;
    assert_true(hl_elf_type(&file) != NULL);
    hl_needs_library(&file, "lib");
    free(hl_read_build_id(file.fd));
    free(hl_read_section(file.fd, ".gnu_debuglink", &bytes));
    plan_file(&file, path);
    hl_close_elf(&file);
    return 0;
}
