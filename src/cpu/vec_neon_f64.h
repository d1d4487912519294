/* Words of the kernels for NEON, double: 2 lanes, 32 registers. What each word means: tile.h. */
#include <arm_neon.h>

typedef double real;
typedef float64x2_t vec;
#define VEC_FAMILY "cpu_neon"
#define VEC_NEEDS  0 /* every aarch64 processor has it */
#define LANES      2

/* 2 x 6: no more, because TILE_ROWS divides LANES. Six accumulators hide a latency of 3 cycles at two FMAs a cycle. */
#define TILE_ROWS  2
#define TILE_VECS  3
#define BLOCK_KEYS 128
#define GRAD_KEYS  64
#define SUM_LIMIT  1e60

#define v_load(p)      vld1q_f64(p)
#define v_loadu(p)     vld1q_f64(p)
#define v_store(p, a)  vst1q_f64(p, a)
#define v_storeu(p, a) vst1q_f64(p, a)
#define v_set1(x)      vdupq_n_f64(x)
#define v_add(a, b)    vaddq_f64(a, b)
#define v_sub(a, b)    vsubq_f64(a, b)
#define v_mul(a, b)    vmulq_f64(a, b)
#define v_div(a, b)    vdivq_f64(a, b)
#define v_abs(a)       vabsq_f64(a)
#define v_fma(a, b, c) vfmaq_f64(c, a, b)

/* The comparison is false for NaN, so `no` it is. */
static inline vec v_if_less(vec a, vec b, vec yes, vec no)
{
    return vbslq_f64(vcltq_f64(a, b), yes, no);
}

/* Not FMAX, which makes a NaN of either NaN, nor FMAXNM, which drops a NaN on either side. */
static inline vec v_max(vec a, vec b)
{
    return vbslq_f64(vcgtq_f64(a, b), a, b);
}

/* The method and the polynomial of vec_avx2_f64.h. FMAX and FMIN keep NaNs on either side, so the clamp may use them. */
static inline vec v_exp2(vec x)
{
    const vec magic = v_set1(6755399441055744.0 + 1023.0);
    x = vminq_f64(vmaxq_f64(x, v_set1(-1023.0)), v_set1(1023.0));
    const vec n = v_add(x, magic);
    const vec f = v_sub(x, v_sub(n, magic));
    const vec factor = vreinterpretq_f64_u64(vshlq_n_u64(vreinterpretq_u64_f64(n), 52));
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
    return vbslq_f64(vandq_u64(vcgeq_f64(key, lo), vcltq_f64(key, hi)), s, v_set1(other));
}

static inline bool v_any_above(vec a, vec limit)
{
    return vminvq_u32(vreinterpretq_u32_u64(vcleq_f64(a, limit))) == 0;
}

static inline void v_transpose(vec r[LANES])
{
    const vec a = r[0], b = r[1];
    r[0] = vtrn1q_f64(a, b);
    r[1] = vtrn2q_f64(a, b);
}
