/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Which text of a process has no file any more, and the names of its functions.

   A file with .symtab is read by the same code as inside the process.  A stripped one is given to libdw,
   which knows where debug files are and unpacks .gnu_debugdata.  Then names are demangled as perf does it:
   without the parameters, so that a map and a plain profile say the same. */
#include "command/base/common.h"
#include "command/perf-map/perf-map.h"

#include <libiberty/demangle.h>
#include <elfutils/libdwelf.h>
#include <elfutils/libdwfl.h>
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The demangler is slow with long names, and no reader wants them. */
#define DEMANGLED_MAX 16384
/* Usually enough for one name. */
#define NAME_BYTES 256
#define SYMBOLS_AT_ONCE ((size_t)256)

/* Whether REGION has text that was moved out of LOADED. */
static bool is_moved(const struct hl_region *region, const struct hl_loaded *loaded) {
    if (!(region->flags & PF_X) || region->name[0] == '[')
        return false;
    if (region->of_image) /* perf finds the names in the image */
        return false;
    if (region->inode != 0 && hl_hugetlb_bytes(region) == 0 && strncmp(region->name, "/memfd:", 7) != 0)
        return false;
    const struct hl_object *object = &loaded->object;
    for (unsigned i = 0; i < object->n_segments; i++)
        if ((object->segment[i].flags & PF_X) &&
            hl_segment_overlap(&object->segment[i], region->start, region->end) > 0)
            return true;
    return false;
}

static void add_range(struct hl_moved *moved, const struct hl_region *region) {
    struct hl_text_range *last = moved->n_ranges > 0 ? &moved->range[moved->n_ranges - 1] : NULL;
    if (last != NULL && last->end == region->start) {
        last->end = region->end;
        return;
    }
    moved->range = hl_xrealloc(moved->range, (moved->n_ranges + 1) * sizeof *moved->range);
    moved->range[moved->n_ranges++] = (struct hl_text_range){region->start, region->end};
}

static int compare_moved(const void *a, const void *b) {
    const struct hl_moved *left = a, *right = b;
    return (left->range->start > right->range->start) - (left->range->start < right->range->start);
}

struct hl_moved *hl_find_moved(const struct hl_process *process, size_t *n) {
    struct hl_moved *all = hl_xmalloc(process->n_loaded * sizeof *all);
    *n = 0;
    for (size_t i = 0; i < process->n_loaded; i++) {
        struct hl_moved moved = {&process->loaded[i], 0, NULL};
        for (size_t j = 0; j < process->n_regions; j++)
            if (is_moved(&process->region[j], moved.loaded))
                add_range(&moved, &process->region[j]);
        if (moved.n_ranges > 0)
            all[(*n)++] = moved;
    }
    qsort(all, *n, sizeof *all, compare_moved);
    return all;
}

static bool is_there(char *path) {
    bool there = access(path, R_OK) == 0;
    free(path);
    return there;
}

/* Whether a debug file NAME stands where libdw looks for the debug files of a file in FOLDER. */
static bool has_linked_file(const char *folder, const char *name, int pid) {
    return is_there(hl_xasprintf("%s/%s", folder, name)) ||
           is_there(hl_xasprintf("%s/.debug/%s", folder, name)) ||
           is_there(hl_xasprintf("/usr/lib/debug%s/%s", folder, name)) ||
           is_there(hl_xasprintf("/proc/%d/root/usr/lib/debug%s/%s", pid, folder, name));
}

static bool has_file_by_id(const unsigned char *id, size_t bytes, int pid) {
    char *name = hl_xasprintf("%02x/", id[0]);
    for (size_t i = 1; i < bytes; i++) {
        char *longer = hl_xasprintf("%s%02x", name, id[i]);
        free(name);
        name = longer;
    }
    bool there = is_there(hl_xasprintf("/usr/lib/debug/.build-id/%s.debug", name)) ||
                 is_there(hl_xasprintf("/proc/%d/root/usr/lib/debug/.build-id/%s.debug", pid, name));
    free(name);
    return there;
}

static bool has_section(Elf *elf, const char *wanted) {
    size_t names;
    if (elf_getshdrstrndx(elf, &names) != 0)
        return false;
    for (Elf_Scn *section = NULL; (section = elf_nextscn(elf, section)) != NULL;) {
        GElf_Shdr header;
        const char *name =
            gelf_getshdr(section, &header) != NULL ? elf_strptr(elf, names, header.sh_name) : NULL;
        if (name != NULL && strcmp(name, wanted) == 0)
            return true;
    }
    return false;
}

