# SPDX-License-Identifier: LGPL-2.1-or-later
"""The host's tests that run in the x86-64 guests."""

import re

import pytest

import vm_plugin
import vmguest

# Which of the host's tests run here too, all of them with hugeld.all on the command line: those whose result depends on the kernel.
CHOSEN = [
    r"vm/guest/.*",
    r"system/test_moving.py::test_executable_hugetlb\[(pie|nopie|aligned-pie|six|hole|lld)-preload\]",
    r"system/test_moving.py::test_executable_thp\[(pie|nopie|aligned|six|hole)\]",
    r"system/test_moving.py::test_library_hugetlb\[dso(-six|-hole|-aligned)?\]",
    r"system/test_moving.py::test_library_thp\[dso\]",
    r"system/test_moving.py::test_data\[(pie|nopie)-thp\]",
    r"system/test_moving.py::test_bss\[.*-fixed\]",
    r"system/test_moving.py::test_auto_takes_thp_where_the_pool_is_empty",
    r"system/test_moving.py::test_exceptions_through_moved_text",
    r"system/test_pool_short.py::test_(order|limit_half_way|text_does_not_fit)\[.*\]",
    r"system/test_pool_short.py::test_(two_programs_share_the_pool|limit_half_way_auto|remedy_helps|strict_library)",
    r"system/test_faults.py::test_mremap_fails\[hugetlb\]",
    r"system/test_traced.py::.*",
    r"system/test_faults.py::test_one_mremap_of_two_objects_fails\[19\]",
    r"images/test_backend.py::test_(executable\[(nopie|six|hole|aligned-pie)\]|library\[dso-aligned\]|touched_by_two)",
    r"images/test_backend.py::test_(replaced_by_rename|image_of_another_file|truncated\[0\]|noexec|store_behind_a_link)",
    r"images/test_backend.py::test_auto_(takes_the_image_first|without_an_image)",
    r"images/test_exec_stop.py::test_(state\[(nopie|static|static-pie)-(plain|ignored|limits)\]|on_huge_pages\[.*\]|image_itself\[.*\])",
    r"images/test_exec_stop.py::test_(helper_killed\[pie|call_fails\[(static-)?pie)\]",
    r"attach/test_attach_kinds.py::test_waits\[(futex|nanosleep|epoll|wait4)\]",
    r"attach/test_attach_kinds.py::test_busy\[memory\]",
    r"attach/test_attach_kinds.py::test_kinds\[(0-pie|3-static)\]",
    r"attach/test_attach_kinds.py::test_(running|store)",
    r"attach/test_attach_place.py::.*",
    r"attach/test_attach_steps.py::test_killed_sample\[(30|47)\]",
    r"writable/test_contents.py::test_every_byte\[data=thp(,bss=thp)?-(nopie-fixed|pie-random)\]",
    r"writable/test_fork.py::test_no_signal_ever\[backend=hugetlb,data=thp-alone\]",
    r"writable/test_fork.py::test_other_ways\[nopie-.*-data=thp(,bss=thp)?\]",
    r"writable/test_heap.py::test_glibc\[(none-pie|small-nopie|both-nopie)-fixed\]",
    r"writable/test_limits.py::test_limit\[(mlockall, hugetlb|mdwe|no thp, thp|RLIMIT_AS, no commit)-nopie-.*\]",
]


def pytest_runtest_setup(item):
    if "[mdwe-" in item.nodeid and not vmguest.knows_mdwe():
        vmguest.absent("no PR_SET_MDWE")
    if "[mlockall" in item.nodeid and not vmguest.knows_collapse():
        vmguest.absent("no MADV_COLLAPSE: locked memory is there in small pages before it can be advised")


@pytest.hookimpl(hookwrapper=True)  # before conftest.py takes a sample of the chosen tests
def pytest_collection_modifyitems(config, items):
    choose(config, items)
    yield


def choose(config, items):
    """Every pattern names something: a test that was renamed would be missed."""
    items.sort(key=lambda item: "test_vm_yama" in item.nodeid)  # after it nothing can be traced
    words = vm_plugin.words()
    if "hugeld.all" in words:
        return
    names = [item.nodeid.replace("tests/", "", 1) for item in items]
    left = words["hugeld.leave"].split(",") if "hugeld.leave" in words else []  # another guest has them
    for pattern in [*CHOSEN, *left]:
        if not any(re.fullmatch(pattern, name) for name in names):
            raise pytest.UsageError(f"no test is called {pattern}")
    chosen = [any(re.fullmatch(p, name) for p in CHOSEN) and not any(re.fullmatch(p, name) for p in left) for name in names]
    config.hook.pytest_deselected(items=[item for item, yes in zip(items, chosen) if not yes])
    items[:] = [item for item, yes in zip(items, chosen) if yes]
