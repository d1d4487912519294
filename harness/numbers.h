/*
 * Number types: their sizes, and conversions written from the definition of IEEE 754's binary formats, not from the library.
 */
#ifndef HARNESS_NUMBERS_H
#define HARNESS_NUMBERS_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "fattn/fattn.h"

static inline size_t type_size(fattn_dtype type)
{
    return type == FATTN_F64 ? 8 : type == FATTN_F32 ? 4 : type == FATTN_I8 ? 1 : 2;
}

static inline bool type_is_narrow(fattn_dtype type)
{
    return type == FATTN_F16 || type == FATTN_BF16;
}

/* Bits behind the binary point, and the exponent of the smallest normal number. */
static inline int type_fraction(fattn_dtype type)
{
    return type == FATTN_F64 ? 52 : type == FATTN_F32 ? 23 : type == FATTN_F16 ? 10 : 7;
}

static inline int type_least_exponent(fattn_dtype type)
{
    return type == FATTN_F64 ? -1022 : type == FATTN_F16 ? -14 : -126;
}

/* Half a unit in the last place of a number of size x: what rounding to the type can change. */
static inline double type_half_ulp(fattn_dtype type, double x)
{
    const int least = type_least_exponent(type), exponent = x > 0 && isfinite(x) ? ilogb(x) : least;
    return ldexp(0.5, (exponent > least ? exponent : least) - type_fraction(type));
}

/* 16 bits: sign, exponent, fraction. The number is a count of units of its binade; counts below 2^fraction are subnormal. */
static inline uint16_t narrow_encode(fattn_dtype type, double x)
{
    const int fraction = type_fraction(type), least = type_least_exponent(type);
    const uint32_t infinite = type == FATTN_F16 ? 0x7c00 : 0x7f80, sign = signbit(x) ? 0x8000 : 0;
    const double size = fabs(x);
    if (isnan(x))
        return (uint16_t)(sign | infinite | 1u << (fraction - 1));
    if (isinf(x))
        return (uint16_t)(sign | infinite);
    int exponent = size > 0 ? ilogb(size) : least;
    if (exponent < least)
        exponent = least;
    const double count = nearbyint(ldexp(size, fraction - exponent));
    const int64_t bits = ((int64_t)(exponent - least) << fraction) + (int64_t)count;
    return (uint16_t)(sign | (bits < infinite ? (uint32_t)bits : infinite));
}

static inline double narrow_decode(fattn_dtype type, uint16_t bits)
{
    const int fraction = type_fraction(type), least = type_least_exponent(type);
    const uint32_t field = (bits & 0x7fffu) >> fraction, rest = bits & ((1u << fraction) - 1);
    const uint32_t last = type == FATTN_F16 ? 31 : 255;
    double size;
    if (field == last)
        size = rest ? (double)NAN : (double)INFINITY;
    else if (field == 0)
        size = ldexp(rest, least - fraction);
    else
        size = ldexp(rest + (1u << fraction), least - fraction + (int)field - 1);
    return bits & 0x8000 ? -size : size;
}

static inline double type_round(fattn_dtype type, double x)
{
    return type == FATTN_F64 ? x : type == FATTN_F32 ? (double)(float)x : narrow_decode(type, narrow_encode(type, x));
}

/* Element d of a row. */
static inline double number_get(fattn_dtype type, const void *row, int64_t d)
{
    switch (type) {
    case FATTN_F64:
        return ((const double *)row)[d];
    case FATTN_F32:
        return (double)((const float *)row)[d];
    case FATTN_I8:
        return (double)((const int8_t *)row)[d];
    default:
        return narrow_decode(type, ((const uint16_t *)row)[d]);
    }
}

static inline void number_put(fattn_dtype type, void *row, int64_t d, double value)
{
    switch (type) {
    case FATTN_F64:
        ((double *)row)[d] = value;
        break;
    case FATTN_F32:
        ((float *)row)[d] = (float)value;
        break;
    case FATTN_I8:
        ((int8_t *)row)[d] = (int8_t)nearbyint(value);
        break;
    default:
        ((uint16_t *)row)[d] = narrow_encode(type, value);
        break;
    }
}

#endif
