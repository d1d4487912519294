/*
 * What depends on the type and not on the instruction set, float: rows of narrower types are widened when they are read and
 * rounded once when they are written; all between is float.
 */
#ifndef FATTN_CPU_TYPE_H
#define FATTN_CPU_TYPE_H

#include "compiler.h"
#include "core/convert.h"

#define REAL_DTYPE FATTN_F32

/* The n numbers of a row of `dtype`, times `factor` if they are bytes. */
static void widen(real *to, const void *from, int32_t dtype, int64_t n, real factor)
{
    int64_t i = 0;
    if (dtype == FATTN_F32) {
        memcpy(to, from, (size_t)n * sizeof *to);
    } else if (dtype == FATTN_BF16) {
        const uint16_t *x = from;
        for (; i + LANES <= n; i += LANES)
            v_storeu(to + i, v_from_bf16(x + i));
        for (; i < n; i++)
            to[i] = fattn_from_bf16(x[i]);
    } else if (dtype == FATTN_F16) {
        const uint16_t *x = from;
        for (; i + LANES <= n; i += LANES)
            v_storeu(to + i, v_from_f16(x + i));
        for (; i < n; i++)
            to[i] = fattn_from_f16(x[i]);
    } else {
        const int8_t *x = from;
        for (; i + LANES <= n; i += LANES)
            v_storeu(to + i, v_mul(v_from_i8(x + i), v_set1(factor)));
        for (; i < n; i++)
            to[i] = (real)x[i] * factor;
    }
}

/* Writes n numbers as a row of `dtype`. */
static void narrow(void *to, int32_t dtype, const real *from, int64_t n)
{
    int64_t i = 0;
    uint16_t *y = to;
    if (dtype == FATTN_F32) {
        memcpy(to, from, (size_t)n * sizeof *from);
    } else if (dtype == FATTN_BF16) {
        for (; i + LANES <= n; i += LANES)
            v_to_bf16(y + i, v_loadu(from + i));
        for (; i < n; i++)
            y[i] = fattn_to_bf16(from[i]);
    } else {
        for (; i + LANES <= n; i += LANES)
            v_to_f16(y + i, v_loadu(from + i));
        for (; i < n; i++)
            y[i] = fattn_to_f16(from[i]);
    }
}

/* LANES numbers of a row from number d on; `dtype` is a constant where this is inlined. Bytes come without their factor. */
INLINE vec load_numbers(const int32_t dtype, const void *row, int64_t d)
{
    switch (dtype) {
    case FATTN_F32:
        return v_loadu((const float *)row + d);
    case FATTN_BF16:
        return v_from_bf16((const uint16_t *)row + d);
    case FATTN_F16:
        return v_from_f16((const uint16_t *)row + d);
    default:
        return v_from_i8((const int8_t *)row + d);
    }
}

/* Calls `call` with the compile-time constant DTYPE equal to `dtype`. */
#define WITH_DTYPE(dtype, call)                                                                                                \
    do {                                                                                                                       \
        if ((dtype) == FATTN_F32) {                                                                                            \
            enum { DTYPE = FATTN_F32 };                                                                                        \
            call;                                                                                                              \
        } else if ((dtype) == FATTN_BF16) {                                                                                    \
            enum { DTYPE = FATTN_BF16 };                                                                                       \
            call;                                                                                                              \
        } else if ((dtype) == FATTN_F16) {                                                                                     \
            enum { DTYPE = FATTN_F16 };                                                                                        \
            call;                                                                                                              \
        } else {                                                                                                               \
            enum { DTYPE = FATTN_I8 };                                                                                         \
            call;                                                                                                              \
        }                                                                                                                      \
    } while (0)

/* tanh(x) = x numerator / denominator for small x, z = x^2: the fifth convergent of Lambert's continued fraction
 * x / (1 + z / (3 + z / (5 + ...))), relative error 7e-10 up to 0.625. */
static inline vec tanh_numerator(vec z)
{
    return v_fma(z, v_add(z, v_set1(105)), v_set1(945));
}

static inline vec tanh_denominator(vec z)
{
    return v_fma(z, v_fma(z, v_set1(15), v_set1(420)), v_set1(945));
}

#endif
