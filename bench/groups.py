# SPDX-License-Identifier: LGPL-2.1-or-later
"""The groups of measurements, in order. Each group is a function of a Plan (workloads.Plan) that yields experiments
(measure.experiment)."""

import attach
import databases
import mysql
import upstream
from images import group_image, group_in_place
from layouts import group_layouts, group_model
from memory import group_arrays, group_calls, group_pressure
from programs import group_alternatives, group_more, group_programs
from servers import group_databases, group_servers
from starts import group_cold, group_ldso, group_run, group_start

Skipped = databases.pytest.skip.Exception

GROUPS = {
    "layouts": group_layouts, "model": group_model, "mysql": mysql.group_mysql, "image": group_image, "in-place": group_in_place, "run": group_run,
    "programs": group_programs, "more": group_more, "servers": group_servers, "databases": group_databases,
    "alternatives": group_alternatives, "upstream": upstream.measure, "ldso": group_ldso, "start": group_start, "cold": group_cold,
    "calls": group_calls, "arrays": group_arrays, "pressure": group_pressure, "attach": attach.measure,
}
