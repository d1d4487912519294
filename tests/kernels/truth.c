/* See truth.h. */
#include "truth.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const result_name[RESULTS] = {"out", "lse", "dq", "dk", "dv", "dbias", "dsinks"};

double random_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 40) / (1 << 23) - 1;
}

void *allocate(int64_t count, size_t size)
{
    void *data = calloc((size_t)count + 1, size);
    assert_non_null(data);
    return data;
}

/* --------------------------------------------------------------------------------------------------------------- scenes */

static double *thirtyseconds(int64_t count, uint64_t seed)
{
    double *x = allocate(count, sizeof *x);
    for (int64_t i = 0; i < count; i++)
        x[i] = floor(random_next(&seed) * 64) / 32;
    return x;
}

static float *floats(int64_t count, double size, uint64_t seed)
{
    float *x = allocate(count, sizeof *x);
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)(size * (1 + floor(random_next(&seed) * 8) / 8));
    return x;
}

static int32_t *documents(int64_t batch, int64_t n, uint64_t seed)
{
    int32_t *ids = allocate(batch * n, sizeof *ids);
    for (int64_t x = 0; x < batch * n; x++)
        ids[x] = x % n == 0 ? 0 : ids[x - 1] + (random_next(&seed) > 0.6);
    return ids;
}

static void make_mask(scene *s, uint64_t seed)
{
    const fattn_desc *d = &s->desc;
    s->rows = allocate(d->batch, sizeof *s->rows);
    s->keys = allocate(d->batch, sizeof *s->keys);
    for (int64_t b = 0; b < d->batch; b++)
        scene_length(s, b, d->seq_q, d->seq_k);
    if (d->mask == FATTN_MASK_INTERVALS) {
        s->lo = allocate(d->batch * d->seq_q, sizeof *s->lo);
        s->hi = allocate(d->batch * d->seq_q, sizeof *s->hi);
        for (int64_t x = 0; x < d->batch * d->seq_q; x++)
            s->hi[x] = (int32_t)d->seq_k;
    }
    if (d->mask == FATTN_MASK_DOCUMENT) {
        s->document_q = documents(d->batch, d->seq_q, seed);
        s->document_k = documents(d->batch, d->seq_k, seed + 1);
    }
}

scene scene_make_with_bias(const fattn_desc *desc, uint64_t seed, bool batch, bool heads, bool rows)
{
    scene s = {.desc = *desc, .bias_has = {batch, heads, rows}};
    const fattn_desc *d = &s.desc;
    const int64_t q_rows = d->batch * d->heads_q * d->seq_q, k_rows = d->batch * d->heads_kv * d->seq_k;
    s.desc.struct_size = sizeof s.desc;
    s.q = thirtyseconds(q_rows * d->dim, seed);
    s.k = thirtyseconds(k_rows * d->dim, seed + 1);
    s.v = thirtyseconds(k_rows * d->dim_v, seed + 2);
    s.dout = thirtyseconds(q_rows * d->dim_v, seed + 3);
    if (d->flags & FATTN_WITH_DLSE)
        s.dlse = thirtyseconds(q_rows, seed + 4);
    if (d->flags & FATTN_WITH_BIAS)
        s.bias = thirtyseconds((batch ? d->batch : 1) * (heads ? d->heads_q : 1) * (rows ? d->seq_q : 1) * d->seq_k, seed + 5);
    if (d->flags & FATTN_WITH_SLOPES)
        s.slopes = floats(d->heads_q, 0.125, seed + 6);
    if (d->flags & FATTN_WITH_SINKS)
        s.sinks = floats(d->heads_q, 1, seed + 7);
    make_mask(&s, seed + 8);
    return s;
}

scene scene_make(const fattn_desc *desc, uint64_t seed)
{
    return scene_make_with_bias(desc, seed, true, true, true);
}

