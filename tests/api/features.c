/*
 * Optional arguments: each comes with what asks for it, lists of lengths, documents and pages make sense, no output overlaps
 * any; and what features leave of problems without sequences, rows or keys.
 */
#include "numbers.h"

enum { LISTS = 16, LIST_ROOM = 512 };

/* A problem with every optional argument at hand, in memory of its own each. */
typedef struct featured {
    fixture f;
    int32_t list[LISTS][LIST_ROOM];
    float number[6][LIST_ROOM];
    fattn_view bias, dbias;
    fattn_desc desc_before;
    fattn_forward_args forward_before;
    fattn_backward_args backward_before;
} featured;

/* What the lists hold. */
enum { CU_Q, CU_K, USED_Q, USED_K, LO, HI, DOC_Q, DOC_K, TABLE };
enum { SLOPES, SINKS, DLSE, DSINKS, BIAS, DBIAS };

static featured g;

static void remember(void)
{
    g.desc_before = g.f.desc;
    g.forward_before = g.f.forward;
    g.backward_before = g.f.backward;
}

static void restore(void)
{
    g.f.desc = g.desc_before;
    g.f.forward = g.forward_before;
    g.f.backward = g.backward_before;
}

static int make(void **state)
{
    (void)state;
    memset(&g, 0, sizeof g);
    fixture_make(&g.f, FATTN_F32, NULL);
    for (int n = 0; n < 5; n++)
        fill(g.number[n], FATTN_F32, LIST_ROOM, (uint64_t)n + 1);
    g.list[CU_Q][1] = 3, g.list[CU_Q][2] = 8;
    g.list[CU_K][1] = 7, g.list[CU_K][2] = 9;
    g.list[USED_Q][0] = 2, g.list[USED_Q][1] = 5;
    g.list[USED_K][0] = 7, g.list[USED_K][1] = 1;
    for (int n = 0; n < LIST_ROOM; n++) {
        g.list[HI][n] = n % 8;
        g.list[TABLE][n] = n % 6;
    }
    g.bias = fattn_view_bhsd(g.number[BIAS], HEADS_Q, SEQ_Q, SEQ_K);
    g.dbias = fattn_view_bhsd(g.number[DBIAS], HEADS_Q, SEQ_Q, SEQ_K);
    remember();
    return 0;
}

static int release(void **state)
{
    (void)state;
    restore();
    fixture_free(&g.f);
    return 0;
}

static void refused(bool backward, fattn_status status, const char *words)
{
    const fattn_status got =
        backward ? fattn_backward(g.f.context, &g.f.desc, &g.f.backward) : fattn_forward(g.f.context, &g.f.desc, &g.f.forward);
    assert_refused(&g.f, got, status, words);
}

static void both_refused(fattn_status status, const char *words)
{
    refused(false, status, words);
    refused(true, status, words);
}

/* Sets a field of both operations. */
#define BOTH(field, value) (g.f.forward.field = (value), g.f.backward.field = (value))

/* ------------------------------------------------------------------------------------------------------------ presence */

