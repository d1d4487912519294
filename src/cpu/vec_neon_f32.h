/* Words of the kernels for NEON, float: 4 lanes, 32 registers. What each word means: tile.h. */
#include <arm_neon.h>
#include <string.h>

typedef float real;
typedef float32x4_t vec;
#define VEC_FAMILY    "cpu_neon"
#define VEC_NEEDS     0 /* every aarch64 processor has it, with the conversions of halves */
#define VEC_NEEDS_F16 0
#define LANES         4

/* 4 x 12: twelve accumulators hide a latency of up to 6 cycles at two FMAs a cycle. Compilers multiply by an element of a
 * register, so that a broadcast is a scalar load and no more. */
#define TILE_ROWS  4
#define TILE_VECS  3
#define BLOCK_KEYS 256
#define GRAD_KEYS  128
#define SUM_LIMIT  1e12f

#define v_load(p)      vld1q_f32(p)
#define v_loadu(p)     vld1q_f32(p)
#define v_store(p, a)  vst1q_f32(p, a)
#define v_storeu(p, a) vst1q_f32(p, a)
#define v_set1(x)      vdupq_n_f32(x)
#define v_add(a, b)    vaddq_f32(a, b)
#define v_sub(a, b)    vsubq_f32(a, b)
#define v_mul(a, b)    vmulq_f32(a, b)
#define v_div(a, b)    vdivq_f32(a, b)
#define v_abs(a)       vabsq_f32(a)
#define v_fma(a, b, c) vfmaq_f32(c, a, b)

/* The comparison is false for NaN, so `no` it is. */
static inline vec v_if_less(vec a, vec b, vec yes, vec no)
{
    return vbslq_f32(vcltq_f32(a, b), yes, no);
}

/* Not FMAX, which makes a NaN of either NaN, nor FMAXNM, which drops a NaN on either side. */
static inline vec v_max(vec a, vec b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

/* The method and the polynomial of vec_avx2_f32.h. FMAX and FMIN keep NaNs on either side, so the clamp may use them. */
static inline vec v_exp2(vec x)
{
    const vec magic = v_set1(12582912.0f + 127.0f);
    x = vminq_f32(vmaxq_f32(x, v_set1(-127.0f)), v_set1(127.0f));
    const vec n = v_add(x, magic);
    const vec f = v_sub(x, v_sub(n, magic));
    const vec factor = vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(n), 23));
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
    return vbslq_f32(vandq_u32(vcgeq_f32(key, lo), vcltq_f32(key, hi)), s, v_set1(other));
}

static inline bool v_any_above(vec a, vec limit)
{
    return vminvq_u32(vcleq_f32(a, limit)) == 0;
}

static inline void v_transpose(vec r[LANES])
{
    const float64x2_t a = vreinterpretq_f64_f32(vtrn1q_f32(r[0], r[1])), b = vreinterpretq_f64_f32(vtrn2q_f32(r[0], r[1]));
    const float64x2_t c = vreinterpretq_f64_f32(vtrn1q_f32(r[2], r[3])), d = vreinterpretq_f64_f32(vtrn2q_f32(r[2], r[3]));
    r[0] = vreinterpretq_f32_f64(vtrn1q_f64(a, c));
    r[1] = vreinterpretq_f32_f64(vtrn1q_f64(b, d));
    r[2] = vreinterpretq_f32_f64(vtrn2q_f64(a, c));
    r[3] = vreinterpretq_f32_f64(vtrn2q_f64(b, d));
}

/* FCVTL and FCVTN obey neither FZ nor FZ16 on the side of the half: its subnormals are exact both ways. */
static inline vec v_from_f16(const uint16_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}

static inline void v_to_f16(uint16_t *p, vec a)
{
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a)));
}

static inline vec v_from_bf16(const uint16_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}

/* In integers, because BFCVTN is an extension. Adding 7fff, and 1 where the last bit that stays is odd, rounds to nearest even
 * and carries into the exponent, up to infinity. A NaN could carry into the sign: it loses its low bits and becomes quiet. */
static inline void v_to_bf16(uint16_t *p, vec a)
{
    const uint32x4_t bits = vreinterpretq_u32_f32(a), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    vst1_u16(p, vshrn_n_u32(vbslq_u32(vceqq_f32(a, a), rounded, quiet), 16));
}

static inline vec v_from_i8(const int8_t *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four))))));
}
