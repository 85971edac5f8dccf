/* Objects on huge pages.  Another C library than ours.
   This file is part of hugeld, for the GNU C Library.

   This library is free software; you can redistribute it and/or
   modify it under the terms of the GNU Lesser General Public
   License as published by the Free Software Foundation; either
   version 2.1 of the License, or (at your option) any later version.

   This library is distributed in the hope that it will be useful,
   but WITHOUT ANY WARRANTY; without even the implied warranty of
   MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE.  See the GNU
   Lesser General Public License for more details.

   You should have received a copy of the GNU Lesser General Public
   License along with the GNU C Library; if not, see
   <https://www.gnu.org/licenses/>.  */

/* ld.so and libc.so.6 are two halves of one library.  This ld.so belongs to
   the libc.so.6 whose build ID it holds.  If it maps another one, as
   happens between the unpacking of a newer libc and the moment that
   ours is taken away, it leaves the program to the system's ld.so.
   No code of libc or of the program has run by then, and nothing is
   relocated.

   What the kernel has left is on the stack still: the system's ld.so is
   mapped, what this one has mapped is unmapped, and the other begins as if
   the kernel had started it.  This ld.so itself stays: debuggers have
   breakpoints in its text, and until 2.38 the environment points behind its
   data, to a copy of GLIBC_TUNABLES by __minimal_malloc.  Where ld.so was
   told what to run, or where there are auditors, the program is executed
   anew, because TLS is set up already and auditors have run.

   Where another ld.so cannot be had, above all because this one lies over
   the system's path, the program ends: with structures of another layout
   it would fail later, or do something else.  */

#include <dl-hugepages.h>
#include <dl-unmap-segments.h>
#include <ldsodefs.h>
#include <runtime-linker.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/param.h>
#include <unistd.h>

#include "hugeld/area.h"
#include "hugeld/sys.h"

/* The note that has libc.so.6's build ID.  `build' writes it here; as long
   as it is empty, every libc.so.6 will do.  */
#define NOTE_MAX 64
static const union
{
  char bytes[NOTE_MAX];
  ElfW(Nhdr) note;
} made_for __attribute__ ((section (".hugeld.libc"))) = { { 0 } };

extern const ElfW(Ehdr) __ehdr_start attribute_hidden;
extern char **_environ attribute_hidden;

/* Set as soon as the first libc.so.6 is mapped.  */
static bool libc_is_known attribute_relro;

static size_t
note_size (const ElfW(Nhdr) *note)
{
  return sizeof *note + ALIGN_UP (note->n_namesz, 4) + note->n_descsz;
}

/* Return the note with the build ID of the object with program headers PHDR
   at BIAS, or null.  */
static const ElfW(Nhdr) *
find_build_id (const ElfW(Phdr) *phdr, size_t phnum, ElfW(Addr) bias)
{
  for (size_t i = 0; i < phnum; ++i)
    {
      if (phdr[i].p_type != PT_NOTE)
	continue;
      ElfW(Addr) at = bias + phdr[i].p_vaddr;
      ElfW(Addr) end = at + phdr[i].p_memsz;
      ElfW(Addr) align = phdr[i].p_align == 8 ? 8 : 4;
      while (at < end && end - at > sizeof (ElfW(Nhdr)))
	{
	  const ElfW(Nhdr) *note = (const ElfW(Nhdr) *) at;
	  if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4
	      && memcmp (note + 1, "GNU", 4) == 0
	      && note_size (note) <= MIN (end - at, NOTE_MAX))
	    return note;
	  at += ELF_NOTE_NEXT_OFFSET (note->n_namesz, note->n_descsz, align);
	}
    }
  return NULL;
}

static bool
is_same_note (const ElfW(Nhdr) *a, const ElfW(Nhdr) *b)
{
  return note_size (a) == note_size (b) && memcmp (a, b, note_size (a)) == 0;
}

/* Return the program headers of the object that begins with EHDR.  */
static const ElfW(Phdr) *
find_headers (const ElfW(Ehdr) *ehdr)
{
  return (const ElfW(Phdr) *) ((const char *) ehdr + ehdr->e_phoff);
}

/* Return true if L, which was mapped with MODE, is the process's first
   libc.so.6 and not the one that this ld.so was made for.  */
