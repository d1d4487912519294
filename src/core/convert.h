/*
 * Numbers of 16 bits to float and back, one at a time, in plain C. Narrowing rounds to nearest even; what is too large becomes
 * infinite, NaN a quiet NaN. Subnormal numbers of binary16 are exact both ways, also where subnormal floats count as 0
 * (flush.h), since no step makes one.
 */
#ifndef FATTN_CORE_CONVERT_H
#define FATTN_CORE_CONVERT_H

#include <stdint.h>
#include <string.h>

#include "core/inline.h"
#include "fattn/fattn.h"

FATTN_INLINE uint32_t fattn_float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

FATTN_INLINE float fattn_float_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

FATTN_INLINE float fattn_from_bf16(uint16_t x)
{
    return fattn_float_of_bits((uint32_t)x << 16);
}

FATTN_INLINE uint16_t fattn_to_bf16(float x)
{
    const uint32_t bits = fattn_float_bits(x);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : rounded);
}

FATTN_INLINE float fattn_from_f16(uint16_t x)
{
    const uint32_t sign = (uint32_t)(x & 0x8000) << 16, exponent = x >> 10 & 31, fraction = x & 1023;
    const uint32_t small = fattn_float_bits((float)fraction * 0x1p-24f);
    const uint32_t normal = (exponent + 112) << 23 | fraction << 13;
    const uint32_t special = 0x7f800000 | fraction << 13 | (fraction ? 0x400000 : 0);
    return fattn_float_of_bits(sign | (exponent == 0 ? small : exponent == 31 ? special : normal));
}

FATTN_INLINE uint16_t fattn_to_f16(float x)
{
    const uint32_t bits = fattn_float_bits(x), size = bits & 0x7fffffff, sign = bits >> 16 & 0x8000;
    /* Below 2^-14 a unit is 2^-24; adding 1.5 2^23 leaves the rounded number of them in the low bits. */
    const uint32_t small = fattn_float_bits(fattn_float_of_bits(size) * 0x1p24f + 12582912.0f) & 0x7ff;
    const uint32_t normal = (size + 0xfff + (size >> 13 & 1)) >> 13;
    const uint32_t shifted = normal - (112 << 10);
    const uint32_t result = size > 0x7f800000    ? 0x7e00 | (size >> 13 & 0x3ff)
                            : size >= 0x477ff000 ? 0x7c00
                            : size < 0x38800000  ? small
                                                 : shifted;
    return (uint16_t)(sign | result);
}

/* Element i of an array of any type; bytes without their factor. */
FATTN_INLINE double fattn_element(const void *data, int32_t dtype, int64_t i)
{
    switch (dtype) {
    case FATTN_F64:
        return ((const double *)data)[i];
    case FATTN_F32:
        return (double)((const float *)data)[i];
    case FATTN_F16:
        return (double)fattn_from_f16(((const uint16_t *)data)[i]);
    case FATTN_I8:
        return (double)((const int8_t *)data)[i];
    default:
        return (double)fattn_from_bf16(((const uint16_t *)data)[i]);
    }
}

/* Double to 16 bits goes through float: rounding to odd first keeps that from being a second rounding. */
FATTN_INLINE float fattn_round_to_odd(double x)
{
    const float y = (float)x;
    const uint32_t bits = fattn_float_bits(y);
    if ((double)y == x || x != x || (bits & 0x7f800000) == 0x7f800000 || (bits & 1))
        return y;
    /* y is even and was rounded: its neighbour on the other side of x is odd. */
    const int away = (x > (double)y) == (x > 0);
    return fattn_float_of_bits(away ? bits + 1 : bits - 1);
}

FATTN_INLINE void fattn_set_element(void *data, int32_t dtype, int64_t i, double x)
{
    switch (dtype) {
    case FATTN_F64:
        ((double *)data)[i] = x;
        break;
    case FATTN_F32:
        ((float *)data)[i] = (float)x;
        break;
    case FATTN_F16:
        ((uint16_t *)data)[i] = fattn_to_f16(fattn_round_to_odd(x));
        break;
    default:
        ((uint16_t *)data)[i] = fattn_to_bf16(fattn_round_to_odd(x));
        break;
    }
}

#endif
