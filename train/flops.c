/* Work and peak: see flops.h. */
#include "flops.h"

#include "error.h"
#include "evaluate.h"

enum { SMALLEST = 512, LARGEST = 8192, TRIES = 3 }; /* sides of products; the first try of each warms up */
static const double ENOUGH = 5e-3;                  /* seconds: no larger product is faster than one that takes so long */

static double mean_keys(int64_t seq, attention_path path)
{
    const int64_t most = path.kind == ATTENTION_WINDOW && path.size < seq ? path.size : seq;
    /* 1, 2, ..., most, and then always most */
    return ((double)most * (double)(most + 1) / 2 + (double)(seq - most) * (double)most) / (double)seq;
}

double flops_per_token(const model_config *c, int64_t seq, attention_path path)
{
    const double hidden = (double)c->hidden, queries = (double)(c->heads * c->head_dim);
    const double keys = (double)(c->heads_kv * c->head_dim), ffn = (double)c->ffn;
    const double layer = hidden * (2 * queries + 2 * keys + 3 * ffn);
    return 6 * ((double)c->layers * layer + (double)c->vocab * hidden) +
           12 * (double)c->layers * queries * mean_keys(seq, path);
}

/* Seconds of one product, once everything before it is done. */
static bool time_product(device *d, const product_call *c, double *seconds)
{
    float done;
    const bool ready = d->run->get(d, &done, c->c, sizeof done);
    const double start = evaluate_seconds();
    const bool good = ready && d->run->product(d, c) && d->run->get(d, &done, c->c, sizeof done);
    *seconds = evaluate_seconds() - start;
    return good;
}

static bool fastest(device *d, const product_call *c, double *best)
{
    for (int i = 0; i < TRIES; i++) {
        double seconds;
        if (!time_product(d, c, &seconds))
            return false;
        *best = i == 0 || seconds < *best ? seconds : *best;
    }
    return true;
}

/* FLOP/s of a square product; *seconds: what it takes. */
static double rate_of(const runtime *r, int64_t n, double *seconds)
{
    device *d = r->device;
    const size_t bytes = (size_t)(n * n) * number_bytes(r->type);
    void *a = d->run->allocate(d, bytes), *b = d->run->allocate(d, bytes), *c = d->run->allocate(d, bytes);
    const product_call call = {.transpose_b = true,
                               .type = r->type,
                               .c_type = r->type,
                               .m = n,
                               .n = n,
                               .k = n,
                               .a = a,
                               .lda = n,
                               .b = b,
                               .ldb = n,
                               .c = c,
                               .ldc = n};
    const bool good = a && b && c && d->run->fill(d, a, 0x3c, bytes) && d->run->fill(d, b, 0x3c, bytes) &&
                      d->run->fill(d, c, 0, bytes) && fastest(d, &call, seconds);
    d->run->release(d, a);
    d->run->release(d, b);
    d->run->release(d, c);
    return good && *seconds > 0 ? 2.0 * (double)n * (double)n * (double)n / *seconds : 0;
}

double flops_peak(const runtime *r)
{
    double best = 0, seconds = 0;
    for (int64_t n = SMALLEST; n <= LARGEST && seconds < ENOUGH; n *= 2) {
        const double rate = rate_of(r, n, &seconds);
        if (rate == 0)
            return 0;
        best = rate > best ? rate : best;
    }
    return best;
}
