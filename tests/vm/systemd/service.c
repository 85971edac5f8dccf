/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A service with large text: prints the text's result and its own path, once more at each SIGHUP,
   aborts at SIGUSR1, in the middle of the text, and ends at SIGTERM.  T_SERVICE=notify tells systemd that it is ready,
   T_SERVICE=forking goes on in a child, whose number is in /run/large.pid. */
#define _GNU_SOURCE
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

unsigned long big_sum(unsigned long x);
void big_call(void (*call)(void));

static void notify(void) {
    const char *name = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (name == NULL)
        exit(8);
    strncpy(address.sun_path, name, sizeof address.sun_path - 1);
    if (name[0] == '@')
        address.sun_path[0] = '\0';
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name));
    if (sendto(fd, "READY=1", 7, 0, (struct sockaddr *)&address, bytes) < 0)
        exit(9);
    close(fd);
}

/* The parent writes the number before it ends, as systemd wants it. */
static void go_on_in_child(void) {
    pid_t child = fork();
    if (child == 0)
        return;
    FILE *file = fopen("/run/large.pid", "w");
    if (child < 0 || file == NULL || fprintf(file, "%d\n", child) < 0 || fclose(file) != 0)
        _exit(7);
    _exit(0);
}

int main(void) {
    const char *kind = getenv("T_SERVICE");
    sigset_t set;
    int got;
    if (kind != NULL && strcmp(kind, "forking") == 0)
        go_on_in_child();
    sigemptyset(&set);
    sigaddset(&set, SIGHUP);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    if (kind != NULL && strcmp(kind, "notify") == 0)
        notify();
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
