/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How much faster, and how sure that is.

   Both runs of a pair had the same neighbours, so each pair gives a ratio.  These have a long tail, and often two peaks (which
   side was first, which processor it had), and a median would lie in one of them.  So the result is the mean of the middle half,
   and the interval is a bootstrap's: pairs are drawn with replacement, RESAMPLES times, and the interval is the middle 95 % of
   the resulting means.  The numbers are drawn from a fixed seed: the same runs give the same interval. */
#include "command/bench/statistics.h"

#include <stdlib.h>
#include <string.h>

#define RESAMPLES 10000

double hl_median(const double *value, size_t n) {
    double *copy = hl_xmalloc(n * sizeof *copy);
    memcpy(copy, value, n * sizeof *copy);
    qsort(copy, n, sizeof *copy, hl_compare_doubles);
    double median = (copy[(n - 1) / 2] + copy[n / 2]) / 2;
    free(copy);
    return median;
}

/* The mean of the middle half of N values: VALUE, which ascends, each as often as TIMES says. */
static double average_middle(const double *value, const unsigned *times, size_t n) {
    size_t below = n / 4, rest = n - 2 * below, all = rest;
    double sum = 0;
    for (size_t i = 0; rest > 0; i++) {
        size_t here = times[i], left_out = here < below ? here : below;
        below -= left_out;
        here = here - left_out < rest ? here - left_out : rest;
        sum += value[i] * (double)here;
        rest -= here;
    }
    return sum / (double)all;
}

/* The mean of the middle half of N values, and both ends of its interval.  Sorts VALUE. */
static void estimate(double *value, size_t n, double result[3]) {
    double *mean = hl_xmalloc(RESAMPLES * sizeof *mean);
    unsigned *times = hl_xmalloc(n * sizeof *times);
    uint64_t state = 0x9e3779b97f4a7c15;
    qsort(value, n, sizeof *value, hl_compare_doubles);
    for (size_t i = 0; i < n; i++)
        times[i] = 1;
    result[0] = average_middle(value, times, n);
    for (size_t i = 0; i < RESAMPLES; i++) {
        memset(times, 0, n * sizeof *times);
        for (size_t j = 0; j < n; j++)
            times[(hl_draw(&state) >> 32) * n >> 32]++;
        mean[i] = average_middle(value, times, n);
    }
    qsort(mean, RESAMPLES, sizeof *mean, hl_compare_doubles);
    result[1] = mean[RESAMPLES / 40 - 1];
    result[2] = mean[RESAMPLES - RESAMPLES / 40];
    free(times);
    free(mean);
}

struct hl_ratio hl_compare_pairs(const double *plain, const double *huge, size_t n) {
    struct hl_ratio result = {false, 0, 0, 0};
    double *ratio = hl_xmalloc(n * sizeof *ratio), found[3];
    size_t known = 0;
    for (size_t i = 0; i < n; i++)
        if (plain[i] > 0)
            ratio[known++] = huge[i] / plain[i];
    if (2 * known > n) {
        estimate(ratio, known, found);
        result = (struct hl_ratio){true, found[0], found[1], found[2]};
    }
    free(ratio);
    return result;
}
