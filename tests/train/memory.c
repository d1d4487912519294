/*
 * Memory: the plan of random lifetimes is sound; a training step, an update and decoding allocate nothing once they run;
 * flash needs less than composed, and recomputing less still.
 *
 * The program is linked with --wrap for the C library's allocators, which counts the calls from the trainer and from the
 * attention library (both static), though not those from inside oneDNN.
 */
#include "support.h"
#include "train/error.h"
#include "train/memory_plan.h"
#include "train/optimizer.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_int allocations;
static atomic_size_t alloc_most = SIZE_MAX; /* what aligned_alloc gives at once */

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);

void *__wrap_malloc(size_t size)
{
    allocations++;
    return __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    allocations++;
    return __real_calloc(count, size);
}

void *__wrap_realloc(void *p, size_t size)
{
    allocations++;
    return __real_realloc(p, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    allocations++;
    return size > alloc_most ? NULL : __real_aligned_alloc(alignment, size);
}

/* ---------------------------------------------------------------------------------------------------------------- plan */

static bool lives_at(const planned_buffer *b, int time)
{
    for (int i = 0; i < MEMORY_LIVES; i++)
        if (b->life[i].first <= time && time <= b->life[i].last)
            return true;
    return false;
}

static bool clash(const planned_buffer *a, const planned_buffer *b, int times)
{
    if (a->offset + a->bytes <= b->offset || b->offset + b->bytes <= a->offset)
        return false;
    for (int time = 0; time < times; time++)
        if (lives_at(a, time) && lives_at(b, time))
            return true;
    return false;
}

/* What lives at the fullest moment, which no plan can do without. */
static size_t least(const memory_plan *p, int times)
{
    size_t most = 0;
    for (int time = 0; time < times; time++) {
        size_t sum = 0;
        for (int i = 0; i < p->count; i++)
            sum += lives_at(&p->buffers[i], time) ? p->buffers[i].bytes : 0;
        most = sum > most ? sum : most;
    }
    return most;
}

static void plan_is_sound(void **state)
{
    (void)state;
    enum { TIMES = 60, BUFFERS = 120 };
    test_random r = {99};
    for (int round = 0; round < 20; round++) {
        memory_plan p = {0};
        size_t all = 0;
        for (int i = 0; i < BUFFERS; i++) {
            int number = memory_add(&p, (size_t)(1 + test_uniform(&r) * 5000), (memory_use)(i % MEMORY_USES));
            int first = (int)(test_uniform(&r) * TIMES / 2);
            memory_touch(&p, number, 0, first);
            memory_touch(&p, number, 0, first + (int)(test_uniform(&r) * 8));
            if (i % 3 == 0)
                memory_touch(&p, number, 1, TIMES / 2 + (int)(test_uniform(&r) * TIMES / 2));
        }
        require(memory_place(&p));
        for (int i = 0; i < BUFFERS; i++) {
            all += p.buffers[i].bytes;
            assert_true(p.buffers[i].offset + p.buffers[i].bytes <= p.bytes && p.buffers[i].offset % MEMORY_ALIGN == 0);
            for (int j = 0; j < i; j++)
                assert_false(clash(&p.buffers[i], &p.buffers[j], TIMES));
        }
        size_t bound = least(&p, TIMES), peak = 0;
        for (int i = 0; i < MEMORY_USES; i++)
            peak += p.peak_use[i];
        assert_int_equal(peak, bound);
        assert_true(p.bytes >= bound && p.bytes < bound + bound / 4 && p.bytes < all / 2);
        memory_free(&p);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- steps */

static const model_config config = {.vocab = 40,
                                    .hidden = 32,
                                    .layers = 3,
                                    .heads = 2,
                                    .heads_kv = 1,
                                    .head_dim = 32,
                                    .ffn = 64,
                                    .max_seq = 512,
                                    .rope_theta = 1e4,
                                    .rms_eps = 1e-6};

static void nothing_is_allocated(void **state)
{
    (void)state;
    enum { SEQ = 48 };
    const char *const paths[] = {"composed", "flash", "window:9"};
    int32_t tokens[2 * SEQ];
    const float *logits;
    double norm;
    random_tokens(tokens, 2 * SEQ, config.vocab, 4);
    for (int i = 0; i < 3; i++) {
        model *m = random_model(&config, 3);
        optimizer_options options = optimizer_defaults();
        int before = allocations;
        optimizer *o = optimizer_create(m, &options);
        assert_true(allocations > before); /* the counter counts */
        model_step *s = step_create(
            m, test_runtime(),
            &(step_options){.batch = 2, .seq = SEQ, .attention = path_of(paths[i]), .backward = true, .recompute = i == 1});
        decoder *d = decoder_create(m, test_runtime(), path_of(paths[i]), SEQ);
        require(o && s && d);
        before = allocations;
        for (int step = 0; step < 3; step++) {
            require(step_forward(s, tokens, tokens, NULL));
            model_zero_grad(m);
            require(step_backward(s, 1.0f / (float)step_targets(s)));
            require(optimizer_update(o, 1e-3, &norm));
        }
        assert_int_equal(allocations, before);
        require(decoder_feed(d, tokens, 20, &logits));
        for (int j = 20; j < SEQ; j++)
            require(decoder_feed(d, tokens + j, 1, &logits));
        assert_int_equal(allocations, before);
        decoder_free(d);
        step_free(s);
        optimizer_free(o);
        model_free(m);
    }
}

static step_memory memory_of(const char *path, int64_t seq, bool backward, bool recompute)
{
    model *m = random_model(&config, 3);
    model_step *s = step_create(
        m, test_runtime(),
        &(step_options){.batch = 1, .seq = seq, .attention = path_of(path), .backward = backward, .recompute = recompute});
    require(s);
    step_memory use = step_memory_use(s);
    assert_int_equal(use.parameters, (size_t)m->size * sizeof(float));
    assert_int_equal(use.gradients, backward ? use.parameters : 0);
    assert_true(use.arena >= use.activations + use.activation_gradients + use.workspace);
    step_free(s);
    model_free(m);
    return use;
}

/* Composed keeps the whole probability matrix somewhere, flash does not: twice the sequence, about twice the memory. */
static void what_steps_need(void **state)
{
    (void)state;
    step_memory composed = memory_of("composed", 512, true, false), flash = memory_of("flash", 512, true, false);
    step_memory half = memory_of("flash", 256, true, false), again = memory_of("flash", 512, true, true);
    step_memory forward = memory_of("flash", 512, false, false);
    assert_true(flash.arena + (size_t)512 * 512 * sizeof(float) < composed.arena);
    assert_true(flash.arena < half.arena * 5 / 2);
    assert_true(again.arena < flash.arena);
    assert_true(forward.arena < again.arena);
}

/* Gradients come with the first that needs them, and no step that only goes forward does. */
static void gradients_on_demand(void **state)
{
    (void)state;
    const step_options forward = {.batch = 1, .seq = 64}, backward = {.batch = 1, .seq = 64, .backward = true};
    const optimizer_options options = optimizer_defaults();
    model *m = random_model(&config, 3), *other = random_model(&config, 3);
    model_step *s = step_create(m, test_runtime(), &forward);
    decoder *d = decoder_create(m, test_runtime(), path_of("flash"), 64);
    require(s && d);
    assert_null(m->grad);
    assert_null(m->parameters[0].grad);
    assert_null(m->head.grad);
    model_zero_grad(m);
    model_step *t = step_create(m, test_runtime(), &backward);
    optimizer *o = optimizer_create(other, &options);
    require(t && o);
    assert_non_null(other->grad);
    assert_ptr_equal(m->parameters[1].grad, m->grad + m->parameters[1].offset);
    assert_ptr_equal(m->layer[2].down.grad - m->grad, m->layer[2].down.data - m->data);
    const float *grad = m->grad;
    require(model_need_grad(m));
    assert_ptr_equal(m->grad, grad);
    optimizer_free(o);
    decoder_free(d);
    step_free(t);
    step_free(s);
    model_free(other);
    model_free(m);
}

/* No memory is not the caller's mistake, whatever the line says around it; a batch of nothing is. */
static void kinds_of_errors(void **state)
{
    (void)state;
    const step_options forward = {.batch = 1, .seq = 64}, backward = {.batch = 1, .seq = 64, .backward = true};
    const optimizer_options options = optimizer_defaults();
    model *m = random_model(&config, 3);
    alloc_most = 1000;
    assert_null(step_create(m, test_runtime(), &forward));
    assert_int_equal(train_error_kind(), TRAIN_ERROR_WORK);
    train_fail_as(train_error_kind(), "evaluation: %s", train_error());
    assert_int_equal(train_error_kind(), TRAIN_ERROR_WORK);
    assert_non_null(strstr(train_error(), "evaluation: no memory: "));
    assert_null(step_create(m, test_runtime(), &(step_options){.batch = 0, .seq = 64}));
    assert_int_equal(train_error_kind(), TRAIN_ERROR_GIVEN);
    assert_null(step_create(m, test_runtime(), &backward));
    assert_int_equal(train_error_kind(), TRAIN_ERROR_WORK);
    assert_non_null(strstr(train_error(), ", for the gradients of "));
    train_fail("nothing");
    assert_null(optimizer_create(m, &options));
    assert_null(decoder_create(m, test_runtime(), path_of("flash"), 64));
    assert_null(model_create(&config, 1));
    assert_int_equal(train_error_kind(), TRAIN_ERROR_WORK);
    alloc_most = SIZE_MAX;
    model_free(m);
}

/* Sizes whose product would overflow are refused before anything is added up. */
static void too_much_is_refused(void **state)
{
    (void)state;
    model_config wide = config;
    wide.ffn = 1000;
    model *m = random_model(&wide, 3);
    assert_null(step_create(m, test_runtime(), &(step_options){.batch = 1 << 24, .seq = 512, .backward = true}));
    assert_non_null(strstr(train_error(), "2^40"));
    model_free(m);
    memory_plan p = {0};
    assert_int_equal(memory_add(&p, SIZE_MAX - 8, MEMORY_WORKSPACE), -1);
    assert_true(memory_failed(&p));
    memory_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(plan_is_sound),   cmocka_unit_test(nothing_is_allocated),
                                       cmocka_unit_test(what_steps_need), cmocka_unit_test(gradients_on_demand),
                                       cmocka_unit_test(kinds_of_errors), cmocka_unit_test(too_much_is_refused)};
    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
