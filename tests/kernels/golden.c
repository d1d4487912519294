/*
 * The library against PyTorch's attention in double (tools/golden_attention.py): every kernel that can, in every type that
 * holds a case's inputs, forward and backward. Each case runs as it is, with odd strides, packed, and packed with unused rows
 * between the sequences. Backward is given the golden out and lse.
 *
 * Tolerances are truth.h's: what rounding of each step comes to at worst in the type's arithmetic (float for 16 bits), plus
 * half a unit in the last place of the result's type. The plain loops of truth.c themselves must agree to 1e-12.
 */
#include "placed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/error.h"
#include "train/safetensors.h"

enum { FIRST_CASES = 10, CASES = 42 }; /* the first have inputs of 24 bits, the others of 8 */

static char tensor_name[64];

static const safetensors_tensor *find(const safetensors_file *f, int number, const char *name)
{
    snprintf(tensor_name, sizeof tensor_name, "%d.%s", number, name);
    return safetensors_find(f, tensor_name);
}

static const safetensors_tensor *need(const safetensors_file *f, int number, const char *name, safetensors_dtype dtype)
{
    const safetensors_tensor *t = find(f, number, name);
    if (!t || t->dtype != dtype)
        fail_msg("no tensor %s of type %s", tensor_name, safetensors_dtype_name(dtype));
    return t;
}

static double *doubles(const safetensors_file *f, int number, const char *name)
{
    const safetensors_tensor *t = need(f, number, name, SAFETENSORS_F64);
    double *x = allocate(t->count, sizeof *x);
    memcpy(x, t->data, t->bytes);
    return x;
}

static float *floats(const safetensors_file *f, int number, const char *name)
{
    double *wide = doubles(f, number, name);
    const int64_t count = find(f, number, name)->count;
    float *x = allocate(count, sizeof *x);
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)wide[i];
    free(wide);
    return x;
}

/* `repeat` copies, one behind the other. */
static int32_t *integers(const safetensors_file *f, int number, const char *name, int64_t repeat)
{
    const safetensors_tensor *t = need(f, number, name, SAFETENSORS_I64);
    int64_t *wide = allocate(t->count, sizeof *wide);
    int32_t *x = allocate(repeat * t->count, sizeof *x);
    memcpy(wide, t->data, t->bytes);
    for (int64_t i = 0; i < repeat * t->count; i++)
        x[i] = (int32_t)wide[i % t->count];
    free(wide);
    return x;
}

/* What a tensor shorter than these lacks is zero. */
static void read_start(const safetensors_tensor *t, void *to, size_t size)
{
    memset(to, 0, size);
    memcpy(to, t->data, t->bytes < size ? t->bytes : size);
}

static fattn_desc read_desc(const safetensors_file *f, int number)
{
    int64_t p[14];
    double x[3];
    read_start(need(f, number, "problem", SAFETENSORS_I64), p, sizeof p);
    read_start(need(f, number, "scale", SAFETENSORS_F64), x, sizeof x);
    return (fattn_desc){.struct_size = sizeof(fattn_desc),
                        .batch = p[0],
                        .heads_q = p[1],
                        .heads_kv = p[2],
                        .seq_q = p[3],
                        .seq_k = p[4],
                        .dim = p[5],
                        .dim_v = p[6],
                        .mask = (int32_t)p[7],
                        .align = (int32_t)p[8],
                        .window_left = p[9],
                        .window_right = p[10],
                        .mask_size = p[11],
                        .flags = (uint32_t)p[12],
                        .seed = (uint64_t)p[13],
                        .scale = x[0],
                        .softcap = x[1],
                        .dropout = x[2]};
}

/* The case's lengths, mask and bias. */
static void read_lists(const safetensors_file *f, int number, scene *s)
{
    const fattn_desc *d = &s->desc;
    for (int64_t b = 0; b < d->batch; b++)
        scene_length(s, b, d->seq_q, d->seq_k);
    if (find(f, number, "used_q")) {
        free(s->rows);
        free(s->keys);
        s->rows = integers(f, number, "used_q", 1);
        s->keys = integers(f, number, "used_k", 1);
    }
    if (d->mask == FATTN_MASK_INTERVALS) {
        const int64_t repeat = find(f, number, "lo")->shape[0] == 1 ? d->batch : 1;
        s->lo = integers(f, number, "lo", repeat);
        s->hi = integers(f, number, "hi", repeat);
    }
    if (d->mask == FATTN_MASK_DOCUMENT) {
        s->document_q = integers(f, number, "document_q", 1);
        s->document_k = integers(f, number, "document_k", 1);
    }
    if (d->flags & FATTN_WITH_BIAS) {
        const int64_t full[3] = {d->batch, d->heads_q, d->seq_q};
        s->bias = doubles(f, number, "bias");
        for (int n = 0; n < 3; n++)
            s->bias_has[n] = find(f, number, "bias")->shape[n] == full[n];
    }
}

