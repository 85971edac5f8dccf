/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Appends an answer to data/report.html, whose script draws it. */
#include "command/base/html.h"
#include "command/base/common.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

bool hl_write_report(const char *path, const json_t *answer) {
    if (path == NULL)
        return true;
    char *text = json_dumps(answer, JSON_COMPACT | JSON_ENSURE_ASCII);
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
