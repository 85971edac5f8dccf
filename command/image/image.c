/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* hugeld image: lays a file out anew for huge pages, beside the original.

   The image is written under a name of its own in the folder of OUT and renamed, so that OUT is complete or not there at all, and a
   process that runs an older OUT keeps it.

   The original is read, never mapped: it may be truncated meanwhile, which is SIGBUS for a mapping. */
#include "command/image/image.h"
#include "command/command.h"
#include "command/lib/common.h"
#include "command/lib/flags.h"
#include "elf/kernel.h"
#include "command/lib/program.h"
#include "command/lib/remedy.h"
#include "elf/reason.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

/* 128 MiB on a tmpfs with huge pages took 0.85 of cp's time with 1 MiB at once and with 512 KiB, 0.95 with 2 MiB,
   1.2 with 256 KiB (6.18). */
#define CHUNK_BYTES ((size_t)1 << 20)

enum { BLOCKS = 4 };
struct writer {
    const struct hl_image *image;
    int from, out;
    bool compares; /* OUT has been written, and is compared with the bytes that would be written */
    char *chunk;   /* CHUNK_BYTES, and twice as many to compare with */
    struct block {
        const void *from;
        uint64_t bytes, to;
    } header[BLOCKS]; /* the headers, which are written over the pieces */
};

/* --- bytes --- */

/* Compares BYTES with those at OFFSET of OUT. */
static int compare_bytes(const struct writer *w, const char *with, size_t bytes, uint64_t offset) {
    for (size_t done = 0, n; done < bytes; done += n) {
        n = bytes - done < CHUNK_BYTES ? bytes - done : CHUNK_BYTES;
        if (!hl_read_exactly(w->out, offset + done, w->chunk + CHUNK_BYTES, n) ||
            memcmp(w->chunk + CHUNK_BYTES, with + done, n) != 0)
            return HL_REASON_IMAGE_MISMATCH;
    }
    return 0;
}

static int write_bytes(const struct writer *w, const void *from, size_t bytes, uint64_t offset) {
    if (w->compares)
        return compare_bytes(w, from, bytes, offset);
    for (size_t done = 0; done < bytes;) {
        ssize_t put = pwrite(w->out, (const char *)from + done, bytes - done, (off_t)(offset + done));
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return put == 0 ? -EIO : -errno;
        done += (size_t)put;
    }
    return 0;
}

/* --- the image --- */

/* Trap instructions are as long as a multiple of their alignment, so they are placed by the offset in the image. */
static void make_traps(char *to, size_t bytes, uint32_t trap, uint64_t offset) {
    for (size_t i = 0; i < bytes && i < sizeof trap; i++)
        to[i] = ((const char *)&trap)[(offset + i) % sizeof trap];
    for (size_t done = sizeof trap; done < bytes; done *= 2)
        memcpy(to + done, to, bytes - done < done ? bytes - done : done);
}

/* Puts the headers' bytes in [to, to + bytes) into the chunk for that range. */
static void lay_headers_over(const struct writer *w, uint64_t to, uint64_t bytes) {
    for (unsigned i = 0; i < BLOCKS; i++) {
        const struct block *block = &w->header[i];
        uint64_t start = block->to > to ? block->to : to, end = block->to + block->bytes;
        end = end < to + bytes ? end : to + bytes;
        if (start < end)
            memcpy(w->chunk + (start - to), (const char *)block->from + (start - block->to), end - start);
    }
}

static int write_piece(const struct writer *w, const struct hl_piece *piece) {
    int result = 0;
    uint64_t bytes;
    for (uint64_t done = 0; result == 0 && done < piece->bytes; done += bytes) {
        /* Chunks end at multiples of their size, so that none has parts of two pages of any size. */
        uint64_t to = piece->to + done, left = CHUNK_BYTES - to % CHUNK_BYTES;
        bytes = piece->bytes - done < left ? piece->bytes - done : left;
        if (piece->from == HL_TRAPS)
            make_traps(w->chunk, bytes, w->image->trap, to);
        else if (!hl_read_exactly(w->from, piece->from + done, w->chunk, bytes))
            return HL_REASON_SOURCE_UNREADABLE;
        lay_headers_over(w, to, bytes);
        result = write_bytes(w, w->chunk, bytes, to);
    }
    return result;
}

