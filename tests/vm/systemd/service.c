/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A service with large text: prints what the text computes and what it is itself, once more at each SIGHUP,
   aborts at SIGUSR1, in the middle of the text, and ends at SIGTERM. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

unsigned long big_sum(unsigned long x);
void big_call(void (*call)(void));

int main(void) {
    sigset_t set;
    int got;
    sigemptyset(&set);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    do {
        char exe[4096] = "";
        if (readlink("/proc/self/exe", exe, sizeof exe - 1) < 0)
            perror("/proc/self/exe");
        printf("sum %016lx of %s\n", big_sum(1), exe);
        fflush(stdout);
        sigwait(&set, &got);
        if (got == SIGUSR1)
            big_call(abort);
    } while (got == SIGHUP);
    puts("stopped");
    return 0;
}
