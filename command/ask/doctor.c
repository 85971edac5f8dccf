/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld doctor: tests what this machine can do for a process started from here, and names a command that fixes each problem.

   Everything is checked by the same functions that decide at run time, so in a container, a cpuset or a service's sandbox the
   answers are those for a program inside it. */
#include "command/command.h"
#include "command/lib/common.h"
#include "command/lib/flags.h"
#include "command/ask/doctor-store.h"
#include "elf/line.h"
#include "elf/mapping.h"
#include "elf/memory-limit.h"
#include "elf/pool.h"
#include "command/run/run.h"
#include "elf/reason.h"
#include "elf/thp.h"
#include "command/measure/tlb.h"

#include <inttypes.h>
#include <stdlib.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined __x86_64__
#include <cpuid.h>
#endif

/* Mappings that linkers, interpreters and databases need beside ours: the kernel's own default. */
#define MAP_COUNT_USUAL 65530
/* Pages that a large program's text takes (design: 128 MiB is the largest measured). */
#define PAGES_SUGGESTED 128 /* besides all existing pages: a larger pool takes surplus pages in first */
#define HEADROOM_SMALL_BYTES ((uint64_t)256 << 20)

enum state { OK, WARN, BAD };
static const char *const state_names[] = {"ok", "warn", "bad"};

struct machine {
    json_t *answer;
    struct utsname system;
    struct hl_geometry geometry;
    struct hl_kernel kernel;
    bool has_memfd;    /* memfd_create(2) with MFD_HUGETLB (Linux 4.14) */
    bool read_by_call; /* process_vm_readv(2) of the process itself */
    bool has_collapse; /* MADV_COLLAPSE (Linux 6.1) */
    struct hl_status status;
    struct hl_placement placement;
    struct hl_pool pool;
    uint64_t available[HL_NUMA_INTERLEAVE + 1]; /* for each numa= */
    int pool_reason, thp_reason;
    bool can_hugetlb, can_thp;
};

static const struct hl_flag command_flags[] = {
    HL_NO_ARGUMENTS,
};

/* Tries the kernel's features.  A filter may kill for a call that programs do not usually make. */
static void try_features(struct machine *machine) {
    static const char from = 'x';
    char to = 0;
    hl_probe_hugetlb(&machine->kernel, &machine->geometry, true);
    machine->kernel.executable_memory = hl_may_execute_written(machine->geometry.page_bytes);
    if (machine->status.filters == 0) {
        long fd = hl_create_memfd(&machine->geometry, true);
        machine->has_memfd = fd >= 0 && close((int)fd) == 0;
        machine->read_by_call = hl_read_memory(&to, (uint64_t)&from, 1) == 1 && to == 'x';
    }
    machine->has_collapse =
        madvise(NULL, 0, MADV_COLLAPSE) == 0; /* the advice is checked before the length */
}

static void examine(struct machine *machine) {
    const struct hl_kernel *kernel = &machine->kernel;
    uname(&machine->system);
    machine->geometry = hl_read_geometry();
    hl_read_status(&machine->status, &hl_system_roots);
    try_features(machine);
    for (unsigned numa = HL_NUMA_INTERLEAVE + 1; numa-- > 0;) { /* HL_NUMA_ANY comes last and stays */
        hl_read_placement(&machine->placement, &machine->status, numa);
        machine->pool_reason =
            hl_read_pool(&machine->pool, &hl_system_roots, &machine->geometry, &machine->placement);
        machine->available[numa] = machine->pool_reason == 0 ? hl_pool_available(&machine->pool, 0) : 0;
    }
    machine->thp_reason = hl_check_thp_policy(&hl_system_roots, &machine->geometry, &machine->status);
    struct hl_machine memory;
    hl_read_machine(&memory, &hl_system_roots);
    if (machine->thp_reason == 0)
        machine->thp_reason = hl_check_memory_limit(&hl_system_roots, &machine->placement, &memory, 0);
    machine->can_hugetlb = machine->available[HL_NUMA_ANY] > 0 && kernel->hugetlb &&
                           ((kernel->hugetlb_mremap && kernel->executable_memory) || machine->has_memfd);
    machine->can_thp = machine->thp_reason == 0 && kernel->executable_memory;
}