/* Whether libdw may find more names than the file itself has.  If there are none, asking libdw takes three
   times as long as all the rest: it loads libdebuginfod and a network client. */
static bool has_debug_names(const struct hl_process *process, const struct hl_loaded *loaded) {
    const void *id;
    GElf_Word crc;
    const char *servers = getenv("DEBUGINFOD_URLS"); /* perf sets it to "" for its children */
    if (servers != NULL && servers[0] != '\0')
        return true;
    elf_version(EV_CURRENT);
    Elf *elf = elf_begin(loaded->file->fd, ELF_C_READ, NULL);
    if (elf == NULL)
        return false;
    ssize_t id_bytes = dwelf_elf_gnu_build_id(elf, &id);
    bool found = has_section(elf, ".gnu_debugdata") ||
                 (id_bytes > 0 && has_file_by_id(id, (size_t)id_bytes, process->pid));
    const char *link = dwelf_elf_gnu_debuglink(elf, &crc);
    char *real = realpath(loaded->object.path, NULL);
    const char *paths[] = {loaded->object.path, real};
    for (size_t i = 0; i < 2 && !found && link != NULL && paths[i] != NULL; i++) {
        char *folder = hl_xasprintf("%.*s", (int)(hl_base_name(paths[i]) - paths[i]), paths[i]);
        found = has_linked_file(folder, link, process->pid);
        free(folder);
    }
    free(real);
    elf_end(elf);
    return found;
}

/* libdw's names for a stripped file. */
struct debug_names {
    Dwfl *dwfl;
    char *folders; /* the folders of debug files */
    Dwfl_Callbacks callbacks;
};

/* A process in a mount namespace of its own has debug files of its own, if any. */
static void open_debug_names(struct debug_names *names, const struct hl_process *process) {
    names->folders = hl_xasprintf(":.debug:/usr/lib/debug:/proc/%d/root/usr/lib/debug", process->pid);
    names->callbacks = (Dwfl_Callbacks){
        .find_elf = dwfl_build_id_find_elf,
        .find_debuginfo = dwfl_standard_find_debuginfo,
        .debuginfo_path = &names->folders,
    };
    names->dwfl = dwfl_begin(&names->callbacks);
}

static void close_debug_names(struct debug_names *names) {
    dwfl_end(names->dwfl);
    free(names->folders);
}

static Dwfl_Module *report_file(struct debug_names *names, const struct hl_loaded *loaded) {
    int fd = dup(loaded->file->fd); /* libdw closes it */
    if (fd < 0)
        return NULL;
    dwfl_report_begin(names->dwfl);
    Dwfl_Module *module = dwfl_report_elf(names->dwfl, loaded->object.path, loaded->object.path, fd,
                                          loaded->object.load_bias, true);
    if (module == NULL)
        close(fd);
    dwfl_report_end(names->dwfl, NULL, NULL);
    GElf_Addr bias;
    return module != NULL && dwfl_module_getelf(module, &bias) != NULL && bias == loaded->object.load_bias
               ? module
               : NULL;
}

/* Adds the names in the debug file or .gnu_debugdata.  They live until close_debug_names. */
static int add_debug_names(struct hl_symbols *symbols, struct debug_names *names,
                           const struct hl_loaded *loaded) {
    Dwfl_Module *module = names->dwfl != NULL ? report_file(names, loaded) : NULL;
    int n = module != NULL ? dwfl_module_getsymtab(module) : 0;
    for (int i = 1; i < n; i++) {
        GElf_Sym sym;
        GElf_Addr address;
        const char *name = dwfl_module_getsym_info(module, i, &sym, &address, NULL, NULL, NULL);
        int result = name != NULL ? hl_add_function(symbols, &sym, address, name) : 0;
        if (result != 0)
            return result;
    }
    return 0;
}

static bool is_in(const struct hl_symbol *symbol, const struct hl_moved *moved) {
    for (size_t i = 0; i < moved->n_ranges; i++)
        if (hl_overlap(symbol->start, symbol->start + symbol->bytes, moved->range[i].start,
                       moved->range[i].end) > 0)
            return true;
    return false;
}

/* Shared by the threads that demangle. */
struct demangling {
    struct hl_symbols *symbols;
    const struct hl_moved *moved;
    atomic_size_t next; /* the next of the chosen symbols that no thread has */
    atomic_uint n_workers;
    struct worker {
        struct demangling *shared;
        struct hl_scratch scratch; /* for the names */
        char *name;                /* under construction, name_bytes long */
        size_t name_bytes, filled;
    } worker[HL_THREADS_MAX];
};

