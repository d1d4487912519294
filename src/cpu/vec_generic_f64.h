/* Words of the kernels in plain C with the compiler's vector types, double: 2 lanes. What each word means: tile.h. */
typedef double real;
typedef double vec __attribute__((vector_size(16)));
typedef int64_t vec_bits __attribute__((vector_size(16)));
#define VEC_FAMILY "cpu_generic"
#define VEC_NEEDS  0
#define LANES      2

/* Any 16-byte unit will do, and 16 registers: SSE2, NEON, VSX. */
#define TILE_ROWS  2
#define TILE_VECS  3
#define BLOCK_KEYS 128
#define GRAD_KEYS  64
#define SUM_LIMIT  1e60

/* The compiler's vector types are stored and loaded as they are; unaligned ones through a type that says so. */
typedef double vec_unaligned __attribute__((vector_size(16), aligned(8), may_alias));
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
    return (vec){x, x};
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
    return (vec)((vec_bits)a & INT64_MAX);
}

/* As with AVX2 (vec_avx2_f64.h): clamped, constants first; the magic number's low bits hold the exponent. */
static inline vec v_exp2(vec x)
{
    const vec magic = v_set1(6755399441055744.0 + 1023.0), top = v_set1(1023.0);
    x = v_max(v_set1(-1023.0), x);
    x = v_select(top < x, top, x);
    const vec n = x + magic;
    const vec f = x - (n - magic);
    const vec factor = (vec)((vec_bits)n << 52);
    vec p = v_set1(4.07807192958833667e-10);
    p = v_fma(p, f, v_set1(7.07257041281442351e-9));
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
    return p * factor;
}

static inline vec v_keep(vec s, vec key, vec lo, vec hi, real other)
{
    return v_select((key >= lo) & (key < hi), s, v_set1(other));
}

static inline bool v_any_above(vec a, vec limit)
{
    const vec_bits fine = a <= limit;
    return !(fine[0] & fine[1]);
}

static inline void v_transpose(vec r[LANES])
{
    const vec a = r[0], b = r[1];
    r[0] = (vec){a[0], b[0]};
    r[1] = (vec){a[1], b[1]};
}
