/*
 * Judging what a kernel made of a problem; see run.h.
 */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "run.h"

#define fail verdict_fail

/* -------------------------------------------------------------------------------------------------------------- memory */

/* Guard bands, gaps, elements not written, inputs. */
static bool judge_memory(const test_case *c, bool with_lse, int threads, verdict *v)
{
    const unsigned char *copy = c->inputs_copy;
    for (int i = 0; i < c->inputs_count; i++) {
        if (!arena_same(&c->inputs[i], copy))
            return fail(v, "input changed with %d threads", threads);
        copy += arena_bytes(&c->inputs[i]);
    }
    for (int i = 0; i < c->outputs_count; i++) {
        int64_t where = 0;
        const bool expected = with_lse || i == 0 || c->p.op == FATTN_OP_BACKWARD;
        const arena_fault fault = arena_inspect(&c->outputs[i], expected, &where);
        if (fault != ARENA_CLEAN)
            return fail(v, "%s: element at offset %" PRId64 " %s (%d threads)", c->output_name[i], where,
                        fault == ARENA_NOT_WRITTEN ? "was not written" : "lies outside the tensor and was written", threads);
    }
    return true;
}

/* ------------------------------------------------------------------------------------------------------------- numbers */

static void get_rows(const test_case *c, const tensor *t, bool queries, double *values)
{
    const problem *p = &c->p;
    const geometry *g = &c->g;
    const int64_t rows = queries ? p->seq_q : p->seq_k;
    for (int64_t b = 0; b < p->batch && !tensor_empty(t); b++)
        for (int64_t h = 0; h < t->heads; h++)
            for (int64_t i = 0; i < (queries ? g->seq_q[b] : g->seq_k[b]); i++) {
                const void *row = queries ? query_row(p, g, t, b, h, i) : key_row(p, g, t, b, h, i);
                for (int64_t d = 0; d < t->cols; d++)
                    values[((b * t->heads + h) * rows + i) * t->cols + d] = tensor_get(t, row, d);
            }
}

/* dbias and dsinks, of which every row in memory counts. */
static void get_whole(const tensor *t, double *values)
{
    for (int64_t x = 0; x < t->batch * t->heads * t->rows && !tensor_empty(t); x++)
        for (int64_t d = 0; d < t->cols; d++)
            *values++ = tensor_get(t, tensor_row(t, x / t->rows / t->heads, x / t->rows % t->heads, x % t->rows), d);
}

static void get_result(test_case *c, result_kind kind)
{
    const tensors *t = &c->t;
    const tensor *const all[RESULT_COUNT] = {&t->out, &t->lse, &t->dq, &t->dk, &t->dv, &t->dbias, &t->dsinks};
    if (kind == RESULT_DBIAS || kind == RESULT_DSINKS)
        get_whole(all[kind], c->got.value[kind]);
    else
        get_rows(c, all[kind], kind != RESULT_DK && kind != RESULT_DV, c->got.value[kind]);
}

/* Whether x is what truth demands, and how much it takes of what is allowed beyond half an ulp. */
static bool judge_element(double x, double truth, double unit, double half_ulp, double allowed, double *part)
{
    *part = 0;
    if (isnan(truth))
        return isnan(x);
    if (isinf(truth))
        return x == truth;
    if (unit == 0)
        return x == 0;
    if (!isfinite(unit)) /* the type's range is too small */
        return true;
    *part = fmax(fabs(x - truth) - half_ulp, 0) / allowed;
    return fabs(x - truth) - half_ulp <= allowed; /* false for NaN */
}

/* How many equal numbers are summed where all keys and values are the same: each addition may round the same way, the naive
 * computation's too, or by luck not. */
static double equal_terms(const problem *p)
{
    return p->layout == LAYOUT_BROADCAST_ROW || p->fill == FILL_HIGH ? (double)p->seq_k : 0;
}

