/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Asks databases how many huge pages they will take for themselves.

   No configuration file is read here: the program is run with its own arguments, and reads its own files.

   PostgreSQL 15 and later tell the exact number (shared_memory_size_in_huge_pages), but only while they are not running, and not to
   root: so for root, the owner of the data directory asks.

   MariaDB only tells its buffers' sizes: each is rounded up to whole pages, and their sum is the most that it takes (10.11.19, by
   strace and smaps; tests/pool proves it again).  If there are not enough for the buffer pool, InnoDB silently stays on small pages
   altogether.  Index builds take more for a while.  Servers without the variable innodb_buffer_pool_size_max (MySQL, older MariaDB)
   allocate the pool in chunks by other rules, which were not measured: for them no number is guessed. */
#include "command/doctor/own-pages.h"
#include "command/base/subprocess.h"
#include "command/base/common.h"
#include "elf/line.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The most that InnoDB's buffer pool takes beyond its size: it is rounded up to 8 MiB, and takes up to 6 MiB more if the kernel's
   address is no multiple of 8 MiB. */
#define POOL_MORE_BYTES ((uint64_t)14 << 20)

static void set_problem(struct hl_own_pages *own, char *problem) {
    own->pages = 0;
    free(own->problem);
    own->problem = problem;
}

/* The length of TEXT's first line, as a printf precision. */
static int line_bytes(const char *text) { return (int)strcspn(text, "\n"); }

/* PROGRAM's arguments with MORE: behind the name (AT_END false), or behind all.  The caller frees the
   array. */
static char **add_arguments(char *const *program, const char *const *more, bool at_end) {
    size_t n = 0, n_more = 0;
    while (program[n] != NULL)
        n++;
    while (more[n_more] != NULL)
        n_more++;
    char **argv = hl_xmalloc((n + n_more + 1) * sizeof *argv);
    size_t first = at_end ? n : 1;
    memcpy(argv, program, first * sizeof *argv);
    memcpy(argv + first, more, n_more * sizeof *argv);
    memcpy(argv + first + n_more, program + first, (n - first) * sizeof *argv);
    return argv;
}

/* --- PostgreSQL --- */

/* The data directory that PROGRAM names; NULL if it names none. */
static const char *find_data_directory(char *const *program) {
    static const char setting[] = "data_directory=";
    for (char *const *at = program + 1; *at != NULL; at++) {
        if (strcmp(*at, "-D") == 0 && at[1] != NULL)
            return at[1];
        if (strncmp(*at, "-D", 2) == 0)
            return *at + 2;
        const char *value = strstr(*at, setting);
        if (value != NULL)
            return value + strlen(setting);
    }
    return getenv("PGDATA");
}

/* Finds the user who asks: this one, or for root, whom the server refuses, the owner of the data directory.  False: there is no
   such folder. */
static bool find_asker(uid_t *asker, char *const *program) {
    struct stat stat_buffer;
    const char *folder = find_data_directory(program);
    *asker = (uid_t)-1;
    if (geteuid() != 0)
        return true;
    if (folder == NULL || stat(folder, &stat_buffer) != 0)
        return false;
    *asker = stat_buffer.st_uid;
    return true;
}

/* Asks for the value of SETTING, which the caller frees; NULL, and the problem is set. */
static char *ask_postgres(struct hl_own_pages *own, const char *executable, char *const *program, uid_t asker,
                          const char *setting) {
    const char *const more[] = {"-C", setting, NULL};
    char **argv = add_arguments(program, more, false);
    struct hl_answer answer;
    char *value = NULL;
    hl_ask_program(&answer, executable, argv, asker);
    if (answer.succeeded)
        value = hl_xasprintf("%.*s", line_bytes(answer.output), answer.output);
    else
        set_problem(own, hl_xasprintf("postgres -C %s fails: %.*s", setting, line_bytes(answer.errors),
                                      answer.errors));
    hl_free_answer(&answer);
    free(argv);
    return value;
}

/* The size of the kernel's default huge page, which mmap uses if no size is named; 0 if it can't be read. */
static uint64_t read_default_size(void) {
    char meminfo[8192];
    uint64_t kib = 0;
    if (hl_read_file("/proc/meminfo", meminfo, sizeof meminfo) > 0)
        hl_find_number(meminfo, "Hugepagesize:", &kib);
    return kib * 1024;
}