static void add_text(const char *text, size_t bytes, void *worker_) {
    struct worker *worker = worker_;
    if (worker->name_bytes - worker->filled < bytes)
        worker->name = hl_xrealloc(worker->name, worker->name_bytes = 2 * (worker->filled + bytes));
    memcpy(worker->name + worker->filled, text, bytes);
    worker->filled += bytes;
}

/* Demangles NAME like cplus_demangle(NAME, DMGL_AUTO), but without a malloc for each name, and without
   trying Rust where it is impossible: "17h" begins the last part of its older names. */
static bool demangle_name(struct worker *worker, const char *name) {
    worker->filled = 0;
    if ((name[1] == 'R' || strstr(name, "17h") != NULL) &&
        rust_demangle_callback(name, DMGL_NO_OPTS, add_text, worker))
        return worker->filled > 0;
    worker->filled = 0;
    return name[1] == 'Z' && cplus_demangle_v3_callback(name, DMGL_NO_OPTS, add_text, worker) &&
           worker->filled > 0;
}

static bool may_be_mangled(const struct hl_symbol *symbol) {
    return symbol->kind != HL_IFUNC_STUB && symbol->name[0] == '_' &&
           (symbol->name[1] == 'Z' || symbol->name[1] == 'R') && strlen(symbol->name) <= DEMANGLED_MAX;
}

static void demangle_symbol(struct worker *worker, struct hl_symbol *symbol) {
    if (!may_be_mangled(symbol) || !is_in(symbol, worker->shared->moved) ||
        !demangle_name(worker, symbol->name))
        return;
    char *name = hl_allocate_scratch(&worker->scratch, worker->filled + 1);
    if (name == NULL)
        return;
    memcpy(name, worker->name, worker->filled);
    name[worker->filled] = '\0';
    symbol->name = name;
}

static void *demangle_some(void *shared_) {
    struct demangling *shared = shared_;
    struct worker *worker = &shared->worker[atomic_fetch_add(&shared->n_workers, 1)];
    const struct hl_symbols *symbols = shared->symbols;
    worker->shared = shared;
    hl_begin_scratch(&worker->scratch);
    hl_reserve_scratch(&worker->scratch, symbols->n_chosen * NAME_BYTES); /* without it this is only slower */
    for (;;) {
        size_t first = atomic_fetch_add(&shared->next, SYMBOLS_AT_ONCE);
        for (size_t i = first; i < symbols->n_chosen && i < first + SYMBOLS_AT_ONCE; i++)
            demangle_symbol(worker, &symbols->symbol[symbols->chosen[i]]);
        if (first >= symbols->n_chosen)
            return NULL;
    }
}

/* Demangles the names that will be written; they live until free_demangled. */
static void demangle_names(struct demangling *shared, struct hl_symbols *symbols,
                           const struct hl_moved *moved) {
    shared->symbols = symbols;
    shared->moved = moved;
    hl_run_in_threads(demangle_some, shared, symbols->n_chosen / (4 * SYMBOLS_AT_ONCE) + 1);
}

static void free_demangled(struct demangling *shared) {
    for (unsigned i = 0; i < shared->n_workers; i++) {
        hl_free_scratch(&shared->worker[i].scratch);
        free(shared->worker[i].name);
    }
}

void hl_add_names(struct hl_map_text *text, const struct hl_process *process, const struct hl_moved *moved,
                  bool demangle) {
    const struct hl_loaded *loaded = moved->loaded;
    struct hl_symbols symbols;
    struct debug_names names = {0};
    struct demangling demangled = {0};
    uint64_t lines = text->lines;
    hl_begin_symbols(&symbols, loaded->object.load_bias);
    int result = hl_read_symbols(&symbols, loaded->file->fd);
    if (symbols.table != SHT_SYMTAB && has_debug_names(process, loaded)) {
        open_debug_names(&names, process);
        int added = add_debug_names(&symbols, &names, loaded);
        result = result != 0 ? result : added;
    }
    if (hl_choose_symbols(&symbols) == 0) {
        if (demangle)
            demangle_names(&demangled, &symbols, moved);
        hl_write_symbols(text, &symbols, moved->range, moved->n_ranges);
    } else {
        text->result = -ENOMEM;
    }
    free_demangled(&demangled);
    hl_free_symbols(&symbols);
    close_debug_names(&names);
    if (result != 0)
        hl_warn("%s: its symbols cannot be read: %s; check it with readelf -sW", loaded->object.path,
                result == -ENOEXEC ? "the symbol table is broken" : strerror(-result));
    else if (text->lines == lines)
        hl_warn("%s: names no function in the moved text; install its debug symbols", loaded->object.path);
}
