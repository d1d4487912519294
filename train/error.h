/*
 * How the trainer says what is wrong: functions return false or NULL, and train_error() then holds one line about it,
 * train_error_kind() whose fault it is. Nothing here prints; the program decides where the line goes.
 */
#ifndef TRAIN_ERROR_H
#define TRAIN_ERROR_H

#include <stdbool.h>
#include <stddef.h>

typedef enum train_error_class {
    TRAIN_ERROR_GIVEN, /* what was given is wrong: an option, a file */
    TRAIN_ERROR_WORK   /* the work failed though nothing was wrong with it: no memory */
} train_error_class;

/* This thread's last failure: one line without newline or other control characters (which become '?'), valid until the next
 * one. "" if nothing failed yet. */
const char *train_error(void);
/* Its kind; TRAIN_ERROR_GIVEN if nothing failed yet. */
train_error_class train_error_kind(void);

/* Sets the line (cut if it is too long) and returns false, so that callers can say `return train_fail("...")`. The kind is
 * TRAIN_ERROR_GIVEN. */
__attribute__((format(printf, 1, 2))) bool train_fail(const char *format, ...);
/* The same for any kind; train_error_kind() keeps that of the line which the new one is about. */
__attribute__((format(printf, 2, 3))) bool train_fail_as(train_error_class kind, const char *format, ...);
/* Adds to the line what the work was for whose failure it tells of: "no memory: 64 bytes are needed, for a step". A line about
 * what was given stays as it is. Returns false. */
__attribute__((format(printf, 1, 2))) bool train_fail_for(const char *format, ...);

/* Zeroed memory of the host, for free(); NULL, with the line set, where there is none. */
void *train_calloc(size_t count, size_t size);

#endif
