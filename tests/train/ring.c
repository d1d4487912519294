/*
 * Ring attention against one pass over the whole sequence, in double: out, dq, dk and dv of the rows that a shard has. The
 * bound is the harness's: twice (gradients: three times) what a naive computation in float errs, and an ulp.
 *
 * A rank of `mpirun -n N`, all of which share the sequences; run by ranks.sh. Rank 0 prints the errors.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"
#include "train/ring.h"

typedef struct shape {
    int64_t batch, heads, heads_kv, seq, dim;
    int often; /* a document ends after each row with probability 1 / often; 0: there are none */
} shape;

enum { Q, K, V, DOUT, OUT, DQ, DK, DV, TENSORS };
static const char *const names[TENSORS] = {"q", "k", "v", "dout", "out", "dq", "dk", "dv"};

static int64_t cols_of(const shape *s, int which)
{
    const bool keys = which == K || which == V || which == DK || which == DV;
    return (keys ? s->heads_kv : s->heads) * s->dim;
}

static void *need(size_t bytes)
{
    void *memory = calloc(bytes, 1);
    if (!memory)
        exit(1);
    return memory;
}

static void must(bool good)
{
    if (!good) {
        fprintf(stderr, "FAILED: %s\n", train_error());
        exit(1);
    }
}

/* All of a problem in double, by the library's reference. */
static void truth(const shape *s, float *const x[TENSORS], const int32_t *documents, double *const y[TENSORS])
{
    const fattn_context_options options = {.struct_size = sizeof options, .threads = 1, .kernel = "ref"};
    const fattn_desc d = {.struct_size = sizeof d,
                          .dtype = FATTN_F64,
                          .mask = documents ? FATTN_MASK_DOCUMENT : FATTN_MASK_CAUSAL,
                          .window_left = documents ? -1 : 0,
                          .batch = s->batch,
                          .heads_q = s->heads,
                          .heads_kv = s->heads_kv,
                          .seq_q = s->seq,
                          .seq_k = s->seq,
                          .dim = s->dim,
                          .dim_v = s->dim};
    fattn_context *c;
    fattn_view view[TENSORS];
    size_t bytes[2];
    for (int t = 0; t < TENSORS; t++) {
        const int64_t count = s->batch * s->seq * cols_of(s, t);
        for (int64_t i = 0; t < OUT && i < count; i++)
            y[t][i] = x[t][i];
        view[t] = fattn_view_bshd(y[t], cols_of(s, t) / s->dim, s->seq, s->dim);
    }
    double *lse = need((size_t)(s->batch * s->heads * s->seq) * sizeof *lse);
    must(runtime_library_did(fattn_context_create(&options, &c)) &&
         runtime_library_did(fattn_workspace_size(c, &d, FATTN_OP_FORWARD, &bytes[0])) &&
         runtime_library_did(fattn_workspace_size(c, &d, FATTN_OP_BACKWARD, &bytes[1])));
    const size_t most = bytes[0] > bytes[1] ? bytes[0] : bytes[1];
    void *workspace = need(most);
    const fattn_forward_args forward = {.struct_size = sizeof forward,
                                        .q = view[Q],
                                        .k = view[K],
                                        .v = view[V],
                                        .out = view[OUT],
                                        .lse = lse,
                                        .document_q = documents,
                                        .document_k = documents,
                                        .workspace = workspace,
                                        .workspace_size = most};
    const fattn_backward_args backward = {.struct_size = sizeof backward,
                                          .q = view[Q],
                                          .k = view[K],
                                          .v = view[V],
                                          .out = view[OUT],
                                          .dout = view[DOUT],
                                          .dq = view[DQ],
                                          .dk = view[DK],
                                          .dv = view[DV],
                                          .lse = lse,
                                          .document_q = documents,
                                          .document_k = documents,
                                          .workspace = workspace,
                                          .workspace_size = most};
    must(runtime_library_did(fattn_forward(c, &d, &forward)) && runtime_library_did(fattn_backward(c, &d, &backward)));
    fattn_context_destroy(c);
    free(workspace);
    free(lse);
}

/* Forward and backward by the trainer's calls, of whole sequences or of a shard's rows. */
static void run(const shape *s, const attention *a, float *const x[TENSORS])
{
    size_t bytes[2];
    attention_rows r[TENSORS];
    for (int t = 0; t < TENSORS; t++)
        r[t] = (attention_rows){x[t], cols_of(s, t)};
    must(attention_workspace(a, FATTN_OP_FORWARD, &bytes[0]) && attention_workspace(a, FATTN_OP_BACKWARD, &bytes[1]));
    float *lse = need((size_t)(a->batch * a->heads * a->seq_q) * sizeof *lse);
    void *workspace = aligned_alloc(256, (bytes[0] + bytes[1] + 256) / 256 * 256);
    must(attention_forward(a, r[Q], r[K], r[V], r[OUT], lse, workspace, bytes[0]) &&
         attention_backward(a, r[Q], r[K], r[V], r[OUT], r[DOUT], lse, r[DQ], r[DK], r[DV], workspace, bytes[1]));
    free(workspace);
    free(lse);
}