static void find_postgres(struct hl_own_pages *own, const char *executable, char *const *program,
                          const struct hl_geometry *geometry) {
    char *wanted = NULL, *size = NULL, *pages = NULL;
    uid_t asker;
    if (!find_asker(&asker, program)) {
        set_problem(
            own, hl_xasprintf(
                     "postgres does not answer root, and no data directory that is there (-D, PGDATA) says "
                     "who its user is; name it, or run hugeld doctor as that user"));
        return;
    }
    wanted = ask_postgres(own, executable, program, asker, "huge_pages");
    if (wanted == NULL)
        goto out;
    if (strcmp(wanted, "off") == 0) {
        own->source = hl_xasprintf("huge_pages=off");
        goto out;
    }
    size = ask_postgres(own, executable, program, asker, "huge_page_size");
    if (size == NULL)
        goto out;
    uint64_t bytes = strtoull(size, NULL, 10) * 1024;
    bytes = bytes != 0 ? bytes : read_default_size();
    if (bytes != geometry->huge_page_bytes) {
        own->source = hl_xasprintf("huge_pages=%s, but in pages of %" PRIu64 " KiB, from another pool",
                                   wanted, bytes / 1024);
        goto out;
    }
    pages = ask_postgres(own, executable, program, asker, "shared_memory_size_in_huge_pages");
    if (pages == NULL)
        goto out;
    own->pages = pages[0] == '-' ? 0 : strtoull(pages, NULL, 10);
    own->source = hl_xasprintf("huge_pages=%s, shared_memory_size_in_huge_pages=%s", wanted, pages);
out:
    free(wanted);
    free(size);
    free(pages);
}

/* --- MariaDB --- */

/* The value of the variable NAME in the output of --verbose --help: "name value" in a line of its own.  NULL if there is none. */
static const char *find_variable(const char *text, const char *name) {
    size_t bytes = strlen(name);
    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, bytes) == 0 && line[bytes] == ' ')
            return line + bytes + strspn(line + bytes, " ");
    }
    return NULL;
}

static uint64_t find_number(const char *text, const char *name) {
    const char *value = find_variable(text, name);
    return value != NULL ? strtoull(value, NULL, 10) : 0;
}

/* The huge pages of the buffer whose size is in the variable NAME, and which the server makes larger by up to MORE_BYTES.  A buffer
   smaller than a huge page is on small pages. */
static uint64_t count_pages(const char *text, const char *name, uint64_t more_bytes, uint64_t page) {
    uint64_t bytes = find_number(text, name);
    bytes += bytes > 0 ? more_bytes : 0;
    return page > 0 && bytes >= page ? hl_round_up(bytes, page) / page : 0;
}

/* There are two log buffers, and each segment of a cache may end in a page of its own. */
static void count_mariadb(struct hl_own_pages *own, const char *text, const struct hl_geometry *geometry) {
    uint64_t page = geometry->huge_page_bytes;
    own->pages = count_pages(text, "innodb-buffer-pool-size", POOL_MORE_BYTES, page) +
                 count_pages(text, "innodb-log-buffer-size", 0, page) * 2 +
                 count_pages(text, "key-buffer-size", 0, page) +
                 count_pages(text, "aria-pagecache-buffer-size", 0, page) +
                 find_number(text, "key-cache-segments") + find_number(text, "aria-pagecache-segments");
    own->source = hl_xasprintf("large-pages: at most %" PRIu64 " for the buffers of InnoDB, MyISAM and Aria",
                               own->pages);
}

static void find_mariadb(struct hl_own_pages *own, const char *executable, char *const *program,
                         const struct hl_geometry *geometry) {
    const char *const more[] = {"--verbose", "--help", NULL};
    char **argv = add_arguments(program, more, true);
    struct hl_answer answer;
    hl_ask_program(&answer, executable, argv, (uid_t)-1);
    const char *wanted = find_variable(answer.output, "large-pages");
    if (!answer.succeeded || wanted == NULL)
        set_problem(own, hl_xasprintf("%s --verbose --help fails: %.*s", hl_base_name(executable),
                                      line_bytes(answer.errors), answer.errors));
    else if (strncmp(wanted, "TRUE", 4) != 0)
        own->source = hl_xasprintf("large-pages is off");
    else if (find_variable(answer.output, "innodb-buffer-pool-size-max") == NULL)
        set_problem(own,
                    hl_xasprintf("large-pages is on, and of this version it is not known how many it takes"));
    else
        count_mariadb(own, answer.output, geometry);
    hl_free_answer(&answer);
    free(argv);
}

/* --- */

void hl_find_own_pages(struct hl_own_pages *own, const char *executable, char *const *program,
                       const struct hl_geometry *geometry) {
    const char *name = hl_base_name(executable);
    *own = (struct hl_own_pages){0};
    if (strcmp(name, "postgres") == 0)
        find_postgres(own, executable, program, geometry);
    else if (strcmp(name, "mariadbd") == 0 || strcmp(name, "mysqld") == 0)
        find_mariadb(own, executable, program, geometry);
    else
        own->source = hl_xasprintf("not known of this program; --own-pages tells");
}

void hl_free_own_pages(struct hl_own_pages *own) {
    free(own->source);
    free(own->problem);
}
