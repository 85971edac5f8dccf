/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The same as pulse.go, for musl: text that is called all the time by threads that come and go. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "text.h"

static atomic_int wrong, stop;

static void *work(void *data) {
    uint64_t x = 1, y = 1;
    for (long i = 0; i < MIBS * 1024; i++) {
        x = ((uint64_t(*)(uint64_t))(functions + 1024 * i))(x);
        y = y * 3 + 12345 + (uint64_t)i * 7;
    }
    wrong += x != y;
    return data;
}

static void *churn(void *data) {
    while (!stop) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, NULL) == 0)
            pthread_join(thread, NULL);
        work(NULL);
    }
    return data;
}

int main(void) {
    pthread_t thread[3];
    char byte;
    for (int i = 0; i < 3; i++)
        pthread_create(&thread[i], NULL, churn, NULL);
    puts("ready");
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        continue;
    stop = 1;
    for (int i = 0; i < 3; i++)
        pthread_join(thread[i], NULL);
    printf("rounds, wrong %d\n", wrong);
    return 7;
}