static bool
is_other_libc (const struct link_map *l, int mode)
{
  const ElfW(Nhdr) *ours = &made_for.note;
  /* It is written after this was compiled.  */
  __asm__ ("" : "+r" (ours));
  /* What comes later has the libc that is there, or lives with it; an
     auditor's is the first.  */
  if (((mode & __RTLD_DLOPEN) != 0 && (mode & __RTLD_AUDIT) == 0)
      || libc_is_known)
    return false;
  libc_is_known = true;
  if (ours->n_descsz == 0)
    return false;
  const ElfW(Nhdr) *theirs = find_build_id (l->l_phdr, l->l_phnum, l->l_addr);
  return theirs == NULL || !is_same_note (ours, theirs);
}

/* The system's ld.so.  */
struct linker
{
  struct hl_area area;
  ElfW(Addr) bias, entry;
};

/* The first bytes of a file.  */
union start
{
  ElfW(Ehdr) ehdr;
  char bytes[1024];
};

/* Return the number of bytes from the first to the last of the object
   that begins with START, LENGTH of which were read, or zero if it is not
   a dynamic linker for this machine.  */
static size_t
measure_linker (const union start *start, long int length)
{
  const ElfW(Ehdr) *ehdr = &start->ehdr;
  const ElfW(Ehdr) *ours = &__ehdr_start;
  if (length < (long int) sizeof *ehdr
      || memcmp (ehdr->e_ident, ours->e_ident, EI_OSABI) != 0
      || ehdr->e_type != ET_DYN || ehdr->e_machine != ours->e_machine
      || ehdr->e_phentsize != sizeof (ElfW(Phdr))
      || ehdr->e_phoff > length
      || ehdr->e_phnum > (length - ehdr->e_phoff) / sizeof (ElfW(Phdr)))
    return 0;
  const ElfW(Phdr) *phdr = find_headers (ehdr);
  size_t size = 0;
  for (size_t i = 0; i < ehdr->e_phnum; ++i)
    if (phdr[i].p_type == PT_LOAD)
      size = MAX (size, phdr[i].p_vaddr + phdr[i].p_memsz);
  return ALIGN_UP (size, GLRO (dl_pagesize));
}

/* Map the segment PH of FD, as the kernel would.  */
static bool
map_segment (int fd, const ElfW(Phdr) *ph, ElfW(Addr) bias)
{
  size_t page = GLRO (dl_pagesize);
  ElfW(Addr) start = bias + ALIGN_DOWN (ph->p_vaddr, page);
  ElfW(Addr) file_end = bias + ph->p_vaddr + ph->p_filesz;
  ElfW(Addr) file_page = ALIGN_UP (file_end, page);
  ElfW(Addr) end = ALIGN_UP (bias + ph->p_vaddr + ph->p_memsz, page);
  int prot = (((ph->p_flags & PF_R) != 0 ? PROT_READ : 0)
	      | ((ph->p_flags & PF_W) != 0 ? PROT_WRITE : 0)
	      | ((ph->p_flags & PF_X) != 0 ? PROT_EXEC : 0));
  if (hl_is_error (hl_mmap (start, file_end - start, prot,
			    MAP_PRIVATE | MAP_FIXED, fd,
			    ALIGN_DOWN (ph->p_offset, page))))
    return false;
  if ((ph->p_flags & PF_W) != 0)
    memset ((char *) file_end, '\0', file_page - file_end);
  return (end == file_page
	  || !hl_is_error (hl_mmap (file_page, end - file_page, prot,
				    MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS,
				    -1, 0)));
}

static bool
map_segments (struct linker *to, int fd)
{
  union start start;
  long int length = hl_pread (fd, &start, sizeof start, 0);
  size_t size = measure_linker (&start, length);
  if (size == 0
      || hl_map_area (&to->area, size, PROT_NONE, MAP_NORESERVE) != 0)
    return false;
  to->bias = to->area.start;
  to->entry = to->bias + start.ehdr.e_entry;
  const ElfW(Phdr) *phdr = find_headers (&start.ehdr);
  for (size_t i = 0; i < start.ehdr.e_phnum; ++i)
    if (phdr[i].p_type == PT_LOAD && phdr[i].p_filesz > 0
	&& !map_segment (fd, &phdr[i], to->bias))
      return false;
  return true;
}

