/*
 * Finite differences of every layer: the loss is sum(W * out), W random, summed in double; the layer computes in float. The
 * error, relative to the largest gradient of the array, must stay below 3e-4 (a wrong formula gives about 1).
 */
#include "support.h"
#include "train/cpu/fastmath.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ARRAYS = 8, SAMPLES = 40 };
static const double step_size = 1e-2, bound = 3e-4;

/* A graph under test: its inputs and parameters, and the weights of its output in the loss. */
typedef struct graph {
    tape *t;
    tensor *out;    /* NULL: the loss is `cross` */
    float *weights; /* [out->rows, out->cols] */
    loss_state *cross;
    tensor *inputs[MAX_ARRAYS];
    parameter parameters[MAX_ARRAYS];
    int input_count, parameter_count;
} graph;

static graph new_graph(void)
{
    graph g = {.t = tape_create(device_cpu(), NUMBER_F32)};
    require(g.t);
    return g;
}

static tensor *input(graph *g, int64_t rows, int64_t cols)
{
    return g->inputs[g->input_count++] = tape_tensor(g->t, rows, cols, NUMBER_F32);
}

static parameter *weight(graph *g, int64_t rows, int64_t cols)
{
    parameter *p = &g->parameters[g->parameter_count++];
    *p = (parameter){.name = "weight", .ndim = cols > 1 ? 2 : 1, .shape = {rows, cols}, .size = rows * cols};
    p->data = calloc((size_t)p->size, sizeof(float));
    p->grad = calloc((size_t)p->size, sizeof(float));
    assert_non_null(p->data);
    assert_non_null(p->grad);
    fill_normal(p->data, p->size, cols > 1 ? 0.0 : 1.0, 0.5, (uint64_t)g->parameter_count);
    return p;
}

static matrix as_matrix(const parameter *p)
{
    return (matrix){p->shape[0], p->shape[1], p->data, p->grad, NULL};
}

static double loss_of(void *arg)
{
    graph *g = arg;
    require(tape_forward(g->t) && tape_finish(g->t));
    if (!g->out)
        return *g->cross->loss;
    double sum = 0.0;
    for (int64_t i = 0; i < g->out->rows * g->out->cols; i++)
        sum += (double)g->weights[i] * (double)((const float *)g->out->data)[i];
    return sum;
}

static float *copy_rows(const float *x, int64_t rows, int64_t cols, int64_t stride)
{
    float *copy = malloc((size_t)(rows * cols) * sizeof *copy + 1);
    assert_non_null(copy);
    for (int64_t r = 0; r < rows; r++)
        memcpy(copy + r * cols, x + r * stride, (size_t)cols * sizeof *copy);
    return copy;
}

static void check_array(graph *g, const char *name, float *value, float *grad, int64_t rows, int64_t cols, int64_t stride)
{
    checked_array a = {name, value, grad, rows, cols, stride};
    check_error(name, gradient_error(a, loss_of, g, step_size, SAMPLES), bound);
}

/* Runs backward, keeps the gradients, and compares them all. */
static void check_graph(graph *g, const char *name, bool recompute)
{
    float *grads[2 * MAX_ARRAYS];
    require(tape_plan(g->t, &(tape_options){.backward = true, .recompute = recompute}));
    for (int i = 0; i < g->input_count; i++)
        fill_normal(g->inputs[i]->data, g->inputs[i]->rows * g->inputs[i]->cols, 0.1, 1.0, 100 + (uint64_t)i);
    if (g->out) {
        int64_t n = g->out->rows * g->out->cols;
        g->weights = malloc((size_t)n * sizeof(float));
        assert_non_null(g->weights);
        fill_normal(g->weights, n, 0.0, 1.0, 50);
    }
    loss_of(g);
    if (g->out)
        memcpy(g->out->grad, g->weights, (size_t)(g->out->rows * g->out->cols) * sizeof(float));
    require(tape_backward(g->t));
    for (int i = 0; i < g->input_count; i++)
        grads[i] = copy_rows(g->inputs[i]->grad, g->inputs[i]->rows, g->inputs[i]->cols, g->inputs[i]->stride);
    for (int i = 0; i < g->parameter_count; i++)
        grads[MAX_ARRAYS + i] = copy_rows(g->parameters[i].grad, g->parameters[i].size, 1, 1);
    for (int i = 0; i < g->input_count; i++)
        check_array(g, name, g->inputs[i]->data, grads[i], g->inputs[i]->rows, g->inputs[i]->cols, g->inputs[i]->stride);
    for (int i = 0; i < g->parameter_count; i++)
        check_array(g, name, g->parameters[i].data, grads[MAX_ARRAYS + i], g->parameters[i].size, 1, 1);
    for (int i = 0; i < g->input_count; i++)
        free(grads[i]);
    for (int i = 0; i < g->parameter_count; i++) {
        free(grads[MAX_ARRAYS + i]);
        free(g->parameters[i].data);
        free(g->parameters[i].grad);
    }
    free(g->weights);
    tape_free(g->t);
}

/* ------------------------------------------------------------------------------------------------------------ the layers */

