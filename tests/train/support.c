/* See support.h. */
#include "support.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const runtime *test_runtime(void)
{
    static runtime r;
    static bool open;
    if (!open)
        require(runtime_open(&r, &(runtime_options){.threads = 2}));
    open = true;
    return &r;
}

/* ------------------------------------------------------------------------------------------------------------- numbers */

double test_uniform(test_random *r)
{
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    return (double)(r->state >> 11) * 0x1p-53;
}

double test_normal(test_random *r)
{
    double sum = -6.0;
    for (int i = 0; i < 12; i++)
        sum += test_uniform(r);
    return sum;
}

void fill_normal(float *x, int64_t n, double mean, double deviation, uint64_t seed)
{
    test_random r = {seed * 2654435761u + 1};
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(mean + deviation * test_normal(&r));
}

typedef struct worst {
    double difference, size;
} worst;

static void compare(worst *w, double a, double b)
{
    if ((isinf(b) && a == b) || (isnan(a) && isnan(b)))
        return;
    double difference = fabs(a - b);
    if (!(difference <= w->difference)) /* NaN too */
        w->difference = isnan(difference) ? INFINITY : difference;
    if (fabs(b) > w->size)
        w->size = fabs(b);
}

static double ratio(worst w)
{
    return w.difference == 0.0 ? 0.0 : w.difference / w.size;
}

double error_ff(const float *a, const float *b, int64_t n)
{
    worst w = {0};
    for (int64_t i = 0; i < n; i++)
        compare(&w, a[i], b[i]);
    return ratio(w);
}

double error_fd(const float *a, const double *b, int64_t n)
{
    worst w = {0};
    for (int64_t i = 0; i < n; i++)
        compare(&w, a[i], b[i]);
    return ratio(w);
}

double error_dd(const double *a, const double *b, int64_t n)
{
    worst w = {0};
    for (int64_t i = 0; i < n; i++)
        compare(&w, a[i], b[i]);
    return ratio(w);
}

void check_error(const char *name, double error, double bound)
{
    if (getenv("FATTN_TEST_VERBOSE"))
        printf("    %-60s %.2e (at most %.0e)\n", name, error, bound);
    if (!(error <= bound))
        fail_msg("%s: error %.3e, but at most %.0e", name, error, bound);
}

/* -------------------------------------------------------------------------------------------------------- golden files */

safetensors_file *golden_open(const char *name)
{
    char path[1024];
    safetensors_file *f;
    snprintf(path, sizeof path, "%s/%s", GOLDEN_DIR, name);
    require(safetensors_open(path, &f));
    return f;
}

static void *golden(const safetensors_file *f, const char *name, safetensors_dtype dtype, int64_t *count)
{
    const safetensors_tensor *t = safetensors_find(f, name);
    if (!t || t->dtype != dtype)
        fail_msg("no tensor %s of type %s", name, safetensors_dtype_name(dtype));
    void *copy = malloc(t->bytes + 1);
    assert_non_null(copy);
    memcpy(copy, t->data, t->bytes);
    if (count)
        *count = t->count;
    return copy;
}

double *golden_doubles(const safetensors_file *f, const char *name, int64_t *count)
{
    return golden(f, name, SAFETENSORS_F64, count);
}

float *golden_floats(const safetensors_file *f, const char *name, int64_t *count)
{
    return golden(f, name, SAFETENSORS_F32, count);
}

int64_t *golden_integers(const safetensors_file *f, const char *name, int64_t *count)
{
    return golden(f, name, SAFETENSORS_I64, count);
}

model_config golden_config(const safetensors_file *f, bool tied)
{
    int64_t *n = golden_integers(f, "config", NULL);
    model_config c = {.vocab = n[0],
                      .hidden = n[1],
                      .layers = n[2],
                      .heads = n[3],
                      .heads_kv = n[4],
                      .head_dim = n[5],
                      .ffn = n[6],
                      .max_seq = n[7],
                      .rope_theta = 10000.0,
                      .rms_eps = 1e-6,
                      .tied = tied};
    free(n);
    return c;
}

model *golden_model(const safetensors_file *f, bool tied, const char *prefix)
{
    model_config c = golden_config(f, tied);
    model *m = model_create(&c, 0);
    require(m);
    for (int i = 0; i < m->parameter_count; i++) {
        parameter *p = &m->parameters[i];
        char name[PARAMETER_NAME_SIZE + 16];
        snprintf(name, sizeof name, "%s%s", prefix, p->name);
        require(safetensors_load(f, name, SAFETENSORS_F32, p->ndim, p->shape, p->data));
    }
    return m;
}

/* ---------------------------------------------------------------------------------------------------------------- models */

model *random_model(const model_config *c, uint64_t seed)
{
    model *m = model_create(c, seed);
    require(m);
    for (int i = 0; i < m->parameter_count; i++) {
        parameter *p = &m->parameters[i];
        bool vector = p->ndim == 1;
        fill_normal(p->data, p->size, vector ? 1.0 : 0.0, vector ? 0.2 : 1.0 / sqrt((double)p->shape[1]), seed + (uint64_t)i);
    }
    return m;
}

void random_tokens(int32_t *tokens, int64_t n, int64_t vocab, uint64_t seed)
{
    test_random r = {seed};
    for (int64_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(test_uniform(&r) * (double)vocab);
}

attention_path path_of(const char *text)
{
    attention_path path;
    require(attention_path_parse(text, &path));
    return path;
}

/* -------------------------------------------------------------------------------------------------- finite differences */

/* The slope between two nearby values of *x, with the difference that float really made. */
static double slope(float *x, double (*loss)(void *arg), void *arg, double h)
{
    float before = *x;
    volatile float above = before + (float)h, below = before - (float)h;
    *x = above;
    double high = loss(arg);
    *x = below;
    double low = loss(arg);
    *x = before;
    return (high - low) / ((double)above - (double)below);
}

double gradient_error(checked_array a, double (*loss)(void *arg), void *arg, double h, int64_t samples)
{
    int64_t n = a.rows * a.cols, skip = n > samples ? n / samples : 1;
    double size = 0.0, largest = 0.0;
    for (int64_t i = 0; i < n; i++)
        size = fmax(size, fabs((double)a.grad[i]));
    for (int64_t i = 0; i < n; i += skip) {
        double found = slope(a.value + i / a.cols * a.stride + i % a.cols, loss, arg, h);
        double error = fabs(found - (double)a.grad[i]);
        largest = error > largest || isnan(error) ? error : largest;
    }
    return isnan(largest) ? INFINITY : largest == 0.0 ? 0.0 : largest / size;
}
