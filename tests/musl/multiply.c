/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* multiply LIBOPENBLAS: opens it, multiplies matrices, prints the result and stops itself. */
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>

#define N 300
enum { ROW_MAJOR = 101, NO_TRANSPOSE = 111 };
typedef void (*dgemm)(int, int, int, int64_t, int64_t, int64_t, double, const double *, int64_t,
                      const double *, int64_t, double, double *, int64_t);

static double a[N * N], b[N * N], c[N * N];

int main(int argc, char **argv) {
    void *handle = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
    dgemm multiply = handle != NULL ? (dgemm)dlsym(handle, "scipy_cblas_dgemm64_") : NULL;
    double sum = 0;
    if (multiply == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    for (int i = 0; i < N * N; i++) {
        a[i] = i % 17;
        b[i] = i % 23;
    }
    multiply(ROW_MAJOR, NO_TRANSPOSE, NO_TRANSPOSE, N, N, N, 1, a, N, b, N, 0, c, N);
    for (int i = 0; i < N * N; i++)
        sum += c[i] * (i % 5);
    printf("%.0f\n", sum);
    fflush(stdout);
    raise(SIGSTOP);
    return 0;
}
