/* Words of the kernels for AVX-512, float: 16 lanes, 32 registers. What each word means: tile.h. */
#include <immintrin.h>

typedef float real;
typedef __m512 vec;
#define VEC_FAMILY    "cpu_avx512"
#define VEC_NEEDS     FATTN_CPU_AVX512
#define VEC_NEEDS_F16 0
#define LANES         16

/* 8 x 48: 24 accumulators, 3 vectors of B, and 11 loads per 24 FMAs. */
#define TILE_ROWS  8
#define TILE_VECS  3
#define BLOCK_KEYS 256
#define GRAD_KEYS  128
#define SUM_LIMIT  1e12f

#define v_load(p)      _mm512_load_ps(p)
#define v_loadu(p)     _mm512_loadu_ps(p)
#define v_store(p, a)  _mm512_store_ps(p, a)
#define v_storeu(p, a) _mm512_storeu_ps(p, a)
#define v_set1(x)      _mm512_set1_ps(x)
#define v_add(a, b)    _mm512_add_ps(a, b)
#define v_sub(a, b)    _mm512_sub_ps(a, b)
#define v_mul(a, b)    _mm512_mul_ps(a, b)
#define v_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define v_max(a, b)    _mm512_max_ps(a, b)
#define v_div(a, b)    _mm512_div_ps(a, b)
#define v_abs(a)       _mm512_abs_ps(a)

static inline vec v_if_less(vec a, vec b, vec yes, vec no)
{
    return _mm512_mask_mov_ps(no, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), yes);
}

#define v_from_f16(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(p)))
#define v_from_i8(p)  _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p))))
#define v_to_f16(p, a)                                                                                                         \
    _mm256_storeu_si256((__m256i *)(void *)(p), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))

static inline vec v_from_bf16(const uint16_t *p)
{
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

/* Not AVX512_BF16's conversion, which not every AVX-512 machine has. */
static inline void v_to_bf16(uint16_t *p, vec a)
{
    const __m512i bits = _mm512_castps_si512(a), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i round = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    const __m512i result = _mm512_mask_or_epi32(round, nan, bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(result, 16)));
}

/* 2^x = 2^floor(x) p(x - floor(x)): p is minimax on [0, 1) with p(0) = 1, relative error 8.3e-8. */
static inline vec v_exp2(vec x)
{
    const vec f = _mm512_reduce_ps(x, 1);
    vec p = v_fma(v_set1(1.8671300819e-3f), f, v_set1(9.0170302844e-3f));
    p = v_fma(p, f, v_set1(5.5799913146e-2f));
    p = v_fma(p, f, v_set1(2.4016445014e-1f));
    p = v_fma(p, f, v_set1(6.9315131181e-1f));
    p = v_fma(p, f, v_set1(1.0f));
    return _mm512_scalef_ps(p, x);
}

static inline vec v_keep(vec s, vec key, vec lo, vec hi, real other)
{
    const __mmask16 behind = _mm512_cmp_ps_mask(key, lo, _CMP_GE_OQ);
    const __mmask16 kept = _mm512_mask_cmp_ps_mask(behind, key, hi, _CMP_LT_OQ);
    return _mm512_mask_mov_ps(v_set1(other), kept, s);
}

static inline bool v_any_above(vec a, vec limit)
{
    return _mm512_cmp_ps_mask(a, limit, _CMP_NLE_UQ) != 0;
}

static inline void v_transpose(vec r[LANES])
{
    vec t[16];
    for (int i = 0; i < 16; i += 2) { /* pairs of rows */
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) { /* 4 x 4 blocks inside the 128-bit parts */
        const __m512d a = _mm512_castps_pd(t[i]), b = _mm512_castps_pd(t[i + 1]);
        const __m512d c = _mm512_castps_pd(t[i + 2]), d = _mm512_castps_pd(t[i + 3]);
        r[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        r[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        r[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        r[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    for (int i = 0; i < 4; i++) { /* the 128-bit parts themselves, a 4 x 4 transpose of parts */
        const vec p0 = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88), p1 = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        const vec p2 = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88), p3 = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
        t[i] = _mm512_shuffle_f32x4(p0, p2, 0x88);
        t[i + 8] = _mm512_shuffle_f32x4(p0, p2, 0xdd);
        t[i + 4] = _mm512_shuffle_f32x4(p1, p3, 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(p1, p3, 0xdd);
    }
    for (int i = 0; i < 16; i++)
        r[i] = t[i];
}
