/* Objects on huge pages.  The dynamic linker's side.
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

/* What moves objects is in hugeld/, the same files that libhugeld.so is
   made of.  They call nothing of the C library and know nothing of link
   maps.  This file knows both.

   The state is here, hidden in ld.so, and neither in struct link_map nor
   in _rtld_global: libc.so.6 knows their layout, and the one that is
   installed was built without us.

   Everything runs before the program has a second thread, or with
   dl_load_lock held.  */

#include <dl-hugepages.h>
#include <ldsodefs.h>
#include <libc-internal.h>
#include <fcntl.h>
#include <limits.h>
#include <not-cancel.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/param.h>
#include <unistd.h>

#include "hugeld/image.h"
#include "hugeld/in-process.h"
#include "hugeld/load-address.h"
#include "hugeld/move.h"
#include "hugeld/report.h"
#include "hugeld/segments.h"
#include "hugeld/stack.h"
#include "hugeld/sys.h"

/* All of this is set at startup, and read-only after ld.so has relocated
   itself.  The context is not here itself, because the first memory that
   ld.so allocates is what is left of its last page, and programs that don't
   ask for huge pages should not need another.  */
bool _dl_hugepages_active attribute_hidden attribute_relro;
static struct hl_context *context attribute_relro;

/* The executable's path.  */
static const char *executable attribute_relro;

/* Return "NAME=VALUE" in memory of its own, or null.  What the program
   does to its environment must not change what dlopen does.  */
static char *
copy_variable (const char *name, const char *value)
{
  size_t name_length = strlen (name);
  size_t value_length = strlen (value);
  char *copy = malloc (name_length + 1 + value_length + 1);
  if (copy == NULL)
    return NULL;
  memcpy (copy, name, name_length);
  copy[name_length] = '=';
  memcpy (copy + name_length + 1, value, value_length + 1);
  return copy;
}

/* Return the path of the program that the kernel has mapped, or null.  */
static const char *
read_executable (void)
{
  char path[PATH_MAX];
  long int length = HL_CALL (__NR_readlinkat, AT_FDCWD, "/proc/self/exe",
			     path, sizeof path - 1, 0, 0);
  if (hl_is_error (length))
    return _dl_argv[0] != NULL ? _dl_argv[0] : "main";
  path[length] = '\0';
  return __strdup (path);
}

/* LD_DEBUG=files.  */
void
hl_trace_line (const char *line)
{
  _dl_debug_printf ("%s\n", line);
}

void
_dl_hugepages_init (const char *objects, const char *options,
		    const char *program)
{
  const char *variables[3] = { NULL };
  if (objects == NULL)
    return;
  variables[0] = copy_variable ("LD_HUGEPAGES", objects);
  if (options != NULL)
    variables[1] = copy_variable ("LD_HUGEPAGES_OPTIONS", options);
  if (variables[0] == NULL || (options != NULL && variables[1] == NULL))
    return;
  executable = program != NULL ? program : read_executable ();
  context = malloc (sizeof *context);
  if (executable == NULL || context == NULL)
    return;
  _dl_hugepages_active = hl_begin (context, variables, executable,
				    HL_LINKER, GLRO (dl_pagesize));
  if (_dl_hugepages_active)
    /* Before the program can restrict itself.  */
    hl_read_process_status (context);
  context->is_traced = (GLRO (dl_debug_mask) & DL_DEBUG_FILES) != 0;
}

/* Move what was added.  *STATUS becomes nonzero if strict=on ends the
   program.  */
static void
move_added (void *status)
{
  *(int *) status = hl_move_objects (context);
  if (*(int *) status != HL_LOST)
    hl_write_own_map (context);
}

/* Return L's DT_SONAME, or null.  */
static const char *
read_soname (const struct link_map *l)
{
  if (l->l_info[DT_SONAME] == NULL)
    return NULL;
  return ((const char *) D_PTR (l, l_info[DT_STRTAB])
	  + l->l_info[DT_SONAME]->d_un.d_val);
}

/* Tell the core of L, which is selected, and move it.  Return its verdict:
   HL_LOST, or positive if strict=on ends the program.

   The thread that calls dlopen may have a small stack, and where that is
   one that the program made itself, how small it is cannot be known; nor
   how much of RLIMIT_STACK the arguments have left.  So the work gets one
   of its own.  */