/* Prints a finding, or adds it to the answer, and takes SENTENCE over.  REMEDY is NULL if nothing has to be fixed. */
static void add_finding(struct machine *machine, const char *name, enum state state, char *sentence,
                        const char *remedy) {
    hl_print("%-4s  %-18s %s", state_names[state], name, sentence);
    if (remedy != NULL)
        hl_print("      %-18s fix: %s", "", remedy);
    json_array_append_new(json_object_get(machine->answer, "findings"),
                          json_pack("{s:s, s:s, s:o, s:o}", "name", name, "state", state_names[state],
                                    "sentence", hl_json_text(sentence), "remedy", hl_json_text(remedy)));
    free(sentence);
}

static json_t *make_json_pool(const struct machine *machine) {
    const struct hl_pool *pool = &machine->pool;
    json_t *nodes = json_array();
    for (unsigned i = 0; i < pool->n_nodes; i++) {
        const struct hl_pool_node *node = &pool->node[i];
        json_array_append_new(nodes, json_pack("{s:i, s:s, s:I, s:I, s:I}", "node", (int)node->node, "use",
                                               hl_node_use_name(node->use), "total_pages",
                                               (json_int_t)node->total_pages, "free_pages",
                                               (json_int_t)node->free_pages, "surplus_pages",
                                               (json_int_t)node->surplus_pages));
    }
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:{s:I, s:I, s:I}, s:o}", "total_pages",
        (json_int_t)pool->total_pages, "free_pages", (json_int_t)pool->free_pages, "reserved_pages",
        (json_int_t)pool->reserved_pages, "surplus_pages", (json_int_t)pool->surplus_pages,
        "overcommit_pages", (json_int_t)pool->overcommit_pages, "usable_free_pages",
        (json_int_t)hl_pool_usable_free(pool), "growth_pages", (json_int_t)hl_pool_growth(pool),
        "available_pages", (json_int_t)machine->available[HL_NUMA_ANY], "available", "any",
        (json_int_t)machine->available[HL_NUMA_ANY], "local", (json_int_t)machine->available[HL_NUMA_LOCAL],
        "interleave", (json_int_t)machine->available[HL_NUMA_INTERLEAVE], "nodes", nodes);
}

static void find_kernel(struct machine *machine) {
    const struct utsname *system = &machine->system;
    add_finding(machine, "kernel", OK,
                hl_xasprintf("%s %s on %s", system->sysname, system->release, system->machine), NULL);
    json_object_set_new(machine->answer, "kernel", json_string(system->release));
    json_object_set_new(machine->answer, "page_bytes",
                        json_integer((json_int_t)machine->geometry.page_bytes));
    json_object_set_new(machine->answer, "huge_page_bytes",
                        json_integer((json_int_t)machine->geometry.huge_page_bytes));
    json_object_set_new(machine->answer, "numa",
                        json_pack("{s:i, s:b}", "local_node", (int)machine->placement.local_node, "binds",
                                  machine->placement.binds));
}

static void find_pool(struct machine *machine) {
    const struct hl_pool *pool = &machine->pool;
    json_object_set_new(machine->answer, "pool", make_json_pool(machine));
    if (machine->pool_reason != 0) {
        add_finding(machine, "pool", BAD,
                    hl_xasprintf("%s", hl_reason_sentence((enum hl_reason)machine->pool_reason)),
                    hl_reason_remedy((enum hl_reason)machine->pool_reason));
        return;
    }
    char *remedy = hl_xasprintf("sysctl vm.nr_hugepages=%" PRIu64, pool->total_pages + PAGES_SUGGESTED);
    add_finding(
        machine, "pool", machine->available[HL_NUMA_ANY] > 0 ? OK : WARN,
        hl_xasprintf("%" PRIu64 " huge pages of %" PRIu64 " KiB, %" PRIu64 " free, %" PRIu64
                     " reserved; %" PRIu64 " available for this process%s",
                     pool->total_pages, machine->geometry.huge_page_bytes / 1024, pool->free_pages,
                     pool->reserved_pages, machine->available[HL_NUMA_ANY],
                     machine->available[HL_NUMA_ANY] > 0 ? "" : "; only private copies take them (--copy)"),
        machine->available[HL_NUMA_ANY] > 0 ? NULL : remedy);
    free(remedy);
}

