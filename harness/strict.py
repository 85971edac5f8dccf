# SPDX-License-Identifier: LGPL-2.1-or-later
"""Fails tests that were skipped, if STRICT=1 is in the environment, as in CI."""

import os


def fail_if_skipped(item, report, reason):
    if os.environ.get("STRICT") == "1" and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid}: skipped with STRICT=1: {reason}"