static int
move_object (struct hl_object *object, struct link_map *l)
{
  int status = 0;
  object->load_bias = l->l_addr;
  object->text_relocations = l->l_info[DT_TEXTREL] != NULL;
  object->soname = read_soname (l);
  enum hl_selection selection
    = hl_select_object (context->options.objects, object);
  if (selection == HL_NOT_SELECTED)
    return 0;
  if (!hl_holds_its_place (object) && context->status.filters == 0)
    /* There may be something to complain of.  */
    hl_note_stderr (context);
  void *stack = hl_make_room (context);
  if (stack != NULL)
    hl_add_object (context, object, l->l_phdr, l->l_phnum);
  if (stack == NULL || !hl_call_on_stack (move_added, &status, stack))
    {
      hl_report_dropped (context, object, HL_SKIP_NO_MEMORY);
      if (context->options.strict && selection == HL_SELECTED_BY_NAME)
	status = 127;
    }
  hl_end (context);
  return status;
}

void
_dl_hugepages_move_executable (struct link_map *l)
{
  if (__glibc_likely (!_dl_hugepages_active))
    return;
  struct hl_object object =
    {
      .path = executable,
      .is_main = true,
      .file = -1,
    };
  int status = move_object (&object, l);
  if (status != 0)
    _exit (status);
}

/* A file's program headers are looked at only if there are no more, and
   the first bytes of a file that open_verify has read are fewer than
   this.  */
#define PHDR_MAX DL_HUGEPAGES_PHDR_MAX
#define START_MAX 1024

/* A file's first bytes, program headers and segments.  */
struct headers
{
  union
  {
    ElfW(Ehdr) ehdr;
    char start[START_MAX];
  };
  ElfW(Phdr) phdr[PHDR_MAX];
  struct hl_object object;
};

/* What comparing takes.  The thread that calls dlopen may have a small
   stack, and nothing of this should stay.  */
struct comparison
{
  struct headers original, image;
};

/* Read the program headers and segments of the file FD, of which H has the
   first LENGTH bytes.  */
static bool
read_headers (struct headers *h, int fd, size_t length)
{
  size_t phnum = h->ehdr.e_phnum;
  size_t size = phnum * sizeof *h->phdr;
  if (phnum > PHDR_MAX || h->ehdr.e_phentsize != sizeof *h->phdr)
    return false;
  if (h->ehdr.e_phoff <= length && size <= length - h->ehdr.e_phoff)
    memcpy (h->phdr, h->start + h->ehdr.e_phoff, size);
  else if (__pread64_nocancel (fd, h->phdr, size, h->ehdr.e_phoff)
	   != (ssize_t) size)
    return false;
  return hl_read_segments (&h->object, h->phdr, phnum, 0,
			   &context->geometry) == 0;
}

/* Return true if A and B are the headers of one file, laid out twice: all
   that may differ is where something lies in the file, and the alignment
   of what is mapped from it, which must be that of huge pages.  */
static bool
is_same_file (const struct headers *a, const struct headers *b)
{
  ElfW(Ehdr) ehdr = b->ehdr;
  ehdr.e_phoff = a->ehdr.e_phoff;
  ehdr.e_shoff = a->ehdr.e_shoff;
  if (memcmp (&ehdr, &a->ehdr, sizeof ehdr) != 0)
    return false;
  for (size_t i = 0; i < ehdr.e_phnum; ++i)
    {
      ElfW(Phdr) phdr = b->phdr[i];
      if (phdr.p_type == PT_LOAD)
	{
	  if (!powerof2 (phdr.p_align) || phdr.p_align < a->phdr[i].p_align
	      || phdr.p_align < context->geometry.huge_page_bytes)
	    return false;
	  phdr.p_align = a->phdr[i].p_align;
	}
      phdr.p_offset = a->phdr[i].p_offset;
      if (memcmp (&phdr, &a->phdr[i], sizeof phdr) != 0)
	return false;
    }
  return true;
}

/* Return 0 if the file FD may be mapped as text, page by page.  A noexec
   mount and a security module refuse the one, a hugetlbfs the other.  */
static int
try_mapping (int fd)
{
  size_t page = GLRO (dl_pagesize);
  long int at = hl_mmap (0, page, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, page);
  if (!hl_is_error (at))
    {
      hl_munmap (at, page);
      return 0;
    }
  return (at == -EINVAL ? HL_SKIP_IMAGE_PLACE
	  : at == -EPERM ? HL_SKIP_STORE_NOEXEC : HL_SKIP_EXEC_DENIED);
}

