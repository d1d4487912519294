/* Words of the kernels for AVX2 with FMA, float: 8 lanes, 16 registers. What each word means: tile.h. */
#include <immintrin.h>

typedef float real;
typedef __m256 vec;
#define VEC_FAMILY "cpu_avx2"
#define VEC_TYPE   "f32"
#define VEC_DTYPE  FATTN_F32
#define VEC_NEEDS  FATTN_CPU_AVX2
#define LANES      8

/* 4 x 24: twelve accumulators hide FMA's latency, three vectors of B and one broadcast fill the 16 registers. */
#define TILE_ROWS  4
#define TILE_VECS  3
#define BLOCK_KEYS 256
#define GRAD_KEYS  128
#define SUM_LIMIT  1e12f

#define v_load(p)      _mm256_load_ps(p)
#define v_loadu(p)     _mm256_loadu_ps(p)
#define v_store(p, a)  _mm256_store_ps(p, a)
#define v_storeu(p, a) _mm256_storeu_ps(p, a)
#define v_set1(x)      _mm256_set1_ps(x)
#define v_add(a, b)    _mm256_add_ps(a, b)
#define v_sub(a, b)    _mm256_sub_ps(a, b)
#define v_mul(a, b)    _mm256_mul_ps(a, b)
#define v_fma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define v_max(a, b)    _mm256_max_ps(a, b)

/* 2^x = 2^n p(x - n), n the nearest integer: p is minimax on [-1/2, 1/2] with p(0) = 1, relative error 2.6e-9. x is clamped
 * to [-127, 127], the constant first, so that a NaN stays; adding 1.5 2^23 + 127 leaves n + 127 in the low bits, which
 * shifted are the factor 2^n, exactly 0 for n = -127. The product, unlike an addition to p's exponent, keeps NaNs. */
static inline vec v_exp2(vec x)
{
    const vec magic = v_set1(12582912.0f + 127.0f);
    x = _mm256_max_ps(v_set1(-127.0f), x);
    x = _mm256_min_ps(v_set1(127.0f), x);
    const vec n = v_add(x, magic);
    const vec f = v_sub(x, v_sub(n, magic));
    const vec factor = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(n), 23));
    vec p = v_fma(v_set1(1.5594678161e-4f), f, v_set1(1.3406643902e-3f));
    p = v_fma(p, f, v_set1(9.617692973e-3f));
    p = v_fma(p, f, v_set1(5.550310551e-2f));
    p = v_fma(p, f, v_set1(2.4022652783e-1f));
    p = v_fma(p, f, v_set1(6.9314721497e-1f));
    p = v_fma(p, f, v_set1(1.0f));
    return v_mul(p, factor);
}

static inline vec v_keep(vec s, vec key, vec lo, vec hi, real other)
{
    const vec kept = _mm256_and_ps(_mm256_cmp_ps(key, lo, _CMP_GE_OQ), _mm256_cmp_ps(key, hi, _CMP_LT_OQ));
    return _mm256_blendv_ps(v_set1(other), s, kept);
}

static inline bool v_any_above(vec a, vec limit)
{
    return _mm256_movemask_ps(_mm256_cmp_ps(a, limit, _CMP_NLE_UQ)) != 0;
}

static inline void v_transpose(vec r[LANES])
{
    vec t[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
        t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    }
    for (int i = 0; i < 8; i++)
        r[i] = t[i];
}
