/*
 * Bytes as calls of fattn_merge and fattn_merge_backward: partial results of any type, in any layout, as tensors of an arena.
 */
#include "scene.h"
#include "status.h"

enum { PARTS_MOST = 4, OUT_0 = 0, LSE_0 = 4, DOUT_0 = 8, DLSE_0 = 12, MERGED = 16, MERGED_LSE, MERGED_DOUT, MERGED_DLSE, ALL };

typedef struct parts {
    fattn_desc desc;
    int count;
    tensor tensor[ALL];
    fattn_view outs[PARTS_MOST], douts[PARTS_MOST];
    const void *lses[PARTS_MOST];
    void *dlses[PARTS_MOST];
} parts;

static void describe(parts *p, fuzz_input *in)
{
    const int64_t sizes[] = {1, 2, 3, 0, 5, 17};
    const uint8_t types = fuzz_byte(in), wild = fuzz_byte(in);
    fattn_desc *d = &p->desc;
    *d = (fattn_desc){.struct_size = sizeof *d, .heads_kv = 1, .seq_k = 1, .dim = 8};
    d->dtype = types % 4 + 1;
    d->out_dtype = types & 4 ? (d->dtype >= FATTN_F16 && (types & 8) ? FATTN_F32 : d->dtype) : 0;
    d->batch = sizes[fuzz_byte(in) % 5];
    d->heads_q = fuzz_byte(in) % 3 + 1;
    d->seq_q = sizes[fuzz_byte(in) % 6];
    d->dim_v = fuzz_byte(in) % 80 + 1;
    d->total_q = types & 16 ? fuzz_byte(in) % 32 : 0;
    if (wild >= 240)
        d->batch = (int64_t)fuzz_number(in, 8);
    p->count = wild >= 224 ? fuzz_byte(in) - 128 : types >> 5 & 3;
}

static void shape(parts *p, int id, int32_t dtype, int64_t cols, bool distinct)
{
    const fattn_desc *d = &p->desc;
    const bool packed = d->total_q > 0;
    p->tensor[id] = (tensor){.batch = packed ? 1 : d->batch,
                             .heads = d->heads_q,
                             .rows = packed ? d->total_q : d->seq_q,
                             .cols = cols,
                             .dtype = dtype,
                             .plain = cols == 1 && (id >= MERGED_DLSE || id == MERGED_LSE || id / 4 % 2 == 1),
                             .distinct = distinct};
}

static bool place(parts *p, fuzz_input *in)
{
    const fattn_desc *d = &p->desc;
    const int32_t wide = d->dtype == FATTN_F64 ? FATTN_F64 : FATTN_F32, out = d->out_dtype ? d->out_dtype : d->dtype;
    for (int i = 0; i < PARTS_MOST; i++) {
        shape(p, OUT_0 + i, wide, d->dim_v, false);
        shape(p, LSE_0 + i, wide, 1, false);
        shape(p, DOUT_0 + i, wide, d->dim_v, true);
        shape(p, DLSE_0 + i, wide, 1, true);
    }
    shape(p, MERGED, out, d->dim_v, true);
    shape(p, MERGED_DOUT, out, d->dim_v, false);
    shape(p, MERGED_LSE, wide, 1, true);
    shape(p, MERGED_DLSE, wide, 1, false);
    for (int i = 0; i < ALL; i++) {
        tensor *t = &p->tensor[i];
        t->plain = t->plain || i == MERGED_LSE || i == MERGED_DLSE || (i >= LSE_0 && i < DOUT_0) || (i >= DLSE_0 && i < MERGED);
        if (!arena_place(t, in))
            return false;
    }
    scene_fill(p->tensor, ALL, fuzz_byte(in));
    for (int i = 0; i < PARTS_MOST; i++) {
        p->outs[i] = p->tensor[OUT_0 + i].given;
        p->lses[i] = p->tensor[LSE_0 + i].given.data;
        p->douts[i] = p->tensor[DOUT_0 + i].given;
        p->dlses[i] = p->tensor[DLSE_0 + i].given.data;
    }
    return true;
}

static void roles(parts *p, bool backward)
{
    for (int i = 0; i < ALL; i++) {
        const bool part = i < MERGED, used = !part || i % PARTS_MOST < p->count;
        const bool gradient = (i >= DOUT_0 && i < MERGED) || i == MERGED_DOUT || i == MERGED_DLSE;
        const bool output = backward ? part && gradient : i == MERGED || i == MERGED_LSE;
        p->tensor[i].role = !used || (gradient && !backward) ? ROLE_NONE : output ? ROLE_OUTPUT : ROLE_INPUT;
    }
}

static fattn_status call(const fattn_context *context, parts *p, bool backward)
{
    const fattn_merge_args merge = {.struct_size = sizeof merge,
                                    .count = p->count,
                                    .outs = p->outs,
                                    .lses = p->lses,
                                    .out = p->tensor[MERGED].given,
                                    .lse = p->tensor[MERGED_LSE].given.data};
    const fattn_merge_backward_args gradient = {.struct_size = sizeof gradient,
                                                .count = p->count,
                                                .outs = p->outs,
                                                .lses = p->lses,
                                                .out = p->tensor[MERGED].given,
                                                .lse = p->tensor[MERGED_LSE].given.data,
                                                .dout = p->tensor[MERGED_DOUT].given,
                                                .dlse = p->tensor[MERGED_DLSE].given.data,
                                                .douts = p->douts,
                                                .dlses = p->dlses};
    return backward ? fattn_merge_backward(context, &p->desc, &gradient) : fattn_merge(context, &p->desc, &merge);
}

static fattn_status run(const fattn_context *context, parts *p, bool backward, int poison)
{
    forget_error();
    arena_close(p->tensor, ALL, poison, false);
    const fattn_status status = checked(call(context, p, backward));
    arena_open();
    FUZZ_CHECK(status == FATTN_OK || arena_same());
    FUZZ_CHECK(arena_outside_same());
    return status;
}

/* Numbers of parts that there is no list for are refused before a list is looked at, or were never asked for. */
static bool fits(const parts *p)
{
    return p->count <= PARTS_MOST && p->desc.batch >= 0 && p->desc.batch <= BATCH_MOST;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static fattn_context *context;
    static parts p;
    const fattn_context_options options = {.struct_size = sizeof options, .threads = 1, .kernel = ""};
    fuzz_input in = {data, size};
    if (!context)
        FUZZ_CHECK(fattn_context_create(&options, &context) == FATTN_OK);
    describe(&p, &in);
    arena_begin();
    if (!fits(&p) || !place(&p, &in))
        return 0;
    for (int backward = 0; backward < 2; backward++) {
        roles(&p, backward);
        if (run(context, &p, backward, 0xa5) != FATTN_OK)
            continue;
        const uint64_t first = arena_outputs();
        FUZZ_CHECK(run(context, &p, backward, 0x5a) == FATTN_OK && arena_outputs() == first);
    }
    return 0;
}
