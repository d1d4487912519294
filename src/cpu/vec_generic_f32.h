/* Words of the kernels in plain C with the compiler's vector types, float: 4 lanes. What each word means: tile.h. */
#include "core/convert.h"

typedef float real;
typedef float vec __attribute__((vector_size(16)));
typedef int32_t vec_bits __attribute__((vector_size(16)));
#define VEC_FAMILY    "cpu_generic"
#define VEC_NEEDS     0
#define VEC_NEEDS_F16 0
#define LANES         4

/* Any 16-byte unit will do, and 16 registers: SSE2, NEON, VSX. */
#define TILE_ROWS  4
#define TILE_VECS  2
#define BLOCK_KEYS 128
#define GRAD_KEYS  64
#define SUM_LIMIT  1e12f

/* The compiler's vector types are stored and loaded as they are; unaligned ones through a type that says so. */
typedef float vec_unaligned __attribute__((vector_size(16), aligned(4), may_alias));
#define v_load(p)      (*(const vec *)(p))
#define v_loadu(p)     ((vec) * (const vec_unaligned *)(p))
#define v_store(p, a)  (*(vec *)(p) = (a))
#define v_storeu(p, a) (*(vec_unaligned *)(p) = (vec_unaligned)(a))
#define v_add(a, b)    ((a) + (b))
#define v_sub(a, b)    ((a) - (b))
#define v_mul(a, b)    ((a) * (b))
#define v_div(a, b)    ((a) / (b))
#define v_fma(a, b, c) ((a) * (b) + (c)) /* one instruction where the target has it: the build allows contraction */

static inline vec v_set1(real x)
{
    return (vec){x, x, x, x};
}

/* Where the mask's lane is all ones a, else b. */
static inline vec v_select(vec_bits mask, vec a, vec b)
{
    return (vec)((mask & (vec_bits)a) | (~mask & (vec_bits)b));
}

static inline vec v_max(vec a, vec b)
{
    return v_select(a > b, a, b);
}

static inline vec v_if_less(vec a, vec b, vec yes, vec no)
{
    return v_select(a < b, yes, no);
}

static inline vec v_abs(vec a)
{
    return (vec)((vec_bits)a & 0x7fffffff);
}

static inline vec v_from_f16(const uint16_t *p)
{
    return (vec){fattn_from_f16(p[0]), fattn_from_f16(p[1]), fattn_from_f16(p[2]), fattn_from_f16(p[3])};
}

static inline vec v_from_bf16(const uint16_t *p)
{
    return (vec){fattn_from_bf16(p[0]), fattn_from_bf16(p[1]), fattn_from_bf16(p[2]), fattn_from_bf16(p[3])};
}

static inline vec v_from_i8(const int8_t *p)
{
    return (vec){p[0], p[1], p[2], p[3]};
}

static inline void v_to_f16(uint16_t *p, vec a)
{
    for (int l = 0; l < LANES; l++)
        p[l] = fattn_to_f16(a[l]);
}

static inline void v_to_bf16(uint16_t *p, vec a)
{
    for (int l = 0; l < LANES; l++)
        p[l] = fattn_to_bf16(a[l]);
}

/* As with AVX2 (vec_avx2_f32.h): clamped, constants first; the magic number's low bits hold the exponent. */
static inline vec v_exp2(vec x)
{
    const vec magic = v_set1(12582912.0f + 127.0f), top = v_set1(127.0f);
    x = v_max(v_set1(-127.0f), x);
    x = v_select(top < x, top, x);
    const vec n = x + magic;
    const vec f = x - (n - magic);
    const vec factor = (vec)((vec_bits)n << 23);
    vec p = v_set1(1.5594678161e-4f);
    p = v_fma(p, f, v_set1(1.3406643902e-3f));
    p = v_fma(p, f, v_set1(9.617692973e-3f));
    p = v_fma(p, f, v_set1(5.550310551e-2f));
    p = v_fma(p, f, v_set1(2.4022652783e-1f));
    p = v_fma(p, f, v_set1(6.9314721497e-1f));
    p = v_fma(p, f, v_set1(1.0f));
    return p * factor;
}

static inline vec v_keep(vec s, vec key, vec lo, vec hi, real other)
{
    return v_select((key >= lo) & (key < hi), s, v_set1(other));
}

static inline bool v_any_above(vec a, vec limit)
{
    const vec_bits fine = a <= limit;
    return !(fine[0] & fine[1] & fine[2] & fine[3]);
}

static inline void v_transpose(vec r[LANES])
{
    const vec a = r[0], b = r[1], c = r[2], d = r[3];
    r[0] = (vec){a[0], b[0], c[0], d[0]};
    r[1] = (vec){a[1], b[1], c[1], d[1]};
    r[2] = (vec){a[2], b[2], c[2], d[2]};
    r[3] = (vec){a[3], b[3], c[3], d[3]};
}
