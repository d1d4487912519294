/*
 * Error text: one line per thread, kept until that thread's next failure.
 */
#ifndef FATTN_CORE_ERROR_H
#define FATTN_CORE_ERROR_H

#include "fattn/fattn.h"

/* Stores the message for fattn_last_error() and returns status, so that a check ends in `return fattn_fail(...)`. The
 * message names the field, its value, and the value it was held against. */
fattn_status fattn_fail(fattn_status status, const char *format, ...) __attribute__((format(printf, 2, 3), cold));

#endif
