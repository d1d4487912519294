/*
 * Softmax of rows and what may stand before and behind it, written once over vectors of VECTOR_BYTES; softmax_<isa>.c defines
 * that and SOFTMAX_WORDS, the name of the table. Three passes over a row: maximum, exponentials and their sum, division.
 *
 * exp(x) = 2^n exp(r), n = x / ln 2 rounded, |r| <= ln 2 / 2, and a polynomial of degree 6 for exp(r) (Cephes' expf, 2 ulp).
 * Less than the smallest normal number is 0, NaN stays NaN.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "composed/composed.h"

typedef float vec __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t ivec __attribute__((vector_size(VECTOR_BYTES)));
enum { LANES = VECTOR_BYTES / 4 };

static inline vec all(float x)
{
    return x - (vec){0};
}

static inline vec load(const float *x)
{
    vec v;
    memcpy(&v, x, sizeof v);
    return v;
}

static inline void store(float *x, vec v)
{
    memcpy(x, &v, sizeof v);
}

/* The last n < LANES numbers of a row; the other lanes are `rest`. */
static inline vec load_part(const float *x, int64_t n, float rest)
{
    vec v = all(rest);
    memcpy(&v, x, (size_t)n * sizeof *x);
    return v;
}

static inline void store_part(float *x, int64_t n, vec v)
{
    memcpy(x, &v, (size_t)n * sizeof *x);
}

static inline vec choose(ivec mask, vec yes, vec no)
{
    return (vec)((mask & (ivec)yes) | (~mask & (ivec)no));
}

static inline vec larger(vec a, vec b)
{
    return choose(a > b, a, b);
}

static inline vec exponential(vec x)
{
    const float low = -87.33654f, high = 88.37f, round = 12582912; /* 1.5 * 2^23: adding it leaves an integer in the low bits */
    const ivec below = x<all(low), above = x> all(high);
    const vec y = choose(below, all(low), choose(above, all(high), x));
    const vec shifted = y * 1.44269504f + round;
    const vec n = shifted - round;
    const vec r = (y - n * 0.693359375f) - n * -2.12194440e-4f;
    vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    const vec power = (vec)(((ivec)shifted << 23) + 0x3f800000);
    return choose(below, all(0), choose(above, all(INFINITY), p * power));
}

static inline float across_sum(vec v)
{
    float sum = v[0];
    for (int i = 1; i < LANES; i++)
        sum += v[i];
    return sum;
}

static float maximum(const float *s, int64_t n)
{
    vec m = all(-INFINITY);
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES)
        m = larger(load(s + j), m);
    if (j < n)
        m = larger(load_part(s + j, n - j, -INFINITY), m);
    float most = m[0];
    for (int i = 1; i < LANES; i++)
        most = m[i] > most ? m[i] : most;
    return most;
}

/* s = exp(s - shift); returns the sum. */
static float exponentials(float *s, int64_t n, float shift)
{
    vec sum = all(0);
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES) {
        const vec p = exponential(load(s + j) - shift);
        sum += p;
        store(s + j, p);
    }
    if (j < n) {
        const vec p = exponential(load_part(s + j, n - j, -INFINITY) - shift);
        store_part(s + j, n - j, p);
        sum += load_part(s + j, n - j, 0);
    }
    return across_sum(sum);
}

static bool all_minus_infinity(const float *s, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        if (s[j] != -(float)INFINITY)
            return false;
    return true;
}

static float softmax(float *s, int64_t n, float sink)
{
    float m = maximum(s, n);
    if (m == -(float)INFINITY && all_minus_infinity(s, n)) { /* not so for a row of NaN, which no comparison finds */
        memset(s, 0, (size_t)n * sizeof *s);
        return m;
    }
    const bool sinks = sink != -(float)INFINITY;
    if (sinks)
        m = m > sink ? m : sink;
    float sum = exponentials(s, n, m);
    if (sinks)
        sum += expf(sink - m);
    const float inverse = 1 / sum;
    for (int64_t j = 0; j < n; j++)
        s[j] *= inverse;
    return m + logf(sum);
}

static void probabilities(float *s, int64_t n, float lse)
{
    exponentials(s, n, lse);
}

static void gradient(float *dp, const float *p, int64_t n, float delta, float scale)
{
    for (int64_t j = 0; j < n; j++)
        dp[j] = p[j] * (dp[j] - delta) * scale;
}

/* ------------------------------------------------------------------------------------------------------------- scores */

/*
 * limit tanh(x / limit), and 1 - tanh^2. With e = exp(-2 |y|), y = x / limit: tanh |y| = (1 - e) / (1 + e), but for |y| < 5/8,
 * where that cancels, a polynomial (Cephes' tanhf); there x itself is its first term, so that a limit which makes y subnormal
 * does no harm. 1 - tanh^2 = 4 e / (1 + e)^2 cancels nowhere.
 */
static inline vec capped(vec x, float limit, vec *slope)
{
    const ivec sign = (ivec)all(-0.0f);
    const vec y = x / limit, size = (vec)((ivec)y & ~sign), z = y * y;
    const vec e = exponential(size * -2.0f);
    vec p = z * -5.70498872745e-3f + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    const vec large = (vec)((ivec)((1.0f - e) / (1.0f + e) * limit) | ((ivec)y & sign));
    *slope = 4.0f * e / ((1.0f + e) * (1.0f + e));
    return choose(size < all(0.625f), x + x * (p * z), large);
}

static void softcap(float *s, float *slope, int64_t n, float limit, float scale)
{
    const float positive = limit > FLT_MIN ? limit : FLT_MIN; /* a double's limit may be 0 as a float; so are results then */
    int64_t j = 0;
    vec derivative;
    for (; j + LANES <= n; j += LANES) {
        store(s + j, capped(load(s + j), positive, &derivative));
        if (slope)
            store(slope + j, derivative * scale);
    }
    if (j < n) {
        store_part(s + j, n - j, capped(load_part(s + j, n - j, 0), positive, &derivative));
        if (slope)
            store_part(slope + j, n - j, derivative * scale);
    }
}

/* Distances are exact where float can tell: |first - j| is formed from small numbers, or is large itself. */
static void alibi(float *s, int64_t n, float slope, int64_t first)
{
    for (int64_t start = 0; start < n; start += 1024) {
        const float from = (float)(first - start);
        const int32_t count = n - start < 1024 ? (int32_t)(n - start) : 1024;
        for (int32_t j = 0; j < count; j++)
            s[start + j] -= slope * fabsf(from - (float)j);
    }
}

static void add(float *a, const float *b, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        a[j] += b[j];
}

static void multiply(float *a, const float *b, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        a[j] *= b[j];
}

/* ------------------------------------------------------------------------------------------------------------ dropout */

static void dropout(float *m, const fattn_dropout *drop, int64_t bh, int64_t i, int64_t quad, int64_t quads, float kept)
{
    for (int64_t x = 0; x < quads; x++) {
        uint32_t word[FATTN_PHILOX_WORDS];
        fattn_philox(drop, (uint32_t)(quad + x), (uint32_t)i, (uint32_t)bh, word);
        for (int y = 0; y < FATTN_PHILOX_WORDS; y++)
            m[FATTN_PHILOX_WORDS * x + y] = word[y] >= drop->threshold ? kept : 0;
    }
}

const softmax_words SOFTMAX_WORDS = {softmax, probabilities, gradient, softcap, alibi, add, multiply, dropout};
