/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A server as `hugeld doctor` asks it: its output, and whether it fails, come from files in $T_ANSWERS.
   `-C NAME` (postgres) prints the file NAME, which root may not, `--verbose --help` (mysqld) the file "help".
   Where there is none it fails with a message of two lines.  Any other use would be a start of the server,
   and leaves the file "started". */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int print_answer(const char *name) {
    char path[4096], text[65536];
    snprintf(path, sizeof path, "%s/%s", getenv("T_ANSWERS"), name);
    int fd = open(path, O_RDONLY);
    ssize_t bytes = fd >= 0 ? read(fd, text, sizeof text) : -1;
    if (bytes < 0) {
        fprintf(stderr, "unrecognized configuration parameter \"%s\"\nsecond line\n", name);
        return 1;
    }
    return write(1, text, (size_t)bytes) == bytes ? 0 : 1;
}

int main(int argc, char **argv) {
    char path[4096];
    if (argc >= 3 && strcmp(argv[argc - 2], "--verbose") == 0 && strcmp(argv[argc - 1], "--help") == 0)
        return print_answer("help");
    if (argc >= 3 && strcmp(argv[1], "-C") == 0) {
        if (geteuid() == 0 || getegid() == 0) {
            fprintf(stderr, "\"root\" execution of the server is not permitted.\n");
            return 1;
        }
        return print_answer(argv[2]);
    }
    snprintf(path, sizeof path, "%s/started", getenv("T_ANSWERS"));
    close(open(path, O_CREAT | O_WRONLY, 0600));
    return 3;
}
