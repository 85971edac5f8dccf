# SPDX-License-Identifier: LGPL-2.1-or-later
"""Stock libraries whose large code comes as a plugin of Python: `hugeld status` shows it moved, and they print the same as without
hugeld.  ../programs has the JVM and PHP, which open theirs, too."""

import os
import pathlib
import signal

import pytest

import helpers
from installed import cache_folder

PYTHON_CACHE = cache_folder() / "python"

NUMPY = """
import numpy, os, signal
a = numpy.arange(90000, dtype=float).reshape(300, 300) / 90000
print(numpy.linalg.det(a @ a.T + numpy.eye(300)), numpy.fft.fft(a[0]).sum(), numpy.sort(a.ravel()[::-7])[:5])
os.kill(os.getpid(), signal.SIGSTOP)
"""

LLVMLITE = """
import ctypes, os, signal
import llvmlite.binding as llvm
llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
module = llvm.parse_assembly('define i32 @f(i32 %x) { %y = mul i32 %x, 7  ret i32 %y }')
engine = llvm.create_mcjit_compiler(module, llvm.Target.from_default_triple().create_target_machine())
engine.finalize_object()
print(ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(engine.get_function_address('f'))(6))
os.kill(os.getpid(), signal.SIGSTOP)
"""


def moved_pages(pid, pattern):
    """Pages on hugetlb of each object whose base name matches."""
    [process] = helpers.hugeld_json("status", str(pid))["processes"]
    return [found["backends"]["hugetlb_pages"] for found in process["objects"]
            if pathlib.PurePath(os.path.basename(found["path"])).match(pattern)]


@pytest.mark.parametrize("module, script, expected", [
    ("numpy", NUMPY, {"_multiarray_umath*.so": 2, "libscipy_openblas*.so": 5}),
    ("llvmlite", LLVMLITE, {"libllvmlite.so": 20}),
])
def test_python(library, empty_library, pool, module, script, expected):
    if not (PYTHON_CACHE / module).exists():
        pytest.skip(f"{module} is not in the cache (tools/install-packages real)")
    pool(256)
    said = []
    for preloaded in empty_library, library:
        env = helpers.preload(preloaded, patterns=":".join(expected), options="backend=hugetlb", PYTHONPATH=PYTHON_CACHE, OPENBLAS_NUM_THREADS="2")
        process = helpers.start(["/usr/bin/python3", "-B", "-c", script], env)
        try:
            helpers.wait_until(lambda pid=process.pid: helpers.state_of(pid) in ("T", "Z"), 120, "stopping")
            for pattern, pages in expected.items() if preloaded == library else ():
                found = moved_pages(process.pid, pattern)
                assert found and all(n >= pages for n in found), (pattern, found)
            process.send_signal(signal.SIGCONT)
            stdout, stderr = process.communicate(timeout=120)
        finally:
            helpers.end_process(process)
        assert process.returncode == 0, stderr
        said.append(stdout)
    assert said[0] == said[1] != ""
