/*
 * Numbers of every type for tests, converted here again and not by the library's own code; tensors of them; and calls with
 * their workspace.
 */
#ifndef FATTN_TESTS_API_NUMBERS_H
#define FATTN_TESTS_API_NUMBERS_H

#include <math.h>

#include "api.h"

static inline size_t size_of(int32_t dtype)
{
    return dtype == FATTN_F64 ? 8 : dtype == FATTN_F32 ? 4 : dtype == FATTN_I8 ? 1 : 2;
}

/* The largest relative error of a number rounded to the type. */
static inline double roundoff(int32_t dtype)
{
    return dtype == FATTN_F64 ? 0x1p-53 : dtype == FATTN_F32 ? 0x1p-24 : dtype == FATTN_F16 ? 0x1p-11 : 0x1p-8;
}

static inline double half_number(uint16_t x)
{
    const int exponent = x >> 10 & 31, fraction = x & 1023;
    const double size = exponent == 0    ? ldexp(fraction, -24)
                        : exponent == 31 ? (fraction ? (double)NAN : (double)INFINITY)
                                         : ldexp(1024 + fraction, exponent - 25);
    return x & 0x8000 ? -size : size;
}

/* Towards zero; for numbers below 65536. */
static inline uint16_t half_of(double x)
{
    int exponent = 0;
    const double fraction = frexp(fabs(x), &exponent);
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    if (exponent < -13)
        return (uint16_t)(sign | (int)ldexp(fabs(x), 24));
    return (uint16_t)(sign | (exponent + 14) << 10 | ((int)ldexp(fraction, 11) & 1023));
}

static inline double get(const void *data, int32_t dtype, int64_t i)
{
    float f;
    uint32_t bits;
    switch (dtype) {
    case FATTN_F64:
        return ((const double *)data)[i];
    case FATTN_F32:
        return (double)((const float *)data)[i];
    case FATTN_F16:
        return half_number(((const uint16_t *)data)[i]);
    case FATTN_I8:
        return ((const int8_t *)data)[i];
    default:
        bits = (uint32_t)((const uint16_t *)data)[i] << 16;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    }
}

/* Stores a number near x: 16-bit types are cut off, not rounded. */
static inline void set(void *data, int32_t dtype, int64_t i, double x)
{
    const float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (dtype == FATTN_F64)
        ((double *)data)[i] = x;
    else if (dtype == FATTN_F32)
        ((float *)data)[i] = f;
    else if (dtype == FATTN_I8)
        ((int8_t *)data)[i] = (int8_t)x;
    else
        ((uint16_t *)data)[i] = dtype == FATTN_F16 ? half_of(x) : (uint16_t)(bits >> 16);
}

/* Room for `count` numbers, random ones in [-size, size) where seed is not 0, else poison. */
static inline void *make_numbers(int32_t dtype, int64_t count, uint64_t seed, double size)
{
    void *data = malloc((size_t)count * size_of(dtype) + 1);
    assert_non_null(data);
    memset(data, POISON, (size_t)count * size_of(dtype) + 1);
    for (int64_t i = 0; seed && i < count; i++)
        set(data, dtype, i, size * random_number(&seed));
    return data;
}

/* The same numbers as doubles. */
static inline double *as_doubles(const void *data, int32_t dtype, int64_t count)
{
    double *x = malloc(((size_t)count + 1) * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < count; i++)
        x[i] = get(data, dtype, i);
    return x;
}

static inline double worst_error(const void *data, int32_t dtype, const double *wanted, int64_t count)
{
    double worst = 0;
    for (int64_t i = 0; i < count; i++) {
        const double x = get(data, dtype, i);
        if (x != wanted[i] && !(fabs(x - wanted[i]) <= worst))
            worst = fabs(x - wanted[i]); /* a NaN stays, as nothing is smaller */
        if (isnan(worst))
            return (double)INFINITY;
    }
    return worst;
}

static inline void assert_ok(fattn_status status)
{
    if (status != FATTN_OK)
        print_error("%s: %s\n", fattn_status_name(status), fattn_last_error());
    assert_int_equal(status, FATTN_OK);
}

enum { LARGE = 0x5a }; /* bytes of large numbers, as floats and as doubles */

/* Calls that bring their own workspace, with numbers in it that nobody must use. */
static inline void run_forward(const fattn_context *context, const fattn_desc *desc, fattn_forward_args args)
{
    assert_ok(fattn_workspace_size(context, desc, FATTN_OP_FORWARD, &args.workspace_size));
    args.struct_size = sizeof args;
    args.workspace = malloc(args.workspace_size + 1);
    assert_non_null(args.workspace);
    memset(args.workspace, LARGE, args.workspace_size + 1);
    assert_ok(fattn_forward(context, desc, &args));
    free(args.workspace);
}

static inline void run_backward(const fattn_context *context, const fattn_desc *desc, fattn_backward_args args)
{
    assert_ok(fattn_workspace_size(context, desc, FATTN_OP_BACKWARD, &args.workspace_size));
    args.struct_size = sizeof args;
    args.workspace = malloc(args.workspace_size + 1);
    assert_non_null(args.workspace);
    memset(args.workspace, LARGE, args.workspace_size + 1);
    assert_ok(fattn_backward(context, desc, &args));
    free(args.workspace);
}

enum { KERNELS_MOST = 200 };

/* The names of all kernels here that can run this operation of a problem, whether they should or not. */
static inline int kernels_of(const fattn_desc *desc, fattn_op op, const char *name[KERNELS_MOST])
{
    fattn_context *context = make_context(1, "");
    fattn_kernel_info info = {.struct_size = sizeof info};
    int count = 0;
    for (int32_t i = 0; count < KERNELS_MOST && fattn_kernel_query(context, desc, op, i, &info) == FATTN_OK; i++)
        if (info.can_run)
            name[count++] = info.name; /* static */
    fattn_context_destroy(context);
    assert_true(count > 0 && count < KERNELS_MOST);
    return count;
}

/* A context that runs the n-th of these kernels forward and the n-th of those backward, counted around. */
static inline fattn_context *context_of_pair(const fattn_desc *desc, int n, int *pairs)
{
    const char *forward[KERNELS_MOST], *backward[KERNELS_MOST];
    char both[160];
    const int f = kernels_of(desc, FATTN_OP_FORWARD, forward), b = kernels_of(desc, FATTN_OP_BACKWARD, backward);
    *pairs = f > b ? f : b;
    snprintf(both, sizeof both, "%s,%s", forward[n % f], backward[n % b]);
    return make_context(2, both);
}

/* The call failed as wanted and says these words. */
static inline void assert_fails(fattn_status got, fattn_status wanted, const char *words)
{
    if (got != wanted || !strstr(fattn_last_error(), words))
        print_error("wanted %s about \"%s\", got %s: %s\n", fattn_status_name(wanted), words, fattn_status_name(got),
                    fattn_last_error());
    assert_int_equal(got, wanted);
    assert_non_null(strstr(fattn_last_error(), words));
    assert_null(strchr(fattn_last_error(), '\n'));
}

#endif
