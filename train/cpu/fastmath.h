/*
 * e^x for loops that the compiler can vectorise: no branches, no calls.
 *
 *     e^x = 2^n e^r,   n = round(x log2 e),   r = x - n ln 2 in [-0.35, 0.35]
 *
 * e^r is a polynomial of degree 6 (Taylor's: the remainder r^7/7! is below 1.3e-7 relative). n comes from adding 1.5 * 2^23,
 * which leaves it in the low bits of the sum. ln 2 is split in two so that n ln 2 is subtracted exactly. x is clamped to
 * [-87, 88], so the result is always a normal number. NaN gives NaN.
 */
#ifndef TRAIN_FASTMATH_H
#define TRAIN_FASTMATH_H

#include <stdint.h>
#include <string.h>

static inline float fast_exp(float x)
{
    const float shift = 12582912.0f; /* 1.5 * 2^23 */
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float shifted = x * 1.44269504f + shift;
    float n = shifted - shift;
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127u) << 23; /* shift's own bits leave at the top */
    float power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

/* 1 / (1 + e^-z) */
static inline float sigmoid(float z)
{
    return 1.0f / (1.0f + fast_exp(-z));
}

/* The largest of n >= 1 numbers. A loop over lanes, since compilers do not split a maximum by themselves. */
static inline float largest(const float *x, int64_t n)
{
    enum { LANES = 16 };
    float lanes[LANES];
    for (int j = 0; j < LANES; j++)
        lanes[j] = x[0];
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++)
            lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
    float most = lanes[0];
    for (int j = 1; j < LANES; j++)
        most = lanes[j] > most ? lanes[j] : most;
    for (; i < n; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

#endif
