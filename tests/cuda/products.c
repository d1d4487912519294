/*
 * Products that are large enough for their algorithm to be tried out: against the CPU's in f32, in every layout and type; and
 * whatever was taken, even the slowest of those that may be, and whatever numbers the first call had, the bits are those of
 * the first algorithm. The trying adds nothing to what is added to.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/trainers_gpu.h"
#include "train/cpu/numbers.h"
#include "train/cuda/product.h"
#include "train/error.h"

typedef struct shape {
    int64_t m, n, k;
} shape;

/* Rows of whole pieces of 16 bytes, and of none; more than TUNED_FROM. */
static const shape shapes[] = {{1536, 1288, 1032}, {1537, 1291, 1033}};

/* What is done with the result, as in the trainer: written, added to what is there, added to it elsewhere. */
typedef enum sum_kind { WRITTEN, IN_PLACE, ELSEWHERE, SUM_KINDS } sum_kind;
/* Not tried; tried; as many are remembered as can be. */
typedef enum choice { FIRST, FASTEST, SLOWEST, FULL, CHOICES } choice;
enum { A, B, D, C, MATRICES };

typedef struct problem {
    number_type type, c_type;
    sum_kind sum;
    product_call call;       /* of the GPU's memory */
    int64_t count[MATRICES]; /* numbers */
    float *host[MATRICES];   /* as floats; C: the truth */
    void *there[MATRICES];   /* IN_PLACE: C is D */
} problem;

/* The same numbers again and again, as drawing that many would take the time of the test. */
static float *numbers_of(int64_t count, int64_t from, number_type type)
{
    enum { DRAWN = 1000003 };
    static float drawn[DRAWN];
    float *numbers = malloc((size_t)count * sizeof *numbers);
    assert_non_null(numbers);
    if (drawn[0] == 0)
        fill_normal(drawn, DRAWN, 0, 1, 20);
    for (int64_t i = 0; i < count; i++) {
        const float x = drawn[(from + i) % DRAWN];
        numbers[i] = type == NUMBER_BF16 ? widen(round_bf16(x)) : x;
    }
    return numbers;
}

/* Sets numbers of a type in the GPU's memory. */
static void put(void *there, const float *numbers, int64_t count, number_type type)
{
    device *d = gpu[0].device;
    const size_t bytes = (size_t)count * number_bytes(type);
    uint16_t *narrow = malloc((size_t)count * sizeof *narrow);
    assert_non_null(narrow);
    for (int64_t i = 0; i < count && type == NUMBER_BF16; i++)
        narrow[i] = round_bf16(numbers[i]);
    require(d->run->put(d, there, type == NUMBER_BF16 ? (const void *)narrow : numbers, bytes));
    free(narrow);
}

static void make(problem *p, const shape *s, bool transpose_a, bool transpose_b)
{
    device *d = gpu[0].device;
    const int64_t counts[MATRICES] = {s->m * s->k, s->n * s->k, s->m * s->n, s->m * s->n};
    for (int i = 0; i < MATRICES; i++) {
        p->count[i] = counts[i];
        p->host[i] = numbers_of(counts[i], 1000 * i, i < D ? p->type : p->c_type);
        p->there[i] = i == C && p->sum == IN_PLACE ? p->there[D] : d->run->allocate(d, (size_t)counts[i] * sizeof(float));
        require(p->there[i]);
    }
    p->call = (product_call){.transpose_a = transpose_a,
                             .transpose_b = transpose_b,
                             .type = p->type,
                             .c_type = p->c_type,
                             .m = s->m,
                             .n = s->n,
                             .k = s->k,
                             .a = p->there[A],
                             .b = p->there[B],
                             .from = p->sum == ELSEWHERE ? p->there[D] : NULL,
                             .c = p->there[C],
                             .lda = transpose_a ? s->m : s->k,
                             .ldb = transpose_b ? s->k : s->n,
                             .ldc = s->n,
                             .beta = p->sum != WRITTEN};
}

static void discard(problem *p)
{
    device *d = gpu[0].device;
    for (int i = 0; i < MATRICES; i++) {
        if (i != C || p->sum != IN_PLACE)
            d->run->release(d, p->there[i]);
        free(p->host[i]);
    }
}

