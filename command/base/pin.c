/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "command/base/pin.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

int (*hl_pins_by)(const char *path, bool follows, struct stat *status);

bool hl_pin(struct hl_pin *pin, const char *path, bool follows) {
    struct stat status;
    *pin = (struct hl_pin){.path = path, .file = -1};
    if (hl_pins_by == NULL)
        return true;
    int file = hl_pins_by(path, follows, &status);
    if (file < 0) {
        errno = -file;
        return false;
    }
    pin->file = file;
    snprintf(pin->link, sizeof pin->link, "/proc/self/fd/%d", file);
    pin->path = pin->link;
    return true;
}

void hl_unpin(struct hl_pin *pin) {
    int error = errno;
    if (pin->file >= 0)
        close(pin->file);
    errno = error;
}
