/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* gate PROGRAM ARGS: becomes PROGRAM when standard input ends, so that many start in the same moment.
   $T_PRELOAD is preloaded then, and not into this program. */
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    char byte;
    (void)argc;
    while (read(0, &byte, 1) > 0)
        ;
    setenv("LD_PRELOAD", getenv("T_PRELOAD"), 1);
    execv(argv[1], argv + 1);
    return 99;
}