#define NOT_ASKED(args, is_backward, field, value, asker)                                                                      \
    do {                                                                                                                       \
        g.f.args.field = (void *)(value);                                                                                      \
        refused(is_backward, FATTN_ERROR_ARGUMENT, "args." #field " is given, but " asker " does not ask for it");             \
        restore();                                                                                                             \
    } while (0)

static void pointers_that_nothing_asks_for(void **state)
{
    (void)state;
    NOT_ASKED(forward, false, mask_lo, g.list[LO], "desc.mask");
    NOT_ASKED(forward, false, mask_hi, g.list[HI], "desc.mask");
    NOT_ASKED(forward, false, document_q, g.list[DOC_Q], "desc.mask");
    NOT_ASKED(forward, false, document_k, g.list[DOC_K], "desc.mask");
    NOT_ASKED(forward, false, bias, &g.bias, "desc.flags");
    NOT_ASKED(forward, false, slopes, g.number[SLOPES], "desc.flags");
    NOT_ASKED(forward, false, sinks, g.number[SINKS], "desc.flags");
    NOT_ASKED(forward, false, page_table, g.list[TABLE], "desc.page_size");
    NOT_ASKED(forward, false, k_scales, g.number[SINKS], "desc.kv_dtype");
    NOT_ASKED(forward, false, v_scales, g.number[SINKS], "desc.kv_dtype");
    NOT_ASKED(backward, true, mask_lo, g.list[LO], "desc.mask");
    NOT_ASKED(backward, true, mask_hi, g.list[HI], "desc.mask");
    NOT_ASKED(backward, true, document_q, g.list[DOC_Q], "desc.mask");
    NOT_ASKED(backward, true, document_k, g.list[DOC_K], "desc.mask");
    NOT_ASKED(backward, true, bias, &g.bias, "desc.flags");
    NOT_ASKED(backward, true, slopes, g.number[SLOPES], "desc.flags");
    NOT_ASKED(backward, true, sinks, g.number[SINKS], "desc.flags");
    NOT_ASKED(backward, true, dlse, g.number[DLSE], "desc.flags");
    NOT_ASKED(backward, true, dbias, &g.dbias, "desc.flags");
    NOT_ASKED(backward, true, dsinks, g.number[DSINKS], "desc.flags");
    BOTH(mask_stride, SEQ_Q);
    both_refused(FATTN_ERROR_ARGUMENT, "args.mask_stride is 5");
    restore();
}

/* Each needs its pointer; with all given but one, that one is named. */
static void pointers_that_are_missing(void **state)
{
    (void)state;
    g.f.desc.flags = FATTN_WITH_BIAS;
    both_refused(FATTN_ERROR_ARGUMENT, "args.bias is NULL, but desc.flags");
    g.f.desc.flags = FATTN_WITH_SLOPES;
    both_refused(FATTN_ERROR_ARGUMENT, "args.slopes is NULL, but desc.flags");
    g.f.desc.flags = FATTN_WITH_SINKS;
    both_refused(FATTN_ERROR_ARGUMENT, "args.sinks is NULL, but desc.flags");
    g.f.desc.flags = FATTN_WITH_DLSE;
    refused(true, FATTN_ERROR_ARGUMENT, "args.dlse is NULL, but desc.flags");
    g.f.desc.flags = FATTN_WITH_BIAS | FATTN_WITH_DBIAS;
    g.f.backward.bias = &g.bias;
    refused(true, FATTN_ERROR_ARGUMENT, "args.dbias is NULL, but desc.flags");
    restore();
    g.f.desc.flags = FATTN_WITH_SINKS | FATTN_WITH_DSINKS;
    g.f.backward.sinks = g.number[SINKS];
    refused(true, FATTN_ERROR_ARGUMENT, "args.dsinks is NULL, but desc.flags");
    restore();
    g.f.desc.mask = FATTN_MASK_INTERVALS;
    both_refused(FATTN_ERROR_ARGUMENT, "args.mask_lo is NULL, but desc.mask");
    BOTH(mask_lo, g.list[LO]);
    both_refused(FATTN_ERROR_ARGUMENT, "args.mask_hi is NULL, but desc.mask");
    restore();
    g.f.desc.mask = FATTN_MASK_DOCUMENT;
    both_refused(FATTN_ERROR_ARGUMENT, "args.document_q is NULL, but desc.mask");
    BOTH(document_q, g.list[DOC_Q]);
    both_refused(FATTN_ERROR_ARGUMENT, "args.document_k is NULL, but desc.mask");
    restore();
    g.f.desc.total_q = 8;
    both_refused(FATTN_ERROR_ARGUMENT, "args.cu_seqlens_q is NULL, but desc.total_q");
    restore();
    g.f.desc.total_k = 9;
    both_refused(FATTN_ERROR_ARGUMENT, "args.cu_seqlens_k is NULL, but desc.total_k");
    restore();
    g.f.desc.page_size = 4, g.f.desc.pages = 6;
    refused(false, FATTN_ERROR_ARGUMENT, "args.page_table is NULL, but desc.page_size");
    restore();
    g.f.desc.kv_dtype = FATTN_I8;
    refused(false, FATTN_ERROR_ARGUMENT, "args.k_scales is NULL, but desc.kv_dtype");
    g.f.forward.k_scales = g.number[SINKS];
    refused(false, FATTN_ERROR_ARGUMENT, "args.v_scales is NULL, but desc.kv_dtype");
    restore();
}

/* What forward alone reads is refused by backward, by name, from the first question on. */
static void backward_reads_no_cache(void **state)
{
    size_t bytes = 77;
    fattn_kernel_info info = {.struct_size = sizeof info, .name = "untouched"};
    (void)state;
    for (int n = 0; n < 2; n++) {
        static const char *const words[] = {"desc.page_size is 4, but backward", "desc.kv_dtype is FATTN_I8, but backward"};
        if (n == 0)
            g.f.desc.page_size = 4, g.f.desc.pages = 6;
        else
            g.f.desc.kv_dtype = FATTN_I8;
        refused(true, FATTN_ERROR_UNSUPPORTED, words[n]);
        assert_refused(&g.f, fattn_workspace_size(g.f.context, &g.f.desc, FATTN_OP_BACKWARD, &bytes), FATTN_ERROR_UNSUPPORTED,
                       words[n]);
        assert_refused(&g.f, fattn_kernel_query(g.f.context, &g.f.desc, FATTN_OP_BACKWARD, 0, &info), FATTN_ERROR_UNSUPPORTED,
                       words[n]);
        assert_true(bytes == 77);
        restore();
    }
}

/* --------------------------------------------------------------------------------------------------------------- lists */

static void cumulative_lengths(void **state)
{
    static const struct {
        int32_t cu[BATCH + 1];
        const char *q, *k;
    } wrong[] = {
        {{1, 3, 8}, "args.cu_seqlens_q[0] is 1, not 0", "args.cu_seqlens_k[0] is 1, not 0"},
        {{0, 4, 3}, "args.cu_seqlens_q[2] is 3, less than the 4 before it", "args.cu_seqlens_k[2] is 3, less than"},
        {{0, -1, 8}, "args.cu_seqlens_q[1] is -1", "args.cu_seqlens_k[1] is -1"},
        {{0, 0, 8}, "8 rows in sequence 1, more than desc.seq_q, 5", "8 rows in sequence 1, more than desc.seq_k, 7"},
        {{0, 3, 7}, "args.cu_seqlens_q[2] is 7, but desc.total_q is 8", "args.cu_seqlens_k[2] is 7, but desc.total_k"}};
    (void)state;
    for (size_t n = 0; n < sizeof wrong / sizeof *wrong; n++) {
        g.f.desc.total_q = 8;
        BOTH(cu_seqlens_q, wrong[n].cu);
        both_refused(FATTN_ERROR_ARGUMENT, wrong[n].q);
        restore();
        g.f.desc.total_k = 8;
        BOTH(cu_seqlens_k, wrong[n].cu);
        both_refused(FATTN_ERROR_ARGUMENT, wrong[n].k);
        restore();
    }
    BOTH(cu_seqlens_q, g.list[CU_Q]); /* without a total, only lists of nothing will do */
    both_refused(FATTN_ERROR_ARGUMENT, "args.cu_seqlens_q[2] is 8, but desc.total_q is 0");
    restore();
    BOTH(cu_seqlens_k, g.list[CU_K]);
    both_refused(FATTN_ERROR_ARGUMENT, "args.cu_seqlens_k[2] is 9, but desc.total_k is 0");
    restore();
    g.f.desc.page_size = 4, g.f.desc.pages = 6;
    g.f.forward.page_table = g.list[TABLE];
    g.f.forward.cu_seqlens_k = g.list[TABLE];
    refused(false, FATTN_ERROR_ARGUMENT, "args.cu_seqlens_k is given, but k and v are paged");
    restore();
    g.f.desc.mask = FATTN_MASK_INTERVALS;
    g.f.desc.total_q = 8;
    BOTH(cu_seqlens_q, g.list[CU_Q]);
    BOTH(mask_lo, g.list[LO]);
    BOTH(mask_hi, g.list[HI]);
    BOTH(mask_stride, 8);
    both_refused(FATTN_ERROR_ARGUMENT, "args.mask_stride is 8");
    restore();
}

static void used_lengths(void **state)
{
    (void)state;
    const int32_t wrong[] = {-1, 6, INT32_MAX, INT32_MIN};
    for (size_t n = 0; n < sizeof wrong / sizeof *wrong; n++) {
        g.list[USED_Q][1] = wrong[n];
        BOTH(used_q, g.list[USED_Q]);
        both_refused(FATTN_ERROR_ARGUMENT, "args.used_q[1] is");
        restore();
        g.list[USED_K][1] = wrong[n] == 6 ? 8 : wrong[n];
        BOTH(used_k, g.list[USED_K]);
        both_refused(FATTN_ERROR_ARGUMENT, "args.used_k[1] is");
        restore();
    }
    g.f.desc.total_q = 8; /* packed: at most its own rows, here 3 and 5 */
    BOTH(cu_seqlens_q, g.list[CU_Q]);
    BOTH(used_q, g.list[USED_Q]);
    g.list[USED_Q][0] = 4, g.list[USED_Q][1] = 5;
    both_refused(FATTN_ERROR_ARGUMENT, "args.used_q[0] is 4, outside 0 .. 3");
    g.list[USED_Q][0] = 2;
    restore();
    g.f.desc.total_k = 9;
    BOTH(cu_seqlens_k, g.list[CU_K]);
    BOTH(used_k, g.list[USED_K]);
    g.list[USED_K][1] = 3;
    both_refused(FATTN_ERROR_ARGUMENT, "args.used_k[1] is 3, outside 0 .. 2");
    g.list[USED_K][1] = 1;
    restore();
}

static void documents_that_go_down(void **state)
{
    (void)state;
    g.f.desc.mask = FATTN_MASK_DOCUMENT;
    BOTH(document_q, g.list[DOC_Q]);
    BOTH(document_k, g.list[DOC_K]);
    for (int i = 0; i < SEQ_Q; i++)
        g.list[DOC_Q][SEQ_Q + i] = i - 7; /* starting lower than the sequence before ended is fine */
    g.list[DOC_Q][SEQ_Q + 4] = -5;
    both_refused(FATTN_ERROR_ARGUMENT, "args.document_q of sequence 1 goes down from -4 to -5 at row 4");
    BOTH(used_q, g.list[USED_Q]);
    g.list[USED_Q][1] = 4; /* the row that goes down does not exist */
    run_forward(g.f.context, &g.f.desc, g.f.forward);
    poison(&g.f);
    g.list[DOC_K][0] = 1;
    both_refused(FATTN_ERROR_ARGUMENT, "args.document_k of sequence 0 goes down from 1 to 0 at row 1");
    g.list[DOC_K][0] = 0;
    g.list[USED_Q][1] = 5;
    restore();
}

static void page_tables(void **state)
{
    static const int32_t wrong[] = {-1, 6, INT32_MAX, INT32_MIN};
    (void)state;
    g.f.desc.page_size = 4, g.f.desc.pages = 6; /* two pages a sequence */
    g.f.forward.k = fattn_view_bhsd(g.number[BIAS], 0, 0, DIM);
    g.f.forward.v = fattn_view_bhsd(g.number[BIAS], 0, 0, DIM_V);
    g.f.forward.page_table = g.list[TABLE];
    for (size_t n = 0; n < sizeof wrong / sizeof *wrong; n++) {
        g.list[TABLE][3] = wrong[n];
        refused(false, FATTN_ERROR_ARGUMENT, "args.page_table[1][1] is");
    }
    g.f.forward.used_k = g.list[USED_K];
    g.list[USED_K][1] = 5;
    refused(false, FATTN_ERROR_ARGUMENT, "args.page_table[1][1] is");
    g.list[USED_K][1] = 4; /* its page is not used */
    run_forward(g.f.context, &g.f.desc, g.f.forward);
    poison(&g.f);
    g.list[USED_K][1] = 1;
    g.list[TABLE][3] = 3;
    restore();
}

/* ------------------------------------------------------------------------------------------------------------ overlaps */

/* Everything at once that a call can bring. */
static void give_everything(void)
{
    g.f.desc.flags =
        FATTN_WITH_BIAS | FATTN_WITH_SLOPES | FATTN_WITH_SINKS | FATTN_WITH_DLSE | FATTN_WITH_DBIAS | FATTN_WITH_DSINKS;
    g.f.desc.total_q = 8, g.f.desc.total_k = 9;
    BOTH(cu_seqlens_q, g.list[CU_Q]), BOTH(cu_seqlens_k, g.list[CU_K]);
    BOTH(used_q, g.list[USED_Q]), BOTH(used_k, g.list[USED_K]);
    BOTH(bias, &g.bias), BOTH(slopes, g.number[SLOPES]), BOTH(sinks, g.number[SINKS]);
    g.f.backward.dlse = g.number[DLSE];
    g.f.backward.dbias = &g.dbias;
    g.f.backward.dsinks = g.number[DSINKS];
    fattn_view *const queries[] = {&g.f.forward.q,    &g.f.forward.out,   &g.f.backward.q,
                                   &g.f.backward.out, &g.f.backward.dout, &g.f.backward.dq};
    fattn_view *const keys[] = {&g.f.forward.k,  &g.f.forward.v,   &g.f.backward.k,
                                &g.f.backward.v, &g.f.backward.dk, &g.f.backward.dv};
    for (int n = 0; n < 6; n++) {
        queries[n]->stride_head = 8 * queries[n]->stride_row;
        keys[n]->stride_head = 9 * keys[n]->stride_row;
    }
}

static void forward_overlaps(void *at, const char *words)
{
    const fattn_forward_args before = g.f.forward;
    g.f.forward.lse = at;
    refused(false, FATTN_ERROR_ARGUMENT, words);
    g.f.forward.lse = before.lse;
    g.f.forward.out.data = at;
    refused(false, FATTN_ERROR_ARGUMENT, words);
    g.f.forward = before;
}

static void backward_overlaps(void *at, const char *words)
{
    const fattn_backward_args before = g.f.backward;
    const fattn_view dbias = g.dbias;
    fattn_view *const outputs[] = {&g.f.backward.dq, &g.f.backward.dk, &g.f.backward.dv, &g.dbias};
    for (int n = 0; n < 4; n++) {
        outputs[n]->data = at;
        refused(true, FATTN_ERROR_ARGUMENT, words);
        g.f.backward = before;
        g.dbias = dbias;
    }
    g.f.backward.dsinks = at;
    refused(true, FATTN_ERROR_ARGUMENT, words);
    g.f.backward = before;
}

static void outputs_over_lists(void **state)
{
    const struct {
        void *at;
        const char *words;
    } common[] = {{g.list[CU_Q], "overlaps args.cu_seqlens_q"}, {g.list[CU_K], "overlaps args.cu_seqlens_k"},
                  {g.list[USED_Q], "overlaps args.used_q"},     {g.list[USED_K], "overlaps args.used_k"},
                  {g.number[BIAS], "overlaps args.bias"},       {g.number[SLOPES], "overlaps args.slopes"},
                  {g.number[SINKS], "overlaps args.sinks"}};
    (void)state;
    give_everything();
    for (size_t n = 0; n < sizeof common / sizeof *common; n++) {
        forward_overlaps(common[n].at, common[n].words);
        backward_overlaps(common[n].at, common[n].words);
    }
    backward_overlaps(g.number[DLSE], "overlaps args.dlse");
    g.f.backward.dq.data = g.number[DSINKS];
    refused(true, FATTN_ERROR_ARGUMENT, "args.dsinks, at");
    g.f.backward.dq.data = g.number[DBIAS];
    refused(true, FATTN_ERROR_ARGUMENT, "args.dbias, at");
    restore();
}

static void outputs_over_masks(void **state)
{
    (void)state;
    for (int stride = 0; stride <= SEQ_Q; stride += SEQ_Q) {
        g.f.desc.mask = FATTN_MASK_INTERVALS;
        BOTH(mask_lo, g.list[LO]), BOTH(mask_hi, g.list[HI]);
        BOTH(mask_stride, stride);
        forward_overlaps(g.list[LO], "overlaps args.mask_lo");
        forward_overlaps(g.list[HI], "overlaps args.mask_hi");
        forward_overlaps(g.list[HI] + stride, "overlaps args.mask_hi");
        g.f.backward.dq.data = g.list[HI] + stride + SEQ_Q - 1;
        refused(true, FATTN_ERROR_ARGUMENT, "overlaps args.mask_hi");
        restore();
    }
    g.f.desc.mask = FATTN_MASK_DOCUMENT;
    BOTH(document_q, g.list[DOC_Q]), BOTH(document_k, g.list[LO]);
    forward_overlaps(g.list[DOC_Q], "overlaps args.document_q");
    forward_overlaps(g.list[LO] + BATCH * SEQ_K - 1, "overlaps args.document_k");
    restore();
}

static void outputs_over_cache_arguments(void **state)
{
    (void)state;
    g.f.desc.page_size = 4, g.f.desc.pages = 6;
    g.f.desc.kv_dtype = FATTN_I8;
    g.f.forward.k = fattn_view_bhsd(g.number[BIAS], HEADS_KV, 4, DIM);
    g.f.forward.v = fattn_view_bhsd(g.number[DBIAS], HEADS_KV, 4, DIM_V);
    g.f.forward.page_table = g.list[TABLE];
    g.f.forward.k_scales = g.number[SLOPES];
    g.f.forward.v_scales = g.number[SINKS];
    forward_overlaps(g.list[TABLE], "overlaps args.page_table");
    forward_overlaps(g.number[SLOPES] + 6 * HEADS_KV * 4 - 1, "overlaps args.k_scales");
    forward_overlaps(g.number[SINKS], "overlaps args.v_scales");
    forward_overlaps(g.number[BIAS], "overlaps args.k,");
    restore();
}

/* A list is looked at only after its address was: a misaligned one is named, not read. */
static void misaligned_lists(void **state)
{
    (void)state;
    give_everything();
    remember();
    const char *const all[] = {(char *)g.list[CU_Q] + 1, (char *)g.list[USED_K] + 2, (char *)g.number[SINKS] + 3,
                               (char *)g.number[BIAS] + 2};
    BOTH(cu_seqlens_q, (const int32_t *)(const void *)all[0]);
    both_refused(FATTN_ERROR_ARGUMENT, "args.cu_seqlens_q is 0x");
    restore();
    BOTH(used_k, (const int32_t *)(const void *)all[1]);
    both_refused(FATTN_ERROR_ARGUMENT, "args.used_k is 0x");
    restore();
    BOTH(sinks, (const float *)(const void *)all[2]);
    both_refused(FATTN_ERROR_ARGUMENT, "args.sinks is 0x");
    restore();
    g.bias.data = (void *)(uintptr_t)all[3];
    both_refused(FATTN_ERROR_ARGUMENT, "args.bias.data is 0x");
    g.bias.data = g.number[BIAS];
    g.dbias.stride_row -= 1;
    refused(true, FATTN_ERROR_ARGUMENT, "args.dbias overlaps itself");
    g.dbias.stride_row += 1;
    for (int stride = 0; stride <= SEQ_Q; stride += SEQ_Q) {
        g.f.desc.flags = g.f.desc.total_q = g.f.desc.total_k = 0;
        g.f.desc.mask = FATTN_MASK_INTERVALS;
        g.f.forward = (fattn_forward_args){.struct_size = sizeof g.f.forward, .kernel = &g.f.kernel};
        g.f.forward.mask_lo = (const int32_t *)(const void *)all[0];
        g.f.forward.mask_hi = g.list[HI];
        g.f.forward.mask_stride = stride;
        refused(false, FATTN_ERROR_ARGUMENT, "args.mask_lo");
        restore();
    }
}

/* A bias so large that float cannot tell its scores apart. The third key, whose value is NaN, is dropped by two rows. */
static void huge_bias(void **state)
{
    static const float sizes[] = {-1e30f, -1e11f, -1e9f, 1e9f, 1e11f};
    enum { N = 3, WIDTH = 8 };
    fattn_desc d = {.struct_size = sizeof d,
                    .dtype = FATTN_F32,
                    .mask = FATTN_MASK_CAUSAL,
                    .flags = FATTN_WITH_BIAS,
                    .batch = 1,
                    .heads_q = 1,
                    .heads_kv = 1,
                    .seq_q = N,
                    .seq_k = N,
                    .dim = WIDTH,
                    .dim_v = WIDTH};
    const char *kernel[KERNELS_MOST];
    float q[N * WIDTH], k[N * WIDTH], v[N * WIDTH], out[N * WIDTH], lse[N], bias[N * N];
    const fattn_view bias_view = fattn_view_bhsd(bias, 1, N, N);
    (void)state;
    for (int i = 0; i < N * WIDTH; i++) {
        q[i] = 0.1f * (float)(i % 5);
        k[i] = 0.1f * (float)(i % 7);
        v[i] = i / WIDTH == 2 ? NAN : (float)(1 + i / WIDTH);
    }
    const int count = kernels_of(&d, FATTN_OP_FORWARD, kernel);
    for (int n = 0; n < count * (int)(sizeof sizes / sizeof *sizes); n++) {
        for (int i = 0; i < N * N; i++)
            bias[i] = sizes[n / count];
        fattn_context *context = make_context(1, kernel[n % count]);
        run_forward(context, &d,
                    (fattn_forward_args){.q = fattn_view_bhsd(q, 1, N, WIDTH),
                                         .k = fattn_view_bhsd(k, 1, N, WIDTH),
                                         .v = fattn_view_bhsd(v, 1, N, WIDTH),
                                         .out = fattn_view_bhsd(out, 1, N, WIDTH),
                                         .lse = lse,
                                         .bias = &bias_view});
        for (int i = 0; i < WIDTH; i++) {
            assert_true(out[i] == 1);
            assert_true(out[WIDTH + i] > 1.4f && out[WIDTH + i] < 1.6f);
            assert_true(isnan(out[2 * WIDTH + i]));
        }
        fattn_context_destroy(context);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(pointers_that_nothing_asks_for, make, release),
        cmocka_unit_test_setup_teardown(pointers_that_are_missing, make, release),
        cmocka_unit_test_setup_teardown(backward_reads_no_cache, make, release),
        cmocka_unit_test_setup_teardown(cumulative_lengths, make, release),
        cmocka_unit_test_setup_teardown(used_lengths, make, release),
        cmocka_unit_test_setup_teardown(documents_that_go_down, make, release),
        cmocka_unit_test_setup_teardown(page_tables, make, release),
        cmocka_unit_test_setup_teardown(outputs_over_lists, make, release),
        cmocka_unit_test_setup_teardown(outputs_over_masks, make, release),
        cmocka_unit_test_setup_teardown(outputs_over_cache_arguments, make, release),
        cmocka_unit_test_setup_teardown(misaligned_lists, make, release),
        cmocka_unit_test(huge_bias),
    };
    return cmocka_run_group_tests_name("features", tests, NULL, NULL);
}
