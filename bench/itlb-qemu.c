/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A plugin for QEMU's user-mode emulator that runs a program's instructions through the model of itlb.c:

       qemu-x86_64 -plugin itlb-qemu.so,plan=PLAN,out=FILE PROGRAM ARGS

   FILE gets one line when the process ends; a child that it forked writes none, and a program that it executes is not
   emulated.  Each thread has TLBs of its own, as if it had a processor for itself.

   Debian packages the emulator with plugins, but not the header, so the used parts of version 1 of that interface
   (include/qemu/qemu-plugin.h, QEMU 4.2 to 8.2) are declared here. */
#include "itlb.h"

#include <elf.h>
#include <errno.h>
#include <error.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- the interface --- */

typedef uint64_t qemu_plugin_id_t;
struct qemu_info {
    const char *target_name;
    struct {
        int min, cur;
    } version;
    bool system_emulation;
};
struct qemu_plugin_tb;
struct qemu_plugin_insn;
enum { QEMU_PLUGIN_CB_NO_REGS = 0 };

size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
void *qemu_plugin_insn_haddr(const struct qemu_plugin_insn *);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
void qemu_plugin_register_vcpu_init_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, unsigned));
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t,
                                           void (*)(qemu_plugin_id_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, void (*)(unsigned, void *), int flags,
                                          void *);
void qemu_plugin_register_vcpu_syscall_ret_cb(qemu_plugin_id_t,
                                              void (*)(qemu_plugin_id_t, unsigned, int64_t, int64_t));
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, void *), void *);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;
__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t, const struct qemu_info *,
                                                               int, char **);

/* --- the process --- */

enum {
    PAGES_MAX = 4,
    CORES_MAX = 4096
}; /* a block has at most 512 instructions, and ends with its page or soon after */

/* A block that QEMU translates at once, and executes from its beginning to its end. */
struct block {
    uint64_t instructions, first, last; /* their number, the addresses of the first and the last */
    bool repeats;                       /* the first is one that x86 repeats by itself */
    unsigned pages;
    struct place places[PAGES_MAX];
};

struct thread {
    struct core *core;
    uint64_t last; /* the address of the instruction executed last */
};

/* Where code of one object lies in this process, in QEMU's own addresses, which are the program's or differ by a constant. */
struct mapping {
    uint64_t start, end;
    unsigned object;
    uint64_t linked_minus_here;
};

static struct model *model;
static struct thread threads[CORES_MAX];
static struct mapping known; /* where code was seen last; QEMU translates under a lock */
static atomic_bool
    is_stale; /* the program has called the kernel since, and may have mapped something else there */
static const char *out;
static pid_t process;
static bool is_x86;

/* PATH's executable segment that has the byte at OFFSET; all 0 if there is none.  END becomes the end of its last segment. */
static Elf64_Phdr find_segment(const char *path, uint64_t offset, uint64_t *end) {
    Elf64_Ehdr header;
    Elf64_Phdr segment, found = {0};
    FILE *file = fopen(path, "re");
    *end = 0;
    if (file == NULL || fread(&header, sizeof header, 1, file) != 1 ||
        memcmp(header.e_ident, ELFMAG, SELFMAG) != 0)
        error(1, errno, "itlb: %s", path);
    for (unsigned i = 0; i < header.e_phnum; i++) {
        if (fseek(file, (long)(header.e_phoff + i * sizeof segment), SEEK_SET) != 0 ||
            fread(&segment, sizeof segment, 1, file) != 1)
            error(1, errno, "itlb: %s", path);
        if (segment.p_type != PT_LOAD)
            continue;
        *end = segment.p_vaddr + segment.p_memsz;
        if ((segment.p_flags & PF_X) && offset >= segment.p_offset &&
            offset < segment.p_offset + segment.p_filesz)
            found = segment;
    }
    fclose(file);
    return found;
}

/* QEMU maps nothing executable, so that several segments of a file can be one line of the maps. */
static struct mapping read_mapping(const char *path, uint64_t start, uint64_t offset, uint64_t at) {
    uint64_t here = at - start + offset, end;
    Elf64_Phdr segment = find_segment(path, here, &end);
    if (segment.p_filesz == 0)
        error(1, 0, "itlb: %s executes what is no code, at offset %#" PRIx64, path, here);
    return (struct mapping){
        .start = at - (here - segment.p_offset),
        .end = at - (here - segment.p_offset) + segment.p_filesz,
        .object = model_object(model, path, end),
        .linked_minus_here = segment.p_vaddr - segment.p_offset + here - at,
    };
}

static void find_mapping(uint64_t at, uint64_t address) {
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[4200];
    if (maps == NULL)
        error(1, errno, "itlb: /proc/self/maps");
    known = (struct mapping){0};
    while (known.end == 0 && fgets(line, sizeof line, maps) != NULL) {
        uint64_t start, end, offset;
        char path[4100] = "";
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %" SCNx64 " %*s %*s %4099[^\n]", &start, &end, &offset,
                   path) < 3 ||
            at < start || at >= end)
            continue;
        if (path[0] == '/' && access(path, R_OK) == 0)
            known = read_mapping(path, start, offset, at);
        else /* made at run time: where the program sees it */
            known = (struct mapping){start, end, model_anonymous(model), address - at};
    }
    fclose(maps);
}

