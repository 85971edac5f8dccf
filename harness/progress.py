# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a run of tests prints: a line for each folder when its last test has ended, with its seconds, and each failure at once."""

import collections

import pytest


def folder_of(nodeid):
    path = nodeid.partition("::")[0].split("/")
    return "/".join(path[:2] if len(path) > 2 else path[:1])


class Progress:
    """Of the process that prints: with workers (pytest-xdist), not one of them."""

    def __init__(self, reporter):
        self.reporter = reporter
        self.left = collections.Counter()
        self.results = collections.defaultdict(collections.Counter)
        self.seconds = collections.Counter()

    def expect(self, nodeids):
        self.left = collections.Counter(map(folder_of, nodeids))

    def pytest_collection_finish(self, session):
        self.expect(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node, ids):
        if not self.left:  # all workers have the same tests
            self.expect(ids)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_report_teststatus(self):
        """No letter for each test."""
        outcome = yield
        category, _, word = outcome.get_result()
        outcome.force_result((category, "", word))

    def pytest_runtest_logreport(self, report):
        folder = folder_of(report.nodeid)
        self.seconds[folder] += report.duration
        if report.when == "call" or not report.passed:
            self.results[folder][report.outcome] += 1
        if report.failed:
            self.reporter.ensure_newline()
            self.reporter.section(f"FAILED {report.nodeid} ({report.when})", sep="_")
            report.toterminal(self.reporter._tw)

    def pytest_runtest_logfinish(self, nodeid):
        folder = folder_of(nodeid)
        self.left[folder] -= 1
        if self.left[folder] == 0:
            counts = ", ".join(f"{number} {category}" for category, number in sorted(self.results[folder].items()))
            self.reporter.write_line(f"{folder}: {counts} in {self.seconds[folder]:.0f} s")