void scene_free(scene *s)
{
    void *all[] = {s->q,     s->k,    s->v,    s->dout, s->dlse, s->bias,       s->slopes,
                   s->sinks, s->rows, s->keys, s->lo,   s->hi,   s->document_q, s->document_k};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

void scene_length(scene *s, int64_t b, int64_t rows, int64_t keys)
{
    s->rows[b] = (int32_t)rows;
    s->keys[b] = (int32_t)keys;
}

static bool fit(const double *x, int64_t count, int32_t dtype)
{
    for (int64_t i = 0; x && i < count; i++)
        if (!isnan(x[i]) && number_round(x[i], dtype) != x[i])
            return false;
    return true;
}

bool scene_fits(const scene *s, int32_t dtype)
{
    const fattn_desc *d = &s->desc;
    const int64_t q_rows = d->batch * d->heads_q * d->seq_q, k_rows = d->batch * d->heads_kv * d->seq_k;
    return fit(s->q, q_rows * d->dim, dtype) && fit(s->k, k_rows * d->dim, dtype) && fit(s->v, k_rows * d->dim_v, dtype) &&
           fit(s->dout, q_rows * d->dim_v, dtype) &&
           fit(s->bias,
               (s->bias_has[0] ? d->batch : 1) * (s->bias_has[1] ? d->heads_q : 1) * (s->bias_has[2] ? d->seq_q : 1) * d->seq_k,
               dtype);
}

double *scene_row(const scene *s, double *tensor, int64_t heads, int64_t rows, int64_t cols, int64_t b, int64_t h, int64_t i)
{
    (void)s;
    return tensor + ((b * heads + h) * rows + i) * cols;
}

int64_t scene_bias_index(const scene *s, int64_t b, int64_t h, int64_t i)
{
    const int64_t heads = s->bias_has[1] ? s->desc.heads_q : 1, rows = s->bias_has[2] ? s->desc.seq_q : 1;
    return (((s->bias_has[0] ? b : 0) * heads + (s->bias_has[1] ? h : 0)) * rows + (s->bias_has[2] ? i : 0)) * s->desc.seq_k;
}

static int64_t offset(const scene *s, int64_t b)
{
    return s->desc.align == FATTN_ALIGN_BOTTOM_RIGHT ? s->keys[b] - s->rows[b] : 0;
}

/* Rounded down, also below zero. */
static int64_t chunk_of(int64_t t, int64_t size)
{
    return t >= 0 ? t / size : -((-t + size - 1) / size);
}

bool scene_keeps(const scene *s, int64_t b, int64_t i, int64_t j)
{
    const fattn_desc *d = &s->desc;
    const int64_t t = i + offset(s, b);
    const bool window = (d->window_left < 0 || j >= t - d->window_left) && (d->window_right < 0 || j <= t + d->window_right);
    switch (d->mask) {
    case FATTN_MASK_CAUSAL:
        return j <= t;
    case FATTN_MASK_WINDOW:
        return window;
    case FATTN_MASK_CHUNKED:
        return j <= t && chunk_of(j, d->mask_size) == chunk_of(t, d->mask_size);
    case FATTN_MASK_PREFIX:
        return j <= t || j < d->mask_size;
    case FATTN_MASK_DOCUMENT:
        return window && s->document_q[b * d->seq_q + i] == s->document_k[b * d->seq_k + j];
    case FATTN_MASK_INTERVALS:
        return s->lo[b * d->seq_q + i] <= j && j < s->hi[b * d->seq_q + i];
    default:
        return true;
    }
}

/* ---------------------------------------------------------------------------------------------------------------- truth */

/* One row at work. */
typedef struct row {
    int64_t b, h, i, keys;
    const double *q, *dout, *k, *v;
    int64_t *kept; /* the keys it keeps, `count` of them; the arrays below have one element for each */
    int64_t count;
    double *s, *s_error, *slope, *slope_error, *m;
    double sink, largest, sum, lse;
    uint8_t *drawn;
} row;

static double dot(const double *a, const double *b, int64_t n, double *size)
{
    double sum = 0;
    *size = 0;
    for (int64_t d = 0; d < n; d++) {
        sum += a[d] * b[d];
        *size += fabs(a[d] * b[d]);
    }
    return sum;
}

static double scale_of(const fattn_desc *d)
{
    return d->scale != 0 ? d->scale : 1 / sqrt((double)d->dim);
}

/* Score n of the row, of key j: its value, its error but for what subtracting the maximum adds, and the slope of the cap. */
static void score(const scene *s, row *r, int64_t n, int64_t j, double u)
{
    const fattn_desc *d = &s->desc;
    double size;
    const double x = scale_of(d) * dot(r->q, r->k + j * d->dim, d->dim, &size), cap = d->softcap;
    const double x_error = ((double)d->dim + 4) * u * fabs(scale_of(d)) * size;
    const double t = cap > 0 ? tanh(x / cap) : 0, y = cap > 0 ? cap * t : x;
    const double bias = s->bias ? s->bias[scene_bias_index(s, r->b, r->h, r->i) + j] : 0;
    const double alibi = s->slopes ? (double)s->slopes[r->h] * fabs((double)(r->i + offset(s, r->b) - j)) : 0;
    const double finite = isinf(bias) ? 0 : fabs(bias);
    r->s[n] = y + bias - alibi;
    r->s_error[n] = x_error + 4 * u * (fabs(y) + (cap > 0 ? cap : 0) + finite + alibi);
    r->slope[n] = cap > 0 ? 1 / (cosh(x / cap) * cosh(x / cap)) : 1;
    r->slope_error[n] = cap > 0 ? 8 * u + 2 / cap * x_error : 0;
    r->m[n] = d->dropout > 0 ? r->drawn[j] / (1 - d->dropout) : 1;
}

/* Fills in the row. False if nothing is in it. */
static bool score_row(const scene *s, row *r, double u)
{
    const fattn_desc *d = &s->desc;
    r->sink = s->sinks ? (double)s->sinks[r->h] : -(double)INFINITY;
    r->largest = r->sink;
    r->count = 0;
    if (d->dropout > 0) {
        fattn_desc described = *d;
        described.dtype = FATTN_F64;
        assert_int_equal(fattn_dropout_keep(&described, r->b, r->h, r->i, r->drawn), FATTN_OK);
    }
    for (int64_t j = 0; j < r->keys; j++)
        if (scene_keeps(s, r->b, r->i, j)) {
            r->kept[r->count] = j;
            score(s, r, r->count, j, u);
            if (!(r->s[r->count++] <= r->largest)) /* a NaN stays: nothing is larger than it */
                r->largest = isnan(r->largest) ? r->largest : r->s[r->count - 1];
        }
    if (r->largest == -(double)INFINITY)
        return false;
    r->sum = exp(r->sink - r->largest);
    for (int64_t n = 0; n < r->count; n++)
        r->sum += exp(r->s[n] - r->largest);
    r->lse = r->largest + log(r->sum);
    return true;
}

/* The probability of a score. Not exp(s - lse): where lse is large its last place is not small. */
static double probability(const row *r, double s)
{
    return exp(s - r->largest) / r->sum;
}

/* What the difference of two numbers of these sizes adds to the error of an exponential's argument. */
static double difference(double u, double a, double b)
{
    return isinf(a) ? 0 : 2 * u * (fabs(a) + fabs(b));
}

static void forward_row(const scene *s, const row *r, truth *t, double u)
{
    const fattn_desc *d = &s->desc;
    const int64_t at = (r->b * d->heads_q + r->h) * d->seq_q + r->i;
    double *out = t->value[OUT] + at * d->dim_v, *bound = t->bound[OUT] + at * d->dim_v;
    const double sums = (double)(r->count + 16) * u;
    double lse_bound = sums + 3 * u * fabs(r->lse);
    for (int64_t n = 0; n < r->count; n++)
        for (int64_t x = 0; x < d->dim_v; x++)
            out[x] += probability(r, r->s[n]) * r->m[n] * r->v[r->kept[n] * d->dim_v + x];
    for (int64_t n = 0; n < r->count; n++) {
        const double p = probability(r, r->s[n]), error = r->s_error[n] + difference(u, r->s[n], r->largest);
        const double *v = r->v + r->kept[n] * d->dim_v;
        if (p > 0)
            lse_bound += p * error;
        for (int64_t x = 0; x < d->dim_v && p > 0; x++)
            bound[x] += p * (error * fabs(r->m[n] * v[x] - out[x]) + sums * r->m[n] * fabs(v[x]));
    }
    const double p = probability(r, r->sink), error = difference(u, r->sink, r->largest);
    for (int64_t x = 0; x < d->dim_v; x++)
        bound[x] += p * error * fabs(out[x]);
    t->value[LSE][at] = r->lse;
    t->bound[LSE][at] = lse_bound + p * error;
}

/* Adds x with its error to a result that is the sum of n such. */
static void add(truth *t, result k, int64_t index, double x, double error, double n, double u)
{
    t->value[k][index] += x;
    t->bound[k][index] += error + (n + 8) * u * fabs(x);
}

/* D of a row and its error. */
static double delta_of(const scene *s, const row *r, const truth *t, double u, double u_out, double *error)
{
    const fattn_desc *d = &s->desc;
    const int64_t at = (r->b * d->heads_q + r->h) * d->seq_q + r->i;
    double size;
    const double product = dot(r->dout, t->value[OUT] + at * d->dim_v, d->dim_v, &size);
    const double dlse = s->dlse ? s->dlse[at] : 0;
    *error = (u_out + ((double)d->dim_v + 4) * u) * size + 2 * u * fabs(dlse);
    return product - dlse;
}

/* What key n of the row adds to the gradients. */
static void backward_pair(const scene *s, const row *r, truth *t, int64_t n, double delta, double delta_error, double u)
{
    const fattn_desc *d = &s->desc;
    const int64_t group = d->heads_q / d->heads_kv, j = r->kept[n], at = (r->b * d->heads_q + r->h) * d->seq_q + r->i;
    const int64_t key = (r->b * d->heads_kv + r->h / group) * d->seq_k + j;
    const double p = probability(r, r->s[n]), rows = (double)(d->seq_q * group);
    const double p_error = r->s_error[n] + difference(u, r->s[n], r->lse) + u * fabs(r->lse) + 8 * u;
    double size;
    const double dp = r->m[n] * dot(r->dout, r->v + j * d->dim_v, d->dim_v, &size), ds = p * (dp - delta);
    const double ds_error = p * (p_error * fabs(dp - delta) + ((double)d->dim_v + 4) * u * r->m[n] * size + delta_error +
                                 4 * u * (fabs(dp) + fabs(delta)));
    const double dx = ds * r->slope[n] * scale_of(d);
    const double dx_error = fabs(scale_of(d)) * (ds_error * r->slope[n] + fabs(ds) * r->slope_error[n]);
    if (p == 0)
        return;
    for (int64_t x = 0; x < d->dim; x++) {
        const double k = r->k[j * d->dim + x];
        add(t, DQ, at * d->dim + x, dx * k, dx_error * fabs(k), (double)r->count, u);
        add(t, DK, key * d->dim + x, dx * r->q[x], dx_error * fabs(r->q[x]), rows, u);
    }
    for (int64_t x = 0; x < d->dim_v; x++) {
        const double y = p * r->m[n] * r->dout[x];
        add(t, DV, key * d->dim_v + x, y, fabs(y) * p_error, rows, u);
    }
    if (s->bias)
        add(t, DBIAS, scene_bias_index(s, r->b, r->h, r->i) + j, ds, ds_error, (double)(d->batch * d->heads_q * d->seq_q), u);
}

static void backward_row(const scene *s, const row *r, truth *t, double u, double u_out)
{
    double error;
    const double delta = delta_of(s, r, t, u, u_out, &error);
    for (int64_t n = 0; n < r->count; n++)
        backward_pair(s, r, t, n, delta, error, u);
    if (s->sinks) {
        const double p = probability(r, r->sink);
        const double relative = difference(u, r->sink, r->lse) + u * fabs(r->lse) + 8 * u;
        add(t, DSINKS, r->h, -p * delta, p * (relative * fabs(delta) + error), (double)(s->desc.batch * s->desc.seq_q), u);
    }
}

truth truth_blank(const scene *s)
{
    const fattn_desc *d = &s->desc;
    const int64_t q_rows = d->batch * d->heads_q * d->seq_q, k_rows = d->batch * d->heads_kv * d->seq_k;
    const int64_t bias = (s->bias_has[0] ? d->batch : 1) * (s->bias_has[1] ? d->heads_q : 1) * (s->bias_has[2] ? d->seq_q : 1);
    truth t = {.count = {[OUT] = q_rows * d->dim_v,
                         [LSE] = q_rows,
                         [DQ] = q_rows * d->dim,
                         [DK] = k_rows * d->dim,
                         [DV] = k_rows * d->dim_v,
                         [DBIAS] = s->bias ? bias * d->seq_k : 0,
                         [DSINKS] = s->sinks ? d->heads_q : 0}};
    for (int k = 0; k < RESULTS; k++) {
        t.value[k] = allocate(t.count[k], sizeof(double));
        t.bound[k] = allocate(t.count[k], sizeof(double));
    }
    return t;
}

static void one_row(const scene *s, row *r, truth *t, double u, double u_out)
{
    const fattn_desc *d = &s->desc;
    const int64_t at = (r->b * d->heads_q + r->h) * d->seq_q + r->i;
    const int64_t kv = (r->b * d->heads_kv + r->h / (d->heads_q / d->heads_kv)) * d->seq_k;
    r->keys = s->keys[r->b];
    r->q = s->q + at * d->dim;
    r->dout = s->dout + at * d->dim_v;
    r->k = s->k + kv * d->dim;
    r->v = s->v + kv * d->dim_v;
    if (score_row(s, r, u)) {
        forward_row(s, r, t, u);
        backward_row(s, r, t, u, u_out);
    } else {
        t->value[LSE][at] = -(double)INFINITY;
    }
}

truth truth_of(const scene *s, double u, double u_out)
{
    const int64_t n = s->desc.seq_k;
    truth t = truth_blank(s);
    row r = {.kept = allocate(n, sizeof *r.kept), .drawn = allocate(n, 1)};
    double **const arrays[] = {&r.s, &r.s_error, &r.slope, &r.slope_error, &r.m};
    for (int a = 0; a < 5; a++)
        *arrays[a] = allocate(n, sizeof(double));
    for (r.b = 0; r.b < s->desc.batch; r.b++)
        for (r.h = 0; r.h < s->desc.heads_q; r.h++)
            for (r.i = 0; r.i < s->rows[r.b]; r.i++)
                one_row(s, &r, &t, u, u_out);
    for (int a = 0; a < 5; a++)
        free(*arrays[a]);
    free(r.kept);
    free(r.drawn);
    return t;
}

void truth_free(truth *t)
{
    for (int k = 0; k < RESULTS; k++) {
        free(t->value[k]);
        free(t->bound[k]);
    }
}

/* -------------------------------------------------------------------------------------------------------------- numbers */

size_t number_size(int32_t dtype)
{
    return dtype == FATTN_F64 ? 8 : dtype == FATTN_F32 ? 4 : 2;
}

double number_unit(int32_t dtype)
{
    return dtype == FATTN_F64 ? 0x1p-53 : dtype == FATTN_F32 ? 0x1p-24 : dtype == FATTN_F16 ? 0x1p-11 : 0x1p-8;
}

const char *number_name(int32_t dtype)
{
    return dtype == FATTN_F64 ? "f64" : dtype == FATTN_F32 ? "f32" : dtype == FATTN_F16 ? "f16" : "bf16";
}

/* To a multiple of the type's last place, ties to even; what is too large becomes infinite. */
double number_round(double x, int32_t dtype)
{
    const int bits = dtype == FATTN_F16 ? 11 : dtype == FATTN_BF16 ? 8 : 24, lowest = dtype == FATTN_F16 ? -13 : -125;
    const double most = dtype == FATTN_F16 ? 65504 : dtype == FATTN_BF16 ? 0x1.fep127 : 0x1.fffffep127;
    int exponent;
    if (dtype == FATTN_F64 || isnan(x) || isinf(x) || x == 0)
        return x;
    frexp(x, &exponent);
    const int last = (exponent < lowest ? lowest : exponent) - bits;
    const double y = ldexp(nearbyint(ldexp(x, -last)), last);
    return fabs(y) <= most ? y : copysign((double)INFINITY, x);
}

static uint16_t half_bits(double x)
{
    int exponent = 0;
    const double fraction = frexp(fabs(x), &exponent);
    const int sign = signbit(x) ? 0x8000 : 0;
    if (isnan(x) || isinf(x))
        return (uint16_t)(sign | (isnan(x) ? 0x7e00 : 0x7c00));
    if (exponent < -13 || x == 0)
        return (uint16_t)(sign | (int)ldexp(fabs(x), 24));
    return (uint16_t)(sign | ((exponent + 14) << 10) | ((int)ldexp(fraction, 11) & 1023));
}

static double half_number(uint16_t bits)
{
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double size = exponent == 0    ? ldexp(fraction, -24)
                        : exponent == 31 ? (fraction ? (double)NAN : (double)INFINITY)
                                         : ldexp(1024 + fraction, exponent - 25);
    return bits & 0x8000 ? -size : size;
}

double number_get(const void *data, int32_t dtype, int64_t i)
{
    const uint16_t *halves = data;
    float f;
    if (dtype == FATTN_F64)
        return ((const double *)data)[i];
    if (dtype == FATTN_F32)
        return (double)((const float *)data)[i];
    if (dtype == FATTN_F16)
        return half_number(halves[i]);
    const uint32_t bits = (uint32_t)halves[i] << 16;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

void number_set(void *data, int32_t dtype, int64_t i, double x)
{
    const double y = number_round(x, dtype);
    const float f = dtype == FATTN_F64 ? 0 : (float)y;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (dtype == FATTN_F64)
        ((double *)data)[i] = y;
    else if (dtype == FATTN_F32)
        ((float *)data)[i] = f;
    else
        ((uint16_t *)data)[i] = dtype == FATTN_F16 ? half_bits(y) : (uint16_t)(bits >> 16 | (isnan(x) ? 0x40 : 0));
}

bool number_near(double got, double want, double bound, int32_t dtype)
{
    /* Results may be flushed below the smallest normal number, and so may the factors of those that are a little larger. */
    const double tiny = dtype == FATTN_F64 ? 0x1p-1000 : dtype == FATTN_F16 ? 0x1p-24 : 0x1p-110;
    if (isnan(want) || isinf(want))
        return isnan(want) ? isnan(got) : got == want;
    if (want == 0 && bound == 0)
        return got == 0;
    return fabs(got - want) <= bound + number_unit(dtype) * (fabs(want) + bound) + tiny;
}