static void embedding(void **state)
{
    (void)state;
    const int32_t tokens[] = {3, 1, 3, 0, 6, 3}; /* 3 adds up */
    graph g = new_graph();
    matrix w = as_matrix(weight(&g, 7, 5));
    g.out = layer_embedding(g.t, tokens, 6, &w);
    check_graph(&g, "embedding", false);
}

static void linear(void **state)
{
    (void)state;
    graph g = new_graph();
    matrix w = as_matrix(weight(&g, 6, 9));
    g.out = layer_linear(g.t, input(&g, 5, 9), NULL, &w);
    check_graph(&g, "linear", false);
}

static void linear_residual(void **state)
{
    (void)state;
    graph g = new_graph();
    matrix w = as_matrix(weight(&g, 6, 9));
    tensor *x = input(&g, 5, 9), *residual = input(&g, 5, 6);
    g.out = layer_linear_residual(g.t, x, NULL, &w, residual);
    check_graph(&g, "linear with residual", false);
}

static void rmsnorm(void **state)
{
    (void)state;
    graph g = new_graph();
    g.out = layer_rmsnorm(g.t, input(&g, 67, 13), weight(&g, 13, 1), 1e-6);
    check_graph(&g, "rmsnorm", false);
}

static void qknorm_rope(void **state)
{
    (void)state;
    enum { DIM = 8, SEQ = 5 };
    float cosine[SEQ * DIM / 2], sine[SEQ * DIM / 2];
    for (int i = 0; i < SEQ * DIM / 2; i++) {
        cosine[i] = (float)cos(0.3 * i);
        sine[i] = (float)sin(0.3 * i);
    }
    rotation r = {.cos = cosine, .sin = sine, .heads = 3, .dim = DIM, .seq = SEQ};
    graph g = new_graph();
    g.out = layer_qknorm_rope(g.t, input(&g, 2 * SEQ, 3 * DIM), weight(&g, DIM, 1), &r, 1e-6);
    check_graph(&g, "qknorm_rope", false);
}

static void swiglu(void **state)
{
    (void)state;
    graph g = new_graph();
    const feed f = feed_swiglu();
    matrix w = as_matrix(weight(&g, 6, 11));
    tensor *x = input(&g, 7, 22), *residual = input(&g, 7, 6);
    g.out = layer_linear_residual(g.t, x, &f, &w, residual);
    check_graph(&g, "swiglu", false);
}

/* The norm made again for its product gives the bits of the norm that was kept. */
static void rmsnorm_fed(void **state)
{
    (void)state;
    enum { R = 67, C = 13, OUT = 6, COUNT = R * C };
    float dx[2][COUNT], dw[2][C], dmatrix[2][OUT * C], out[2][R * OUT];
    for (int fed = 0; fed < 2; fed++) {
        graph g = new_graph();
        tensor *x = input(&g, R, C);
        parameter *p = weight(&g, C, 1), *q = weight(&g, OUT, C);
        matrix w = as_matrix(q);
        const feed f = feed_rmsnorm(p, 1e-6);
        g.out = fed ? layer_linear(g.t, x, &f, &w) : layer_linear(g.t, layer_rmsnorm(g.t, x, p, 1e-6), NULL, &w);
        require(tape_plan(g.t, &(tape_options){.backward = true}));
        fill_normal(x->data, COUNT, 0.1, 1.0, 100);
        require(tape_forward(g.t));
        fill_normal(g.out->grad, R * OUT, 0, 1, 7);
        memcpy(out[fed], g.out->data, sizeof out[fed]);
        require(tape_backward(g.t));
        memcpy(dx[fed], x->grad, sizeof dx[fed]);
        memcpy(dw[fed], p->grad, sizeof dw[fed]);
        memcpy(dmatrix[fed], q->grad, sizeof dmatrix[fed]);
        for (int i = 0; i < 2; i++) {
            free(g.parameters[i].data);
            free(g.parameters[i].grad);
        }
        tape_free(g.t);
    }
    assert_memory_equal(out[0], out[1], sizeof out[0]);
    assert_memory_equal(dx[0], dx[1], sizeof dx[0]);
    assert_memory_equal(dw[0], dw[1], sizeof dw[0]);
    assert_memory_equal(dmatrix[0], dmatrix[1], sizeof dmatrix[0]);
}

/* All rows at once, and by chunks, one of which has no target. */
static void head(void **state)
{
    (void)state;
    const int32_t targets[] = {0, 18, -1, -1, 7, 7, 3};
    for (int64_t chunk = 0; chunk <= 3; chunk++) {
        double loss;
        loss_state l = {.targets = targets, .scale = 1.0f, .loss = &loss};
        graph g = new_graph();
        matrix w = as_matrix(weight(&g, 19, 9));
        g.cross = &l;
        layer_head(g.t, input(&g, 7, 9), &w, &l, NULL, chunk);
        check_graph(&g, "head", false);
    }
}

