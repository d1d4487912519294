/* Words of the kernels for AVX2 with FMA, double: 4 lanes, 16 registers. What each word means: tile.h. */
#include <immintrin.h>

typedef double real;
typedef __m256d vec;
#define VEC_FAMILY "cpu_avx2"
#define VEC_NEEDS  FATTN_CPU_AVX2
#define LANES      4

#define TILE_ROWS  4
#define TILE_VECS  3
#define BLOCK_KEYS 128
#define GRAD_KEYS  64
#define SUM_LIMIT  1e60

#define v_load(p)      _mm256_load_pd(p)
#define v_loadu(p)     _mm256_loadu_pd(p)
#define v_store(p, a)  _mm256_store_pd(p, a)
#define v_storeu(p, a) _mm256_storeu_pd(p, a)
#define v_set1(x)      _mm256_set1_pd(x)
#define v_add(a, b)    _mm256_add_pd(a, b)
#define v_sub(a, b)    _mm256_sub_pd(a, b)
#define v_mul(a, b)    _mm256_mul_pd(a, b)
#define v_fma(a, b, c) _mm256_fmadd_pd(a, b, c)
#define v_max(a, b)    _mm256_max_pd(a, b)
#define v_div(a, b)    _mm256_div_pd(a, b)
#define v_abs(a)       _mm256_andnot_pd(v_set1(-0.0), a)

static inline vec v_if_less(vec a, vec b, vec yes, vec no)
{
    return _mm256_blendv_pd(no, yes, _mm256_cmp_pd(a, b, _CMP_LT_OQ));
}

/* As in float; degree 11, relative error 1.8e-17 before rounding. */
static inline vec v_exp2(vec x)
{
    const vec magic = v_set1(6755399441055744.0 + 1023.0);
    x = _mm256_max_pd(v_set1(-1023.0), x);
    x = _mm256_min_pd(v_set1(1023.0), x);
    const vec n = v_add(x, magic);
    const vec f = v_sub(x, v_sub(n, magic));
    const vec factor = _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_castpd_si256(n), 52));
    vec p = v_fma(v_set1(4.07807192958833667e-10), f, v_set1(7.07257041281442351e-9));
    p = v_fma(p, f, v_set1(1.01806476592341389e-7));
    p = v_fma(p, f, v_set1(1.32154426753298221e-6));
    p = v_fma(p, f, v_set1(1.52527273851938682e-5));
    p = v_fma(p, f, v_set1(1.54035304415721303e-4));
    p = v_fma(p, f, v_set1(1.33335581534399647e-3));
    p = v_fma(p, f, v_set1(9.61812910760700238e-3));
    p = v_fma(p, f, v_set1(5.55041086647903946e-2));
    p = v_fma(p, f, v_set1(2.40226506959100980e-1));
    p = v_fma(p, f, v_set1(6.93147180559945697e-1));
    p = v_fma(p, f, v_set1(1.0));
    return v_mul(p, factor);
}

static inline vec v_keep(vec s, vec key, vec lo, vec hi, real other)
{
    const vec kept = _mm256_and_pd(_mm256_cmp_pd(key, lo, _CMP_GE_OQ), _mm256_cmp_pd(key, hi, _CMP_LT_OQ));
    return _mm256_blendv_pd(v_set1(other), s, kept);
}

static inline bool v_any_above(vec a, vec limit)
{
    return _mm256_movemask_pd(_mm256_cmp_pd(a, limit, _CMP_NLE_UQ)) != 0;
}

static inline void v_transpose(vec r[LANES])
{
    const vec t0 = _mm256_unpacklo_pd(r[0], r[1]), t1 = _mm256_unpackhi_pd(r[0], r[1]);
    const vec t2 = _mm256_unpacklo_pd(r[2], r[3]), t3 = _mm256_unpackhi_pd(r[2], r[3]);
    r[0] = _mm256_permute2f128_pd(t0, t2, 0x20);
    r[1] = _mm256_permute2f128_pd(t1, t3, 0x20);
    r[2] = _mm256_permute2f128_pd(t0, t2, 0x31);
    r[3] = _mm256_permute2f128_pd(t1, t3, 0x31);
}