static const float *row_of(const shape *s, const float *x, int which, int64_t rows, int64_t sequence, int64_t row)
{
    return x + (sequence * rows + row) * cols_of(s, which);
}

/* max |x - y|, and max |y|; x has `rows` of each sequence, all or a shard's. */
static double worst(const shape *s, const ranks *r, int which, const float *x, int64_t rows, const double *y, double *largest)
{
    const int64_t cols = cols_of(s, which);
    double error = 0;
    *largest = 0;
    for (int64_t n = 0; n < s->batch * rows; n++) {
        const int64_t at = rows == s->seq ? n % rows : ring_position(r, rows, n % rows);
        const float *a = row_of(s, x, which, rows, n / rows, n % rows);
        const double *b = y + (n / rows * s->seq + at) * cols;
        for (int64_t i = 0; i < cols; i++) {
            error = fmax(error, isnan(a[i]) ? INFINITY : fabs((double)a[i] - b[i]));
            *largest = fmax(*largest, fabs(b[i]));
        }
    }
    return error;
}

static int compare(const shape *s, const runtime *r, float *const naive[TENSORS], float *const ring[TENSORS],
                   double *const exact[TENSORS])
{
    int wrong = 0;
    for (int t = OUT; t < TENSORS; t++) {
        double largest;
        const double error = worst(s, r->ranks, t, ring[t], s->seq / r->ranks->shards, exact[t], &largest);
        const double by_naive = worst(s, r->ranks, t, naive[t], s->seq, exact[t], &largest);
        const double allowed = (t == OUT ? 2 : 3) * (by_naive + 0x1p-24 * largest);
        if (r->ranks->rank == 0 || !(error <= allowed))
            printf("rank %d of %d, %s%s: error %.2e, naive %.2e, allowed %.2e\n", r->ranks->rank, r->ranks->size, names[t],
                   s->often ? " of documents" : "", error, by_naive, allowed);
        wrong += !(error <= allowed);
    }
    return wrong;
}

/* [batch, seq] documents' numbers, and then, as the ring has them, twice as many. */
static int32_t *make_documents(const shape *s, const ranks *r)
{
    const int64_t count = s->batch * s->seq;
    int32_t *documents = need(3 * (size_t)count * sizeof *documents);
    test_random random = {(uint64_t)s->often};
    for (int64_t i = 0; i < count; i++)
        documents[i] = i % s->seq == 0 ? 0 : documents[i - 1] + (test_uniform(&random) * s->often < 1);
    ring_place_documents(r, s->batch, s->seq, documents, documents + count);
    return documents;
}

static int check(const shape *s, attention_kind kind, const runtime *r)
{
    const int64_t here = ring_rows(r->ranks, s->seq);
    float *whole[TENSORS], *part[TENSORS];
    double *exact[TENSORS];
    for (int t = 0; t < TENSORS; t++) {
        const int64_t count = s->batch * s->seq * cols_of(s, t);
        whole[t] = need((size_t)count * sizeof(float));
        part[t] = need((size_t)count * sizeof(float));
        exact[t] = need((size_t)count * sizeof(double));
        if (t < OUT)
            fill_normal(whole[t], count, 0, 1, (uint64_t)t + 1);
        for (int64_t n = 0; t < OUT && n < s->batch * here; n++)
            memcpy((float *)(uintptr_t)row_of(s, part[t], t, here, n / here, n % here),
                   row_of(s, whole[t], t, s->seq, n / here, ring_position(r->ranks, here, n % here)),
                   (size_t)cols_of(s, t) * sizeof(float));
    }
    const attention_path composed = {.kind = ATTENTION_COMPOSED}, path = {.kind = kind};
    int32_t *documents = s->often ? make_documents(s, r->ranks) : NULL;
    attention one = attention_problem(r, composed, s->batch, s->heads, s->heads_kv, s->seq, s->seq, s->dim);
    attention ring = attention_problem(r, path, s->batch, s->heads, s->heads_kv, here, here, s->dim);
    ring.ring = r->ranks;
    one.documents = documents;
    ring.documents = documents ? documents + s->batch * s->seq : NULL;
    truth(s, whole, documents, exact);
    run(s, &one, whole);
    run(s, &ring, part);
    int wrong = compare(s, r, whole, part, exact);
    free(documents);
    for (int t = 0; t < TENSORS; t++) {
        free(whole[t]);
        free(part[t]);
        free(exact[t]);
    }
    return wrong;
}

int main(void)
{
    const shape shapes[] = {{1, 2, 2, 256, 64, 0},  {3, 4, 2, 64, 16, 0},  {2, 6, 1, 48, 40, 0},
                            {1, 2, 2, 256, 64, 60}, {3, 4, 2, 64, 16, 12}, {2, 6, 1, 48, 40, 4}};
    ranks_place place;
    runtime r;
    must(ranks_look(&place));
    place.shards = place.size;
    must(runtime_open(&r, &(runtime_options){.threads = 1, .place = &place}));
    int wrong = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        wrong += check(&shapes[i], ATTENTION_FLASH, &r) + check(&shapes[i], ATTENTION_COMPOSED, &r);
    fflush(stdout);
    ranks_close(r.ranks, wrong != 0);
    r.ranks = NULL;
    runtime_close(&r);
    return wrong != 0;
}
