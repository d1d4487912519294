/* Words of the kernels for AVX2 with FMA, float: 8 lanes, 16 registers. What each word means: tile.h. */
#include <immintrin.h>

typedef float real;
typedef __m256 vec;
#define VEC_FAMILY    "cpu_avx2"
#define VEC_NEEDS     FATTN_CPU_AVX2
#define VEC_NEEDS_F16 FATTN_CPU_F16C
#define LANES         8

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
#define v_div(a, b)    _mm256_div_ps(a, b)
#define v_abs(a)       _mm256_andnot_ps(v_set1(-0.0f), a)

static inline vec v_if_less(vec a, vec b, vec yes, vec no)
{
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}

#define v_from_f16(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p)))
#define v_from_i8(p)  _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(p))))
#define v_to_f16(p, a)                                                                                                         \
    _mm_storeu_si128((__m128i *)(void *)(p), _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))

static inline vec v_from_bf16(const uint16_t *p)
{
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

static inline void v_to_bf16(uint16_t *p, vec a)
{
    const __m256i bits = _mm256_castps_si256(a), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i round = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const vec nan = _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
    const vec result = _mm256_blendv_ps(_mm256_castsi256_ps(round), _mm256_castsi256_ps(quiet), nan);
    const __m256i high = _mm256_srli_epi32(_mm256_castps_si256(result), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_castsi256_si128(packed));
}

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
