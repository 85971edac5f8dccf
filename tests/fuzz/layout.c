/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A whole file that gets an image: refused with a reason, or every piece lies where its address says, none
   overlaps another, and the image has the original's segments, byte for byte. */
#include "fuzz.h"

#include "command/image/image.h"

#include <sys/mman.h>
#include <unistd.h>

/* Small huge pages, so that a file of some pages has several. */
static const struct hl_geometry geometry = {T_PAGE, 2 * T_PAGE};
/* A longer image is planned, but not written. */
#define WRITTEN_MAX ((uint64_t)1 << 20)

static void check_pieces(const struct hl_image *image, uint64_t file_bytes) {
    uint64_t end = 0, pages = 0, copied = 0;
    for (size_t i = 0; i < image->n_pieces; i++) {
        const struct hl_piece *piece = &image->piece[i];
        assert_true(piece->bytes > 0 && piece->to >= end);
        end = piece->to + piece->bytes;
        assert_true(end > piece->to && end <= image->bytes);
        pages += 2 + piece->bytes / geometry.huge_page_bytes;
        if (piece->from == HL_TRAPS)
            continue;
        assert_true(piece->from <= file_bytes && piece->bytes <= file_bytes - piece->from);
        copied += piece->bytes;
    }
    /* Segments may share bytes of the file; sections may not. */
    assert_true(copied <= (HL_SEGMENTS_MAX + 1) * file_bytes);
    assert_true(image->bytes % T_PAGE == 0);
    pages += 3 + (image->phnum + image->shnum) * sizeof(Elf64_Shdr) / geometry.huge_page_bytes;
    assert_true(image->huge_pages > 0 && image->huge_pages <= pages);
}

/* Text may have taken in read-only data beside it: the borders of these rows move, and an empty one becomes PT_NULL. */
static bool may_move(const Elf64_Phdr *before) {
    return before->p_type == PT_LOAD && (before->p_flags & (PF_R | PF_W)) == PF_R;
}

static bool has_same_range(const Elf64_Phdr *a, const Elf64_Phdr *b) {
    return a->p_vaddr == b->p_vaddr && a->p_filesz == b->p_filesz && a->p_memsz == b->p_memsz;
}

/* OWN is BEFORE with the borders of its segment, or NULL if that is no segment of its own. */
static void check_row(const struct hl_image *image, const Elf64_Phdr *now, const Elf64_Phdr *before,
                      const Elf64_Phdr *own) {
    static const Elf64_Phdr null;
    if ((may_move(before) || own == NULL) && now->p_type == PT_NULL) {
        assert_memory_equal(now, &null, sizeof null);
        return;
    }
    assert_true(now->p_type == before->p_type && now->p_flags == before->p_flags);
    assert_true(now->p_vaddr - now->p_paddr == before->p_vaddr - before->p_paddr);
    assert_true(has_same_range(now, before) || (own != NULL && has_same_range(now, own)) ||
                (may_move(before) && now->p_filesz == now->p_memsz && now->p_memsz > 0));
    assert_true(now->p_align >= before->p_align || now->p_align == geometry.huge_page_bytes);
    if (now->p_type != PT_LOAD)
        return;
    assert_true((now->p_align & (now->p_align - 1)) == 0);
    if (now->p_memsz > 0) {
        assert_int_equal(now->p_offset, now->p_vaddr - image->base);
        assert_int_equal((now->p_vaddr - now->p_offset) & (now->p_align - 1 + (now->p_align == 0)), 0);
    } else {
        assert_int_equal(now->p_vaddr % T_PAGE, 0);
    }
}

/* How many of the bytes of BEFORE, a PT_LOAD of the original, are in a row of IMAGE that allows as much, and writing if that did. */
static uint64_t count_covered(const struct hl_image *image, const Elf64_Phdr *before) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < image->phnum; i++) {
        const Elf64_Phdr *now = &image->phdr[i];
        uint64_t start = now->p_vaddr > before->p_vaddr ? now->p_vaddr : before->p_vaddr;
        uint64_t end = now->p_vaddr + now->p_filesz, last = before->p_vaddr + before->p_filesz;
        end = end < last ? end : last;
        if (now->p_type == PT_LOAD && start < end && (before->p_flags & ~now->p_flags & (PF_R | PF_X)) == 0 &&
            (now->p_flags & PF_W) == (before->p_flags & PF_W))
            bytes += end - start;
    }
    return bytes;
}