static void find_nodes(struct machine *machine) {
    const struct hl_pool *pool = &machine->pool;
    for (unsigned i = 0; i < pool->n_nodes; i++) {
        const struct hl_pool_node *node = &pool->node[i];
        char *name = hl_xasprintf("node%u", node->node);
        char *remedy = hl_xasprintf(
            "echo %" PRIu64 " > /sys/devices/system/node/node%u/hugepages/hugepages-%" PRIu64
            "kB/nr_hugepages",
            node->total_pages + PAGES_SUGGESTED, node->node, machine->geometry.huge_page_bytes / 1024);
        static const char *const why[] = {"", "; not in the cpuset of this process",
                                          "; not in the memory policy of this process", ""};
        bool lacks = node->use == HL_NODE_USABLE && node->free_pages == 0 && pool->free_pages > 0;
        add_finding(machine, name, lacks ? WARN : OK,
                    hl_xasprintf("%" PRIu64 " huge pages, %" PRIu64 " free, %" PRIu64 " surplus%s",
                                 node->total_pages, node->free_pages, node->surplus_pages, why[node->use]),
                    lacks ? remedy : NULL);
        free(remedy);
        free(name);
    }
}

static void find_thp(struct machine *machine) {
    enum hl_reason reason = (enum hl_reason)machine->thp_reason;
    bool is_fine = machine->thp_reason == 0;
    json_object_set_new(machine->answer, "thp_reason",
                        is_fine ? json_null() : json_string(hl_reason_name(reason)));
    add_finding(machine, "thp", is_fine ? OK : WARN,
                hl_xasprintf("%s", is_fine ? "transparent huge pages are used where the pool is too small"
                                           : hl_reason_sentence(reason)),
                is_fine ? NULL : hl_reason_remedy(reason));
}

static void find_memory(struct machine *machine) {
    uint64_t bytes = hl_read_memory_headroom(&hl_system_roots, &machine->placement);
    json_object_set_new(machine->answer, "memory_headroom_bytes",
                        bytes == UINT64_MAX ? json_null() : json_integer((json_int_t)bytes));
    const char *remedy = bytes == UINT64_MAX            ? "mount /proc and /sys/fs/cgroup"
                         : bytes < HEADROOM_SMALL_BYTES ? "raise memory.max of the cgroup, or free memory"
                                                        : NULL;
    add_finding(machine, "memory", remedy != NULL ? WARN : OK,
                bytes == UINT64_MAX
                    ? hl_xasprintf("neither MemAvailable nor a memory limit can be read")
                    : hl_xasprintf("%" PRIu64
                                   " MiB are left; a private copy needs twice its size for a moment",
                                   bytes >> 20),
                remedy);
}

/* Adds a finding for each ability of the kernel. */
static void find_abilities(struct machine *machine) {
    const struct hl_kernel *kernel = &machine->kernel;
    const bool has_filter = machine->status.filters != 0;
    json_t *answer = json_object();
    const char *untried = "none: under a filter of system calls (seccomp) hugeld does not try it";
    bool can_map = kernel->hugetlb_mremap || machine->has_memfd;
    const struct {
        const char *name;
        bool there;
        enum state state; /* if it is not */
        const char *yes, *no, *remedy;
    } abilities[] = {
        {"hugetlb", kernel->hugetlb, BAD, "the kernel maps huge pages",
         kernel->hugetlb_denied ? "a policy forbids huge pages" : "the kernel maps no huge pages",
         kernel->hugetlb_denied ? "give the AppArmor profile flags=(attach_disconnected) and the rule / rwm"
                                : "boot a kernel with CONFIG_HUGETLBFS, or use backend=thp"},
        {"hugetlb_mremap", kernel->hugetlb_mremap, can_map ? WARN : BAD,
         "huge pages can be moved onto the program",
         can_map ? "huge pages cannot be moved; a memfd is used instead"
                 : "huge pages can neither be moved nor come from a memfd",
         "boot Linux 5.16 or newer"},
        {"hugetlb_memfd", machine->has_memfd, WARN, "a memfd can hold huge pages",
         has_filter ? "whether a memfd can hold huge pages was not tried" : "no memfd can hold huge pages",
         has_filter ? "backend=hugetlb tries it under a filter of system calls (seccomp), too"
                    : "boot a kernel with CONFIG_HUGETLBFS and CONFIG_MEMFD_CREATE"},
        {"executable_memory", kernel->executable_memory, WARN, "written memory may become executable",
         "a policy forbids making written memory executable: no transparent huge pages, and hugetlb only by "
         "memfd",
         "systemctl edit the unit: MemoryDenyWriteExecute=no"},
        {"read_by_call", machine->read_by_call, WARN, "the program's bytes are read by a system call",
         "the program's bytes cannot be read by a system call",
         has_filter ? untried : "boot a kernel with CONFIG_CROSS_MEMORY_ATTACH"},
        {"collapse", machine->has_collapse, WARN,
         "MADV_COLLAPSE works: transparent huge pages are made on demand",
         "no MADV_COLLAPSE: transparent huge pages need unfragmented memory", "boot Linux 6.1 or newer"},
    };
    for (size_t i = 0; i < sizeof abilities / sizeof abilities[0]; i++) {
        add_finding(machine, abilities[i].name, abilities[i].there ? OK : abilities[i].state,
                    hl_xasprintf("%s", abilities[i].there ? abilities[i].yes : abilities[i].no),
                    abilities[i].there ? NULL : abilities[i].remedy);
        json_object_set_new(answer, abilities[i].name, json_boolean(abilities[i].there));
    }
    json_object_set_new(machine->answer, "abilities", answer);
}

