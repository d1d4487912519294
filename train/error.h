/*
 * How the trainer says what is wrong: functions return false or NULL, and train_error() then holds one line about it.
 * Nothing here prints; the program decides where the line goes.
 */
#ifndef TRAIN_ERROR_H
#define TRAIN_ERROR_H

#include <stdbool.h>

/* This thread's last failure: one line without newline, valid until the next one. "" if nothing failed yet. */
const char *train_error(void);

/* Sets the line (cut if it is too long) and returns false, so that callers can say `return train_fail("...")`. */
__attribute__((format(printf, 1, 2))) bool train_fail(const char *format, ...);

#endif