/* BEFORE, a PT_LOAD, with the borders of SEGMENT: a page that two share is the second's. */
static Elf64_Phdr give_borders(const Elf64_Phdr *before, const struct hl_segment *segment) {
    Elf64_Phdr own = *before;
    own.p_paddr += segment->start - own.p_vaddr;
    own.p_vaddr = segment->start;
    own.p_filesz = segment->file_end - segment->start;
    own.p_memsz = segment->end - segment->start;
    return own;
}

static void check_headers(const struct hl_image *image, const struct hl_elf_file *file) {
    struct hl_object object;
    assert_true(image->header.e_phoff + image->phnum * sizeof *image->phdr <= image->bytes);
    assert_true(image->shnum == 0 ||
                image->header.e_shoff + image->shnum * sizeof *image->shdr <= image->bytes);
    assert_int_equal(hl_load_object(&object, file, "", 0, &geometry), 0);
    unsigned number = object.n_segments;
    for (size_t i = image->phnum; i-- > 0;) {
        const Elf64_Phdr *now = &image->phdr[i], *before = &file->phdr[i];
        if (before->p_type != PT_LOAD || before->p_memsz == 0) {
            check_row(image, now, before, before);
        } else if (number < object.n_segments && before->p_vaddr >= object.segment[number].start) {
            check_row(image, now, before, NULL);
        } else {
            const Elf64_Phdr own = give_borders(before, &object.segment[--number]);
            check_row(image, now, before, &own);
            /* The bytes at the beginning of a shared page are the other one's, too. */
            const Elf64_Phdr *covered = own.p_vaddr < before->p_vaddr ? before : &own;
            assert_true(count_covered(image, covered) >= covered->p_filesz);
        }
    }
    assert_int_equal(number, 0);
}

/* Compares the LOADs of the original with the bytes of IMAGE, which was written to OUT, at their addresses, but for the headers in
   them. */
static void compare_segments(const struct hl_image *image, const struct hl_elf_file *file, int out) {
    static uint8_t was[WRITTEN_MAX], is[WRITTEN_MAX];
    for (size_t i = 0; i < image->phnum; i++) {
        const Elf64_Phdr *before = &file->phdr[i];
        ssize_t bytes = (ssize_t)before->p_filesz;
        if (before->p_type != PT_LOAD || bytes == 0)
            continue;
        uint64_t offset = before->p_vaddr - image->base;
        assert_true(bytes <= (ssize_t)WRITTEN_MAX);
        assert_true(pread(file->fd, was, (size_t)bytes, (off_t)before->p_offset) == bytes);
        assert_true(pread(out, is, (size_t)bytes, (off_t)offset) == bytes);
        for (ssize_t j = 0; j < bytes; j++) {
            uint64_t at = offset + (uint64_t)j;
            bool header = at - image->loaded_header < sizeof image->header || at < sizeof image->header;
            bool table = at - image->header.e_phoff < image->phnum * sizeof *image->phdr;
            assert_true(was[j] == is[j] || header || table);
        }
    }
}

static int make_file(char *path, size_t bytes) {
    int fd = memfd_create("file", MFD_CLOEXEC);
    snprintf(path, bytes, "/proc/self/fd/%d", fd);
    return fd;
}

static void check_written(const struct hl_image *image, const struct hl_elf_file *file) {
    static int out = -1;
    static char path[40];
    struct hl_elf_file written;
    if (out < 0)
        out = make_file(path, sizeof path);
    assert_true(ftruncate(out, 0) == 0);
    assert_int_equal(hl_write_image(image, file, out), 0);
    compare_segments(image, file, out);
    assert_int_equal(hl_open_elf(&written, -1, path), HL_ELF_FINE);
    assert_int_equal(written.phnum, file->phnum);
    assert_int_equal(written.stat.st_size, image->bytes);
    assert_true((written.soname == NULL) == (file->soname == NULL));
    hl_close_elf(&written);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static int fd = -1;
    static char path[40];
    struct hl_elf_file file;
    struct hl_image image;
    if (fd < 0)
        fd = make_file(path, sizeof path);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, data, bytes, 0) != (ssize_t)bytes)
        abort();
    if (hl_open_elf(&file, -1, path) != HL_ELF_FINE)
        return 0;
    int result = hl_plan_image(&image, &file, &geometry);
    assert_true(result >= 0 && result < HL_REASONS_END);
    if (result == 0) {
        check_pieces(&image, bytes);
        check_headers(&image, &file);
        if (image.bytes <= WRITTEN_MAX)
            check_written(&image, &file);
        hl_free_image(&image);
    }
    hl_close_elf(&file);
    return 0;
}
