/*
 * A problem of gradcheck: its tensors, which the harness lays out and fills, and the library's calls, for all keys at once or
 * for parts of them that are joined.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fill.h"
#include "gradcheck.h"
#include "random.h"

const char *grad_wrong(const problem *p, grad_join join, int parts)
{
    const char *wrong = problem_wrong(p);
    if (wrong)
        return wrong;
    if (p->layout == LAYOUT_BROADCAST || p->layout == LAYOUT_BROADCAST_ROW || p->part)
        return "broadcast layouts and part have no single number to move";
    if (p->dbias && (p->dbias_dims & ~p->bias_dims) != 0)
        return "dbias has a dimension that bias lacks";
    if (join == GRAD_WHOLE)
        return NULL;
    if (p->packed_q.kind || p->packed_k.kind || p->used_q.kind || p->used_k.kind || p->alibi || p->dropout > 0)
        return "keys in parts go without differing lengths, alibi and dropout, which count keys from the first";
    return p->seq_k < parts ? "fewer keys than parts" : NULL;
}

/* --------------------------------------------------------------------------------------------------------------- parts */

static void close_part(grad_part *part)
{
    void *const all[] = {part->out, part->lse, part->dout, part->dlse, part->dq, part->lo, part->hi};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

/* The keys of part number n that each row keeps. A mask is one interval, so that of a part is one too. */
static void cut_mask(const grad_state *g, grad_part *part)
{
    const problem *p = &g->c.p;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t i = 0; i < p->seq_q; i++) {
            int32_t lo = 0, hi = 0;
            for (int64_t j = 0; j < part->desc.seq_k; j++)
                if (geometry_keeps(&g->c.g, p, b, i, part->first + j)) {
                    lo = hi == 0 ? (int32_t)j : lo;
                    hi = (int32_t)j + 1;
                }
            part->lo[b * p->seq_q + i] = lo;
            part->hi[b * p->seq_q + i] = hi;
        }
}

static bool open_part(grad_state *g, int n)
{
    const problem *p = &g->c.p;
    grad_part *part = &g->part[n];
    const int64_t from = p->seq_k * n / g->parts, to = p->seq_k * (n + 1) / g->parts;
    const size_t rows = (size_t)(p->batch * p->heads_q * p->seq_q) + 1, size = type_size(p->dtype);
    *part = (grad_part){.desc = g->c.desc, .first = from};
    part->desc.seq_k = to - from;
    part->desc.mask = FATTN_MASK_INTERVALS;
    part->desc.align = part->desc.window_left = part->desc.window_right = part->desc.mask_size = 0;
    if (n > 0) /* a sink belongs to one part only */
        part->desc.flags &= ~(FATTN_WITH_SINKS | FATTN_WITH_DSINKS);
    if (g->join == GRAD_MERGE)
        part->desc.flags |= FATTN_WITH_DLSE;
    part->out = calloc(rows * (size_t)p->dim_v, size);
    part->dout = calloc(rows * (size_t)p->dim_v, size);
    part->dq = calloc(rows * (size_t)p->dim, size);
    part->lse = calloc(rows, size);
    part->dlse = calloc(rows, size);
    part->lo = calloc((size_t)(p->batch * p->seq_q) + 1, sizeof *part->lo);
    part->hi = calloc((size_t)(p->batch * p->seq_q) + 1, sizeof *part->hi);
    if (!part->out || !part->dout || !part->dq || !part->lse || !part->dlse || !part->lo || !part->hi)
        return false;
    cut_mask(g, part);
    return true;
}

/* The harness's sinks are made to be hard: missing, or so large that nothing else counts. Here they must matter. */
static void soften_sinks(test_case *c)
{
    random_state r = random_start(c->p.seed, 91);
    for (int64_t h = 0; h < c->p.heads_q && c->p.sinks; h++)
        tensor_put(&c->t.sinks, c->t.sinks.view.data, h, random_normal(&r));
}

bool grad_open(grad_state *g, const problem *p, grad_join join, int parts)
{
    memset(g, 0, sizeof *g);
    g->c.p = *p;
    g->c.desc = problem_desc(p);
    g->join = join;
    g->parts = join == GRAD_WHOLE ? 0 : parts;
    if (!geometry_make(&g->c.g, p) || !case_place(&g->c))
        return false;
    fill_inputs(p, &g->c.g, &g->c.t);
    soften_sinks(&g->c);
    for (int n = 0; n < g->parts; n++)
        if (!open_part(g, n))
            return false;
    return true;
}