static scene read_scene(const safetensors_file *f, int number)
{
    scene s = {.desc = read_desc(f, number)};
    s.q = doubles(f, number, "q");
    s.k = doubles(f, number, "k");
    s.v = doubles(f, number, "v");
    s.dout = doubles(f, number, "dout");
    s.rows = allocate(s.desc.batch, sizeof *s.rows);
    s.keys = allocate(s.desc.batch, sizeof *s.keys);
    read_lists(f, number, &s);
    s.slopes = s.desc.flags & FATTN_WITH_SLOPES ? floats(f, number, "slopes") : NULL;
    s.sinks = s.desc.flags & FATTN_WITH_SINKS ? floats(f, number, "sinks") : NULL;
    s.dlse = s.desc.flags & FATTN_WITH_DLSE ? doubles(f, number, "dlse") : NULL;
    return s;
}

/* The golden results; truth.c's must be the same, and take over as what lies in rows that do not exist. */
static void read_results(const safetensors_file *f, int number, const scene *s, double *value[RESULTS])
{
    truth t = truth_of(s, 0x1p-53, 0x1p-53);
    for (result k = 0; k < RESULTS; k++) {
        value[k] = t.count[k] > 0 ? doubles(f, number, result_name[k]) : allocate(0, sizeof(double));
        for (int64_t i = 0; i < t.count[k]; i++) {
            const double difference = fabs(value[k][i] - t.value[k][i]);
            if (value[k][i] != t.value[k][i] && !(difference <= 1e-12 * (1 + fabs(t.value[k][i]))))
                fail_msg("%s[%lld] is %.17g, but the test's loops find %.17g", tensor_name, (long long)i, value[k][i],
                         t.value[k][i]);
        }
    }
    truth_free(&t);
}

/* The golden mask of dropout is the library's. */
static void check_dropout(const safetensors_file *f, int number, const fattn_desc *desc)
{
    fattn_desc d = *desc;
    if (d.dropout == 0)
        return;
    const uint8_t *want = need(f, number, "keep", SAFETENSORS_U8)->data;
    uint8_t *keep = allocate(d.seq_k, 1);
    d.dtype = FATTN_F32;
    for (int64_t row = 0; row < d.batch * d.heads_q * d.seq_q; row++) {
        const int64_t b = row / (d.heads_q * d.seq_q), h = row / d.seq_q % d.heads_q;
        assert_int_equal(fattn_dropout_keep(&d, b, h, row % d.seq_q, keep), FATTN_OK);
        assert_memory_equal(keep, want + row * d.seq_k, (size_t)d.seq_k);
    }
    free(keep);
}

static safetensors_file *golden_open(void)
{
    safetensors_file *f;
    if (!safetensors_open(GOLDEN_DIR "/attention.safetensors", &f))
        fail_msg("%s", train_error());
    return f;
}

static void run_case(const safetensors_file *f, int number, const form *asked)
{
    scene s = read_scene(f, number);
    form how = *asked;
    double *value[RESULTS];
    char what[32];
    snprintf(what, sizeof what, "golden case %d", number);
    how.what = what;
    assert_true(scene_fits(&s, FATTN_F32));
    assert_true(number < FIRST_CASES || (scene_fits(&s, FATTN_F16) && scene_fits(&s, FATTN_BF16)));
    read_results(f, number, &s, value);
    check_dropout(f, number, &s.desc);
    check_scene_against(&s, &how, value);
    for (int k = 0; k < RESULTS; k++)
        free(value[k]);
    scene_free(&s);
}

static void run_all(const form *how)
{
    safetensors_file *f = golden_open();
    for (int number = 0; number < CASES; number++)
        run_case(f, number, how);
    snprintf(tensor_name, sizeof tensor_name, "%d.problem", CASES);
    assert_null(safetensors_find(f, tensor_name)); /* none was left out */
    safetensors_close(f);
}

static void as_they_are(void **state)
{
    (void)state;
    run_all(&(form){.layout = LAYOUT_BHSD});
}

static void odd_strides(void **state)
{
    (void)state;
    run_all(&(form){.layout = LAYOUT_ODD, .infinite = true});
}

static void packed(void **state)
{
    (void)state;
    run_all(&(form){.layout = LAYOUT_BSHD, .packed = true});
}

static void packed_with_gaps(void **state)
{
    (void)state;
    run_all(&(form){.layout = LAYOUT_BHSD, .packed = true, .gap = 2});
}

static void wide_results(void **state)
{
    (void)state;
    run_all(&(form){.layout = LAYOUT_BSHD, .wide = true});
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_they_are), cmocka_unit_test(odd_strides), cmocka_unit_test(packed),
                                       cmocka_unit_test(packed_with_gaps), cmocka_unit_test(wide_results)};
    return cmocka_run_group_tests_name("golden attention", tests, NULL, contexts_free);
}
