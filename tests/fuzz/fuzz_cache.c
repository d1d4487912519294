/*
 * Bytes as a call of fattn_cache_append: new rows for a cache, padded or in pages, turned by their positions or not. Of the
 * cache only the new rows may be touched.
 */
#include "scene.h"
#include "status.h"

/* Beside those of a scene. */
enum { K_NEW, V_NEW, COS, SIN, OWN };

typedef struct append {
    scene s;
    tensor tensor[TENSORS + OWN]; /* the scene's, then these */
    int32_t used_k[BATCH_MOST], used_q[BATCH_MOST];
    int64_t rotary_dim, rotary_rows;
    bool interleaved;
    uint8_t new_rows[ROWS_MOST], cache_rows[ROWS_MOST];
} append;

/* What a descriptor says of masks and numbers does not matter here. */
static void describe(append *a, fuzz_input *in)
{
    scene_describe(&a->s, in);
    a->s.packed_q = a->s.packed_k = false;
    a->s.desc.total_q = a->s.desc.total_k = 0;
    a->s.desc_claims = sizeof a->s.desc;
    a->s.desc.struct_size = sizeof a->s.desc;
}

/* How many rows there are, and come: mostly so many that they fit. */
static void set_counts(append *a, fuzz_input *in)
{
    const fattn_desc *d = &a->s.desc;
    const bool wild = fuzz_byte(in) >= 224;
    for (int64_t b = 0; b < d->batch; b++) {
        const int64_t most = d->seq_q < d->seq_k ? d->seq_q : d->seq_k;
        a->used_q[b] = (int32_t)(fuzz_number(in, 2) % (uint64_t)(most + 1));
        a->used_k[b] = (int32_t)(fuzz_number(in, 2) % (uint64_t)(d->seq_k - a->used_q[b] + 1));
        if (wild && fuzz_byte(in) % 4 == 0)
            a->used_k[b] = (int32_t)fuzz_number(in, 4);
    }
}

static void set_rows(append *a)
{
    const fattn_desc *d = &a->s.desc;
    const int32_t *table = a->tensor[PAGE_TABLE].view.data;
    const int64_t columns = d->page_size > 0 ? (d->seq_k + d->page_size - 1) / d->page_size : 0;
    memset(a->new_rows, 0, sizeof a->new_rows);
    memset(a->cache_rows, 0, sizeof a->cache_rows);
    for (int64_t b = 0; b < d->batch; b++) {
        for (int64_t i = 0; i < a->used_q[b]; i++) {
            const int64_t key = a->used_k[b] + i;
            a->new_rows[b * d->seq_q + i] = 1;
            if (key >= 0 && key < d->seq_k)
                a->cache_rows[d->page_size > 0 ? table[b * columns + key / d->page_size] * d->page_size + key % d->page_size
                                               : b * d->seq_k + key] = 1;
        }
    }
}

static void shape(append *a, int id, int32_t dtype, int64_t batch, int64_t heads, int64_t rows, int64_t cols)
{
    a->tensor[id] = (tensor){.batch = batch, .heads = heads, .rows = rows, .cols = cols, .dtype = dtype};
    a->tensor[id].plain = (batch == 1 && heads == 1) || id == K_SCALES || id == V_SCALES;
}

static void shape_all(append *a)
{
    const fattn_desc *d = &a->s.desc;
    const int32_t kv = d->kv_dtype ? d->kv_dtype : d->dtype;
    const bool paged = d->page_size > 0, bytes = kv == FATTN_I8;
    const int64_t outer = paged ? d->pages : d->batch, rows = paged ? d->page_size : d->seq_k;
    shape(a, TENSORS + K_NEW, d->dtype, d->batch, d->heads_kv, d->seq_q, d->dim);
    shape(a, TENSORS + V_NEW, d->dtype, d->batch, d->heads_kv, d->seq_q, d->dim_v);
    shape(a, Q, d->dtype, d->batch, d->heads_q, d->seq_q, d->dim);
    shape(a, K, kv, outer, d->heads_kv, rows, d->dim);
    shape(a, V, kv, outer, d->heads_kv, rows, d->dim_v);
    shape(a, K_SCALES, FATTN_F32, bytes ? outer : 0, d->heads_kv, rows, 1);
    shape(a, V_SCALES, FATTN_F32, bytes ? outer : 0, d->heads_kv, rows, 1);
    shape(a, USED_K, TENSOR_I32, 1, 1, 1, d->batch);
    shape(a, USED_Q, TENSOR_I32, 1, 1, 1, d->batch);
    shape(a, PAGE_TABLE, TENSOR_I32, 1, 1, 1, paged ? d->batch * ((d->seq_k + d->page_size - 1) / d->page_size) : 0);
    shape(a, TENSORS + COS, FATTN_F32, 1, 1, a->rotary_rows, a->rotary_dim / 2);
    shape(a, TENSORS + SIN, FATTN_F32, 1, 1, a->rotary_rows, a->rotary_dim / 2);
    const int changed[] = {Q, K, V, K_SCALES, V_SCALES}, fresh[] = {TENSORS + K_NEW, TENSORS + V_NEW, Q};
    const int read[] = {TENSORS + K_NEW, TENSORS + V_NEW, USED_K, USED_Q, PAGE_TABLE, TENSORS + COS, TENSORS + SIN};
    for (size_t i = 0; i < sizeof changed / sizeof *changed; i++) {
        tensor *t = &a->tensor[changed[i]];
        t->distinct = true;
        t->role = i == 0 ? ROLE_CHANGED : ROLE_OUTPUT;
        t->rows_used = a->cache_rows;
    }
    for (size_t i = 0; i < sizeof fresh / sizeof *fresh; i++)
        a->tensor[fresh[i]].rows_used = a->new_rows;
    for (size_t i = 0; i < sizeof read / sizeof *read; i++)
        a->tensor[read[i]].role = ROLE_INPUT;
}

