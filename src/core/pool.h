/*
 * Running work on a context's threads. A lane is one call of the body, on some thread; a unit is one piece of work.
 * Lanes take units from a shared counter in ascending order, so a kernel that lists its dearest units first is balanced.
 * What a unit computes must not depend on its lane: lanes only say which scratch area is free.
 */
#ifndef FATTN_CORE_POOL_H
#define FATTN_CORE_POOL_H

#include "fattn/fattn.h"

typedef void (*fattn_unit_fn)(void *arg, int32_t lane, int64_t unit);

/* fn(arg, lane, unit) for every unit in 0 .. units-1, with lane < lanes <= the context's threads. lanes == 1 or units == 1
 * runs on the calling thread. Units run in the floating-point mode of flush.h; the caller's is restored. */
void fattn_run_units(const fattn_context *context, int32_t lanes, int64_t units, fattn_unit_fn fn, void *arg);

#endif