/* The product of the real numbers, by an algorithm that is found while A is zero and what is added to is not. */
static void *result_of(problem *p, choice taken, cublasLtMatmulAlgo_t *algorithm)
{
    device *d = gpu[0].device;
    products *tried = products_of(d);
    const size_t bytes = (size_t)p->count[C] * number_bytes(p->c_type);
    void *out = malloc(bytes);
    assert_non_null(out);
    products_forget(tried);
    tried->from = taken == FIRST ? (double)INFINITY : TUNED_FROM;
    tried->slowest = taken == SLOWEST;
    if (taken == FULL) {
        memset(tried->tuned, 0, TUNED_MOST * sizeof *tried->tuned);
        tried->tuned_count = TUNED_MOST;
    }
    const int known = tried->tuned_count;
    require(d->run->fill(d, p->there[A], 0, (size_t)p->count[A] * number_bytes(p->type)));
    put(p->there[B], p->host[B], p->count[B], p->type);
    put(p->there[D], p->host[D], p->count[D], p->c_type);
    require(d->run->product(d, &p->call));
    assert_int_equal(tried->tuned_count - known, taken == FASTEST || taken == SLOWEST);
    put(p->there[A], p->host[A], p->count[A], p->type);
    require(d->run->product(d, &p->call));
    require(d->run->get(d, out, p->there[C], bytes));
    *algorithm = tried->tuned->plan.algorithm;
    tried->from = TUNED_FROM;
    tried->slowest = false;
    products_forget(tried);
    return out;
}

static void compare_truth(problem *p, const void *out)
{
    float *got = malloc((size_t)p->count[C] * sizeof *got);
    product_call c = p->call;
    assert_non_null(got);
    for (int64_t i = 0; i < p->count[C]; i++)
        got[i] = p->c_type == NUMBER_BF16 ? widen(((const uint16_t *)out)[i]) : ((const float *)out)[i];
    c.type = c.c_type = NUMBER_F32;
    c.a = p->host[A], c.b = p->host[B], c.c = p->host[C], c.from = NULL;
    memcpy(p->host[C], p->host[D], (size_t)p->count[C] * sizeof *got);
    require(device_cpu()->run->product(device_cpu(), &c));
    char name[100];
    snprintf(name, sizeof name, "%s product to %s, sum %d, transposed %d%d, of %lld", p->type == NUMBER_BF16 ? "bf16" : "f32",
             p->c_type == NUMBER_BF16 ? "bf16" : "f32", p->sum, c.transpose_a, c.transpose_b, (long long)c.m);
    /* Half a unit of bf16's last place; where parts along k are added in the end, the product is rounded before it is added. */
    check_error(name, error_ff(got, p->host[C], p->count[C]), p->c_type == NUMBER_F32 ? 1e-5 : p->sum == WRITTEN ? 4e-3 : 8e-3);
    free(got);
}

/* Returns whether there was another algorithm than the first to be taken. */
static bool try_problem(problem *p, const shape *s, bool transpose_a, bool transpose_b)
{
    cublasLtMatmulAlgo_t algorithm[CHOICES];
    void *out[CHOICES];
    make(p, s, transpose_a, transpose_b);
    for (int c = FIRST; c < CHOICES; c++)
        out[c] = result_of(p, (choice)c, &algorithm[c]);
    for (int c = FASTEST; c < CHOICES; c++)
        assert_memory_equal(out[c], out[FIRST], (size_t)p->count[C] * number_bytes(p->c_type));
    compare_truth(p, out[FIRST]);
    for (int c = FIRST; c < CHOICES; c++)
        free(out[c]);
    discard(p);
    return memcmp(&algorithm[FASTEST], &algorithm[SLOWEST], sizeof algorithm[SLOWEST]) != 0;
}

static void large_products(void **state)
{
    (void)state;
    need_gpu();
    int count = 0, others = 0;
    static const number_type types[][2] = {{NUMBER_F32, NUMBER_F32}, {NUMBER_BF16, NUMBER_F32}, {NUMBER_BF16, NUMBER_BF16}};
    for (int type = 0; type < 3; type++)
        for (int sum = WRITTEN; sum < SUM_KINDS; sum++)
            for (int layout = 0; layout < 4; layout++) {
                problem p = {.type = types[type][0], .c_type = types[type][1], .sum = (sum_kind)sum};
                others += try_problem(&p, &shapes[(type + sum + layout) % 2], layout & 1, layout & 2);
                count++;
            }
    printf("%d of %d products: several algorithms with the bits of the first\n", others, count);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(large_products)};
    return cmocka_run_group_tests_name("large products on a GPU", tests, open_gpu, close_gpu);
}
