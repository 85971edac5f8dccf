/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Lines for errors, memory, texts, paths, numbers and clocks. */
#include "command/lib/basics.h"
#include "elf/kernel.h"
#include "elf/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <linux/limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

struct hl_output hl_output;

size_t hl_hidden_bytes(const char *text) {
    const unsigned char *at = (const unsigned char *)text;
    if (at[0] < ' ' || at[0] == 0x7f)
        return at[0] != '\0';
    if (at[0] == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0) /* U+0080 to U+009F */
        return 2;
    if (at[0] == 0xd8 && at[1] == 0x9c) /* U+061C */
        return 2;
    if (at[0] == 0xe2 && at[1] == 0x80 &&
        ((at[2] >= 0x8b && at[2] <= 0x8f) || (at[2] >= 0xa8 && at[2] <= 0xae)))
        return 3; /* U+200B to U+200F, U+2028 to U+202E */
    if (at[0] == 0xe2 && at[1] == 0x81 && at[2] >= 0xa0 && at[2] <= 0xaf) /* U+2060 to U+206F */
        return 3;
    return at[0] == 0xef && at[1] == 0xbb && at[2] == 0xbf ? 3 : 0; /* U+FEFF */
}

bool hl_has_hidden(const char *text) {
    while (*text != '\0' && hl_hidden_bytes(text) == 0)
        text++;
    return *text != '\0';
}

/* PREFIX and the text in one line, ended by a newline; malloc'ed. */
static char *make_line(size_t *bytes, const char *prefix, const char *format, va_list arguments) {
    char *text, *line;
    if (vasprintf(&text, format, arguments) < 0 || asprintf(&line, "%s%s", prefix, text) < 0)
        abort(); /* not enough memory even for the message */
    free(text);
    size_t length = strlen(line);
    for (size_t i = 0; i < length; i++)
        memset(line + i, '?', hl_hidden_bytes(line + i));
    line[length] = '\n'; /* in the place of the terminator */
    *bytes = length + 1;
    return line;
}

static uint64_t signal_bit(int number) { return (uint64_t)1 << (number - 1); }

/* Writes to standard error.  No signal of a pipe without a reader, of RLIMIT_FSIZE, or of a terminal (stty tostop) ends or stops a
   process that is about to become a program. pthread_sigmask(3) of musl would unblock glibc's SIGRTMIN. */
static void write_quietly(const char *text, size_t bytes) {
    const uint64_t blocked = signal_bit(SIGPIPE) | signal_bit(SIGXFSZ) | signal_bit(SIGTTOU);
    const struct timespec now = {0, 0};
    uint64_t before;
    HL_CALL(__NR_rt_sigprocmask, SIG_BLOCK, &blocked, &before, sizeof before, 0, 0);
    if (write(STDERR_FILENO, text, bytes) < 0 && (errno == EPIPE || errno == EFBIG)) {
        const uint64_t sent = signal_bit(errno == EPIPE ? SIGPIPE : SIGXFSZ);
        HL_CALL(__NR_rt_sigtimedwait, &sent, NULL, &now, sizeof sent, 0, 0);
    }
    hl_restore_signals(before);
}

static char last_warning[1024];

const char *hl_last_warning(void) { return last_warning; }

void hl_warn(const char *format, ...) {
    size_t bytes;
    va_list arguments;
    va_start(arguments, format);
    char *line = make_line(&bytes, "hugeld: ", format, arguments);
    va_end(arguments);
    snprintf(last_warning, sizeof last_warning, "%.*s", (int)(bytes - sizeof "hugeld: "),
             line + sizeof "hugeld: " - 1);
    fflush(stdout); /* so that earlier output stands before it */
    write_quietly(line, bytes);
    free(line);
}

void hl_note(const char *format, ...) {
    size_t bytes;
    va_list arguments;
    if (hl_output.is_quiet)
        return;
    va_start(arguments, format);
    char *line = make_line(&bytes, "hugeld: ", format, arguments);
    va_end(arguments);
    fflush(stdout);
    write_quietly(line, bytes);
    free(line);
}

void hl_print(const char *format, ...) {
    size_t bytes;
    va_list arguments;
    if (!hl_prints_text())
        return;
    va_start(arguments, format);
    char *line = make_line(&bytes, "", format, arguments);
    va_end(arguments);
    fwrite(line, 1, bytes, stdout);
    free(line);
}

FILE *hl_open_text(int folder, const char *name) {
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC);
    FILE *text = fd >= 0 ? fdopen(fd, "r") : NULL;
    if (text == NULL && fd >= 0)
        close(fd);
    return text;
}