enum answer { UNKNOWN, NO, YES };

/* The child fills its page itself.  An inherited page would have to be copied first, and without a page in the pool for that the
   write fails, too. */
static void wait_for_breakpoint(void *at, uint64_t bytes) {
    char byte = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (hl_read_memory(at, (uint64_t)&byte, 1) == 1 && mprotect(at, bytes, PROT_READ) == 0 &&
        ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0)
        raise(SIGSTOP);
    _exit(1);
}

/* Whether a debugger could set breakpoints in text on hugetlb pages: does the same in the read-only memory of a child, with one page
   of the pool for a moment.  UNKNOWN: no page is free, or this process may trace nothing. */
static enum answer try_breakpoint(const struct hl_geometry *geometry) {
    enum answer answer = UNKNOWN;
    uint64_t bytes = geometry->huge_page_bytes;
    int status = 0;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | hl_hugetlb_flags(geometry), -1, 0);
    if (at == MAP_FAILED)
        return UNKNOWN;
    pid_t pid = fork();
    if (pid == 0)
        wait_for_breakpoint(at, bytes);
    if (pid > 0 && waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
        answer = ptrace(PTRACE_POKEDATA, pid, at, NULL) == 0 ? YES : NO;
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
    }
    munmap(at, bytes);
    return answer;
}

static void find_breakpoints(struct machine *machine) {
    const enum answer answer = try_breakpoint(&machine->geometry);
    static const char *const sentences[] = {
        [UNKNOWN] = "whether a debugger can set breakpoints in hugetlb text was not tried: no huge page is "
                    "free, or nothing may be traced",
        [NO] = "a debugger that attaches later cannot set breakpoints in hugetlb text; a program that it "
               "starts gets transparent huge pages",
        [YES] = "a debugger that attaches later can set breakpoints in hugetlb text",
    };
    add_finding(machine, "breakpoints", answer == NO ? WARN : OK, hl_xasprintf("%s", sentences[answer]),
                answer == NO ? "run programs that you debug with backend=thp, or boot Linux 6.18 or newer"
                             : NULL);
    json_object_set_new(machine->answer, "breakpoints",
                        answer == UNKNOWN ? json_null() : json_boolean(answer == YES));
}

/* Only a warning: the host may have another administrator. */
static void find_tlb(struct machine *machine) {
    struct hl_tlb tlb;
    hl_check_tlb(&tlb);
    bool is_limited = hl_note_on_tlb(&tlb) != NULL;
    add_finding(
        machine, "tlb", is_limited ? WARN : OK, hl_describe_tlb(&tlb),
        is_limited
            ? "on the host, back the guest's memory with hugetlbfs or transparent huge pages (man hugeld); "
              "programs that often sleep or unmap memory can get slower until then: hugeld bench -- PROGRAM"
            : NULL);
    json_object_set_new(machine->answer, "tlb", hl_json_tlb(&tlb));
}

/* Whether this is a virtual machine: its hypervisor says so (CPUID, leaf 1, ECX bit 31). */
static bool is_guest(void) {
#if defined __x86_64__
    unsigned a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c >> 31) != 0;
#else
    return false;
#endif
}

/* Some Intel processors stop if one page is in the instruction TLB in two sizes (CVE-2018-12207).  So KVM maps the memory that its
   guests execute by small pages, even if the host backs it with huge pages (Linux, admin-guide/hw-vuln/multihit.rst). */
