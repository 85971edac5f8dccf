/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* How much faster, and how sure that is.

   Both runs of a pair had the same neighbours, so each pair gives a ratio.  These have a long tail, and often two peaks (which
   side was first, which processor it had), and a median would lie in one of them.  So the result is the mean of the middle half,
   and the interval is a bootstrap's: pairs are drawn with replacement, RESAMPLES times, and the interval is the middle 95 % of
   the resulting means.  The numbers are drawn from a fixed seed: the same runs give the same interval.  Pairs of the same
   processes are drawn together: the properties of such a process, like its addresses, are in all of them. */
#include "command/bench/statistics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RESAMPLES 10000
/* An interval of fewer blocks says little. */
#define BLOCKS_MIN 6

static void swap_values(double *a, double *b) {
    double value = *a;
    *a = *b;
    *b = value;
}

/* Reorders VALUE so that the K-th smallest is at K and nothing before it is larger. */
static void select_value(double *value, size_t n, size_t k) {
    size_t low = 0, high = n - 1;
    while (low < high) {
        double pivot = value[low + (high - low) / 2];
        size_t i = low, j = high;
        for (;;) {
            while (value[i] < pivot)
                i++;
            while (value[j] > pivot)
                j--;
            if (i >= j)
                break;
            swap_values(&value[i++], &value[j--]);
        }
        /* [low, j] is no larger than [j + 1, high]; if both stopped at one value, that one is at j. */
        if (k <= j)
            high = j;
        else
            low = j + 1;
    }
}

double hl_median(const double *value, size_t n) {
    size_t middle = n / 2;
    double *copy = hl_xmalloc(n * sizeof *copy);
    memcpy(copy, value, n * sizeof *copy);
    select_value(copy, n, middle);
    double median = copy[middle];
    if (n % 2 == 0) {
        select_value(copy, middle, middle - 1);
        median = (copy[middle - 1] + median) / 2;
    }
    free(copy);
    return median;
}

/* The mean of the middle half.  Reorders VALUE. */
static double average_middle(double *value, size_t n) {
    size_t cut = n / 4, left = n - 2 * cut;
    double sum = 0;
    select_value(value, n, cut);
    select_value(value + cut, n - cut, left - 1);
    for (size_t i = cut; i < cut + left; i++)
        sum += value[i];
    return sum / (double)left;
}

/* The mean of the middle half of N values, and both ends of its interval.  Blocks of BLOCK values in a row are drawn together; a
   rest shorter than a block is not drawn.  Reorders VALUE. */
static void estimate(double *value, size_t n, size_t block, double result[3]) {
    size_t blocks = n / block, used = blocks * block;
    double *drawn = hl_xmalloc((used + RESAMPLES) * sizeof *drawn), *mean = drawn + used;
    uint64_t state = 0x9e3779b97f4a7c15;
    for (size_t i = 0; i < RESAMPLES; i++) {
        for (size_t j = 0; j < blocks; j++)
            memcpy(drawn + j * block, value + ((hl_draw(&state) >> 32) * blocks >> 32) * block,
                   block * sizeof *drawn);
        mean[i] = average_middle(drawn, used);
    }
    qsort(mean, RESAMPLES, sizeof *mean, hl_compare_doubles);
    result[0] = average_middle(value, n);
    result[1] = mean[RESAMPLES / 40 - 1];
    result[2] = mean[RESAMPLES - RESAMPLES / 40];
    free(drawn);
}

/* Stores the ratios of the pairs with a plain time in RATIO.  Returns how many. */
static size_t find_ratios(double *ratio, const double *plain, const double *huge, size_t n) {
    size_t known = 0;
    for (size_t i = 0; i < n; i++)
        if (plain[i] > 0)
            ratio[known++] = huge[i] / plain[i];
    return known;
}

struct hl_ratio hl_compare_pairs(const double *plain, const double *huge, size_t n) {
    struct hl_ratio result = {false, 0, 0, 0};
    double *ratio = hl_xmalloc(n * sizeof *ratio), found[3];
    size_t known = find_ratios(ratio, plain, huge, n);
    if (2 * known > n) {
        estimate(ratio, known, 1, found);
        result = (struct hl_ratio){true, found[0], found[1], found[2]};
    }
    free(ratio);
    return result;
}

/* Prints the estimate of N values, without an interval if they are fewer than BLOCKS_MIN blocks. */
static void print_estimate(double *value, size_t n, size_t block, char end) {
    double found[3] = {NAN, NAN, NAN};
    if (n / block >= BLOCKS_MIN)
        estimate(value, n, block, found);
    else if (n > 0)
        found[0] = average_middle(value, n);
    printf("%.17g %.17g %.17g%c", found[0], found[1], found[2], end);
}

int hl_compare_values(size_t block) {
    double *plain = NULL, *huge = NULL, a, b;
    size_t n = 0;
    int read;
    while ((read = scanf("%lf %lf", &a, &b)) == 2) {
        plain = hl_xrealloc(plain, (n + 1) * sizeof *plain);
        huge = hl_xrealloc(huge, (n + 1) * sizeof *huge);
        plain[n] = a;
        huge[n++] = b;
    }
    if (read != EOF || n == 0) {
        hl_warn("bench: --compare: no pair of numbers; give two in each line of the standard input");
    } else {
        double *value = hl_xmalloc(n * sizeof *value);
        print_estimate(value, find_ratios(value, plain, huge, n), block, ' ');
        for (size_t i = 0; i < n; i++)
            value[i] = huge[i] - plain[i];
        print_estimate(value, n, block, '\n');
        free(value);
    }
    free(plain);
    free(huge);
    return read != EOF || n == 0 ? HL_EXIT_USAGE : HL_EXIT_DONE;
}
