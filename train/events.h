/*
 * TensorBoard's event files: scalars by step, in a new file of a folder for each run that writes there. TensorBoard joins the
 * files of a folder, so that a continued run continues its curves.
 *
 * A file is a row of records: u64 length, u32 check of the length, the bytes, u32 check of the bytes, little-endian. A check is
 * CRC-32C, masked: rotated right by 15 bits, plus 0xa282ead8. The bytes are a protocol buffer:
 *
 *     Event    1 wall_time double   2 step int64   3 file_version string (of the first record)   5 summary Summary
 *     Summary  1 value Value, repeated
 *     Value    1 tag string   2 simple_value float
 */
#ifndef TRAIN_EVENTS_H
#define TRAIN_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct event_writer event_writer;

typedef struct event_scalar {
    const char *tag; /* "train/loss" */
    double value;
} event_scalar;

/* Makes the folder if there is none (its parent must be there), and a file in it. NULL, with train_error() set. */
event_writer *events_open(const char *folder);
/* One record of several scalars. False, with train_error() set, if it cannot be written. */
bool events_write(event_writer *w, int64_t step, const event_scalar *scalars, int count);
/* False if not everything could be written. NULL is none. */
bool events_close(event_writer *w);

/* CRC-32C (Castagnoli). */
uint32_t events_crc(const void *bytes, size_t count);

#endif
