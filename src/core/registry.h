/*
 * Every kernel of this build, in the order of preference.
 */
#ifndef FATTN_CORE_REGISTRY_H
#define FATTN_CORE_REGISTRY_H

#include "core/kernel.h"

enum { FATTN_MAX_KERNELS = 64 }; /* of one operation */

/* The kernels of an operation; returns how many were stored, at most FATTN_MAX_KERNELS. */
int32_t fattn_registry_list(fattn_op op, const fattn_kernel *list[FATTN_MAX_KERNELS]);

/* Whether name is among a comma-separated list of names or of their beginnings up to an underscore. */
bool fattn_kernel_matches(const char *list, const char *name);

/* NULL if every entry of the list matches some kernel; otherwise the entry, which does not end at its own end. */
const char *fattn_registry_unknown(const char *list, int *length);

#endif
