/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Linked with the large text into a library: the work of relocation, TLS and constructors in it. */
#include <stdint.h>
#include <string.h>

uint64_t big_sum(uint64_t x);

__thread int dynamic_tls = 5;
static __thread int static_tls __attribute__((tls_model("initial-exec"))) = 7;
static int constructed;
static const char *const relocated[] = {"a", "b"}; /* RELRO */

__attribute__((constructor)) static void construct(void) { constructed = 100; }

static int one(void) { return 1; }
static void *resolve(void) { return one; }
int chosen(void) __attribute__((ifunc("resolve")));

int use_features(void) {
    return (int)(big_sum(1) % 1000) * 1000 + constructed + dynamic_tls++ + static_tls++ + chosen() +
           (strcmp(relocated[1], "b") == 0);
}
