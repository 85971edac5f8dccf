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
   dl_load_lock held.  A child that another thread forks meanwhile has a
   lock of its own, and the context as it was just then: is_busy says so,
   and nothing of it is used there any more.  Nor is it by a signal handler
   that opens something meanwhile.  */

#include <dl-hugepages.h>
#include <ldsodefs.h>
#include <libc-internal.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <not-cancel.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/param.h>
#include <unistd.h>

#include "hugeld/image.h"
#include "hugeld/in-process.h"
#include "hugeld/line.h"
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

/* What is allocated for it.  The object that is mapped just now is there,
   too: the thread that calls dlopen may have a small stack.  */
struct state
{
  struct hl_object object;
  struct hl_config config;
  struct hl_context context;
};
static struct hl_object *current attribute_relro;

/* The executable's path.  */
static const char *executable attribute_relro;

/* The path of this ld.so.  `hugeld run --via=ldso' writes it here when it has
   mapped it in the place of the one that the program names, where debuggers
   would look for its symbols.  */
char _dl_hugepages_path[256] attribute_hidden
  __attribute__ ((section (".hugeld.path"))) = "";

extern const ElfW(Ehdr) __ehdr_start attribute_hidden;
extern char **_environ attribute_hidden;

#define VARIABLES "LD_HUGEPAGES"

/* Return true if the entry AT of the environment is one of ours.  */
static bool
is_ours (const char *at)
{
  return hl_same_bytes (at, VARIABLES, sizeof VARIABLES - 1);
}

/* Remove our variables from the environment.  */
static void
remove_variables (void)
{
  char **to = _environ;
  for (char **from = _environ; *from != NULL; ++from)
    if (!is_ours (*from))
      *to++ = *from;
  *to = NULL;
}

/* Return "NAME=VALUE" from the environment in memory of its own, or null if
   there is none or no memory.  What the program does to its environment
   must not change what dlopen does.  */
static char *
copy_variable (const char *name)
{
  size_t length = strlen (name);
  for (char **at = _environ; *at != NULL; ++at)
    if (hl_same_bytes (*at, name, length) && (*at)[length] == '=')
      return __strdup (*at);
  return NULL;
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

/* Start, since a variable is ours.  PROGRAM is as below.  */
static void
begin (const char *program)
{
  const char *variables[3] = { NULL };
  variables[0] = copy_variable (VARIABLES);
  if (variables[0] == NULL)
    return;
  variables[1] = copy_variable (VARIABLES "_OPTIONS");
  executable = program != NULL ? program : read_executable ();
  /* By one mmap of ld.so's own allocator.  */
  struct state *state = malloc (sizeof *state);
  if (executable == NULL || state == NULL)
    return;
  current = &state->object;
  context = &state->context;
  _dl_hugepages_active = hl_begin (context, &state->config, variables,
				    executable, HL_LINKER,
				    GLRO (dl_pagesize));
  if (_dl_hugepages_active)
    /* Before the program can restrict itself.  */
    hl_read_process_status (context);
  state->config.is_traced = (GLRO (dl_debug_mask) & DL_DEBUG_FILES) != 0;
}

void
_dl_hugepages_init (const char *program, bool is_run)
{
  char **at = _environ;
  if (!is_run)
    return;
  while (*at != NULL && !is_ours (*at))
    ++at;
  if (__glibc_likely (*at == NULL))
    return;
  if (__libc_enable_secure)
    /* Nor may children have them, which need not be secure any more.  */
    remove_variables ();
  else
    begin (program);
}

/* An object to move.  */
struct task
{
  const struct link_map *l;
  int status;
};

/* Move the current object, that of TASK.  Its status becomes nonzero if
   strict=on ends the program.  */
static void
move_added (void *closure)
{
  struct task *task = closure;
  hl_add_object (context, current, task->l->l_phdr, task->l->l_phnum);
  task->status = hl_move_objects (context);
  if (task->status == HL_LOST)
    hl_unmap_rest (context);
  else
    hl_write_own_map (context);
}

/* Return L's DT_SONAME, or null.  */
static const char *
read_soname (const struct link_map *l)
{
  const ElfW(Dyn) *soname = l->l_info[DT_SONAME], *size = l->l_info[DT_STRSZ];
  if (soname == NULL || size == NULL
      || soname->d_un.d_val >= size->d_un.d_val)
    return NULL;
  return (const char *) D_PTR (l, l_info[DT_STRTAB]) + soname->d_un.d_val;
}

/* Return whether LD_HUGEPAGES selects L, at PATH.  */
static enum hl_selection
select_mapped (const struct link_map *l, const char *path, bool is_main)
{
  const struct hl_names names =
    { .path = path, .soname = read_soname (l), .is_main = is_main };
  return hl_select_names (context->config->options.objects, &names);
}

/* The current object becomes L, with what is known of it.  */
static struct hl_object *
describe (const struct link_map *l, const char *path, bool is_main)
{
  struct hl_object *object = current;
  memset (object, '\0', offsetof (struct hl_object, n_segments));
  object->path = path;
  object->soname = read_soname (l);
  object->is_main = is_main;
  object->file = -1;
  object->load_bias = l->l_addr;
  object->text_relocations = l->l_info[DT_TEXTREL] != NULL;
  return object;
}

/* Move L, which the current object describes.  Return the core's verdict:
   HL_LOST, or positive if strict=on ends the program.

   The thread that calls dlopen may have a small stack, and where that is
   one that the program made itself, how small it is cannot be known; nor
   how much of RLIMIT_STACK the arguments have left.  So the work gets one
   of its own.  */
static int
move_object (const struct link_map *l, enum hl_selection selection)
{
  const struct hl_object *object = current;
  struct task task = { .l = l };
  if (!hl_holds_its_place (object) && context->probed.status.filters == 0)
    /* There may be something to complain of.  */
    hl_note_stderr (context);
  context->is_busy = true;
  void *stack = hl_make_room (context);
  if (stack == NULL || !hl_call_on_stack (move_added, &task, stack))
    {
      hl_report_dropped (context, object->path, HL_REASON_NO_MEMORY);
      if (hl_is_strict (context) && selection == HL_SELECTED_BY_NAME)
	task.status = 127;
    }
  hl_end (context);
  context->is_busy = false;
  return task.status;
}

void
_dl_hugepages_move_executable (struct link_map *l)
{
  if (__glibc_likely (!_dl_hugepages_active))
    return;
  enum hl_selection selection = select_mapped (l, executable, true);
  if (selection == HL_NOT_SELECTED)
    return;
  describe (l, executable, true);
  int status = move_object (l, selection);
  if (status != 0)
    _exit (status);
}

/* A file's program headers are looked at only if there are no more, and
   the first bytes of a file that open_verify has read are fewer than
   this.  */
#define PHDR_MAX 64
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
			   &context->config->geometry) == 0;
}