static void attention_on(const char *path)
{
    enum { BATCH = 2, SEQ = 11, HEADS = 4, HEADS_KV = 2, DIM = 8 };
    graph g = new_graph();
    tensor *q = input(&g, BATCH * SEQ, HEADS * DIM), *kv = input(&g, BATCH * SEQ, 2 * HEADS_KV * DIM);
    tensor *k = tape_columns(g.t, kv, 0, HEADS_KV * DIM), *v = tape_columns(g.t, kv, HEADS_KV * DIM, HEADS_KV * DIM);
    attention a = attention_problem(test_runtime(), path_of(path), BATCH, HEADS, HEADS_KV, SEQ, SEQ, DIM);
    g.out = layer_attention(g.t, q, k, v, &a);
    check_graph(&g, path, false);
}

static void attention_paths(void **state)
{
    (void)state;
    attention_on("composed");
    attention_on("flash");
    attention_on("window:4");
}

/* A window of one position sees itself only: every head's output is its value. */
static void narrowest_window(void **state)
{
    (void)state;
    enum { BATCH = 2, SEQ = 7, HEADS = 4, HEADS_KV = 2, DIM = 8, ROWS = BATCH * SEQ };
    tape *t = tape_create(device_cpu(), NUMBER_F32);
    require(t);
    attention a = attention_problem(test_runtime(), path_of("window:1"), BATCH, HEADS, HEADS_KV, SEQ, SEQ, DIM);
    tensor *q = tape_tensor(t, ROWS, HEADS * DIM, NUMBER_F32), *k = tape_tensor(t, ROWS, HEADS_KV * DIM, NUMBER_F32);
    tensor *v = tape_tensor(t, ROWS, HEADS_KV * DIM, NUMBER_F32), *out = layer_attention(t, q, k, v, &a);
    require(tape_plan(t, &(tape_options){.backward = false}));
    fill_normal(q->data, q->rows * q->cols, 0.0, 1.0, 1);
    fill_normal(k->data, k->rows * k->cols, 0.0, 1.0, 2);
    fill_normal(v->data, v->rows * v->cols, 0.0, 1.0, 3);
    require(tape_forward(t));
    for (int r = 0; r < ROWS; r++)
        for (int h = 0; h < HEADS; h++) {
            const float *value = (float *)v->data + r * v->stride + h / (HEADS / HEADS_KV) * DIM;
            check_error("window:1", error_ff((float *)out->data + r * out->stride + h * DIM, value, DIM), 1e-6);
        }
    tape_free(t);
}

static void fast_functions(void **state)
{
    (void)state;
    for (double x = -87.0; x <= 88.0; x += 0.00137) {
        double wanted = exp((double)(float)x);
        check_error("fast_exp", fabs((double)fast_exp((float)x) - wanted) / wanted, 3e-7);
    }
    assert_true(fast_exp(0.0f) == 1.0f);
    assert_true(fast_exp(-1e30f) < 1e-37f && fast_exp(-INFINITY) < 1e-37f);
    assert_true(fast_exp(1e30f) > 1e38f && isfinite(fast_exp(INFINITY)));
    assert_true(isnan(fast_exp(NAN)));
    float x[37];
    for (int n = 1; n <= 37; n++)
        for (int at = 0; at < n; at++) {
            for (int i = 0; i < n; i++)
                x[i] = -2.0f - (float)i;
            x[at] = -1.0f;
            assert_true(largest(x, n) == -1.0f);
        }
}

/* A tensor read three times, one of them as a residual, so that gradients are passed on, written and added to; in segments,
 * with and without recomputing. */
static void shared_tensor(void **state)
{
    (void)state;
    for (int recompute = 0; recompute < 2; recompute++) {
        graph g = new_graph();
        tensor *x = input(&g, 9, 8);
        matrix w1 = as_matrix(weight(&g, 8, 8)), w2 = as_matrix(weight(&g, 16, 8)), w3 = as_matrix(weight(&g, 8, 8));
        tape_begin_segment(g.t);
        tensor *n = layer_rmsnorm(g.t, x, weight(&g, 8, 1), 1e-6); /* its output stays, but what it saves does not */
        tape_end_segment(g.t);
        tape_begin_segment(g.t);
        tensor *y = layer_linear_residual(g.t, n, NULL, &w1, x);
        tape_end_segment(g.t);
        tape_begin_segment(g.t);
        const feed norm = feed_rmsnorm(weight(&g, 8, 1), 1e-6), swiglu = feed_swiglu();
        tensor *z = layer_linear(g.t, y, &norm, &w2);
        g.out = layer_linear_residual(g.t, layer_linear_residual(g.t, z, &swiglu, &w3, x), NULL, &w1, y);
        tape_end_segment(g.t);
        check_graph(&g, "shared tensor", recompute);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(embedding),        cmocka_unit_test(linear),
                                       cmocka_unit_test(linear_residual),  cmocka_unit_test(rmsnorm),
                                       cmocka_unit_test(qknorm_rope),      cmocka_unit_test(swiglu),
                                       cmocka_unit_test(rmsnorm_fed),      cmocka_unit_test(head),
                                       cmocka_unit_test(attention_paths),  cmocka_unit_test(shared_tensor),
                                       cmocka_unit_test(narrowest_window), cmocka_unit_test(fast_functions)};
    return cmocka_run_group_tests_name("layers", tests, NULL, NULL);
}
