# SPDX-License-Identifier: LGPL-2.1-or-later
"""libhugeld.so and ld.so leave themselves alone, with any patterns, even if they have large text."""

import pytest

import helpers
from proof import check_span, read_image, read_plans


def lies_as_linked(image, object_):
    """Every page of OBJECT is the file's, or its own zero-initialised data."""
    for mapping in image.mappings:
        if mapping.start < object_.end and mapping.end > object_.start:
            assert not mapping.is_hugetlb and not mapping.thp_bytes, mapping
            assert mapping.inode or mapping.permissions in ("rw-p", "r--p", "---p"), mapping


@pytest.fixture(scope="module")
def large_library(builder, shared_folder):
    """libhugeld.so with the large text inside itself, in the place where the large text of others moves from."""
    folder = shared_folder / "large"
    folder.mkdir()
    sources = [source for name in ("elf", "perf-maps", "loader") for source in (helpers.ROOT / name).glob("*.c")]
    objects = [helpers.BUILD / source.parent.name / f"{source.stem}.o" for source in sources]
    return builder.compile(folder / "libhugeld.so", "-shared", "-Wl,-soname,libhugeld.so,-z,now,-z,initfirst", *objects,
                           *builder.object())


@pytest.mark.parametrize("backend", ["hugetlb", "thp"])
@pytest.mark.parametrize("patterns", ["*", "libhugeld*:main", "/*:main"])
def test_itself(builder, large_library, pause_library, pool, thp, backend, patterns):
    pool(64)
    app = builder.executable("nopie")
    plain = helpers.run([app], helpers.preload(large_library, patterns="!*"))
    env = helpers.preload(large_library, pause_library, patterns=patterns, options=f"backend={backend},verbose=3")
    with helpers.paused([app], env, app.name) as process:
        image = read_image(process.pid)
        own = image.find(large_library.name)
        assert own.end - own.start > 12 << 20
        lies_as_linked(image, own)
        lies_as_linked(image, image.find("ld-linux-x86-64.so.2"))
        plans = read_plans(process.pid, [app])
        for span in plans[app.name].spans:
            check_span(image, span, backend)
        status, stdout, stderr = process.finish()
    assert (status, stdout) == (plain.returncode, plain.stdout)
    assert not any(name in stderr for name in ("libhugeld", "ld-linux", "vdso"))