/* Return true if A and B are the headers of one file, laid out twice: all
   that may differ is where something lies in the file, and the alignment of
   what is mapped from it, which must be that of huge pages.  */
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
      phdr.p_offset = a->phdr[i].p_offset;
      if (phdr.p_type == PT_LOAD && phdr.p_memsz > 0)
	{
	  if (!powerof2 (phdr.p_align)
	      || phdr.p_align < a->phdr[i].p_align
	      || phdr.p_align < context->config->geometry.huge_page_bytes)
	    return false;
	  phdr.p_align = a->phdr[i].p_align;
	}
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
  long int at = hl_mmap (0, page, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd,
			 page);
  if (!hl_is_error (at))
    {
      hl_munmap (at, page);
      return 0;
    }
  return (at == -EINVAL ? HL_REASON_IMAGE_PLACE
	  : at == -EPERM ? HL_REASON_STORE_NOEXEC : HL_REASON_EXEC_DENIED);
}

/* Return 0 if TO is an image of FD, whose first LENGTH bytes are START, and
   can be mapped in its place; HL_REASON_IMAGE_PLACE if only the core can do
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
    return HL_REASON_IMAGE_MISMATCH;
  int result = hl_compare_image (&original->object, &laid_out->object,
				 state.bytes, &context->config->geometry);
  if (result == 0
      && (laid_out->object.segment[0].first_page
	  & (context->config->geometry.huge_page_bytes - 1)) != 0)
    /* glibc would put its first page on a boundary.  */
    result = HL_REASON_IMAGE_PLACE;
  return result != 0 ? result : try_mapping (to);
}

/* Return what the stores have as the image of FD, or a negated reason for
   having none.  *HAS_STORE: whether there is a store.  */
static __attribute_noinline__ long int
find_image (int fd, bool *has_store)
{
  struct hl_file_state state;
  struct hl_stores stores;
  long int to = -HL_REASON_NO_IMAGE;
  *has_store = hl_open_stores (&stores, context);
  if (!*has_store)
    return to;
  if (hl_read_file_state (&state, fd) == 0)
    to = hl_open_image (&stores, context, &state);
  hl_close_stores (&stores);
  return to;
}

