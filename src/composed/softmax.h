/*
 * Softmax of rows, written once over vectors of VECTOR_BYTES; softmax_<isa>.c defines that and SOFTMAX_WORDS, the name of the
 * table. Three passes over a row: maximum, exponentials and their sum, division.
 *
 * exp(x) = 2^n exp(r), n = x / ln 2 rounded, |r| <= ln 2 / 2, and a polynomial of degree 6 for exp(r) (Cephes' expf, 2 ulp).
 * Less than the smallest normal number is 0, NaN stays NaN.
 */
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

static float softmax(float *s, int64_t n)
{
    const float m = maximum(s, n);
    if (m == -(float)INFINITY && all_minus_infinity(s, n)) { /* not so for a row of NaN, which no comparison finds */
        memset(s, 0, (size_t)n * sizeof *s);
        return m;
    }
    const float sum = exponentials(s, n, m);
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

const softmax_words SOFTMAX_WORDS = {softmax, probabilities, gradient};
