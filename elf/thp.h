/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Whether the administrator and this process allow transparent huge pages. */
#ifndef HL_THP_H
#define HL_THP_H

#include "status.h"

/* 0 if THP are neither switched off by the administrator (HL_REASON_THP_NEVER) nor for this process
   (HL_REASON_THP_DISABLED). */
int hl_check_thp_policy(const struct hl_roots *roots, const struct hl_geometry *geometry,
                        const struct hl_status *status);

#endif