/* Map the system's ld.so, unless that is this one, in its place.  */
static bool
map_linker (struct linker *to)
{
  const ElfW(Ehdr) *ours = &__ehdr_start;
  hl_clear_area (&to->area);
  int fd = hl_open (RUNTIME_LINKER, O_RDONLY | O_CLOEXEC);
  if (fd < 0)
    return false;
  bool result = map_segments (to, fd);
  hl_close (fd);
  if (result)
    {
      const ElfW(Ehdr) *ehdr = (const ElfW(Ehdr) *) to->bias;
      const ElfW(Nhdr) *a = find_build_id (find_headers (ehdr), ehdr->e_phnum,
					   to->bias);
      const ElfW(Nhdr) *b = find_build_id (find_headers (ours), ours->e_phnum,
					   (ElfW(Addr)) ours);
      result = a != NULL && b != NULL && !is_same_note (a, b);
    }
  if (!result)
    hl_free_area (&to->area);
  return result;
}

/* Return where the auxiliary vector has TYPE, or null.  */
static ElfW(auxv_t) *
find_auxiliary (unsigned long int type)
{
  ElfW(auxv_t) *at = GLRO (dl_auxv);
  while (at->a_type != type && at->a_type != AT_NULL)
    ++at;
  return at->a_type == type ? at : NULL;
}

/* In secure mode variables were removed, and ld.so looks for the auxiliary
   vector behind the last one.  */
static void
close_gap (void)
{
  char **end = _environ;
  while (*end != NULL)
    ++end;
  ElfW(auxv_t) *last = GLRO (dl_auxv);
  while (last->a_type != AT_NULL)
    ++last;
  memmove (end + 1, GLRO (dl_auxv),
	   (char *) (last + 1) - (char *) GLRO (dl_auxv));
}

/* ld.so has added the load address to what are addresses in the dynamic
   section of L.  The next one does that, too.  */
static void
restore_dynamic (struct link_map *l)
{
  ElfW(Addr) size = l->l_map_end - l->l_addr;
  for (ElfW(Dyn) *d = (ElfW(Dyn) *) l->l_ld; d->d_tag != DT_NULL; ++d)
    switch (d->d_tag)
      {
      case DT_HASH:
      case DT_GNU_HASH:
      case DT_PLTGOT:
      case DT_STRTAB:
      case DT_SYMTAB:
      case DT_RELA:
      case DT_REL:
      case DT_RELR:
      case DT_JMPREL:
      case DT_VERSYM:
	if (l->l_addr != 0 && d->d_un.d_ptr - l->l_addr < size)
	  d->d_un.d_ptr -= l->l_addr;
	break;
      }
}

/* Go to ENTRY with the stack pointer STACK, as the kernel does.  */
static _Noreturn void
start_linker (void *stack, ElfW(Addr) entry)
{
#if defined __x86_64__
  __asm__ volatile ("movq %0, %%rsp\n\t"
		    "xorl %%ebp, %%ebp\n\t"
		    "xorl %%edx, %%edx\n\t"
		    "jmp *%1"
		    : : "c" (stack), "a" (entry) : "memory");
#elif defined __aarch64__
  /* A branch by x16 may reach bti c.  */
  register ElfW(Addr) to __asm__ ("x16") = entry;
  __asm__ volatile ("mov sp, %0\n\t"
		    "mov x29, #0\n\t"
		    "mov x30, #0\n\t"
		    "mov x0, #0\n\t"
		    "br %1"
		    : : "r" (stack), "r" (to) : "memory");
#endif
  __builtin_unreachable ();
}

/* Unmap what this ld.so has mapped for the program: L, which is not in the
   list yet, and what is.  The program itself was mapped by the kernel.  */
static void
unmap_objects (struct link_map *l)
{
  struct link_map *at = GL (dl_ns)[LM_ID_BASE]._ns_loaded->l_next;
  _dl_unmap_segments (l);
  for (; at != NULL; at = at->l_next)
    if (at->l_map_start != (ElfW(Addr)) &__ehdr_start
	&& (void *) at->l_map_start != (void *) GLRO (dl_sysinfo_dso))
      _dl_unmap_segments (at);
  /* 2.44 never unmaps it, and has no function for that.  */
#if !__GLIBC_PREREQ (2, 44)
  _dl_unload_cache ();
#endif
}