/* Return 0 if TO is an image of FD, whose first LENGTH bytes are START, and
   can be mapped in its place; HL_SKIP_IMAGE_PLACE if only the core can do
   that.  */
static int
check_image (struct comparison *c, int to, int fd, const char *start,
	     size_t length)
{
  struct headers *original = &c->original;
  struct headers *laid_out = &c->image;
  struct hl_file_state state;
  memcpy (original->start, start, length);
  if (!read_headers (original, fd, length)
      || __pread64_nocancel (to, laid_out->start, length, 0)
	 != (ssize_t) length
      || !read_headers (laid_out, to, length)
      || !is_same_file (original, laid_out)
      || hl_read_file_state (&state, to) != 0)
    return HL_SKIP_IMAGE_MISMATCH;
  int result = hl_compare_image (&original->object, &laid_out->object,
				 state.bytes, &context->geometry);
  if (result == 0
      && (laid_out->object.segment[0].first_page
	  & (context->geometry.huge_page_bytes - 1)) != 0)
    /* glibc would put its first page on a boundary.  */
    result = HL_SKIP_IMAGE_PLACE;
  return result != 0 ? result : try_mapping (to);
}

#define SONAME_MAX 256

/* Return the offset of ADDRESS in the file with headers PHDR, or -1.  */
static off_t
find_offset (const ElfW(Phdr) *phdr, size_t phnum, ElfW(Addr) address)
{
  for (size_t i = 0; i < phnum; ++i)
    if (phdr[i].p_type == PT_LOAD
	&& address - phdr[i].p_vaddr < phdr[i].p_filesz)
      return phdr[i].p_offset + (address - phdr[i].p_vaddr);
  return -1;
}

/* Read DT_SONAME of the file FD, whose first LENGTH bytes are START, into
   SONAME, which is empty if there is none.  Return false if that fails, or
   if the program headers are not in START: the stack may be small.  */
static bool
read_file_soname (int fd, const char *start, size_t length,
		  char soname[SONAME_MAX])
{
  const ElfW(Ehdr) *ehdr = (const ElfW(Ehdr) *) start;
  const ElfW(Phdr) *phdr = (const ElfW(Phdr) *) (start + ehdr->e_phoff);
  ElfW(Dyn) dynamic[32];
  ElfW(Addr) strings = 0, name = 0;
  size_t size = ehdr->e_phnum * sizeof *phdr;
  if (ehdr->e_phentsize != sizeof *phdr
      || ehdr->e_phoff > length || size > length - ehdr->e_phoff
      || (ehdr->e_phoff & (__alignof (*phdr) - 1)) != 0)
    return false;
  for (size_t i = 0; i < ehdr->e_phnum; ++i)
    {
      if (phdr[i].p_type != PT_DYNAMIC)
	continue;
      off_t at = phdr[i].p_offset;
      off_t end = at + phdr[i].p_filesz;
      while (at < end && (strings == 0 || name == 0))
	{
	  ssize_t n = __pread64_nocancel (fd, dynamic,
					  MIN (sizeof dynamic,
					       (size_t) (end - at)), at);
	  size_t count = n > 0 ? n / sizeof *dynamic : 0;
	  if (count == 0)
	    return false;
	  for (size_t j = 0; j < count; ++j)
	    if (dynamic[j].d_tag == DT_STRTAB)
	      strings = dynamic[j].d_un.d_ptr;
	    else if (dynamic[j].d_tag == DT_SONAME)
	      name = dynamic[j].d_un.d_val;
	  at += count * sizeof *dynamic;
	}
    }
  soname[0] = '\0';
  if (strings == 0 || name == 0)
    return true;
  off_t at = find_offset (phdr, ehdr->e_phnum, strings + name);
  if (at < 0)
    return false;
  ssize_t n = __pread64_nocancel (fd, soname, SONAME_MAX, at);
  return n > 0 && memchr (soname, '\0', n) != NULL;
}

/* Return true if LD_HUGEPAGES excludes something.  */
static bool
has_exclusions (void)
{
  struct hl_string patterns = context->options.objects;
  struct hl_pattern pattern;
  while (hl_take_pattern (&patterns, &pattern))
    if (pattern.excludes)
      return true;
  return false;
}