void grad_close(grad_state *g)
{
    for (int n = 0; n < g->parts; n++)
        close_part(&g->part[n]);
    case_free(&g->c);
}

/* --------------------------------------------------------------------------------------------------------------- calls */

/* Where a part's rows of k, v, dk or dv begin, and its columns of bias or dbias. */
static fattn_view from_key(const tensor *t, int64_t first)
{
    fattn_view view = t->view;
    if (view.data)
        view.data = (char *)view.data + first * view.stride_row * (int64_t)t->size;
    return view;
}

static fattn_view from_column(const tensor *t, int64_t first)
{
    fattn_view view = t->view;
    if (view.data)
        view.data = (char *)view.data + first * (int64_t)t->size;
    return view;
}

static fattn_view rows_view(const grad_state *g, void *data, int64_t dim)
{
    return fattn_view_bhsd(data, g->c.p.heads_q, g->c.p.seq_q, dim);
}

/* The call for a part, of all keys' call. The bias's view must live as long as the call. */
static fattn_forward_args part_forward(const grad_state *g, const grad_part *part, fattn_view *bias)
{
    const tensors *t = &g->c.t;
    fattn_forward_args args = case_forward_args(&g->c);
    *bias = from_column(&t->bias, part->first);
    args.k = from_key(&t->k, part->first);
    args.v = from_key(&t->v, part->first);
    args.bias = args.bias ? bias : NULL;
    args.out = rows_view(g, part->out, g->c.p.dim_v);
    args.lse = part->lse;
    args.mask_lo = part->lo;
    args.mask_hi = part->hi;
    args.mask_stride = g->c.p.seq_q;
    args.document_q = args.document_k = NULL;
    args.sinks = part->desc.flags & FATTN_WITH_SINKS ? args.sinks : NULL;
    return args;
}

static bool run_forward(const fattn_context *context, const fattn_desc *desc, fattn_forward_args *args)
{
    if (fattn_workspace_size(context, desc, FATTN_OP_FORWARD, &args->workspace_size) != FATTN_OK)
        return false;
    args->workspace = malloc(args->workspace_size + 1);
    const bool ok = args->workspace && fattn_forward(context, desc, args) == FATTN_OK;
    free(args->workspace);
    return ok;
}

static bool run_backward(const fattn_context *context, const fattn_desc *desc, fattn_backward_args *args)
{
    if (fattn_workspace_size(context, desc, FATTN_OP_BACKWARD, &args->workspace_size) != FATTN_OK)
        return false;
    args->workspace = malloc(args->workspace_size + 1);
    const bool ok = args->workspace && fattn_backward(context, desc, args) == FATTN_OK;
    free(args->workspace);
    return ok;
}

/* ------------------------------------------------------------------------------------------------------------- joining */

static bool merge(const grad_state *g, const fattn_context *context)
{
    fattn_view outs[GRAD_PARTS_MAX];
    const void *lses[GRAD_PARTS_MAX];
    for (int n = 0; n < g->parts; n++) {
        outs[n] = rows_view(g, g->part[n].out, g->c.p.dim_v);
        lses[n] = g->part[n].lse;
    }
    const fattn_merge_args args = {.struct_size = sizeof args,
                                   .count = g->parts,
                                   .outs = outs,
                                   .lses = lses,
                                   .out = g->c.t.out.view,
                                   .lse = g->c.t.lse.view.data};
    return fattn_merge(context, &g->c.desc, &args) == FATTN_OK;
}

