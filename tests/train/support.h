/*
 * What the trainer's tests share: golden files, models made from them, errors, and finite differences.
 */
#ifndef TESTS_TRAIN_SUPPORT_H
#define TESTS_TRAIN_SUPPORT_H

#include "train/layers/layers.h"
#include "train/model.h"
#include "train/runtime.h"
#include "train/safetensors.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

/* cmocka.h wants the four above. */
#include <cmocka.h>

/* Fails the test with the trainer's error text unless `ok`. */
#define require(ok)                                                                                                            \
    do {                                                                                                                       \
        if (!(ok))                                                                                                             \
            fail_msg("%s: %s", #ok, train_error());                                                                            \
    } while (0)

/* The runtime of this process, opened on first use. */
const runtime *test_runtime(void);

/* ------------------------------------------------------------------------------------------------------------- numbers */

typedef struct test_random {
    uint64_t state;
} test_random;
double test_uniform(test_random *r); /* in [0, 1) */
double test_normal(test_random *r);
void fill_normal(float *x, int64_t n, double mean, double deviation, uint64_t seed);

/* max |a - b| / max |b|; infinite if one of them has a NaN, or an infinity that the other has not. */
double error_ff(const float *a, const float *b, int64_t n);
double error_fd(const float *a, const double *b, int64_t n);
double error_dd(const double *a, const double *b, int64_t n);

/* Fails, with the name and both numbers, unless error <= bound. */
void check_error(const char *name, double error, double bound);

/* -------------------------------------------------------------------------------------------------------- golden files */

safetensors_file *golden_open(const char *name);
/* Copies, which the caller frees. The test fails if there is no such tensor of that type. */
double *golden_doubles(const safetensors_file *f, const char *name, int64_t *count);
float *golden_floats(const safetensors_file *f, const char *name, int64_t *count);
int64_t *golden_integers(const safetensors_file *f, const char *name, int64_t *count);

/* The configuration in tensor `config`. */
model_config golden_config(const safetensors_file *f, bool tied);
/* A model with the file's parameters, named PREFIX + name. */
model *golden_model(const safetensors_file *f, bool tied, const char *prefix);

/* ---------------------------------------------------------------------------------------------------------------- models */

/* Small shapes that several tests have, named by their width: all of a model_config but vocab, layers, max_seq and tied. */
#define SHAPE_8  .hidden = 8, .heads = 2, .heads_kv = 1, .head_dim = 4, .ffn = 12, .rope_theta = 1e4, .rms_eps = 1e-6
#define SHAPE_16 .hidden = 16, .heads = 2, .heads_kv = 1, .head_dim = 8, .ffn = 24, .rope_theta = 1e4, .rms_eps = 1e-6
#define SHAPE_32 .hidden = 32, .heads = 4, .heads_kv = 2, .head_dim = 8, .ffn = 48, .rope_theta = 1e4, .rms_eps = 1e-6
#define SHAPE_64 .hidden = 64, .heads = 4, .heads_kv = 2, .head_dim = 32, .ffn = 128, .rope_theta = 1e4, .rms_eps = 1e-6

/* A small model whose weights are large enough that every part of it matters. */
model *random_model(const model_config *c, uint64_t seed);
void random_tokens(int32_t *tokens, int64_t n, int64_t vocab, uint64_t seed);
attention_path path_of(const char *text);

/* -------------------------------------------------------------------------------------------------- finite differences */

/* An array of numbers that the loss depends on, with the gradient found by backward. */
typedef struct checked_array {
    const char *name;
    float *value;
    const float *grad; /* a copy, since evaluating the loss may overwrite the gradients */
    int64_t rows, cols, stride;
} checked_array;

/* Compares at most `samples` elements with (loss(x + h) - loss(x - h)) / 2h; returns the largest error divided by the largest
 * gradient of the array. */
double gradient_error(checked_array a, double (*loss)(void *arg), void *arg, double h, int64_t samples);

#endif
