/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A program in one file with its data, as makers of such programs build them: it prints its data, which it finds in the
   way WAY, once through /proc/self/exe and once through its own name; and that its text is whole.  With an argument it
   waits for a line first. */
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

unsigned long big_sum(unsigned long x);

/* The test writes this into the finished file. */
volatile struct {
    char mark[16];
    unsigned long offset, bytes;
} recorded = {"PLACE OF PAYLOAD", 1, 1};

static void print(const char *how, const unsigned char *at, size_t bytes) {
    unsigned long sum = 5381;
    for (size_t i = 0; i < bytes; i++)
        sum = sum * 33 + at[i];
    printf("%s: %zu bytes, sum %lx, begins with %.8s\n", how, bytes, sum,
           bytes >= 8 ? (const char *)at : "-");
}

static void read_at(const char *how, int file, off_t offset, size_t bytes) {
    unsigned char *room = calloc(1, bytes + 8);
    ssize_t got = pread(file, room, bytes, offset);
    print(how, room, got < 0 ? 0 : (size_t)got);
    free(room);
}

/* Deno and PyInstaller: the last bytes say how much there is. */
__attribute__((unused)) static void find_trailer(const char *how, int file) {
    struct {
        char mark[8];
        unsigned long bytes;
    } last = {{0}};
    off_t end = lseek(file, 0, SEEK_END);
    pread(file, &last, sizeof last, end - (off_t)sizeof last);
    if (memcmp(last.mark, "TRAILER!", 8) == 0)
        read_at(how, file, end - (off_t)(sizeof last + last.bytes), last.bytes);
    else
        printf("%s: no trailer\n", how);
}

static void read_header(Elf64_Ehdr *header, int file) { pread(file, header, sizeof *header, 0); }

/* AppImage: the bytes behind the section headers. */
__attribute__((unused)) static void find_end_of_elf(const char *how, int file) {
    Elf64_Ehdr header;
    read_header(&header, file);
    off_t at = (off_t)(header.e_shoff + (unsigned long)header.e_shnum * header.e_shentsize);
    read_at(how, file, at, (size_t)(lseek(file, 0, SEEK_END) - at));
}

/* Godot: a section with a name. */
__attribute__((unused)) static void find_section(const char *how, int file) {
    Elf64_Ehdr header;
    Elf64_Shdr names, section;
    char name[16] = "";
    read_header(&header, file);
    pread(file, &names, sizeof names, (off_t)(header.e_shoff + header.e_shstrndx * sizeof names));
    for (unsigned i = 0; i < header.e_shnum; i++) {
        pread(file, &section, sizeof section, (off_t)(header.e_shoff + i * sizeof section));
        pread(file, name, sizeof name - 1, (off_t)(names.sh_offset + section.sh_name));
        if (strcmp(name, "payload") == 0)
            read_at(how, file, (off_t)section.sh_offset, section.sh_size);
    }
}

/* Bun, and many others: the place was written into the program. */
__attribute__((unused)) static void find_recorded(const char *how, int file) {
    read_at(how, file, (off_t)recorded.offset, recorded.bytes);
}

/* The program's own segment, found by the headers in the file. */
__attribute__((unused)) static void find_segment(const char *how, int file) {
    Elf64_Ehdr header;
    Elf64_Phdr segment;
    read_header(&header, file);
    for (unsigned i = 0; i < header.e_phnum; i++) {
        pread(file, &segment, sizeof segment, (off_t)(header.e_phoff + i * sizeof segment));
        if (segment.p_type == PT_NOTE)
            read_at(how, file, (off_t)segment.p_offset, segment.p_filesz);
    }
}

/* node: a note in memory. */
static int look_at_notes(struct dl_phdr_info *info, size_t size, void *how) {
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const char *at = (const char *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
        const char *end = at + info->dlpi_phdr[i].p_memsz;
        while (info->dlpi_phdr[i].p_type == PT_NOTE && at < end) {
            const Elf64_Nhdr *note = (const void *)at;
            const char *name = at + sizeof *note, *bytes = name + ((note->n_namesz + 3) & -4U);
            if (note->n_namesz == 8 && strcmp(name, "PAYLOAD") == 0)
                print(how, (const unsigned char *)bytes, note->n_descsz);
            at = bytes + ((note->n_descsz + 3) & -4U);
        }
    }
    return (int)size * 0;
}

__attribute__((unused)) static void find_note(const char *how, int file) {
    (void)file;
    dl_iterate_phdr(look_at_notes, (void *)how);
}

/* UPX: the code itself is unpacked into memory that belongs to no file. */
__attribute__((unused)) static void find_packed(const char *how, int file) {
    static const unsigned char packed[] = {0xb8, 0x2a, 0, 0, 0, 0xc3}; /* mov $42, %eax; ret */
    size_t bytes = 5 << 20;
    unsigned char *code = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(code, 0x90, bytes);
    memcpy(code + bytes - sizeof packed, packed, sizeof packed);
    mprotect(code, bytes, PROT_READ | PROT_EXEC);
    printf("%s: unpacked code returns %d\n", how, ((int (*)(void))code)());
    find_recorded(how, file);
}

int main(int argc, char **argv) {
    if (argc > 1) {
        puts("waits");
        fflush(stdout);
        getchar();
    }
    const char *name[] = {"/proc/self/exe", argv[0]};
    for (int i = 0; i < 2; i++) {
        int file = open(name[i], O_RDONLY);
        WAY(name[i], file);
        close(file);
    }
    printf("sum %lx\n", big_sum(1));
    return 5;
}
