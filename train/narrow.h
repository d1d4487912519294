/*
 * Floats as files have them: float, binary16 or bfloat16. Reading is exact; writing rounds to the nearest, halves to even.
 */
#ifndef TRAIN_NARROW_H
#define TRAIN_NARROW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum narrow_type { NARROW_F32, NARROW_F16, NARROW_BF16 } narrow_type;

size_t narrow_size(narrow_type type); /* of a number, in bytes */
uint16_t narrow_f16(float x);         /* beyond the largest, 65504: infinity */

/* `count` numbers at `bytes`, of no particular alignment, as floats. */
void narrow_read(narrow_type type, const void *bytes, int64_t count, float *out);
/* Rounds and writes; errno says why not. */
bool narrow_write(narrow_type type, const float *numbers, int64_t count, FILE *stream);
/* The first finite number that is none after rounding; -1 if there is no such. */
int64_t narrow_overflow(narrow_type type, const float *numbers, int64_t count);

#endif