/* Return true if LD_HUGEPAGES selects OBJECT, which is in the file FD, and
   whose soname is not known.  What is needed at startup is found by its
   soname, so that is only asked for if it could make a difference.  */
static bool
is_selected (struct hl_object object, int fd, const char *start,
	     size_t length, int mode)
{
  char soname[SONAME_MAX];
  bool is_opened_later = (mode & __RTLD_DLOPEN) != 0;
  bool result = (hl_select_object (context->options.objects, &object)
		 != HL_NOT_SELECTED);
  if (result ? !has_exclusions () : !is_opened_later)
    return result;
  /* A filter of the program's own may kill for pread64.  */
  if ((is_opened_later && hl_read_process_status (context) != 0)
      || !read_file_soname (fd, start, length, soname))
    return false;
  if (soname[0] != '\0')
    object.soname = soname;
  return (hl_select_object (context->options.objects, &object)
	  != HL_NOT_SELECTED);
}

int
_dl_hugepages_open_image (struct dl_hugepages_object *mapped, int fd,
			  char *start, size_t length, const char *path,
			  int mode)
{
  bool is_main = (mode & __RTLD_OPENEXEC) != 0;
  const struct hl_object object =
    {
      .path = is_main ? executable : path,
      .is_main = is_main,
    };
  struct hl_file_state state;
  struct hl_stores stores;
  if ((mode & __RTLD_DLOPEN) != 0 || GLRO (dl_naudit) > 0)
    /* The program has run, or an auditor, which may have threads.  */
    hl_forget_process (context);
  mapped->is_image = mapped->is_for_core = mapped->has_place = false;
  mapped->no_image = HL_MOVED;
  mapped->is_selected = is_selected (object, fd, start, length, mode);
  unsigned int backend = context->options.backend;
  if ((backend != HL_BACKEND_AUTO && backend != HL_BACKEND_SHARED)
      || length > START_MAX
      /* Its address is its own.  The core knows what else may be there.  */
      || ((const ElfW(Ehdr) *) start)->e_type != ET_DYN
      || !mapped->is_selected
      || ((mode & __RTLD_DLOPEN) != 0
	  && hl_read_process_status (context) != 0)
      || !hl_open_stores (&stores, context))
    return fd;

  long int to = -HL_SKIP_NO_IMAGE;
  if (hl_read_file_state (&state, fd) == 0)
    to = hl_open_image (&stores, context, &state);
  hl_close_stores (&stores);
  if (hl_is_error (to))
    {
      mapped->no_image = -to;
      return fd;
    }
  struct hl_area area;
  struct comparison *c = NULL;
  int result = HL_SKIP_NO_MEMORY;
  if (hl_map_area (&area, sizeof *c, PROT_READ | PROT_WRITE, 0) == 0)
    {
      c = (struct comparison *) area.start;
      result = check_image (c, to, fd, start, length);
    }
  mapped->is_for_core = result == HL_SKIP_IMAGE_PLACE;
  mapped->no_image = mapped->is_for_core ? HL_MOVED : result;
  mapped->is_image = result == 0;
  if (mapped->is_image)
    memcpy (start, c->image.start, length);
  hl_free_area (&area);
  __close_nocancel_nostatus (mapped->is_image ? fd : to);
  return mapped->is_image ? to : fd;
}

bool
_dl_hugepages_move_mapped (const struct dl_hugepages_object *mapped,
			   struct link_map *l, int fd, int mode)
{
  bool is_main = (mode & __RTLD_OPENEXEC) != 0;
  bool is_opened_later = (mode & __RTLD_DLOPEN) != 0;
  struct hl_object object =
    {
      .path = is_main ? executable : l->l_name,
      .is_main = is_main,
      .is_new = true,
      .has_holes = !l->l_contiguous,
      .file = fd,
      .is_image = mapped->is_image,
      .no_image = mapped->no_image,
    };
  if (is_opened_later)
    {
      object.soname = read_soname (l);
      if (hl_select_object (context->options.objects, &object)
	  == HL_NOT_SELECTED)
	return true;
      /* That is for the start.  */
      context->options.strict = 0;
      context->has_started = true;
      int result = hl_read_process_status (context);
      if (result != 0)
	{
	  hl_report_dropped (context, &object, result);
	  return true;
	}
    }
  int status = move_object (&object, l);
  if (is_opened_later)
    hl_forget_process (context);
  if (status == HL_LOST)
    {
      /* What is left of it must not be unmapped: some of its place may be
	 another thread's by now.  */
      l->l_map_start = l->l_map_end = 0;
      return false;
    }
  if (status != 0 && !is_opened_later)
    _exit (status);
  return true;
}

