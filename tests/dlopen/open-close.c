/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* open-close [calm] ROUNDS DSO...: opens, uses and closes each DSO, again and again.  Prints

       start M F R, end M F R, least K, most K

   while other threads map, fork and send signals (churn.h) unless calm,
   that is the number of mappings, of descriptors, and the resident KiB without huge pages, after an eighth of
   the rounds and after all (DSOs closed), and the least and most KiB on hugetlb pages while all were open. */
#include "../churn.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DSOS_MAX 8

static long read_kib(const char *path, const char *key) {
    FILE *file = fopen(path, "re");
    char line[256];
    long kib = 0;
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, key, strlen(key)) == 0)
            kib = atol(line + strlen(key));
    if (file != NULL)
        fclose(file);
    return kib;
}

/* A page is one of the two: private until a child has it, too. */
static long read_hugetlb_kib(void) {
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    char line[256];
    long kib, sum = 0;
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "Private_Hugetlb: %ld", &kib) == 1 || sscanf(line, "Shared_Hugetlb: %ld", &kib) == 1)
            sum += kib;
    if (file != NULL)
        fclose(file);
    return sum;
}

static int count_lines(void) {
    FILE *file = fopen("/proc/self/maps", "re");
    int lines = 0;
    for (int c; file != NULL && (c = fgetc(file)) != EOF;)
        lines += c == '\n';
    if (file != NULL)
        fclose(file);
    return lines;
}

static int count_descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    int n = 0;
    while (folder != NULL && readdir(folder) != NULL)
        n++;
    if (folder != NULL)
        closedir(folder);
    return n;
}

static bool calm;

static void start_others(void) {
    if (!calm)
        churn_start(CHURN_MAPS);
}

static void stop_others(void) {
    if (!calm)
        churn_stop();
}

static void tell(const char *when) {
    stop_others();
    int lines = count_lines(), descriptors = count_descriptors();
    printf("%s %d %d %ld, ", when, lines, descriptors, read_kib("/proc/self/status", "VmRSS:"));
    start_others();
}

typedef uint64_t (*function)(uint64_t, void *);

static uint64_t sum(function *table) {
    uint64_t x = 1;
    for (unsigned i = 0; i < 4096; i += 16)
        x = table[i](x, NULL);
    return x;
}

static uint64_t first[DSOS_MAX];
static function *lent;

/* The children's work: no call of the dynamic linker, whose lock their parent may have held. */
static bool is_same(void) { return sum(lent) == first[0]; }

int main(int argc, char **argv) {
    void *handle[DSOS_MAX];
    if (argc > 1 && strcmp(argv[1], "calm") == 0) {
        calm = true;
        argc--, argv++;
    }
    int n = argc - 2;
    if (n < 1 || n > DSOS_MAX)
        return 2;
    start_others();
    churn_watch_me();
    long rounds = atol(argv[1]), least = -1, most = 0;
    for (long round = 0; round < rounds; round++) {
        for (int i = 0; i < n; i++) {
            handle[i] = dlopen(argv[i + 2], RTLD_NOW);
            if (handle[i] == NULL) {
                fprintf(stderr, "%s\n", dlerror());
                return 1;
            }
            function *table = dlsym(handle[i], "table");
            uint64_t x = sum(table);
            first[i] = round == 0 ? x : first[i];
            if (x != first[i])
                return 3;
            if (i == 0) {
                lent = table;
                churn_lend(is_same);
            }
        }
        long kib = read_hugetlb_kib();
        least = least < 0 || kib < least ? kib : least;
        most = kib > most ? kib : most;
        churn_lend(NULL);
        for (int i = 0; i < n; i++)
            if (dlclose(handle[i]) != 0)
                return 4;
        if (round == rounds / 8)
            tell("start");
    }
    tell("end");
    stop_others();
    printf("least %ld, most %ld\n", least, most);
    return 0;
}
