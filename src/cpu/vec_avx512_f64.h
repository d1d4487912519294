/* Words of the kernels for AVX-512, double: 8 lanes, 32 registers. What each word means: tile.h. */
#include <immintrin.h>

typedef double real;
typedef __m512d vec;
#define VEC_FAMILY "cpu_avx512"
#define VEC_NEEDS  FATTN_CPU_AVX512
#define LANES      8

#define TILE_ROWS  8
#define TILE_VECS  3
#define BLOCK_KEYS 128
#define GRAD_KEYS  64
#define SUM_LIMIT  1e60

#define v_load(p)      _mm512_load_pd(p)
#define v_loadu(p)     _mm512_loadu_pd(p)
#define v_store(p, a)  _mm512_store_pd(p, a)
#define v_storeu(p, a) _mm512_storeu_pd(p, a)
#define v_set1(x)      _mm512_set1_pd(x)
#define v_add(a, b)    _mm512_add_pd(a, b)
#define v_sub(a, b)    _mm512_sub_pd(a, b)
#define v_mul(a, b)    _mm512_mul_pd(a, b)
#define v_fma(a, b, c) _mm512_fmadd_pd(a, b, c)
#define v_max(a, b)    _mm512_max_pd(a, b)
#define v_div(a, b)    _mm512_div_pd(a, b)
#define v_abs(a)       _mm512_abs_pd(a)

static inline vec v_if_less(vec a, vec b, vec yes, vec no)
{
    return _mm512_mask_mov_pd(no, _mm512_cmp_pd_mask(a, b, _CMP_LT_OQ), yes);
}

/* As in float; degree 11, relative error 3.2e-18 before rounding. */
static inline vec v_exp2(vec x)
{
    const vec f = _mm512_reduce_pd(x, 1);
    vec p = v_fma(v_set1(6.26346527342259027e-10), f, v_set1(6.55952983551727122e-9));
    p = v_fma(p, f, v_set1(1.025321230405209e-7));
    p = v_fma(p, f, v_set1(1.32083673082200493e-6));
    p = v_fma(p, f, v_set1(1.52531750537952462e-5));
    p = v_fma(p, f, v_set1(1.54035123097339487e-4));
    p = v_fma(p, f, v_set1(1.33335586295626759e-3));
    p = v_fma(p, f, v_set1(9.61812909955089561e-3));
    p = v_fma(p, f, v_set1(5.55041086656022387e-2));
    p = v_fma(p, f, v_set1(2.40226506959063303e-1));
    p = v_fma(p, f, v_set1(6.93147180559945928e-1));
    p = v_fma(p, f, v_set1(1.0));
    return _mm512_scalef_pd(p, x);
}

static inline vec v_keep(vec s, vec key, vec lo, vec hi, real other)
{
    const __mmask8 behind = _mm512_cmp_pd_mask(key, lo, _CMP_GE_OQ);
    const __mmask8 kept = _mm512_mask_cmp_pd_mask(behind, key, hi, _CMP_LT_OQ);
    return _mm512_mask_mov_pd(v_set1(other), kept, s);
}

static inline bool v_any_above(vec a, vec limit)
{
    return _mm512_cmp_pd_mask(a, limit, _CMP_NLE_UQ) != 0;
}

static inline void v_transpose(vec r[LANES])
{
    vec t[8];
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm512_unpacklo_pd(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_pd(r[i], r[i + 1]);
    }
    for (int i = 0; i < 2; i++) { /* now 128-bit parts: a 4 x 4 transpose of parts, once for even rows and once for odd */
        const vec p0 = _mm512_shuffle_f64x2(t[i], t[i + 2], 0x88), p1 = _mm512_shuffle_f64x2(t[i], t[i + 2], 0xdd);
        const vec p2 = _mm512_shuffle_f64x2(t[i + 4], t[i + 6], 0x88), p3 = _mm512_shuffle_f64x2(t[i + 4], t[i + 6], 0xdd);
        r[i] = _mm512_shuffle_f64x2(p0, p2, 0x88);
        r[i + 4] = _mm512_shuffle_f64x2(p0, p2, 0xdd);
        r[i + 2] = _mm512_shuffle_f64x2(p1, p3, 0x88);
        r[i + 6] = _mm512_shuffle_f64x2(p1, p3, 0xdd);
    }
}