int
_dl_hugepages_open_image (struct dl_hugepages_object *mapped, int fd,
			  char *start, size_t length, const char *path,
			  int mode)
{
  bool is_main = (mode & __RTLD_OPENEXEC) != 0;
  struct hl_names names =
    { .path = is_main ? executable : path, .is_main = is_main };
  mapped->is_selected = mapped->is_image = false;
  mapped->no_image = HL_MOVED;
  if (context->is_busy)
    return fd;
  if ((mode & __RTLD_DLOPEN) != 0 || GLRO (dl_naudit) > 0)
    /* The program has run, or an auditor, which may have threads.  */
    hl_forget_process (context);
  /* The soname is not known yet.  What is needed at startup has it as its
     file's name.  */
  mapped->is_selected
    = (hl_select_names (context->config->options.objects, &names)
       != HL_NOT_SELECTED);
  if (!mapped->is_selected
      || !hl_uses_images (context->config->options.backend)
      || length > START_MAX
      /* Its image is laid out for being executed, with other borders
	 between segments.  The core brings it into place.  */
      || is_main
      || ((mode & __RTLD_DLOPEN) != 0
	  && hl_read_process_status (context) != 0))
    return fd;

  bool has_store;
  long int to = find_image (fd, &has_store);
  if (!has_store)
    return fd;
  if (hl_is_error (to))
    {
      mapped->no_image = -to;
      return fd;
    }
  struct hl_area area;
  struct comparison *c = NULL;
  int result = HL_REASON_NO_MEMORY;
  if (hl_map_area (&area, sizeof *c, PROT_READ | PROT_WRITE, 0) == 0)
    {
      c = (struct comparison *) area.start;
      result = check_image (c, to, fd, start, length);
    }
  mapped->no_image = result == HL_REASON_IMAGE_PLACE ? HL_MOVED : result;
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
  const char *path = is_main ? executable : l->l_name;
  bool is_opened_later = (mode & __RTLD_DLOPEN) != 0;
  enum hl_selection selection = select_mapped (l, path, is_main);
  if (selection == HL_NOT_SELECTED || context->is_busy)
    return true;
  struct hl_object *object = describe (l, path, is_main);
  object->is_new = true;
  object->has_holes = !l->l_contiguous;
  object->file = fd;
  object->is_image = mapped->is_image;
  object->no_image = mapped->no_image;
  int result = is_opened_later ? hl_read_process_status (context) : 0;
  if (result != 0)
    {
      hl_report_dropped (context, path, result);
      return true;
    }
  int status = move_object (l, selection);
  if (is_opened_later)
    hl_forget_process (context);
  if (status == HL_LOST)
    {
      /* What is left of it must not be unmapped as a whole: some of its
	 place may be another thread's by now.  */
      l->l_map_start = l->l_map_end = 0;
      return false;
    }
  if (status != 0)
    /* An auditor's object may come by dlopen at startup.  */
    _exit (status);
  return true;
}

void
_dl_hugepages_report_libc (const struct link_map *l)
{
  if (!_dl_hugepages_active)
    return;
  hl_note_stderr (context);
  hl_report_dropped (context, l->l_name, HL_REASON_OTHER_LIBC);
  if (hl_is_strict (context))
    _exit (127);
}

void
_dl_hugepages_end_startup (const struct link_map *main_map)
{
  /* Auditors have namespaces of their own.  */
  for (Lmid_t ns = 0; ns < GL (dl_nns); ++ns)
    for (struct link_map *l = GL (dl_ns)[ns]._ns_loaded; l != NULL;
	 l = l->l_next)
      {
	struct hl_names names =
	  {
	    .path = l == main_map ? executable : l->l_name,
	    .soname = read_soname (l),
	    .is_main = l == main_map,
	  };
	hl_note_object (context, &names);
	if (_dl_hugepages_path[0] != '\0'
	    && l->l_map_start == (ElfW(Addr)) &__ehdr_start)
	  l->l_name = _dl_hugepages_path;
      }
  int status = hl_end_startup (context);
  if (status != 0)
    _exit (status);
  context->is_after_startup = true;
}

/* Nothing is aligned where a huge page is larger than what glibc itself
   aligns objects to (MAX_THP_PAGESIZE since 2.44): with pages of 64 KiB it
   has 512 MiB, and few objects fill one.  */
#define HUGE_PAGE_MAX (32 << 20)

ElfW(Addr)
_dl_hugepages_align (const struct dl_hugepages_object *mapped,
		     ElfW(Addr) start, size_t length, ElfW(Addr) align,
		     int mode)
{
  size_t huge = context->config->geometry.huge_page_bytes;
  if (!mapped->is_selected || align >= huge || length < huge
      || huge > HUGE_PAGE_MAX || (start & (huge - 1)) != 0
      /* A filter of the program's own may kill for munmap.  */
      || ((mode & __RTLD_DLOPEN) != 0
	  && hl_read_process_status (context) != 0))
    return align;
  return huge;
}