/* Where an element stands, "[b0 h1 i7 d3]". */
static void print_place(const problem *p, result_kind kind, int64_t element, char *text, size_t size)
{
    const int64_t cols = result_cols(p, kind), row = element / cols;
    const bool keys = kind == RESULT_DK || kind == RESULT_DV;
    const int64_t rows = keys ? p->seq_k : p->seq_q, heads = keys ? p->heads_q / p->group : p->heads_q;
    if (kind == RESULT_DSINKS)
        snprintf(text, size, "[h%" PRId64 "]", row);
    else if (kind == RESULT_DBIAS)
        snprintf(text, size, "[row %" PRId64 " j%" PRId64 "]", row / p->seq_k, row % p->seq_k);
    else
        snprintf(text, size, "[b%" PRId64 " h%" PRId64 " %c%" PRId64 " d%" PRId64 "]", row / rows / heads, row / rows % heads,
                 keys ? 'j' : 'i', row % rows, element % cols);
}

/* What a result's errors are measured with. */
typedef struct scale_of_errors {
    double eps, units, tiny;
    bool rounded; /* to a type coarser than eps */
    fattn_dtype type;
} scale_of_errors;

/* What tensor cores and the GPU's powers of 2 lose, in units: cores truncate where they add, once for 16 numbers or fewer. */
static double tensor_core_units(const problem *p)
{
    return 4 + (double)p->dim / 64;
}

static scale_of_errors errors_of(const test_case *c, result_kind kind, fattn_dtype rounds)
{
    const problem *p = &c->p;
    const bool wide = p->dtype == FATTN_F64, forward = p->op == FATTN_OP_FORWARD;
    const double terms = (double)(p->seq_k + p->seq_q * p->group + 4);
    const fattn_dtype type = result_type(p, kind);
    const bool weighted = kind != RESULT_LSE && kind != RESULT_DSINKS;
    const double rounding = rounds == FATTN_DTYPE_NONE ? 0
                            : weighted                 ? type_half_ulp(rounds, 1) / 0x1p-24
                                                       : tensor_core_units(p);
    const double flushed = wide && type == FATTN_F32 ? (double)FLT_MIN : 0; /* dsinks of a problem in double */
    return (scale_of_errors){.eps = wide ? 0x1p-53 : 0x1p-24,
                             .units = (forward ? 2 : 3) * (c->worst[kind] + 1 + rounding) + equal_terms(p) / 4,
                             .tiny = 256 * terms * (wide ? DBL_MIN : (double)FLT_MIN) + flushed,
                             .rounded = type != (wide ? FATTN_F64 : FATTN_F32),
                             .type = type};
}

static bool judge_result(test_case *c, result_kind kind, fattn_dtype rounds, verdict *v)
{
    const problem *p = &c->p;
    const scale_of_errors s = errors_of(c, kind, rounds);
    const int64_t rows = result_rows(p, kind), cols = result_cols(p, kind);
    get_result(c, kind);
    for (int64_t e = 0; e < rows * cols; e++) {
        const double x = c->got.value[kind][e], truth = c->truth.value[kind][e], unit = c->truth.unit[kind][e / cols];
        double part, allowed = s.units * s.eps * unit + s.tiny, half_ulp = 0;
        if (s.rounded && isfinite(truth) && isfinite(unit))
            half_ulp = type_half_ulp(s.type, fabs(truth) + allowed);
        const bool ok = judge_element(x, truth, unit, half_ulp, allowed, &part);
        v->worst = fmax(v->worst, part);
        if (part > 0 && s.eps * unit > s.tiny)
            v->units = fmax(v->units, (fabs(x - truth) - half_ulp) / (s.eps * unit));
        if (ok)
            continue;
        char place[100];
        print_place(p, kind, e, place, sizeof place);
        return fail(v, "%s%s = %.9g instead of %.9g, error %.3g units, allowed %.3g (naive %.3g)", result_names[kind], place, x,
                    truth, (fabs(x - truth) - half_ulp) / (s.eps * unit), s.units, c->worst[kind]);
    }
    return true;
}

static bool judge_numbers(test_case *c, fattn_dtype rounds, verdict *v)
{
    for (int kind = 0; kind < RESULT_COUNT; kind++)
        if (result_wanted(&c->p, (result_kind)kind) && !judge_result(c, (result_kind)kind, rounds, v))
            return false;
    return true;
}

/* ---------------------------------------------------------------------------------------------------------- other runs */

static void save_outputs(test_case *c)
{
    unsigned char *to = c->outputs_copy;
    for (int i = 0; i < c->outputs_count; i++) {
        arena_save(&c->outputs[i], to);
        to += arena_bytes(&c->outputs[i]);
    }
}

