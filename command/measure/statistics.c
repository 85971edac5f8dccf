/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How much faster, and how sure that is.

   Both runs of a pair had the same neighbours, so each pair gives a ratio.  These have a long tail, and often two peaks (which
   side was first, which processor it had), and a median would lie in one of them.  So the pairs are sorted by their ratios, and the
   result is the ratio of both sides' means in the middle half: the times beside it are those that it is made of.  The interval is a
   bootstrap's: pairs are drawn with replacement, RESAMPLES times, and it is the middle 95 % of the resulting ratios.  The numbers are
   drawn from a fixed seed: the same runs give the same interval. */
#include "command/measure/statistics.h"

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

struct pair {
    double plain, huge;
};

static int compare_ratios(const void *a, const void *b) {
    const struct pair *x = a, *y = b;
    double left = x->huge / x->plain, right = y->huge / y->plain;
    return left != right ? (left > right) - (left < right) : (x->plain > y->plain) - (x->plain < y->plain);
}

/* Both sides' means in the middle half of N PAIRs, whose ratios ascend, each pair as often as TIMES says. */
static struct pair average_middle(const struct pair *pair, const unsigned *times, size_t n) {
    size_t below = n / 4, rest = n - 2 * below, all = rest;
    struct pair sum = {0, 0};
    for (size_t i = 0; rest > 0; i++) {
        size_t here = times[i], left_out = here < below ? here : below;
        below -= left_out;
        here = here - left_out < rest ? here - left_out : rest;
        sum.plain += pair[i].plain * (double)here;
        sum.huge += pair[i].huge * (double)here;
        rest -= here;
    }
    return (struct pair){sum.plain / (double)all, sum.huge / (double)all};
}

/* The result for N PAIRs, which it sorts. */
static struct hl_ratio estimate(struct pair *pair, size_t n) {
    double *ratio = hl_xmalloc(RESAMPLES * sizeof *ratio);
    unsigned *times = hl_xmalloc(n * sizeof *times);
    uint64_t state = 0x9e3779b97f4a7c15;
    qsort(pair, n, sizeof *pair, compare_ratios);
    for (size_t i = 0; i < n; i++)
        times[i] = 1;
    struct pair middle = average_middle(pair, times, n);
    for (size_t i = 0; i < RESAMPLES; i++) {
        memset(times, 0, n * sizeof *times);
        for (size_t j = 0; j < n; j++)
            times[(hl_draw(&state) >> 32) * n >> 32]++;
        struct pair mean = average_middle(pair, times, n);
        ratio[i] = mean.huge / mean.plain;
    }
    qsort(ratio, RESAMPLES, sizeof *ratio, hl_compare_doubles);
    struct hl_ratio result = {true,
                              middle.huge / middle.plain,
                              ratio[RESAMPLES / 40 - 1],
                              ratio[RESAMPLES - RESAMPLES / 40],
                              middle.plain,
                              middle.huge};
    free(times);
    free(ratio);
    return result;
}

struct hl_ratio hl_compare_pairs(const double *plain, const double *huge, size_t n) {
    struct hl_ratio result = {0};
    struct pair *pair = hl_xmalloc(n * sizeof *pair);
    size_t known = 0;
    for (size_t i = 0; i < n; i++)
        if (plain[i] > 0)
            pair[known++] = (struct pair){plain[i], huge[i]};
    if (2 * known > n)
        result = estimate(pair, known);
    free(pair);
    return result;
}

const char *hl_name_ratio(const struct hl_ratio *ratio) {
    if (ratio->known && ratio->high < 1)
        return "faster";
    return ratio->known && ratio->low > 1 ? "slower" : "no difference";
}

const char *hl_find_verdict(const struct hl_ratio *wall, const struct hl_ratio *processor) {
    const char *of_wall = hl_name_ratio(wall), *of_processor = hl_name_ratio(processor);
    return strcmp(of_processor, "faster") == 0 || of_wall[0] == 'n' ? of_processor : of_wall;
}