/* Calls write_bytes for everything that IMAGE, of FILE, holds. */
static int visit_image(const struct hl_image *image, const struct hl_elf_file *file, int out, bool compares) {
    const struct writer w = {
        image,
        file->fd,
        out,
        compares,
        aligned_alloc(4096, 2 * CHUNK_BYTES),
        {{&image->header, sizeof image->header, 0},
         {&image->header, sizeof image->header, image->loaded_header},
         {image->phdr, image->phnum * sizeof *image->phdr, image->header.e_phoff},
         {image->shdr, image->shnum * sizeof *image->shdr, image->header.e_shoff}},
    };
    int result = w.chunk != NULL ? 0 : -ENOMEM;
    for (size_t i = 0; i < image->n_pieces && result == 0; i++)
        result = write_piece(&w, &image->piece[i]);
    for (unsigned i = 0; i < BLOCKS && result == 0; i++)
        result = write_bytes(&w, w.header[i].from, w.header[i].bytes, w.header[i].to);
    free(w.chunk);
    return result;
}

int hl_write_image(const struct hl_image *image, const struct hl_elf_file *file, int out) {
    return ftruncate(out, (off_t)image->bytes) != 0 ? -errno : visit_image(image, file, out, false);
}

int hl_compare_written(const struct hl_image *image, const struct hl_elf_file *file, int out) {
    struct stat stat;
    if (fstat(out, &stat) != 0)
        return -errno;
    return (uint64_t)stat.st_size == image->bytes ? visit_image(image, file, out, true)
                                                  : HL_REASON_IMAGE_MISMATCH;
}

/* Finds accidents and no forgery: a user who can write to an image can write its digest, too.  So no cryptographic digest is needed
   (64 MiB: 10 ms without AVX; SHA-512 133 ms). */
int hl_digest_image(char digest[HL_DIGEST_TEXT], int image) {
    XXH3_state_t *state = XXH3_createState();
    char *chunk = malloc(CHUNK_BYTES);
    ssize_t bytes = -1;
    errno = ENOMEM;
    if (state != NULL && chunk != NULL && XXH3_128bits_reset(state) == XXH_OK) {
        for (off_t at = 0; (bytes = pread(image, chunk, CHUNK_BYTES, at)) > 0; at += bytes)
            XXH3_128bits_update(state, chunk, (size_t)bytes);
    }
    int result = bytes < 0 ? -errno : 0;
    if (result == 0) {
        XXH128_hash_t hash = XXH3_128bits_digest(state);
        snprintf(digest, HL_DIGEST_TEXT, "%016" PRIx64 "%016" PRIx64, (uint64_t)hash.high64,
                 (uint64_t)hash.low64);
    }
    free(chunk);
    XXH3_freeState(state);
    return result;
}

/* --- the command --- */

struct request {
    const char *file, *out;
    struct hl_geometry geometry;
};

static int parse_huge_page(void *request_, const char *text) {
    struct request *request = request_;
    char *end;
    errno = 0;
    unsigned long long bytes = strtoull(text, &end, 10);
    unsigned shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    if (errno != 0 || text[0] < '0' || text[0] > '9' || end[shift > 0] != '\0' ||
        bytes > (UINT64_C(1) << 30) >> shift || (bytes & (bytes - 1)) != 0 ||
        bytes << shift <= request->geometry.page_bytes) {
        hl_warn("--huge-page=%s: not the size of a huge page; give a power of two up to 1G, such as 2M",
                text);
        return EINVAL;
    }
    request->geometry.huge_page_bytes = bytes << shift;
    return 0;
}

static int set_file(void *request_, const char *path) {
    struct request *request = request_;
    *(request->file == NULL ? &request->file : &request->out) = path;
    return 0;
}

static const struct hl_flag command_flags[] = {
    {"huge-page", 'H', "BYTES", "For machines with huge pages of this size (this one's)",
     HL_CALL(parse_huge_page)},
    {NULL, 0, "FILE OUT", "one FILE and one OUT", HL_CALL(set_file), .most = 2},
};

