/*
 * Generation: the cache changes nothing, seeds are reproducible, and the limits of sampling hold.
 */
#include "train/generate.h"
#include "support.h"
#include "train/error.h"
#include "train/tokenizer.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VOCAB = TOKENIZER_VOCAB, MADE = 24, LONGEST = 48, PROMPT = 9 };

/* The tokenizer of bytes, for as long as the program runs. */
static const tokenizer *bytes(void)
{
    static tokenizer *t;
    t = t ? t : tokenizer_open(NULL);
    return t;
}

static const model_config shape = {SHAPE_32, .vocab = VOCAB, .layers = 2, .max_seq = LONGEST};

typedef struct output {
    int32_t tokens[LONGEST + 1];
    int64_t count, end_after; /* end_after 0: never */
} output;

static bool add(void *user, int32_t token)
{
    output *out = user;
    out->tokens[out->count++] = token;
    return out->count != out->end_after;
}

static void prompt_of(int32_t prompt[PROMPT])
{
    for (int i = 0; i < PROMPT; ++i)
        prompt[i] = (unsigned char)"Ada lives"[i];
}

static generate_end run(const model *m, const char *path, sampler_options options, const char *stop, int64_t tokens,
                        output *out)
{
    int32_t prompt[PROMPT];
    sampler s;
    prompt_of(prompt);
    decoder *d = decoder_create(m, test_runtime(), path_of(path), LONGEST);
    require(d);
    sampler_init(&s, &options, VOCAB);
    const generate_options how = {.tokenizer = bytes(), .tokens = tokens, .stop = stop, .token = add, .user = out};
    generate_end end = generate(d, LONGEST, &s, prompt, PROMPT, &how);
    sampler_free(&s);
    decoder_free(d);
    return end;
}

/* Greedy generation the slow way: the whole sequence again for every token. */
static void without_cache(model *m, const char *path, output *out)
{
    int32_t tokens[LONGEST];
    prompt_of(tokens);
    for (int64_t length = PROMPT; out->count < MADE; ++length) {
        model_step *step = step_create(m, test_runtime(),
                                       &(step_options){.batch = 1, .seq = length, .attention = path_of(path), .logits = true});
        require(step);
        require(step_forward(step, tokens, NULL, NULL));
        const float *logits = step_logits(step) + (length - 1) * VOCAB;
        int32_t best = 0;
        for (int32_t i = 1; i < VOCAB; ++i)
            best = logits[i] > logits[best] ? i : best;
        step_free(step);
        tokens[length] = best;
        add(out, best);
    }
}

static void test_cache(void **state)
{
    (void)state;
    const char *const paths[] = {"composed", "flash", "block:5", "window:6"};
    model *m = random_model(&shape, 4);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; ++i) {
        output cached = {0}, again = {0}, slow = {0};
        assert_int_equal(run(m, paths[i], (sampler_options){.greedy = true}, NULL, MADE, &cached), GENERATE_LENGTH);
        run(m, paths[i], (sampler_options){.greedy = true}, NULL, MADE, &again);
        without_cache(m, paths[i], &slow);
        assert_int_equal(cached.count, MADE);
        assert_memory_equal(cached.tokens, again.tokens, sizeof cached.tokens);
        assert_memory_equal(cached.tokens, slow.tokens, sizeof cached.tokens);
    }
    model_free(m);
}

static void test_seeds(void **state)
{
    (void)state;
    model *m = random_model(&shape, 4);
    output first = {0}, same = {0}, other = {0};
    run(m, "flash", (sampler_options){.temperature = 1, .top_p = 1, .seed = 5}, NULL, MADE, &first);
    run(m, "flash", (sampler_options){.temperature = 1, .top_p = 1, .seed = 5}, NULL, MADE, &same);
    run(m, "flash", (sampler_options){.temperature = 1, .top_p = 1, .seed = 6}, NULL, MADE, &other);
    assert_memory_equal(first.tokens, same.tokens, sizeof first.tokens);
    assert_memory_not_equal(first.tokens, other.tokens, sizeof first.tokens);
    model_free(m);
}

/* How often each of eight tokens is drawn; probabilities 2^-1, 2^-2, ..., in a scrambled order. */
static void count_draws(sampler_options options, int draws, int counts[8])
{
    const int order[8] = {5, 2, 7, 0, 1, 6, 3, 4}; /* order[i]: the token that is i-th most probable */
    float logits[8];
    sampler s;
    for (int i = 0; i < 8; ++i)
        logits[order[i]] = (float)(-log(2) * i);
    sampler_init(&s, &options, 8);
    memset(counts, 0, 8 * sizeof *counts);
    for (int i = 0; i < draws; ++i) {
        int32_t token = sampler_pick(&s, logits);
        for (int rank = 0; rank < 8; ++rank)
            counts[rank] += order[rank] == token;
    }
    sampler_free(&s);
}

static int kinds(const int counts[8])
{
    int found = 0;
    for (int i = 0; i < 8; ++i)
        found += counts[i] > 0;
    return found;
}