/* From dout and dlse of all keys' call to those of the parts. */
static bool merge_backward(const grad_state *g, const fattn_context *context, const fattn_backward_args *whole)
{
    fattn_view outs[GRAD_PARTS_MAX], douts[GRAD_PARTS_MAX];
    const void *lses[GRAD_PARTS_MAX];
    void *dlses[GRAD_PARTS_MAX];
    for (int n = 0; n < g->parts; n++) {
        outs[n] = rows_view(g, g->part[n].out, g->c.p.dim_v);
        douts[n] = rows_view(g, g->part[n].dout, g->c.p.dim_v);
        lses[n] = g->part[n].lse;
        dlses[n] = g->part[n].dlse;
    }
    const fattn_merge_backward_args args = {.struct_size = sizeof args,
                                            .count = g->parts,
                                            .outs = outs,
                                            .lses = lses,
                                            .out = whole->out,
                                            .lse = whole->lse,
                                            .dout = whole->dout,
                                            .dlse = whole->dlse,
                                            .douts = douts,
                                            .dlses = dlses};
    return fattn_merge_backward(context, &g->c.desc, &args) == FATTN_OK;
}

static bool part_backward(const grad_state *g, const grad_part *part, const fattn_context *context)
{
    const tensors *t = &g->c.t;
    fattn_view bias, dbias = from_column(&t->dbias, part->first);
    const fattn_forward_args forward = part_forward(g, part, &bias);
    fattn_backward_args args = case_backward_args(&g->c, &forward);
    args.dq = rows_view(g, part->dq, g->c.p.dim);
    args.dk = from_key(&t->dk, part->first);
    args.dv = from_key(&t->dv, part->first);
    args.dbias = args.dbias ? &dbias : NULL;
    if (g->join == GRAD_MERGE) {
        args.dout = rows_view(g, part->dout, g->c.p.dim_v);
        args.dlse = part->dlse;
    } else {
        args.out = t->out.view;
        args.lse = t->lse.view.data;
    }
    return run_backward(context, &part->desc, &args);
}

/* dq is the sum of the parts' own. */
static void sum_dq(const grad_state *g)
{
    const problem *p = &g->c.p;
    const tensor *dq = &g->c.t.dq;
    for (int64_t row = 0; row < p->batch * p->heads_q * p->seq_q; row++) {
        const int64_t b = row / p->seq_q / p->heads_q, h = row / p->seq_q % p->heads_q;
        for (int64_t d = 0; d < p->dim; d++) {
            double sum = 0;
            for (int n = 0; n < g->parts; n++)
                sum += number_get(p->dtype, g->part[n].dq, row * p->dim + d);
            tensor_put(dq, tensor_row(dq, b, h, row % p->seq_q), d, sum);
        }
    }
}

/* ------------------------------------------------------------------------------------------------------------- running */

bool grad_forward(grad_state *g, const fattn_context *context)
{
    fattn_forward_args args = case_forward_args(&g->c);
    if (g->join == GRAD_WHOLE)
        return run_forward(context, &g->c.desc, &args);
    for (int n = 0; n < g->parts; n++) {
        fattn_view bias;
        args = part_forward(g, &g->part[n], &bias);
        if (!run_forward(context, &g->part[n].desc, &args))
            return false;
    }
    return merge(g, context);
}

bool grad_backward(grad_state *g, const fattn_context *context)
{
    const fattn_forward_args forward = case_forward_args(&g->c);
    fattn_backward_args args = case_backward_args(&g->c, &forward);
    if (g->join == GRAD_WHOLE)
        return run_backward(context, &g->c.desc, &args);
    if (g->join == GRAD_MERGE && !merge_backward(g, context, &args))
        return false;
    for (int n = 0; n < g->parts; n++)
        if (!part_backward(g, &g->part[n], context))
            return false;
    sum_dq(g);
    return true;
}

double grad_loss(const grad_state *g)
{
    const problem *p = &g->c.p;
    const tensors *t = &g->c.t;
    double sum = 0;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->heads_q; h++)
            for (int64_t i = 0; i < g->c.g.seq_q[b]; i++) {
                const void *out = query_row(p, &g->c.g, &t->out, b, h, i), *dout = query_row(p, &g->c.g, &t->dout, b, h, i);
                for (int64_t d = 0; d < p->dim_v; d++)
                    sum += tensor_get(&t->out, out, d) * tensor_get(&t->dout, dout, d);
                if (!p->dlse)
                    continue;
                const double lse = tensor_get(&t->lse, query_row(p, &g->c.g, &t->lse, b, h, i), 0);
                if (lse != -(double)INFINITY) /* a row without keys has no gradient */
                    sum += lse * tensor_get(&t->dlse, query_row(p, &g->c.g, &t->dlse, b, h, i), 0);
            }
    return sum;
}
