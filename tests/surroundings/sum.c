/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Calls every function of the large text and reads all of its data; needs no mapping beyond those it was
   started with. With an argument it becomes a family: three children wait, and do the same when its standard
   input ends. */
#include <stdint.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILDREN 3

uint64_t big_sum(uint64_t x);

static void live(int wait_for) {
    char byte;
    if (read(wait_for, &byte, 1) != 0)
        _exit(1);
    _exit(big_sum(1) != 0 ? 7 : 8);
}

static void raise_family(void) {
    int end[2], status;
    pid_t child[CHILDREN];
    char byte;
    if (pipe(end) != 0)
        return;
    for (int i = 0; i < CHILDREN; i++) {
        child[i] = fork();
        if (child[i] == 0) {
            close(end[1]);
            live(end[0]);
        }
    }
    puts("ready");
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    close(end[1]);
    for (int i = 0; i < CHILDREN; i++) {
        waitpid(child[i], &status, 0);
        printf("child: exit %d, signal %d\n", WEXITSTATUS(status), WTERMSIG(status));
    }
}

int main(int argc, char **argv) {
    (void)argv;
    printf("sum %016lx\n", (unsigned long)big_sum(1));
    fflush(stdout);
    if (argc > 1)
        raise_family();
    printf("sum %016lx\n", (unsigned long)big_sum(2));
    return 3;
}
