/*
 * The composed path on a GPU: attention as a framework computes it from a matrix product, a softmax and another matrix product.
 * It is here to be compared with, and runs only if forced.
 *
 *     forward     S = Q K^T            P = m softmax(score(scale S)), in place          out = P V / (1 - dropout)
 *     backward    S = Q K^T            dP = dout V^T
 *                 P = m exp(score(scale S) - lse), dX = lift P (dP - D) dscore, in place
 *                 dQ = rest dX K       dK = rest dX^T Q       dV = P^T dout / (1 - dropout)
 *
 * lift rest being the scale (cuda_exact_lift()), score() softcap, bias and ALiBi, dscore the softcap's derivative, m dropout's
 * choice of 0 or 1, each where asked for. S and dP are [batch, heads_q, seq_q, seq_k] of floats in the workspace, also where
 * inputs have 16 bits: a score of 100 rounded to bfloat16 would change its probability by a quarter. P and dX take their place
 * in the inputs' type. The products are cuBLAS's, one for all heads of all sequences; those of a group of query heads are one
 * product with the group's rows below each other, so that sums over the group are sums over rows. composed.cu has what lies
 * between and behind the products.
 *
 * Products want tensors whose rows follow each other. Those of others (permuted, packed, paged) are copied first, as frameworks
 * do, to seq_q rows and seq_k keys for each sequence, with zeros for rows that a sequence does not have; results likewise.
 * dbias and dsinks are the exact kernels'.
 */
#include "cuda/composed.h"

#include "cuda/exact.h"
#include "cuda/products.h"

/* The kernels; of the first two for rows of a warp and of a block, each plain and adjusted. */
enum { SOFTMAX = 0, GRADIENT = 4, COPY = 8, LOOK = 9, FUNCTIONS };

static const cuda_function functions[FUNCTIONS] = {{"composed_softmax_warp", 0},   {"composed_softmax_warp_adjusted", 0},
                                                   {"composed_softmax_block", 0},  {"composed_softmax_block_adjusted", 0},
                                                   {"composed_gradient_warp", 0},  {"composed_gradient_warp_adjusted", 0},
                                                   {"composed_gradient_block", 0}, {"composed_gradient_block_adjusted", 0},
                                                   {"composed_copy_rows", 0},      {"composed_look_at", 0}};

CUDA_IMAGE_DEFINE(composed, functions, 0);

/* ------------------------------------------------------------------------------------------------------------ workspace */

/* A tensor as products take it: [batch, heads, rows, pitch]. */
typedef struct layout {
    int64_t heads, rows, columns, pitch;
    int32_t dtype;
    bool keys; /* its rows are keys */
} layout;

static layout layout_of(const fattn_desc *d, int32_t dtype, bool keys, int64_t columns)
{
    const int64_t piece = COMPOSED_PIECE / (int64_t)fattn_dtype_size(dtype);
    return (layout){.heads = keys ? d->heads_kv : d->heads_q,
                    .rows = keys ? d->seq_k : d->seq_q,
                    .columns = columns,
                    .pitch = cuda_tiles(columns, piece) * piece,
                    .dtype = dtype,
                    .keys = keys};
}

static int64_t elements_of(const fattn_desc *d, const layout *s)
{
    return d->batch * s->heads * s->rows * s->pitch;
}

static size_t bytes_of(const fattn_desc *d, const layout *s)
{
    return fattn_round_up((size_t)elements_of(d, s) * fattn_dtype_size(s->dtype), FATTN_ALIGNMENT);
}

/* What both operations know of a problem. */
typedef struct plan {
    layout q, k, v, out, dq, dk, dv;
    int64_t rows, pitch; /* of the matrices */
    size_t matrix_bytes, state_bytes;
} plan;

static plan plan_of(const fattn_problem *problem)
{
    const fattn_desc *d = &problem->desc;
    plan p = {.q = layout_of(d, d->dtype, false, d->dim),
              .k = layout_of(d, d->dtype, true, d->dim),
              .v = layout_of(d, d->dtype, true, d->dim_v),
              .out = layout_of(d, d->out_dtype, false, d->dim_v),
              .dq = layout_of(d, d->grad_dtype, false, d->dim),
              .dk = layout_of(d, d->grad_dtype, true, d->dim),
              .dv = layout_of(d, d->grad_dtype, true, d->dim_v),
              .rows = d->batch * d->heads_q * d->seq_q,
              .pitch = (int64_t)fattn_round_up((size_t)d->seq_k, 8)};
    p.matrix_bytes = fattn_round_up((size_t)(p.rows * p.pitch) * sizeof(float), FATTN_ALIGNMENT);
    p.state_bytes = fattn_round_up((size_t)p.rows * sizeof(float), FATTN_ALIGNMENT);
    return p;
}