/* Read the arguments that this ld.so was started with: those that were its
   own are no longer on the stack.  Return them, terminated, or null.  */
static char **
read_arguments (void)
{
  /* More than the kernel takes; pages that are not used cost nothing.  */
  const size_t max = 8 << 20;
  struct hl_area text, pointers;
  size_t length = 0;
  int fd = hl_open ("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  if (fd < 0
      || hl_map_area (&text, max, PROT_READ | PROT_WRITE, MAP_NORESERVE) != 0)
    return NULL;
  char *at = (char *) text.start;
  for (long int n = 1; n > 0 && length < max; length += n)
    {
      n = hl_read (fd, at + length, max - length);
      if (hl_is_error (n))
	return NULL;
    }
  hl_close (fd);
  if (length == 0 || length == max || at[length - 1] != '\0'
      || hl_map_area (&pointers, (length + 1) * sizeof (char *),
		      PROT_READ | PROT_WRITE, MAP_NORESERVE) != 0)
    return NULL;
  char **arguments = (char **) pointers.start;
  size_t n = 0;
  for (char *end = at + length; at < end; at += strlen (at) + 1)
    arguments[n++] = at;
  return arguments;
}

/* Return the arguments by which ld.so runs the program that the kernel has
   mapped, or null.  */
static char **
make_arguments (void)
{
  size_t size = (_dl_argc + 4) * sizeof (char *);
  struct hl_area area;
  if (_dl_argc == 0 || __libc_enable_secure
      || hl_map_area (&area, size + PATH_MAX, PROT_READ | PROT_WRITE, 0) != 0)
    return NULL;
  char **arguments = (char **) area.start;
  char *path = (char *) area.start + size;
  if (hl_is_error (HL_CALL (__NR_readlinkat, AT_FDCWD, "/proc/self/exe", path,
			    PATH_MAX - 1, 0, 0)))
    return NULL;
  arguments[0] = (char *) RUNTIME_LINKER;
  arguments[1] = (char *) "--argv0";
  arguments[2] = _dl_argv[0];
  arguments[3] = path;
  memcpy (arguments + 4, _dl_argv + 1, (_dl_argc - 1) * sizeof (char *));
  return arguments;
}

/* Leave the program, whose libc.so.6 L was mapped with MODE, to the system's
   ld.so, or end it.  It is not inlined, because dlmopen comes by the
   caller, in threads with small stacks.  */
static _Noreturn __attribute_noinline__ void
hand_over (struct link_map *l, int mode)
{
  struct linker to;
  if (!map_linker (&to))
    _dl_fatal_printf ("hugeld: %s is not the one that this dynamic linker was"
		      " made for, and at %s there is no other linker; remove"
		      " this one from there, or make it anew\n",
		      l->l_name, RUNTIME_LINKER);
  _dl_hugepages_report_libc (l);
  if (__glibc_unlikely (GLRO (dl_debug_mask) & DL_DEBUG_FILES))
    _dl_debug_printf ("%s is not the one that this dynamic linker was made"
		      " for; %s goes on\n", l->l_name, RUNTIME_LINKER);
  /* Zero if it was told what to run.  */
  ElfW(auxv_t) *base = find_auxiliary (AT_BASE);
  bool is_interpreter = (base != NULL
			 && base->a_un.a_val == (ElfW(Addr)) &__ehdr_start);
  if (!is_interpreter || (mode & __RTLD_AUDIT) != 0 || GLRO (dl_naudit) > 0)
    {
      char **arguments = (is_interpreter
			  ? make_arguments () : read_arguments ());
      if (arguments != NULL)
	HL_CALL (__NR_execve, RUNTIME_LINKER, arguments, _environ, 0, 0, 0);
    }
  if (is_interpreter)
    {
      base->a_un.a_val = to.bias;
      close_gap ();
      restore_dynamic (GL (dl_ns)[LM_ID_BASE]._ns_loaded);
      unmap_objects (l);
      start_linker ((void **) _dl_argv - 1, to.entry);
    }
  _dl_fatal_printf ("hugeld: %s is not the one that this dynamic linker was"
		    " made for, and %s cannot be executed\n", l->l_name,
		    RUNTIME_LINKER);
}

void
_dl_hugepages_check_libc (struct link_map *l, int mode)
{
  if (__glibc_unlikely (is_other_libc (l, mode)))
    hand_over (l, mode);
}