static void test_sampling_limits(void **state)
{
    (void)state;
    enum { DRAWS = 20000 };
    int counts[8];
    count_draws((sampler_options){.temperature = 1, .top_p = 1, .seed = 1}, DRAWS, counts);
    assert_int_equal(kinds(counts), 8);
    for (int i = 0; i < 4; ++i) /* five deviations */
        assert_true(fabs(counts[i] / (double)DRAWS - ldexp(128.0 / 255, -i)) < 5 * 0.5 / sqrt(DRAWS));
    for (int k = 1; k <= 8; ++k) {
        count_draws((sampler_options){.temperature = 1, .top_k = k, .top_p = 1, .seed = 2}, DRAWS, counts);
        for (int i = 0; i < 8; ++i)
            assert_true(i < k || counts[i] == 0);
        assert_int_equal(kinds(counts), k);
    }
    count_draws((sampler_options){.temperature = 1, .top_p = 0.4, .seed = 3}, DRAWS, counts);
    assert_int_equal(counts[0], DRAWS); /* the first alone has 0.50 */
    count_draws((sampler_options){.temperature = 1, .top_p = 0.6, .seed = 3}, DRAWS, counts);
    assert_int_equal(kinds(counts), 2); /* the first two have 0.75 */
    assert_true(counts[0] > counts[1]);
    count_draws((sampler_options){.temperature = 0.01, .top_p = 1, .seed = 4}, DRAWS, counts);
    assert_int_equal(counts[0], DRAWS);
    count_draws((sampler_options){.temperature = 1, .top_k = 1000, .top_p = 1, .seed = 4}, DRAWS, counts);
    assert_int_equal(kinds(counts), 8);
    count_draws((sampler_options){.greedy = true}, DRAWS, counts);
    assert_int_equal(counts[0], DRAWS);
}

/* Logits that make no choice possible are an error, not a token. A single -infinity, a token that cannot come, is none. */
static void test_odd_logits(void **state)
{
    (void)state;
    const float odd[4][4] = {{NAN, NAN, NAN, NAN}, {3, 1, NAN, 2}, {-INFINITY, -INFINITY, -INFINITY, -INFINITY}, {1, INFINITY}};
    const float one[4] = {-INFINITY, 1, -INFINITY, -INFINITY};
    for (int greedy = 0; greedy < 2; ++greedy) {
        sampler s;
        sampler_init(&s, &(sampler_options){.greedy = greedy, .temperature = 1, .top_p = 0.9, .seed = 1}, 4);
        for (int i = 0; i < 4; ++i) {
            train_fail("nothing");
            assert_int_equal(sampler_pick(&s, odd[i]), -1);
            assert_int_equal(train_error_kind(), TRAIN_ERROR_WORK);
            assert_non_null(strstr(train_error(), "no token can be chosen"));
        }
        for (int draw = 0; draw < 100; ++draw)
            assert_int_equal(sampler_pick(&s, one), 1);
        sampler_free(&s);
    }
}

static void test_broken_model(void **state)
{
    (void)state;
    model *m = random_model(&shape, 4);
    output out = {0};
    m->norm->data[0] = NAN;
    assert_int_equal(run(m, "flash", (sampler_options){.temperature = 1, .top_p = 1}, NULL, MADE, &out), GENERATE_FAILED);
    assert_int_equal(run(m, "flash", (sampler_options){.greedy = true}, NULL, MADE, &out), GENERATE_FAILED);
    assert_int_equal(out.count, 0);
    assert_non_null(strstr(train_error(), "token 0 the logit"));
    model_free(m);
}

static void test_ends(void **state)
{
    (void)state;
    const sampler_options greedy = {.greedy = true};
    model *m = random_model(&shape, 4);
    output all = {0}, stopped = {0}, called = {.end_after = 3}, full = {0};
    run(m, "flash", greedy, NULL, MADE, &all);
    int at = 4; /* a text that is produced, ending at token `at`, and not before */
    while (all.tokens[at] > 255 || all.tokens[at - 1] > 255 || all.tokens[at] == 0 || all.tokens[at - 1] == 0)
        ++at;
    const char stop[3] = {(char)all.tokens[at - 1], (char)all.tokens[at], 0};
    assert_int_equal(run(m, "flash", greedy, stop, MADE, &stopped), GENERATE_STOP);
    assert_true(stopped.count >= 2 && stopped.count <= at + 1);
    assert_int_equal((char)stopped.tokens[stopped.count - 1], stop[1]);
    assert_int_equal((char)stopped.tokens[stopped.count - 2], stop[0]);
    assert_int_equal(run(m, "flash", greedy, NULL, MADE, &called), GENERATE_STOP);
    assert_int_equal(called.count, 3);
    assert_int_equal(run(m, "flash", greedy, NULL, 1000, &full), GENERATE_FULL);
    assert_int_equal(full.count, LONGEST - PROMPT + 1); /* the last one needs no room in the cache */
    model_free(m);
}

static void test_bad_prompts(void **state)
{
    (void)state;
    model *m = random_model(&shape, 4);
    decoder *d = decoder_create(m, test_runtime(), path_of("flash"), LONGEST);
    sampler s;
    int32_t prompt[LONGEST + 1] = {0};
    const generate_options options = {.tokenizer = bytes(), .tokens = 1};
    sampler_init(&s, &(sampler_options){.greedy = true}, VOCAB);
    assert_int_equal(generate(d, LONGEST, &s, prompt, 0, &options), GENERATE_FAILED);
    assert_int_equal(generate(d, LONGEST, &s, prompt, LONGEST + 1, &options), GENERATE_FAILED);
    assert_non_null(strstr(train_error(), "49 tokens"));
    prompt[1] = VOCAB;
    assert_int_equal(generate(d, LONGEST, &s, prompt, 2, &options), GENERATE_FAILED);
    sampler_free(&s);
    decoder_free(d);
    model_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cache),       cmocka_unit_test(test_seeds),        cmocka_unit_test(test_sampling_limits),
        cmocka_unit_test(test_odd_logits),  cmocka_unit_test(test_broken_model), cmocka_unit_test(test_ends),
        cmocka_unit_test(test_bad_prompts),
    };
    return cmocka_run_group_tests_name("generate", tests, NULL, NULL);
}
