# SPDX-License-Identifier: LGPL-2.1-or-later
"""The tests in guest/ and systemd/ run in a guest only: `make check` on a host must not touch it."""

import os

collect_ignore = [] if os.environ.get("T_VM") else ["guest", "systemd"]