void
_dl_hugepages_check_libc (struct link_map *l, int mode)
{
  if (__glibc_likely (!_dl_hugepages_is_other_libc (l, mode)))
    return;
  if (_dl_hugepages_active)
    {
      struct hl_object object = { .path = l->l_name };
      hl_note_stderr (context);
      hl_report_dropped (context, &object, HL_SKIP_OTHER_LIBC);
      if (context->options.strict)
	_exit (127);
    }
  _dl_hugepages_hand_over (l, mode);
}

void
_dl_hugepages_end_startup (const struct link_map *main_map)
{
  for (struct link_map *l = GL (dl_ns)[LM_ID_BASE]._ns_loaded; l != NULL;
       l = l->l_next)
    {
      struct hl_object object =
	{
	  .path = l == main_map ? executable : l->l_name,
	  .soname = read_soname (l),
	  .is_main = l == main_map,
	};
      hl_note_object (context, &object);
    }
  int status = hl_end_startup (context);
  if (status != 0)
    _exit (status);
}

/* Return the largest alignment that a segment asks for, at least a
   page.  */
static ElfW(Addr)
find_alignment (const ElfW(Phdr) *phdr, ElfW(Half) phnum)
{
  ElfW(Addr) alignment = GLRO (dl_pagesize);
  for (ElfW(Half) i = 0; i < phnum; ++i)
    if (phdr[i].p_type == PT_LOAD && powerof2 (phdr[i].p_align)
	&& phdr[i].p_align > alignment)
      alignment = phdr[i].p_align;
  return alignment;
}

/* No room is looked for where a huge page is larger than what glibc itself
   aligns objects to (MAX_THP_PAGESIZE since 2.44): with pages of 64 KiB it
   has 512 MiB, and few objects fill one.  */
#define HUGE_PAGE_MAX (32 << 20)

void
_dl_hugepages_choose_place (struct dl_hugepages_object *mapped,
			    const ElfW(Phdr) *phdr, ElfW(Half) phnum,
			    int mode)
{
  struct hl_object object;
  uint64_t bias = 0;
  /* An image's p_align says where it goes, and one that was linked for an
     address of its own gets that, if it is free.  */
  mapped->has_place
    = (mapped->is_selected && !mapped->is_image
       && context->geometry.huge_page_bytes <= HUGE_PAGE_MAX
       && hl_read_segments (&object, phdr, phnum, 0, &context->geometry) == 0
       && object.segment[0].first_page == 0
       && (mapped->is_for_core
	   || hl_choose_load_bias (&bias, &object, &context->options,
				   &context->geometry,
				   find_alignment (phdr, phnum)))
       /* A filter of the program's own may kill for munmap.  */
       && ((mode & __RTLD_DLOPEN) == 0
	   || hl_read_process_status (context) == 0));
  if (mapped->has_place)
    mapped->start = ((bias + object.segment[0].first_page)
		     & (context->geometry.huge_page_bytes - 1));
}

ElfW(Addr)
_dl_hugepages_map (const struct dl_hugepages_object *mapped, size_t length,
		   ElfW(Addr) align, int prot, int fd, off_t offset)
{
  if (!mapped->has_place || (mapped->start & (align - 1)) != 0)
    return 0;

  /* A hint for mmap would not do: kernels align large mappings of files
     as they like.  So look where there is room, and take it unless another
     thread was faster.  */
  size_t huge = context->geometry.huge_page_bytes;
  struct hl_area room;
  length = ALIGN_UP (length, GLRO (dl_pagesize));
  if (hl_map_area (&room, length + huge, PROT_NONE, MAP_NORESERVE) != 0)
    return 0;
  ElfW(Addr) start = room.start + ((mapped->start - room.start) & (huge - 1));
  hl_free_area (&room);
  long int at = hl_mmap (start, length, prot,
			 MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd, offset);
  if (hl_is_error (at))
    return 0;
  if ((ElfW(Addr)) at != start)
    {
      /* Before Linux 4.17 the flag is unknown and the address a wish.  */
      hl_munmap (at, length);
      return 0;
    }
  return start;
}