static void find_multihit(struct machine *machine) {
    char text[128];
    long bytes = hl_read_file("/sys/devices/system/cpu/vulnerabilities/itlb_multihit", text, sizeof text - 1);
    text[bytes > 0 ? bytes : 0] = '\0';
    bool is_split = strstr(text, "Split huge pages") != NULL;
    if (bytes <= 0 || strncmp(text, "Not affected", strlen("Not affected")) == 0)
        return;
    if (is_guest())
        add_finding(
            machine, "itlb_multihit", WARN,
            hl_xasprintf("the processor has the flaw iTLB multihit, so the host may split the huge pages "
                         "that this guest executes; 'tlb' above shows the measurement"),
            "on the host, if all guests are trusted: echo N > /sys/module/kvm/parameters/nx_huge_pages");
    else
        add_finding(
            machine, "itlb_multihit", OK,
            hl_xasprintf(
                "the processor has the flaw iTLB multihit: programs of this machine keep huge pages; KVM %s",
                is_split ? "splits those that guests execute (kvm.nx_huge_pages)"
                         : "does not split those of guests"),
            NULL);
}

static void find_map_count(struct machine *machine) {
    uint64_t most = 0;
    bool is_known = hl_read_number("/proc/sys/vm/max_map_count", &most), is_low = most < MAP_COUNT_USUAL;
    json_object_set_new(machine->answer, "max_map_count",
                        is_known ? json_integer((json_int_t)most) : json_null());
    add_finding(machine, "max_map_count", is_low ? WARN : OK,
                is_known ? hl_xasprintf("a process may have %" PRIu64 " mappings", most)
                         : hl_xasprintf("vm.max_map_count cannot be read"),
                !is_known ? "mount /proc"
                : is_low  ? "sysctl vm.max_map_count=65530"
                          : NULL);
}

/* The stores that a process started from here looks into. */
static void find_stores(struct machine *machine) {
    struct hl_store_state state[HL_STORES_MAX];
    struct hl_options options;
    const char *text = getenv("LD_HUGEPAGES_OPTIONS");
    json_t *stores = json_array();
    hl_default_options(&options);
    hl_parse_options(&options, text != NULL ? text : "", NULL);
    unsigned n = hl_examine_stores(state, &options, &machine->geometry);
    for (unsigned i = 0; i < n; i++) {
        char *remedy, *sentence = hl_describe_store(&state[i], &machine->geometry, &remedy);
        add_finding(machine, "store", remedy == NULL ? OK : WARN, sentence, remedy);
        free(remedy);
        json_array_append_new(stores, hl_json_store(&state[i]));
        hl_free_store_state(&state[i]);
    }
    json_object_set_new(machine->answer, "stores", stores);
}

static void find_library(struct machine *machine) {
    char *library = hl_find_library();
    json_object_set_new(machine->answer, "libhugeld", hl_json_text(library));
    bool is_there = library != NULL;
    add_finding(machine, "libhugeld", is_there ? OK : BAD,
                is_there ? library : hl_xasprintf("libhugeld.so was not found, so it moves no program"),
                is_there ? NULL : "install the hugeld package again, or run make in its source");
}

/* Each prints its findings, or adds them to the answer with their details. */
static void (*const checks[])(struct machine *) = {
    find_kernel,      find_pool, find_nodes,    find_thp,       find_memory, find_abilities,
    find_breakpoints, find_tlb,  find_multihit, find_map_count, find_stores, find_library,
};

int hl_examine_machine(int argc, char **argv) {
    static const struct hl_command command = {
        "doctor",
        "Tests this machine for huge pages, and prints a command for each problem.\v"
        "Exit status: 0 when private copies would get huge pages now, else 1.",
        command_flags, false};
    struct machine machine = {0};
    if (hl_read_flags(&command, argc, argv, &machine) != 0)
        return HL_EXIT_USAGE;
    machine.answer = json_pack("{s:[]}", "findings");
    examine(&machine);
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
        checks[i](&machine);
    hl_print("private copies now: hugetlb %s, transparent huge pages %s", machine.can_hugetlb ? "yes" : "no",
             machine.can_thp ? "yes" : "no");
    json_object_set_new(machine.answer, "usable",
                        json_pack("{s:b, s:b}", "hugetlb", machine.can_hugetlb, "thp", machine.can_thp));
    hl_print_answer(machine.answer, false);
    return machine.can_hugetlb || machine.can_thp ? HL_EXIT_DONE : HL_EXIT_NO;
}
