/* What depends on the type and not on the instruction set, double: rows are of no other type. The names' meaning: type_f32.h.
 */
#ifndef FATTN_CPU_TYPE_H
#define FATTN_CPU_TYPE_H

#include "compiler.h"
#include "core/convert.h"

#define REAL_DTYPE FATTN_F64

static void widen(real *to, const void *from, int32_t dtype, int64_t n, real factor)
{
    (void)dtype, (void)factor;
    memcpy(to, from, (size_t)n * sizeof *to);
}

static void narrow(void *to, int32_t dtype, const real *from, int64_t n)
{
    (void)dtype;
    memcpy(to, from, (size_t)n * sizeof *from);
}

INLINE vec load_numbers(const int32_t dtype, const void *row, int64_t d)
{
    (void)dtype;
    return v_loadu((const double *)row + d);
}

#define WITH_DTYPE(dtype, call)                                                                                                \
    do {                                                                                                                       \
        enum { DTYPE = FATTN_F64 };                                                                                            \
        (void)(dtype);                                                                                                         \
        call;                                                                                                                  \
    } while (0)

/* The eighth convergent: relative error 6e-18 up to 0.625. */
static inline vec tanh_numerator(vec z)
{
    return v_fma(z, v_fma(z, v_fma(z, v_set1(36), v_set1(6930)), v_set1(270270)), v_set1(2027025));
}

static inline vec tanh_denominator(vec z)
{
    const vec high = v_fma(z, v_add(z, v_set1(630)), v_set1(51975));
    return v_fma(z, v_fma(z, high, v_set1(945945)), v_set1(2027025));
}

#endif
