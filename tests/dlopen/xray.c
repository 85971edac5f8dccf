/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A function with XRay's sleds, patched while the program runs. */
#include <stdio.h>

int __xray_set_handler(void (*handler)(int id, int type));
int __xray_patch(void); /* 1 is XRayPatchingStatus::SUCCESS */

static volatile long seen;

__attribute__((xray_never_instrument)) static void handle(int id, int type) {
    (void)id;
    (void)type;
    seen++;
}

__attribute__((noinline, xray_always_instrument)) int work(int x) { return x * 3 + 1; }

int main(void) {
    int x = 1;
    __xray_set_handler(handle);
    int patched = __xray_patch();
    for (int i = 0; i < 10; i++)
        x = work(x);
    printf("patched %d, x %d, seen %s\n", patched, x, seen >= 20 ? "all" : "not all");
    return 0;
}
