/*
 * Numbers of both types as floats. Loops compute in float; what lies in memory as bf16 is widened into a scratch buffer first
 * and rounded from one afterwards, PIECE numbers at a time, which stay in the first-level cache. Rows of float are one piece,
 * in place.
 */
#ifndef TRAIN_CPU_NUMBERS_H
#define TRAIN_CPU_NUMBERS_H

#include <string.h>

#include "train/operations.h"

enum { PIECE = HEAD_DIM_MAX, CACHE_LINE = 64 };

static inline float widen(uint16_t x)
{
    const uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* To the nearest, halves to even; a NaN stays one. */
static inline uint16_t round_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

/* Numbers that a loop takes at once. */
static inline int64_t piece_of(number_type type, int64_t count)
{
    return type == NUMBER_F32 || count < PIECE ? count : PIECE;
}

static inline const void *number_at(const void *x, number_type type, int64_t at)
{
    return (const char *)x + (size_t)at * number_bytes(type);
}

/* Numbers at .. at + count - 1, to be read as floats. */
static inline const float *read_numbers(const void *x, number_type type, int64_t at, int64_t count, float *scratch)
{
    const void *from = number_at(x, type, at);
    if (type == NUMBER_F32)
        return from;
    const uint16_t *narrow = from;
    for (int64_t i = 0; i < count; i++)
        scratch[i] = widen(narrow[i]);
    return scratch;
}

/* Asks for numbers that a loop will come to soon, to be read or written. What forward has saved lies in memory by the time that
 * backward reads it, and processors see too late what a loop over short rows, or over several long ones at once, wants next.
 * Inlined always: GCC leaves out calls of a function that only prefetches, as they change nothing. */
__attribute__((always_inline)) static inline void prefetch_numbers(const void *x, number_type type, int64_t at, int64_t count)
{
    const char *from = number_at(x, type, at);
    for (int64_t i = 0; i < count * (int64_t)number_bytes(type); i += CACHE_LINE)
        __builtin_prefetch(from + i);
}

/* Where to write them; write_numbers() then puts them in their place. */
static inline float *room_for_numbers(void *x, number_type type, int64_t at, float *scratch)
{
    return type == NUMBER_F32 ? (float *)x + at : scratch;
}

static inline void write_numbers(void *x, number_type type, int64_t at, int64_t count, const float *scratch)
{
    if (type == NUMBER_F32)
        return;
    uint16_t *narrow = (uint16_t *)x + at;
    for (int64_t i = 0; i < count; i++)
        narrow[i] = round_bf16(scratch[i]);
}

/* Numbers that were not made in their place. */
static inline void put_numbers(void *x, number_type type, int64_t at, int64_t count, const float *from)
{
    if (type == NUMBER_F32)
        memcpy((float *)x + at, from, (size_t)count * sizeof *from);
    else
        write_numbers(x, type, at, count, from);
}

#endif
