/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* database FILE LIBRARY: a daemon that has closed standard error, so that FILE, which it writes records to,
   becomes descriptor 2.  Between the records it forks, opens LIBRARY and closes it.  It prints whether it had
   more huge pages of the pool with LIBRARY open; exit status 3. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static long hugetlb_kib(void) {
    char line[256];
    long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        sscanf(line, "HugetlbPages: %ld", &kib);
    if (file != NULL)
        fclose(file);
    return kib;
}

static void write_record(int file, int number) { dprintf(file, "RECORD%d\n", number); }

int main(int argc, char **argv) {
    long before = hugetlb_kib();
    if (argc < 3)
        return 1;
    close(2);
    int file = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file != 2)
        return 1;
    write_record(file, 1);
    if (fork() == 0)
        _exit(0);
    wait(NULL);
    write_record(file, 2);
    void *handle = dlopen(argv[2], RTLD_NOW);
    write_record(file, 3);
    printf("opened %d, more huge pages %d\n", handle != NULL, hugetlb_kib() > before);
    if (handle == NULL || dlclose(handle) != 0)
        return 1;
    write_record(file, 4);
    return 3;
}