static bool place(append *a, fuzz_input *in)
{
    const fattn_desc *d = &a->s.desc;
    const uint8_t turn = fuzz_byte(in);
    a->interleaved = turn & 1;
    a->rotary_dim = turn & 2 ? d->dim / 2 * 2 : 0;
    a->rotary_rows = turn & 2 ? d->seq_k + (turn & 4 ? 0 : 3) : 0;
    memset(a->tensor, 0, sizeof a->tensor);
    set_counts(a, in);
    shape_all(a);
    arena_begin();
    for (int i = 0; i < TENSORS + OWN; i++)
        if (!arena_place(&a->tensor[i], in))
            return false;
    if (d->batch > 0) {
        memcpy(a->tensor[USED_K].view.data, a->used_k, (size_t)d->batch * sizeof(int32_t));
        memcpy(a->tensor[USED_Q].view.data, a->used_q, (size_t)d->batch * sizeof(int32_t));
    }
    const uint8_t first = fuzz_byte(in), odd = fuzz_byte(in);
    for (int64_t i = 0; i < a->tensor[PAGE_TABLE].cols; i++)
        ((int32_t *)a->tensor[PAGE_TABLE].view.data)[i] = (int32_t)((i + first) % d->pages);
    set_rows(a);
    if (odd >= 240 && a->tensor[PAGE_TABLE].cols > 0)
        ((int32_t *)a->tensor[PAGE_TABLE].view.data)[0] = odd == 255 ? -1 : (int32_t)d->pages;
    return true;
}

static fattn_status run(const fattn_context *context, append *a, const fattn_desc *desc, uint8_t numbers, int poison)
{
    const tensor *t = a->tensor;
    scene_fill(a->tensor, TENSORS + OWN, numbers);
    const fattn_cache_args args = {.struct_size = sizeof args,
                                   .interleaved = a->interleaved,
                                   .k_new = t[TENSORS + K_NEW].given,
                                   .v_new = t[TENSORS + V_NEW].given,
                                   .q = t[Q].given,
                                   .k = t[K].given,
                                   .v = t[V].given,
                                   .used_k = t[USED_K].given.data,
                                   .used_q = t[USED_Q].given.data,
                                   .page_table = t[PAGE_TABLE].given.data,
                                   .k_scales = t[K_SCALES].given.data,
                                   .v_scales = t[V_SCALES].given.data,
                                   .rotary_cos = t[TENSORS + COS].given.data,
                                   .rotary_sin = t[TENSORS + SIN].given.data,
                                   .rotary_dim = a->rotary_dim,
                                   .rotary_rows = a->rotary_rows};
    forget_error();
    arena_close(t, TENSORS + OWN, poison, false);
    const fattn_status status = checked(fattn_cache_append(context, desc, &args));
    arena_open();
    FUZZ_CHECK(status == FATTN_OK || arena_same());
    FUZZ_CHECK(arena_outside_same());
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static fattn_context *context;
    static append a;
    const fattn_context_options options = {.struct_size = sizeof options, .threads = 1, .kernel = ""};
    fuzz_input in = {data, size};
    size_t bytes;
    if (!context)
        FUZZ_CHECK(fattn_context_create(&options, &context) == FATTN_OK);
    describe(&a, &in);
    fattn_desc *desc = scene_desc(&a.s);
    const uint8_t numbers = fuzz_byte(&in);
    if (fattn_workspace_size(context, desc, FATTN_OP_FORWARD, &bytes) == FATTN_OK && scene_fits(&a.s.desc) && place(&a, &in) &&
        run(context, &a, desc, numbers, 0xa5) == FATTN_OK) {
        const uint64_t first = arena_outputs();
        FUZZ_CHECK(run(context, &a, desc, numbers, 0x5a) == FATTN_OK && arena_outputs() == first);
    }
    free(desc);
    return 0;
}
