/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld bench --commands N: the times of several commands, for bench/ and tools/demo, which know other ways to run a program than
   hugeld.

   Every round runs each command once, beginning with another one each time; with --at-once there are two, which run at the same
   time.  The first tenth of the rounds is warm-up and does not count. */
#include "command/bench/commands.h"
#include "command/bench/statistics.h"
#include "command/bench/trial.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct variant {
    const char *name;
    bool prints; /* its value is the number that it prints, not its time */
    struct hl_subject subject;
    double *value, *cpu; /* ms, one for each round but warm-up */
};

/* Reads one variant from WORDS, [@]NAME [VARIABLE=VALUE]... PROGRAM [ARGUMENT]..., up to "--", which becomes NULL, or to the
   end.  The word after it, or NULL after a line if the program is missing or is not found. */
static char **read_variant(struct variant *variant, char **words, size_t rounds) {
    variant->prints = **words == '@';
    variant->name = *words++ + variant->prints;
    variant->subject.variables = words;
    variant->subject.input = -1;
    while (*words != NULL && strchr(*words, '=') != NULL)
        words++;
    variant->subject.argv = words;
    while (*words != NULL && strcmp(*words, "--") != 0)
        words++;
    if (words == variant->subject.argv) {
        hl_warn(
            "bench: --commands: %s: no program given; give NAME [VARIABLE=VALUE]... PROGRAM [ARGUMENT]...",
            variant->name);
        return NULL;
    }
    if (*words != NULL)
        *words++ = NULL;
    if (!hl_open_program(&variant->subject.program, variant->subject.argv[0])) {
        hl_refuse_program(variant->subject.argv[0]);
        return NULL;
    }
    variant->value = hl_xmalloc(rounds * sizeof *variant->value);
    variant->cpu = hl_xmalloc(rounds * sizeof *variant->cpu);
    return words;
}

/* Stores TRIAL's results in VALUE and CPU and frees it.  Whether it succeeded; if not, one line was printed. */
static bool keep_trial(const struct variant *variant, struct hl_trial *trial, double *value, double *cpu) {
    struct hl_bytes *output = &trial->stream[0];
    bool result = trial->status == 0;
    *cpu = trial->value[HL_USER] + trial->value[HL_SYSTEM];
    *value = trial->value[HL_WALL];
    if (result && variant->prints) {
        char *text = hl_xasprintf("%.*s", (int)output->bytes, output->bytes > 0 ? output->at : ""), *end;
        *value = strtod(text, &end);
        result = end != text;
        free(text);
    }
    if (!result) {
        char *how = hl_describe_status(trial->status);
        hl_warn("bench: %s: %s", variant->name, trial->status == 0 ? "it printed no number" : how);
        free(how);
    }
    hl_free_trial(trial);
    return result;
}

/* One round, in which VALUE and CPU get one number for each of the N commands.  Whether all succeeded. */
static bool run_in_turns(const struct variant *variants, size_t n, size_t round, double *value, double *cpu) {
    bool result = true;
    for (size_t i = 0; i < n && result; i++) {
        size_t j = (i + round) % n;
        struct hl_trial trial;
        int error = hl_try_program(&variants[j].subject, HL_AS_IS, NULL, -1, &trial);
        if (error != 0)
            hl_warn("bench: %s: cannot be started: %s", variants[j].name, strerror(-error));
        result = keep_trial(&variants[j], &trial, &value[j], &cpu[j]) && error == 0;
    }
    return result;
}

static bool run_both(const struct variant *variants, const int *processors, size_t round, double *value,
                     double *cpu) {
    const struct hl_runner runner[2] = {{&variants[0].subject, HL_AS_IS, processors[round % 2]},
                                        {&variants[1].subject, HL_AS_IS, processors[(round + 1) % 2]}};
    struct hl_trial trial[2];
    int error = hl_try_pair(runner, round / 2 % 2, trial);
    if (error != 0)
        hl_warn("bench: %s cannot be started: %s", variants[0].name, strerror(-error));
    bool first = keep_trial(&variants[0], &trial[0], &value[0], &cpu[0]);
    bool second = keep_trial(&variants[1], &trial[1], &value[1], &cpu[1]);
    return first && second && error == 0;
}

static void print_numbers(const char *name, const char *suffix, const double *number, size_t rounds) {
    printf("%s%s", name, suffix);
    for (size_t i = 0; i < rounds; i++)
        printf(" %.6g", number[i]);
    putchar('\n');
}

static void print_ratio(const struct variant *first, const struct variant *other, size_t rounds) {
    struct hl_ratio ratio = hl_compare_pairs(first->value, other->value, rounds);
    double number[] = {ratio.ratio, ratio.low, ratio.high, hl_median(first->value, rounds),
                       hl_median(other->value, rounds)};
    print_numbers(other->name, ":ratio", number, sizeof number / sizeof number[0]);
}

int hl_time_commands(char **words, size_t rounds, bool at_once) {
    struct variant variants[HL_COMMANDS_MAX] = {0};
    double value[HL_COMMANDS_MAX], cpu[HL_COMMANDS_MAX];
    int processors[HL_SIDES], code = HL_EXIT_DONE;
    size_t n = 0, warm_up = rounds / 10 + 1;
    while (words != NULL && *words != NULL && n < HL_COMMANDS_MAX)
        words = read_variant(&variants[n++], words, rounds);
    if (words == NULL || *words != NULL || (at_once && n != HL_SIDES)) {
        if (words != NULL)
            hl_warn("bench: --commands: give %d commands at most, and with --at-once two", HL_COMMANDS_MAX);
        code = HL_EXIT_USAGE;
    } else if (at_once && !hl_find_processors(processors)) {
        code = HL_EXIT_NO;
    }
    for (size_t round = 0; code == HL_EXIT_DONE && round < warm_up + rounds; round++) {
        if (!(at_once ? run_both(variants, processors, round, value, cpu)
                      : run_in_turns(variants, n, round, value, cpu)))
            code = HL_EXIT_NO;
        for (size_t i = 0; i < n && round >= warm_up && code == HL_EXIT_DONE; i++) {
            variants[i].value[round - warm_up] = value[i];
            variants[i].cpu[round - warm_up] = cpu[i];
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (code == HL_EXIT_DONE) {
            print_numbers(variants[i].name, "", variants[i].value, rounds);
            print_numbers(variants[i].name, ":cpu", variants[i].cpu, rounds);
        }
    }
    for (size_t i = 1; i < n && code == HL_EXIT_DONE; i++)
        print_ratio(&variants[0], &variants[i], rounds);
    for (size_t i = 0; i < n; i++) {
        hl_close_program(&variants[i].subject.program);
        free(variants[i].value);
        free(variants[i].cpu);
    }
    return code;
}