static bool same_outputs(const test_case *c, bool with_lse)
{
    const unsigned char *copy = c->outputs_copy;
    for (int i = 0; i < c->outputs_count; i++) {
        const bool compared = with_lse || i == 0 || c->p.op == FATTN_OP_BACKWARD;
        if (compared && !arena_same(&c->outputs[i], copy))
            return false;
        copy += arena_bytes(&c->outputs[i]);
    }
    return true;
}

/* Another run that must repeat the first one's bits, or where they are free be right as well. */
static bool repeat(harness *h, test_case *c, const kernel_entry *kernel, int threads, bool with_lse, const char *what,
                   verdict *v)
{
    const char *ran = NULL;
    if (!case_call(h, c, kernel->name, threads, with_lse, &ran, v) || !judge_memory(c, with_lse, threads, v))
        return false;
    if (kernel->unordered)
        return judge_numbers(c, kernel->rounds, v);
    return same_outputs(c, with_lse) ||
           fail(v, "%s (%d threads) gives other bits than the first (%d)", what, threads, h->threads[0]);
}

/* A causal mask is a window of (-1, 0): the same bits. */
static bool repeat_as_window(harness *h, test_case *c, const kernel_entry *kernel, verdict *v)
{
    const fattn_desc causal = c->desc;
    c->desc.mask = FATTN_MASK_WINDOW;
    c->desc.window_left = -1;
    const bool same = repeat(h, c, kernel, h->threads[0], true, "a run with window (-1, 0) for causal", v);
    c->desc = causal;
    return same;
}

/* One sequence alone: its rows have the same bits. */
static bool run_single(harness *h, const test_case *c, const kernel_entry *kernel, verdict *v)
{
    const char *ran = NULL;
    result_kind kind;
    if (!c->single)
        return true;
    if (!case_call(h, c->single, kernel->name, h->threads[0], true, &ran, v) ||
        !judge_memory(c->single, true, h->threads[0], v)) {
        char text[VERDICT_TEXT];
        snprintf(text, sizeof text, "%s", v->text);
        return fail(v, "sequence %" PRId64 " alone: %.300s", c->single_b, text);
    }
    return kernel->unordered || case_single_same(c, &kind) ||
           fail(v, "%s of sequence %" PRId64 " has other bits when it is run alone", result_names[kind], c->single_b);
}

verdict case_run(harness *h, test_case *c, const kernel_entry *kernel)
{
    verdict v = {.passed = true};
    const char *ran = NULL;
    if (!case_call(h, c, kernel->name, h->threads[0], true, &ran, &v) || !judge_memory(c, true, h->threads[0], &v))
        return v;
    if (!ran || strcmp(ran, kernel->name) != 0) {
        fail(&v, "the call reports that '%s' ran", ran ? ran : "(nothing)");
        return v;
    }
    if (!judge_numbers(c, kernel->rounds, &v))
        return v;
    save_outputs(c);
    if (!run_single(h, c, kernel, &v))
        return v;
    if (!repeat(h, c, kernel, h->threads[0], true, "a second run", &v))
        return v;
    for (int i = 1; i < h->threads_count; i++)
        if (!repeat(h, c, kernel, h->threads[i], true, "a run", &v))
            return v;
    if (c->p.mask == FATTN_MASK_CAUSAL && !repeat_as_window(h, c, kernel, &v))
        return v;
    if (c->p.op == FATTN_OP_FORWARD)
        repeat(h, c, kernel, h->threads[0], false, "a run without lse", &v);
    return v;
}

verdict case_run_automatic(harness *h, test_case *c, const kernel_entry *promised)
{
    verdict v = {.passed = true};
    const char *ran = NULL;
    if (!case_call(h, c, promised->name, h->threads[0], true, &ran, &v))
        return v;
    save_outputs(c);
    if (!case_call(h, c, NULL, h->threads[0], true, &ran, &v))
        return v;
    if (!ran || strcmp(ran, promised->name) != 0)
        fail(&v, "the query promised '%s', but '%s' ran", promised->name, ran ? ran : "(nothing)");
    else if (!promised->unordered && !same_outputs(c, true))
        fail(&v, "an automatic call gives other bits than %s forced", promised->name);
    return v;
}