/* Room for copies of all tensors, as strides are not known. */
static size_t forward_workspace(const fattn_problem *problem)
{
    const fattn_desc *d = &problem->desc;
    const plan p = plan_of(problem);
    return p.matrix_bytes + p.state_bytes + bytes_of(d, &p.q) + bytes_of(d, &p.k) + bytes_of(d, &p.v) + bytes_of(d, &p.out);
}

static size_t backward_workspace(const fattn_problem *problem)
{
    const fattn_desc *d = &problem->desc;
    const plan p = plan_of(problem);
    return 2 * p.matrix_bytes + p.state_bytes + fattn_round_up(cuda_exact_delta_bytes(problem), FATTN_ALIGNMENT) +
           bytes_of(d, &p.q) + bytes_of(d, &p.k) + bytes_of(d, &p.v) + bytes_of(d, &p.out) + bytes_of(d, &p.dq) +
           bytes_of(d, &p.dk) + bytes_of(d, &p.dv);
}

/* Takes the next bytes of the workspace. */
static void *take(unsigned char **room, size_t bytes)
{
    void *at = *room;
    *room += bytes;
    return at;
}

/* ---------------------------------------------------------------------------------------------------------------- steps */

/* A call on its way: after a step that failed the others do nothing. */
typedef struct work {
    const fattn_problem *problem;
    const fattn_launch *at;
    unsigned char *room; /* of the workspace, the rest */
    composed_matrices matrices;
    fattn_status status;
} work;

static void launch(work *w, int function, cuda_shape shape, void **arguments)
{
    if (w->status == FATTN_OK)
        w->status = cuda_launch(w->at, CUDA_IMAGE_COMPOSED, function, shape, arguments);
}

/* Of threads that take one of n things each. */
static cuda_shape one_each(int64_t n)
{
    return (cuda_shape){cuda_tiles(n, COMPOSED_THREADS), COMPOSED_THREADS};
}

/* Whether a tensor's rows follow each other as in its layout, and all exist. */
static bool is_plain(const work *w, const fattn_view *view, const layout *s)
{
    const fattn_launch *at = w->at;
    const int64_t batch = w->problem->desc.batch;
    if (s->keys ? at->cu_k || at->used_k || w->problem->desc.page_size > 0 : at->cu_q || at->used_q)
        return false;
    return s->pitch == s->columns && (uintptr_t)view->data % CUDA_PRODUCT_ALIGNMENT == 0 &&
           (s->rows <= 1 || view->stride_row == s->pitch) && (s->heads == 1 || view->stride_head == s->rows * s->pitch) &&
           (batch <= 1 || view->stride_batch == s->heads * s->rows * s->pitch);
}

static int64_t pieces_of(const work *w, const layout *s)
{
    return elements_of(&w->problem->desc, s) / (COMPOSED_PIECE / (int64_t)fattn_dtype_size(s->dtype));
}

static cuda_matrix matrix_at(const work *w, void *data, const layout *s)
{
    /* Query heads of a group are one matrix. */
    const int64_t rows = s->keys ? s->rows : w->problem->group * s->rows;
    return (cuda_matrix){.data = data, .dtype = s->dtype, .rows = rows, .columns = s->columns, .pitch = s->pitch};
}

/* An input where products can read it. */
static cuda_matrix bring(work *w, const fattn_view *view, const layout *s)
{
    void *room = take(&w->room, bytes_of(&w->problem->desc, s));
    if (is_plain(w, view, s))
        return matrix_at(w, view->data, s);
    composed_copy c = {.from = *view,
                       .to = room,
                       .heads = s->heads,
                       .rows = s->rows,
                       .columns = s->columns,
                       .pitch = s->pitch,
                       .pieces = pieces_of(w, s),
                       .dtype = s->dtype,
                       .keys = s->keys};
    void *arguments[] = {(void *)(uintptr_t)w->problem, (void *)(uintptr_t)w->at, &c};
    launch(w, COPY, one_each(c.pieces), arguments);
    return matrix_at(w, room, s);
}

/* A matrix of the workspace, as floats or after its numbers were replaced by those of the inputs' type. */
static cuda_matrix scores_at(const work *w, float *data, int32_t dtype)
{
    const fattn_desc *d = &w->problem->desc;
    return (cuda_matrix){.data = data,
                         .dtype = dtype,
                         .rows = w->problem->group * d->seq_q,
                         .columns = d->seq_k,
                         .pitch = w->matrices.pitch * 4 / (int64_t)fattn_dtype_size(dtype)};
}

/* c = by a b for each head of keys, if there are terms; returns whether there are. Algorithms are those for a batch of 8, see
 * products.c. */