static struct place find_place(uint64_t at, uint64_t address) {
    if (atomic_exchange(&is_stale, false) || at < known.start || at >= known.end)
        find_mapping(at, address);
    return model_place(model, known.object, at + known.linked_minus_here);
}

/* MOVS, STOS, CMPS, SCAS, LODS, INS or OUTS with a REP prefix. */
static bool repeats(const uint8_t *code, size_t size) {
    bool prefix = false;
    size_t i = 0;
    while (i + 1 < size && (code[i] == 0xf2 || code[i] == 0xf3 || code[i] == 0x66 || code[i] == 0x67 ||
                            (code[i] & 0xf0) == 0x40))
        prefix |= (code[i++] & 0xfe) == 0xf2;
    return prefix && ((code[i] >= 0x6c && code[i] <= 0x6f) ||
                      (code[i] >= 0xa4 && code[i] <= 0xaf && (code[i] & 0xfe) != 0xa8));
}

static void add_page(struct block *block, uint64_t at, uint64_t address) {
    struct place place = find_place(at, address);
    if (block->pages > 0 && block->places[block->pages - 1].page == place.page)
        return;
    if (block->pages == PAGES_MAX)
        error(1, 0, "itlb: a block of QEMU's has more than %d pages", PAGES_MAX);
    block->places[block->pages++] = place;
}

static void execute(unsigned cpu, void *data) {
    const struct block *block = data;
    struct thread *thread = &threads[cpu];
    /* The next round of an instruction that repeats itself does not count as another instruction. */
    core_execute(thread->core, block->instructions - (block->repeats && block->first == thread->last));
    for (unsigned i = 0; i < block->pages; i++)
        core_touch(thread->core, block->places[i]);
    thread->last = block->last;
}

static void translate(qemu_plugin_id_t id, struct qemu_plugin_tb *tb) {
    (void)id;
    struct block *block = calloc(1, sizeof *block);
    if (block == NULL)
        error(1, ENOMEM, "itlb");
    block->instructions = qemu_plugin_tb_n_insns(tb);
    for (size_t i = 0; i < block->instructions; i++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
        uint64_t address = qemu_plugin_insn_vaddr(insn),
                 at = (uint64_t)(uintptr_t)qemu_plugin_insn_haddr(insn);
        size_t size = qemu_plugin_insn_size(insn);
        add_page(block, at, address);
        add_page(block, at + size - 1, address + size - 1);
        if (i == 0) {
            block->first = address;
            block->repeats = is_x86 && repeats(qemu_plugin_insn_data(insn), size);
        }
        block->last = address;
    }
    qemu_plugin_register_vcpu_tb_exec_cb(tb, execute, QEMU_PLUGIN_CB_NO_REGS, block);
}

static void forget_mapping(qemu_plugin_id_t id, unsigned cpu, int64_t number, int64_t result) {
    (void)id, (void)cpu, (void)number, (void)result;
    atomic_store(&is_stale, true);
}

static void start_thread(qemu_plugin_id_t id, unsigned cpu) {
    (void)id;
    if (cpu >= CORES_MAX)
        error(1, 0, "itlb: more than %d threads", CORES_MAX);
    threads[cpu] = (struct thread){.core = core_new(model), .last = UINT64_MAX};
}

static void finish(qemu_plugin_id_t id, void *data) {
    (void)id, (void)data;
    static struct core *cores[CORES_MAX];
    if (getpid() != process)
        return;
    FILE *file = fopen(out, "we");
    if (file == NULL)
        error(1, errno, "itlb: %s", out);
    for (unsigned i = 0; i < CORES_MAX; i++)
        cores[i] = threads[i].core;
    model_print(file, model, cores, CORES_MAX);
    if (fclose(file) != 0)
        error(1, errno, "itlb: %s", out);
}

int qemu_plugin_install(qemu_plugin_id_t id, const struct qemu_info *info, int argc, char *argv[]) {
    for (int i = 0; i < argc; i++)
        if (strncmp(argv[i], "plan=", 5) == 0)
            model = model_read(argv[i] + 5);
        else if (strncmp(argv[i], "out=", 4) == 0)
            out = strdup(argv[i] + 4);
    if (model == NULL || out == NULL)
        error(1, 0, "itlb: the plugin needs plan= and out=");
    is_x86 = strcmp(info->target_name, "x86_64") == 0;
    process = getpid();
    qemu_plugin_register_vcpu_init_cb(id, start_thread);
    qemu_plugin_register_vcpu_tb_trans_cb(id, translate);
    qemu_plugin_register_vcpu_syscall_ret_cb(id, forget_mapping);
    qemu_plugin_register_atexit_cb(id, finish, NULL);
    return 0;
}
