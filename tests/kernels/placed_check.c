/* See placed.h. Comparing results, and running every kernel. */
#include "placed.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int slot_of[RESULTS] = {SLOT_OUT, SLOT_LSE, SLOT_DQ, SLOT_DK, SLOT_DV, SLOT_DBIAS, -1};

static bool belongs(const placed *p, result k, fattn_op op)
{
    if (k == DBIAS || k == DSINKS)
        return op == FATTN_OP_BACKWARD && (p->desc.flags & (k == DBIAS ? FATTN_WITH_DBIAS : FATTN_WITH_DSINKS));
    return op == (k == OUT || k == LSE ? FATTN_OP_FORWARD : FATTN_OP_BACKWARD);
}

/* One row of a result. Its elements become poison once they are judged, so that what remains is what nobody should write. */
static void compare_row(placed *p, result k, void *data, int64_t index, const truth *t, int64_t at, int64_t cols,
                        const char *label)
{
    const int32_t dtype = p->t[slot_of[k]].dtype;
    const size_t size = number_size(dtype);
    for (int64_t x = 0; x < cols && t->value[k]; x++) {
        const double got = number_get(data, dtype, index + x), want = t->value[k][at + x], bound = t->bound[k][at + x];
        if (!number_near(got, want, bound, dtype))
            fail_msg("%s: %s[%lld] is %.9g, not %.9g, with a bound of %.3g", label, result_name[k], (long long)(at + x), got,
                     want, bound);
    }
    memset((char *)data + index * (int64_t)size, 0xff, (size_t)cols * size);
}

static void compare_rows(placed *p, result k, const truth *t, const char *label)
{
    const fattn_desc *d = &p->desc;
    const bool keys = k == DK || k == DV;
    const int64_t heads = keys ? d->heads_kv : d->heads_q, rows = keys ? d->seq_k : d->seq_q;
    const int64_t cols = k == LSE ? 1 : k == OUT || k == DV ? d->dim_v : d->dim;
    for (int64_t b = 0; b < d->batch; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < (keys ? p->s->keys : p->s->rows)[b]; i++) {
                int64_t index;
                void *data = placed_at(p, slot_of[k], b, h, i, &index);
                compare_row(p, k, data, index, t, ((b * heads + h) * rows + i) * cols, cols, label);
            }
}

static void compare_dbias(placed *p, const truth *t, const char *label)
{
    const fattn_desc *d = &p->desc;
    const bool *has = p->s->bias_has;
    for (int64_t b = 0; b < (has[0] ? d->batch : 1); b++)
        for (int64_t h = 0; h < (has[1] ? d->heads_q : 1); h++)
            for (int64_t i = 0; i < (has[2] ? d->seq_q : 1); i++) {
                int64_t index;
                void *data = placed_at(p, SLOT_DBIAS, b, h, i, &index);
                compare_row(p, DBIAS, data, index, t, scene_bias_index(p->s, b, h, i), d->seq_k, label);
            }
}

static void compare_dsinks(const placed *p, const truth *t, const char *label)
{
    for (int64_t h = 0; h < p->desc.heads_q && t->value[DSINKS]; h++)
        if (!number_near((double)p->dsinks[h], t->value[DSINKS][h], t->bound[DSINKS][h], FATTN_F32))
            fail_msg("%s: dsinks[%d] is %.9g, not %.9g, with a bound of %.3g", label, (int)h, (double)p->dsinks[h],
                     t->value[DSINKS][h], t->bound[DSINKS][h]);
}

static void unwritten(const tensor *t, const char *name, const char *label)
{
    for (size_t n = 0; t->memory && t->mapped == 0 && n < t->bytes; n++)
        if (t->memory[n] != 0xff)
            fail_msg("%s: byte %zu of %s's memory was written, which no element occupies", label, n, name);
}

void placed_compare(placed *p, fattn_op op, const truth *t, const char *label)
{
    for (result k = 0; k < RESULTS; k++) {
        if (!belongs(p, k, op))
            continue;
        if (k == DSINKS)
            compare_dsinks(p, t, label);
        else if (k == DBIAS)
            compare_dbias(p, t, label);
        else
            compare_rows(p, k, t, label);
    }
    for (result k = 0; k < DSINKS; k++)
        if (belongs(p, k, op))
            unwritten(&p->t[slot_of[k]], result_name[k], label);
}

/* ------------------------------------------------------------------------------------------------------------ snapshots */

snapshot snapshot_of(const placed *p, fattn_op op)
{
    snapshot s = {0};
    const size_t sinks = (size_t)p->desc.heads_q * sizeof *p->dsinks;
    for (result k = 0; k < DSINKS; k++)
        s.size += belongs(p, k, op) ? p->t[slot_of[k]].bytes : 0;
    s.bytes = allocate((int64_t)(s.size + sinks), 1);
    size_t at = 0;
    for (result k = 0; k < DSINKS; k++)
        if (belongs(p, k, op) && p->t[slot_of[k]].memory) {
            memcpy(s.bytes + at, p->t[slot_of[k]].memory, p->t[slot_of[k]].bytes);
            at += p->t[slot_of[k]].bytes;
        }
    if (belongs(p, DSINKS, op)) {
        memcpy(s.bytes + at, p->dsinks, sinks);
        s.size += sinks;
    }
    return s;
}