static bool multiply(work *w, cuda_transposed transposed, cuda_matrix a, cuda_matrix b, cuda_matrix c, double by)
{
    const fattn_desc *d = &w->problem->desc;
    const cuda_product product = {.transposed = transposed,
                                  .a = a,
                                  .b = b,
                                  .c = c,
                                  .batch = d->batch * d->heads_kv,
                                  .usual = 8 * d->heads_kv,
                                  .by = (float)by};
    if (d->batch == 0 || d->seq_q == 0 || d->seq_k == 0)
        return false;
    if (w->status == FATTN_OK)
        w->status = cuda_product_run(w->at, &product);
    return true;
}

/* A result: view = by left right, left being a matrix of the workspace, read transposed for results of keys. source: what
 * `right` holds, of the same type as left. */
static void result(work *w, const fattn_view *view, const layout *s, float *left, cuda_matrix right, const fattn_view *source,
                   double by)
{
    const fattn_problem *problem = w->problem;
    const bool plain = is_plain(w, view, s);
    void *room = take(&w->room, bytes_of(&problem->desc, s));
    const cuda_matrix to = matrix_at(w, plain ? view->data : room, s);
    const bool any =
        multiply(w, s->keys ? CUDA_A_TRANSPOSED : CUDA_AS_THEY_ARE, scores_at(w, left, problem->desc.dtype), right, to, by);
    composed_result look = {.to = *view,
                            .from = to.data,
                            .left = (const unsigned char *)left,
                            .right = *source,
                            .heads = s->heads,
                            .rows = s->rows,
                            .columns = s->columns,
                            .pitch = s->pitch,
                            .pieces = pieces_of(w, s),
                            .by = (float)by,
                            .dtype = s->dtype,
                            .keys = s->keys,
                            .copied = !plain,
                            .none = !any};
    void *arguments[] = {(void *)(uintptr_t)problem, (void *)(uintptr_t)w->at, &w->matrices, &look};
    launch(w, LOOK, one_each(look.pieces), arguments);
}

/* The kernel that goes over rows of the matrices. */
static void go_over_rows(work *w, int function)
{
    const fattn_desc *d = &w->problem->desc;
    const bool adjusted = cuda_adjusts(d), block = d->seq_k > COMPOSED_WARP_KEYS;
    const int threads = block ? COMPOSED_BLOCK_THREADS : COMPOSED_THREADS, teams = block ? 1 : COMPOSED_THREADS / 32;
    w->matrices.tiles = cuda_tiles(d->seq_q, teams * COMPOSED_TEAM_ROWS);
    const cuda_shape blocks = {w->matrices.tiles * d->batch * d->heads_q, threads};
    void *arguments[] = {(void *)(uintptr_t)w->problem, (void *)(uintptr_t)w->at, &w->matrices};
    launch(w, function + 2 * block + adjusted, blocks, arguments);
}

static work begin(const fattn_problem *problem, const fattn_launch *at, const plan *p)
{
    work w = {.problem = problem, .at = at, .room = at->workspace};
    w.matrices = (composed_matrices){
        .s = take(&w.room, p->matrix_bytes), .state = take(&w.room, p->state_bytes), .pitch = p->pitch, .shift = 1};
    return w;
}

/* ----------------------------------------------------------------------------------------------------------- operations */

/* binary16 has few exponents below 1: probabilities are shifted. */
static float shift_of(const fattn_desc *d)
{
    return d->dtype == FATTN_F16 ? 4096 : 1;
}

static fattn_status forward(const fattn_problem *problem, const fattn_launch *at)
{
    const fattn_desc *d = &problem->desc;
    const plan p = plan_of(problem);
    work w = begin(problem, at, &p);
    w.matrices.shift = shift_of(d);
    const cuda_matrix q = bring(&w, &at->q, &p.q), k = bring(&w, &at->k, &p.k), v = bring(&w, &at->v, &p.v);
    multiply(&w, CUDA_B_TRANSPOSED, q, k, scores_at(&w, w.matrices.s, FATTN_F32), 1);
    go_over_rows(&w, SOFTMAX);
    result(&w, &at->out, &p.out, w.matrices.s, v, &at->v, 1 / (1 - d->dropout) / (double)w.matrices.shift);
    return w.status;
}