DIR *hl_open_list(int folder, const char *name) {
    int fd = openat(folder, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *list = fd >= 0 ? fdopendir(fd) : NULL;
    if (list == NULL && fd >= 0)
        close(fd);
    return list;
}

static void *check_memory(void *at) {
    if (at == NULL) {
        hl_warn("out of memory; free some and try again");
        exit(HL_EXIT_NO);
    }
    return at;
}

void *hl_xmalloc(size_t bytes) { return check_memory(calloc(1, bytes > 0 ? bytes : 1)); }

void *hl_xrealloc(void *at, size_t bytes) { return check_memory(realloc(at, bytes > 0 ? bytes : 1)); }

void hl_append(char **text, const char *format, ...) {
    char *more, *both;
    va_list arguments;
    va_start(arguments, format);
    more = vasprintf(&more, format, arguments) >= 0 ? more : NULL;
    va_end(arguments);
    both = hl_xasprintf("%s%s", *text, (char *)check_memory(more));
    free(more);
    free(*text);
    *text = both;
}

void hl_replace_text(char **text, const char *by) {
    free(*text);
    *text = hl_xasprintf("%s", by != NULL ? by : "");
}

void hl_add_to_texts(struct hl_texts *texts, const char *text) {
    texts->text = hl_xrealloc(texts->text, (texts->n + 1) * sizeof *texts->text);
    texts->text[texts->n++] = hl_xasprintf("%s", text);
}

void hl_free_texts(struct hl_texts *texts) {
    for (size_t i = 0; i < texts->n; i++)
        free(texts->text[i]);
    free(texts->text);
    *texts = (struct hl_texts){0};
}

bool hl_is_kernel(unsigned version, unsigned patch_level) {
    struct utsname name;
    unsigned running = 0, running_level = 0;
    bool is_known = uname(&name) == 0 && sscanf(name.release, "%u.%u", &running, &running_level) == 2;
    return !is_known || running > version || (running == version && running_level >= patch_level);
}

size_t hl_raise_file_limit(void) {
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0)
        return 0;
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    return files.rlim_max;
}

char *hl_xasprintf(const char *format, ...) {
    char *text;
    va_list arguments;
    va_start(arguments, format);
    if (vasprintf(&text, format, arguments) < 0)
        text = NULL;
    va_end(arguments);
    return check_memory(text);
}

char *hl_read_link(int folder, const char *name) {
    char path[PATH_MAX];
    ssize_t bytes = readlinkat(folder, name, path, sizeof path);
    return bytes >= 0 ? hl_xasprintf("%.*s", (int)bytes, path) : NULL;
}

char *hl_find_file_path(int file) {
    char *link = hl_xasprintf("/proc/self/fd/%d", file), *path = hl_read_link(AT_FDCWD, link);
    free(link);
    if (path != NULL && path[0] == '/')
        return path;
    free(path);
    return NULL;
}

char *hl_find_part(const char *name, const char *built, int mode) {
    char *own = hl_read_link(AT_FDCWD, "/proc/self/exe"), *found = NULL;
    if (own == NULL && getauxval(AT_SECURE) == 0) /* without /proc */
        own = realpath((const char *)getauxval(AT_EXECFN), NULL);
    const char *folder = own != NULL ? dirname(own) : "";
    char *places[] = {hl_xasprintf("%s/%s", folder, built != NULL ? built : name),
                      hl_xasprintf("%s/../lib/hugeld/%s", folder, name),
                      hl_xasprintf("%s/%s", HL_LIBDIR, name)};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        if (found == NULL && access(places[i], mode) == 0)
            found = realpath(places[i], NULL);
        free(places[i]);
    }
    free(own);
    return found;
}

char *hl_join_options(const char *a, const char *b) {
    a = a != NULL ? a : "";
    b = b != NULL ? b : "";
    return hl_xasprintf("%s%s%s", a, a[0] != '\0' && b[0] != '\0' ? "," : "", b);
}

const char *hl_flags_text(uint32_t flags) {
    static const char *const texts[8] = {"---", "--x", "-w-", "-wx", "r--", "r-x", "rw-", "rwx"};
    return texts[flags & (PF_R | PF_W | PF_X)];
}

bool hl_ends_in(const char *text, const char *end) {
    size_t length = strlen(text), bytes = strlen(end);
    return length > bytes && strcmp(text + length - bytes, end) == 0;
}

struct hl_geometry hl_read_geometry(void) {
    struct hl_geometry geometry;
    hl_set_geometry(&geometry, (uint64_t)sysconf(_SC_PAGESIZE));
    return geometry;
}

unsigned hl_permille(uint64_t part, uint64_t whole) {
    return whole == 0 ? 0 : (unsigned)((long double)part * 1000 / (long double)whole);
}

double hl_now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

void hl_add_word(char **text, const char *word) {
    char *quoted = hl_xmalloc(2 * strlen(word) + 1), *to = quoted;
    for (; *word != '\0'; word++) {
        if (strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%", *word) ==
                NULL &&
            !((unsigned char)*word & 0x80))
            *to++ = '\\';
        *to++ = *word;
    }
    hl_append(text, "%s%s", (*text)[0] != '\0' ? " " : "", quoted);
    free(quoted);
}

void hl_add_option(char **text, const char *before, const char *value) {
    char *word = value != NULL ? hl_xasprintf("%s%s", before, value) : NULL;
    if (word != NULL)
        hl_add_word(text, word);
    free(word);
}