bool snapshot_same(const snapshot *a, const snapshot *b)
{
    return a->size == b->size && memcmp(a->bytes, b->bytes, a->size) == 0;
}

/* -------------------------------------------------------------------------------------------------------------- kernels */

enum { CONTEXTS_MOST = 1024 };

static struct {
    const char *kernel;
    int threads;
    fattn_context *context;
} contexts[CONTEXTS_MOST];

const fattn_context *context_of(const char *kernel, int threads)
{
    int n = 0;
    for (; n < CONTEXTS_MOST && contexts[n].context; n++)
        if (contexts[n].threads == threads && strcmp(contexts[n].kernel, kernel) == 0)
            return contexts[n].context;
    assert_true(n < CONTEXTS_MOST);
    const fattn_context_options options = {.struct_size = sizeof options, .threads = threads, .kernel = kernel};
    contexts[n].kernel = kernel;
    contexts[n].threads = threads;
    assert_int_equal(fattn_context_create(&options, &contexts[n].context), FATTN_OK);
    return contexts[n].context;
}

int contexts_free(void **state)
{
    (void)state;
    for (int n = 0; n < CONTEXTS_MOST && contexts[n].context; n++)
        fattn_context_destroy(contexts[n].context);
    memset(contexts, 0, sizeof contexts);
    return 0;
}

int kernels_of(const fattn_desc *desc, fattn_op op, const char *name[NAMES_MOST])
{
    const fattn_context *any = context_of("", 2);
    fattn_kernel_info info = {.struct_size = sizeof info};
    int count = 0;
    for (int32_t i = 0; count < NAMES_MOST && fattn_kernel_query(any, desc, op, i, &info) == FATTN_OK; i++)
        if (info.can_run)
            name[count++] = info.name; /* static */
    if (count == 0)
        fail_msg("no kernel can run this: %s", fattn_last_error());
    return count;
}

bool kernel_is_slow(const char *name)
{
    return strncmp(name, "ref", 3) == 0 || strncmp(name, "composed", 8) == 0 || strncmp(name, "cpu_generic", 11) == 0;
}

truth truth_for(const scene *s, const form *f, int32_t dtype)
{
    const bool narrow = number_size(dtype) == 2;
    if (f->blank)
        return truth_blank(s);
    /* In double the truth itself is rounded as kernels are: each may err by the bound. */
    truth t = truth_of(s,
                       narrow               ? 0x1p-24
                       : dtype == FATTN_F64 ? 2 * number_unit(dtype)
                                            : number_unit(dtype),
                       narrow && f->wide ? 0x1p-24 : number_unit(dtype));
    for (int k = 0; k < RESULTS && f->most_bound > 0; k++)
        for (int64_t i = 0; k != LSE && i < t.count[k]; i++)
            t.bound[k][i] = t.bound[k][i] <= f->most_bound ? t.bound[k][i] : f->most_bound;
    return t;
}

static void each_kernel(placed *p, fattn_op op, const truth *t, scene_body *body, void *arg)
{
    const char *name[NAMES_MOST];
    char label[200];
    const int count = kernels_of(&p->desc, op, name);
    for (int n = 0; n < count; n++) {
        if (p->f.quick && kernel_is_slow(name[n]))
            continue;
        snprintf(label, sizeof label, "%s%s%s, %s%s%s", p->f.what ? p->f.what : "", p->f.what ? ", " : "", name[n],
                 number_name(p->desc.dtype), p->f.packed ? ", packed" : "", p->f.wide ? ", wide results" : "");
        body(p, op, t, name[n], label, arg);
    }
}

void for_each_kernel(const scene *s, const form *f, scene_body *body, void *arg)
{
    int types = 0;
    for (int n = 0; n < 4; n++) {
        if (!scene_fits(s, all_types[n]) || (f->types != 0 && !(f->types >> all_types[n] & 1)))
            continue;
        truth t = truth_for(s, f, all_types[n]);
        placed p = placed_make(s, &t, f, all_types[n]);
        if (!f->backward_only)
            each_kernel(&p, FATTN_OP_FORWARD, &t, body, arg);
        placed_free(&p);
        p = placed_make(s, &t, f, all_types[n]); /* with the truth as out and lse again */
        if (!f->forward_only && f->page_size == 0)
            each_kernel(&p, FATTN_OP_BACKWARD, &t, body, arg);
        placed_free(&p);
        truth_free(&t);
        types++;
    }
    assert_true(types > 0);
}

/* arg: NULL, or the values to compare with. */
static void run_and_compare(placed *p, fattn_op op, const truth *t, const char *kernel, const char *label, void *arg)
{
    const fattn_context *context = context_of(kernel, p->f.threads > 0 ? p->f.threads : 2);
    double *const *value = arg;
    truth want = *t;
    for (int k = 0; value && k < RESULTS; k++)
        want.value[k] = value[k];
    (op == FATTN_OP_FORWARD ? placed_forward : placed_backward)(p, context);
    placed_compare(p, op, &want, label);
}

void check_scene(const scene *s, const form *f)
{
    for_each_kernel(s, f, run_and_compare, NULL);
}

void check_scene_against(const scene *s, const form *f, double *const value[RESULTS])
{
    for_each_kernel(s, f, run_and_compare, (void *)(uintptr_t)value);
}