static fattn_status backward(const fattn_problem *problem, const fattn_launch *at)
{
    const fattn_desc *d = &problem->desc;
    const plan p = plan_of(problem);
    work w = begin(problem, at, &p);
    const double rest = d->scale / cuda_exact_lift(d->scale);
    void *delta = take(&w.room, fattn_round_up(cuda_exact_delta_bytes(problem), FATTN_ALIGNMENT));
    w.matrices.dp = take(&w.room, p.matrix_bytes);
    w.matrices.delta = delta;
    w.status = cuda_exact_delta(problem, at, delta);
    const cuda_matrix q = bring(&w, &at->q, &p.q), k = bring(&w, &at->k, &p.k), v = bring(&w, &at->v, &p.v),
                      dout = bring(&w, &at->dout, &p.out);
    multiply(&w, CUDA_B_TRANSPOSED, q, k, scores_at(&w, w.matrices.s, FATTN_F32), 1);
    multiply(&w, CUDA_B_TRANSPOSED, dout, v, scores_at(&w, w.matrices.dp, FATTN_F32), 1);
    go_over_rows(&w, GRADIENT);
    result(&w, &at->dq, &p.dq, w.matrices.dp, k, &at->k, rest);
    result(&w, &at->dk, &p.dk, w.matrices.dp, q, &at->q, rest);
    result(&w, &at->dv, &p.dv, w.matrices.s, dout, &at->dout, 1 / (1 - d->dropout));
    return w.status != FATTN_OK ? w.status : cuda_exact_rest(problem, at, delta);
}

/* ---------------------------------------------------------------------------------------------------------- the table */

/* Rows and keys are counted in 32 bits; beyond, a matrix would be as large as any GPU's memory. */
#define COUNT_MOST ((int64_t)1 << 30)

static bool is_too_large(const fattn_desc *d)
{
    int64_t rows, keys, numbers;
    return __builtin_mul_overflow(d->batch * d->heads_q, d->seq_q, &rows) || rows > COUNT_MOST ||
           __builtin_mul_overflow(d->batch * d->heads_kv, d->seq_k, &keys) || keys > COUNT_MOST ||
           __builtin_mul_overflow(rows, d->seq_k, &numbers) || numbers > COUNT_MOST << 20;
}

static const char *refuse(const fattn_desc *d, int32_t dtype, const char *reason)
{
    if (d->dtype != dtype)
        return reason;
    if (d->kv_dtype != dtype)
        return "reads no keys of 8 bits";
    if (is_too_large(d))
        return "takes no more than 2^30 rows or keys, or matrices of 2^50 numbers";
    return cuda_products_absent();
}

static const char *refuse_backward(const fattn_problem *problem, int32_t dtype, const char *reason)
{
    const fattn_desc *d = &problem->desc;
    if (d->dtype == dtype && d->out_dtype != dtype)
        return "takes out and dout of the inputs' type only";
    return d->dtype == dtype && !cuda_exact_rest_fits(problem) ? cuda_too_large(true) : refuse(d, dtype, reason);
}

static const char *refuse_forward_f16(const fattn_problem *problem)
{
    return refuse(&problem->desc, FATTN_F16, "takes f16 only");
}

static const char *refuse_forward_bf16(const fattn_problem *problem)
{
    return refuse(&problem->desc, FATTN_BF16, "takes bf16 only");
}

static const char *refuse_forward_f32(const fattn_problem *problem)
{
    return refuse(&problem->desc, FATTN_F32, "takes f32 only");
}

static const char *refuse_backward_bf16(const fattn_problem *problem)
{
    return refuse_backward(problem, FATTN_BF16, "takes bf16 only");
}

static const char *refuse_backward_f32(const fattn_problem *problem)
{
    return refuse_backward(problem, FATTN_F32, "takes f32 only");
}

static const char *unworthy(const fattn_problem *problem)
{
    (void)problem;
    return "the baseline, which writes the whole seq_q x seq_k matrix";
}

#define ROW(kernel, number, type, dtype)                                                                                       \
    {                                                                                                                          \
        .name = "cuda_composed_" #kernel "_" #type, .op = number, .rounds = dtype, .device = FATTN_DEVICE_CUDA,                \
        .needs = FATTN_CUDA_SM80, .refuse = refuse_##kernel##_##type, .unworthy = unworthy, .workspace = kernel##_workspace,   \
        .run = kernel                                                                                                          \
    }

/* No backward in f16, whose range gradients of scores may leave. */
FATTN_KERNEL_TABLE(fattn_cuda_composed, ROW(forward, FATTN_OP_FORWARD, f16, FATTN_F16),
                   ROW(forward, FATTN_OP_FORWARD, bf16, FATTN_BF16), ROW(forward, FATTN_OP_FORWARD, f32, 0),
                   ROW(backward, FATTN_OP_BACKWARD, bf16, FATTN_BF16), ROW(backward, FATTN_OP_BACKWARD, f32, 0));

bool cuda_composed_is_forced(const char *kernels)
{
    bool forced = false;
    for (int32_t i = 0; i < fattn_cuda_composed.count; i++)
        forced = forced || fattn_kernel_matches(kernels, fattn_cuda_composed.rows[i].name);
    return forced;
}
