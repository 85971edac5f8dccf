# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names that several tests of this folder use."""

import os
import pathlib

HERE = pathlib.Path(__file__).resolve().parent
LONG = os.environ.get("T_STRESS") == "all"
