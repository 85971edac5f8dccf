# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs in which our ld.so moves objects, stopped before main and compared with smaps: the proof of tests/conftest.py
with ld.so in the place of libhugeld.so."""

import contextlib
import dataclasses
import operator
import os
import typing

import helpers
from hugepages import free_pages
from proof import check_memory, read_image, read_plans

ALL = ("text", "rodata")


class Proof(typing.NamedTuple):
    pages: int
    plans: dict  # proof.Plan by base name
    plain: tuple  # (returncode, stdout, stderr)
    moved: tuple


def by_run(ldso, patterns, options, argv):
    """`hugeld run`: in the interpreter's place, so that the kernel maps the executable."""
    arguments = ["-o", options] if options else []
    return [helpers.HUGELD, "run", "--ld-so", ldso, "-p", patterns, *arguments, "--", *argv]


def by_command(ldso, patterns, options, argv):
    """`ld.so PROGRAM`: ld.so maps the executable, too."""
    return [ldso, *argv]


def without_linker(image):
    """IMAGE without ld.so as an object, which has its own path only if something is selected."""
    objects = [o for o in image.objects if not o.name.startswith(("ld-linux", "ld.so"))]
    return dataclasses.replace(image, objects=objects)


@dataclasses.dataclass
class Linked:
    """Runs programs with LDSO; PAUSE is the library that stops them."""

    ldso: object
    pause: object

    def environment(self, patterns, options, preloaded=(), **changes):
        return helpers.preload(*preloaded, patterns=patterns, options=options or None, **changes)

    def run(self, argv, patterns, options="", way=by_run, timeout=helpers.PATIENCE, **changes):
        """Runs ARGV to its end."""
        env = self.environment(patterns, options, **changes)
        return helpers.run(way(self.ldso, patterns, options, argv), env, timeout)

    @contextlib.contextmanager
    def paused(self, argv, patterns, options="", way=by_run, name=None, timeout=helpers.PATIENCE, **changes):
        """ARGV, stopped before main."""
        env = self.environment(patterns, options, [self.pause], **changes)
        name = name or os.path.basename(self.ldso if way is by_command else argv[0])
        with helpers.paused(way(self.ldso, patterns, options, argv), env, name, timeout) as process:
            yield process

    def prove(self, argv, moved, patterns, options="", way=by_run, backend="hugetlb", same=operator.eq, **changes):
        """Runs ARGV with nothing selected and with PATTERNS; MOVED maps base names to the kinds of span that must be
        where the plan says, and all the rest must be as in the first run."""
        with self.paused(argv, "no-such-object*", options, way, **changes) as process:
            plain_image = without_linker(read_image(process.pid))
            plain = process.finish()
        free = free_pages()
        with self.paused(argv, patterns, options, way, **changes) as process:
            assert f" {os.path.realpath(self.ldso)}\n" in open(f"/proc/{process.pid}/maps").read()  # and no preloader instead
            image = without_linker(read_image(process.pid))
            paths = [o.path for o in image.objects if o.name in moved]
            plans = read_plans(process.pid, paths, options)
            # ld.so's own allocator begins a page anew where the kernel's new pages don't adjoin its own.
            pages = check_memory(image, plain_image, plans, moved, backend, spare_pages=4)
            if backend == "hugetlb":
                kept = {name: [k for k in kinds if k in ALL] for name, kinds in moved.items()}
                assert free - free_pages() == sum(plans[n].pages(*kinds) for n, kinds in kept.items())
            result = process.finish()
        assert same(plain, result)
        return Proof(pages, plans, plain, result)