/* The file's name until the image is complete.  A signal that ends the command removes the file. */
static char *unfinished;

static void end_by_signal(int number) {
    if (unfinished != NULL)
        unlink(unfinished);
    signal(number, SIG_DFL);
    raise(number);
}

static void catch_signals(void) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGXFSZ};
    struct sigaction old, action = {.sa_handler = end_by_signal};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler == SIG_DFL)
            sigaction(numbers[i], &action, NULL);
}

/* Whether OUT may be written: nothing is there, or a regular file other than the original. */
static bool check_out(const struct request *request, const struct hl_elf_file *file) {
    struct stat stat;
    if (lstat(request->out, &stat) != 0) {
        if (errno == ENOENT)
            return true;
        hl_warn("%s: %s", request->out, strerror(errno));
    } else if (!S_ISREG(stat.st_mode)) {
        hl_warn("%s: it exists and is no regular file; name another file to write", request->out);
    } else if (stat.st_dev == file->stat.st_dev && stat.st_ino == file->stat.st_ino) {
        hl_warn("%s: it is the file to read; name another file to write", request->out);
    } else {
        return true;
    }
    return false;
}

static bool write_out(const struct request *request, const struct hl_image *image,
                      const struct hl_elf_file *file) {
    char *name = hl_xasprintf("%s.new-XXXXXX", request->out);
    bool done = false;
    catch_signals();
    int out = mkostemp(name, O_CLOEXEC);
    if (out >= 0)
        unfinished = name;
    int result = out < 0 ? -errno : hl_write_image(image, file, out);
    if (result == 0 && fchmod(out, file->stat.st_mode & 0777) != 0)
        result = -errno;
    if (out >= 0 && close(out) != 0 && result == 0)
        result = -errno;
    if (result == 0 && rename(name, request->out) != 0)
        result = -errno;
    if (result > 0)
        hl_warn("%s: no image: %s", request->file, hl_reason_sentence((enum hl_reason)result));
    else if (result < 0)
        hl_warn("%s: cannot be written: %s", request->out, strerror(-result));
    else
        done = true;
    if (!done && out >= 0)
        unlink(name);
    unfinished = NULL;
    free(name);
    return done;
}

static bool make_image(const struct request *request, const struct hl_elf_file *file) {
    struct hl_image image;
    if (!check_out(request, file))
        return false;
    int reason = hl_plan_image(&image, file, &request->geometry);
    if (reason != 0) {
        char *sentence = reason == HL_REASON_TOO_SMALL
                             ? hl_xasprintf("%s", hl_reason_sentence(HL_REASON_TOO_SMALL))
                             : hl_explain_reason((enum hl_reason)reason, request->file);
        hl_warn("%s: no image: %s", request->file, sentence);
        free(sentence);
        return false;
    }
    bool done = write_out(request, &image, file);
    if (done)
        hl_print_answer(json_pack("{s:o, s:o, s:I}", "path", hl_json_text(request->file), "out",
                                  hl_json_text(request->out), "bytes", (json_int_t)image.bytes),
                        false);
    hl_free_image(&image);
    return done;
}

int hl_make_image(int argc, char **argv) {
    static const struct hl_command command = {
        "image",
        "Writes FILE, a program or library, to OUT, laid out for huge pages.\v"
        "OUT has the same addresses, symbols and bytes.",
        command_flags, false};
    struct request request = {0};
    struct hl_elf_file file;
    request.geometry = hl_read_geometry();
    if (hl_read_flags(&command, argc, argv, &request) != 0)
        return HL_EXIT_USAGE;
    if (request.out == NULL) {
        hl_warn("image: name a program or library, and the file to write; see 'hugeld image --help'");
        return HL_EXIT_USAGE;
    }
    char *path = hl_find_named_file(request.file);
    enum hl_elf_problem problem = hl_open_elf(&file, AT_FDCWD, path);
    free(path);
    if (problem != HL_ELF_FINE) {
        hl_warn("%s: %s", request.file, hl_elf_problem_sentence(problem));
        return HL_EXIT_NO;
    }
    bool done = make_image(&request, &file);
    hl_close_elf(&file);
    return done ? HL_EXIT_DONE : HL_EXIT_NO;
}
