/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Appends an answer to data/report.html, whose script draws it. */
#include "command/lib/html.h"
#include "command/lib/common.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

__asm__(".pushsection .rodata\n"
        "hl_html_start: .incbin \"data/report.html\"\n"
        "hl_html_end:\n"
        ".popsection");
extern const char hl_html_start[], hl_html_end[];

static void say_why(const char *path, int error) {
    hl_warn("%s: the report cannot be written: %s; name another file", path, strerror(error));
}

int hl_check_report(const char *path) {
    int fd = path != NULL ? open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666) : -1;
    if (fd >= 0)
        unlink(path); /* the command may fail before there is an answer */
    else if (path != NULL && errno == EEXIST)
        fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (path != NULL && fd < 0) {
        say_why(path, errno);
        return HL_EXIT_USAGE;
    }
    if (fd >= 0)
        close(fd);
    return 0;
}

/* "2026-11-29 05:30 on HOST by hugeld 0.1: hugeld bench -- true", from the words that this command was called with. */
static json_t *describe_origin(void) {
    char date[64] = "", host[65] = "", words[4096];
    time_t now = time(NULL);
    strftime(date, sizeof date, "%F %H:%M", localtime(&now));
    gethostname(host, sizeof host - 1);
    int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t bytes = file >= 0 ? read(file, words, sizeof words - 1) : -1;
    words[bytes > 0 ? bytes : 0] = '\0';
    char *command = hl_xasprintf("hugeld");
    for (ssize_t at = (ssize_t)strlen(words) + 1; at < bytes; at += (ssize_t)strlen(words + at) + 1)
        hl_add_word(&command, words + at);
    char *line = hl_xasprintf("%s on %s by hugeld %s: %s", date, host, HL_VERSION, command);
    json_t *made = hl_json_text(line);
    if (file >= 0)
        close(file);
    free(line);
    free(command);
    return made;
}

bool hl_write_report(const char *path, const json_t *answer) {
    if (path == NULL)
        return true;
    json_t *whole = json_copy((json_t *)answer);
    json_object_set_new(whole, "made", describe_origin());
    char *text = json_dumps(whole, JSON_COMPACT | JSON_ENSURE_ASCII);
    json_decref(whole);
    FILE *file = fopen(path, "we");
    bool is_written = text != NULL && file != NULL;
    if (is_written) {
        fwrite(hl_html_start, 1, (size_t)(hl_html_end - hl_html_start), file);
        for (const char *at = text; *at != '\0'; at++) {
            if (*at == '<') /* a name may hold the end of a script */
                fputs("\\u003c", file);
            else
                fputc(*at, file);
        }
        fputs("</script>\n</body>\n</html>\n", file);
        is_written = fflush(file) == 0 && !ferror(file);
    }
    int error = text != NULL ? errno : ENOMEM;
    free(text);
    if (file != NULL && fclose(file) != 0 && is_written) {
        error = errno;
        is_written = false;
    }
    if (!is_written)
        say_why(path, error);
    return is_written;
}
