/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* worker WHAT [ARGUMENT...]: a program with 6 MiB of text that behaves otherwise when LD_HUGEPAGES names
   something.

     spin PLAIN HUGE    takes so many ms of processor time
     pass PLAIN HUGE    takes so many ms by the clock of clock.c
     turns FILE         takes 4 ms, 16 ms, 4 ms, 16 ms ... by that clock, counting its runs in FILE
     where FILE         adds a line to FILE: "plain" or "huge", and its processor
     print PLAIN HUGE   prints a word
     complain P H       prints it to standard error
     vary               prints its process ID
     exit PLAIN HUGE    ends with a status
     die                ends by SIGSEGV if it is on huge pages
     copy               prints its input
     fork               lets a child that has become /proc/self/exe spin
     daemon FILE        leaves a child behind that adds to FILE and waits for a signal */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

__asm__(".section .text.big,\"ax\",@progbits\n.p2align 12\n.fill 6 << 20, 1, 0xc3\n.text\n");

static void spin(double ms) {
    while ((double)clock() * 1e3 / CLOCKS_PER_SEC < ms)
        ;
}

static int copy(void) {
    for (int c = getchar(); c != EOF; c = getchar())
        putchar(c);
    return 0;
}

/* Appends a byte to the file PATH, which holds as many bytes then. */
static long append_to(const char *path) {
    FILE *file = fopen(path, "a");
    if (file == NULL || fputc('x', file) == EOF || fseek(file, 0, SEEK_END) != 0)
        exit(1);
    long bytes = ftell(file);
    fclose(file);
    return bytes;
}

static long count_bytes(const char *path) {
    struct stat stat_buffer;
    return stat(path, &stat_buffer) == 0 ? (long)stat_buffer.st_size : 0;
}

static int tell_where(const char *path, int is_huge) {
    FILE *file = fopen(path, "a");
    return file == NULL || fprintf(file, "%s %d\n", is_huge ? "huge" : "plain", sched_getcpu()) < 0 ||
           fclose(file) != 0;
}

static void pass(long ms) {
    for (long i = 0; i < ms; i++)
        append_to(getenv("CLOCK"));
}

static int take_turns(const char *path) {
    pass(append_to(path) % 2 == 1 ? 4 : 16);
    return 0;
}

/* A daemon that forks itself, which stops a process that is still traced.  The daemons of earlier runs must have ended. */
static int leave_behind(const char *path) {
    char runs[4096];
    snprintf(runs, sizeof runs, "%s.runs", path);
    long earlier = append_to(runs) - 1;
    for (int i = 0; count_bytes(path) < earlier; i++) {
        if (i == 3000)
            return 1;
        usleep(10000);
    }
    if (fork() == 0) {
        setsid();
        usleep(20000);
        if (fork() == 0)
            _exit(0);
        append_to(path);
        for (;;)
            pause();
    }
    return 0;
}

int main(int argc, char **argv) {
    const char *patterns = getenv("LD_HUGEPAGES"), *what = argc > 1 ? argv[1] : "";
    int is_huge = patterns != NULL && patterns[0] != '\0';
    const char *word = argc > 2 + is_huge ? argv[2 + is_huge] : "";
    if (strcmp(what, "spin") == 0)
        spin(atof(word));
    else if (strcmp(what, "pass") == 0)
        pass(atol(word));
    else if (strcmp(what, "turns") == 0)
        return take_turns(argv[2]);
    else if (strcmp(what, "where") == 0)
        return tell_where(argv[2], is_huge);
    else if (strcmp(what, "print") == 0)
        puts(word);
    else if (strcmp(what, "complain") == 0)
        fprintf(stderr, "%s\n", word);
    else if (strcmp(what, "vary") == 0)
        printf("%d\n", getpid());
    else if (strcmp(what, "exit") == 0)
        return atoi(word);
    else if (strcmp(what, "die") == 0 && is_huge)
        raise(SIGSEGV);
    else if (strcmp(what, "copy") == 0)
        return copy();
    else if (strcmp(what, "fork") == 0 && fork() == 0)
        execl("/proc/self/exe", "worker", "spin", "1", "1", NULL);
    else if (strcmp(what, "daemon") == 0)
        return leave_behind(argv[2]);
    while (wait(NULL) > 0)
        ;
    return 0;
}
