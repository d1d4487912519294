/*
 * Threads: the same bits from any number of them and from any parallel_for; one context used by many threads at once, from
 * within a parallel_for, and in a forked child; a system that has no more threads to give.
 */
#include <math.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

enum { B = 2, HQ = 6, HKV = 3, S = 40, D = 8, ROWS = B * HQ * S, KEYS = B * HKV * S };

typedef struct results {
    float out[ROWS * D], lse[ROWS], dq[ROWS * D], dk[KEYS * D], dv[KEYS * D];
} results;

static float q[ROWS * D], k[KEYS * D], v[KEYS * D], dout[ROWS * D];

static const fattn_desc desc = {.struct_size = sizeof desc,
                                .dtype = FATTN_F32,
                                .mask = FATTN_MASK_CAUSAL,
                                .batch = B,
                                .heads_q = HQ,
                                .heads_kv = HKV,
                                .seq_q = S,
                                .seq_k = S,
                                .dim = D,
                                .dim_v = D};

/* Forward and backward; false on any error. Uses no assertions, as it runs on threads and in children too. */
static bool compute(const fattn_context *context, results *r)
{
    size_t forward_bytes, backward_bytes;
    memset(r, POISON, sizeof *r);
    if (fattn_workspace_size(context, &desc, FATTN_OP_FORWARD, &forward_bytes) != FATTN_OK ||
        fattn_workspace_size(context, &desc, FATTN_OP_BACKWARD, &backward_bytes) != FATTN_OK)
        return false;
    void *workspace = malloc((forward_bytes > backward_bytes ? forward_bytes : backward_bytes) + 1);
    const fattn_view vq = fattn_view_bhsd(q, HQ, S, D), vk = fattn_view_bhsd(k, HKV, S, D), vv = fattn_view_bhsd(v, HKV, S, D);
    const fattn_forward_args forward = {.struct_size = sizeof forward,
                                        .q = vq,
                                        .k = vk,
                                        .v = vv,
                                        .out = fattn_view_bhsd(r->out, HQ, S, D),
                                        .lse = r->lse,
                                        .workspace = workspace,
                                        .workspace_size = forward_bytes};
    const fattn_backward_args backward = {.struct_size = sizeof backward,
                                          .q = vq,
                                          .k = vk,
                                          .v = vv,
                                          .out = fattn_view_bhsd(r->out, HQ, S, D),
                                          .lse = r->lse,
                                          .dout = fattn_view_bhsd(dout, HQ, S, D),
                                          .dq = fattn_view_bhsd(r->dq, HQ, S, D),
                                          .dk = fattn_view_bhsd(r->dk, HKV, S, D),
                                          .dv = fattn_view_bhsd(r->dv, HKV, S, D),
                                          .workspace = workspace,
                                          .workspace_size = backward_bytes};
    const bool ok = workspace && fattn_forward(context, &desc, &forward) == FATTN_OK &&
                    fattn_backward(context, &desc, &backward) == FATTN_OK;
    free(workspace);
    return ok;
}

static bool agrees(const fattn_context *context, const results *wanted)
{
    results r;
    return compute(context, &r) && memcmp(&r, wanted, sizeof r) == 0;
}

/* What one thread computes. */
static void expected(const char *kernel, results *r)
{
    fattn_context *context = make_context(1, kernel);
    assert_true(compute(context, r));
    fattn_context_destroy(context);
}

static const char *const kernels[] = {NULL, "ref", "cpu_generic"};
enum { KERNELS = 3 };

static void any_number_of_threads(void **state)
{
    static const int32_t threads[] = {1, 2, 3, 7, 64};
    (void)state;
    for (int n = 0; n < KERNELS; n++) {
        results wanted;
        expected(kernels[n], &wanted);
        for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
            fattn_context *context = make_context(threads[t], kernels[n]);
            for (int again = 0; again < 5; again++)
                assert_true(agrees(context, &wanted));
            fattn_context_destroy(context);
        }
    }
}

static void threads_that_make_no_sense(void **state)
{
    static const int32_t wrong[] = {-1, INT32_MIN, 1025, INT32_MAX};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        fattn_context *context;
        const fattn_context_options options = {.struct_size = sizeof options, .threads = wrong[i]};
        assert_int_equal(fattn_context_create(&options, &context), FATTN_ERROR_ARGUMENT);
        assert_non_null(strstr(fattn_last_error(), "options.threads"));
        assert_null(context);
    }
}

static void devices_that_make_no_sense(void **state)
{
    static const struct {
        int32_t device, index;
        const char *text;
    } wrong[] = {{-1, 0, "options.device is -1"},
                 {2, 0, "options.device is 2"},
                 {FATTN_DEVICE_CPU, 1, "options.device_index is 1, but options.device is the CPU"}};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        fattn_context *context;
        const fattn_context_options options = {
            .struct_size = sizeof options, .device = wrong[i].device, .device_index = wrong[i].index};
        assert_int_equal(fattn_context_create(&options, &context), FATTN_ERROR_ARGUMENT);
        assert_non_null(strstr(fattn_last_error(), wrong[i].text));
        assert_null(context);
    }
}

/* A GPU that is not there, or a build without CUDA, is an error with a reason. */
static void gpus_that_are_not_there(void **state)
{
    fattn_context *context;
    const fattn_context_options options = {.struct_size = sizeof options, .device = FATTN_DEVICE_CUDA, .device_index = 1000};
    (void)state;
    const fattn_status status = fattn_context_create(&options, &context);
    assert_true(status == FATTN_ERROR_ARGUMENT || status == FATTN_ERROR_SYSTEM || status == FATTN_ERROR_UNSUPPORTED);
    assert_non_null(strstr(fattn_last_error(), "options.device"));
    assert_null(context);
}

static void as_many_as_there_are(void **state)
{
    fattn_context *context;
    fattn_context_info info = {.struct_size = sizeof info};
    (void)state;
    assert_int_equal(fattn_context_create(NULL, &context), FATTN_OK);
    assert_int_equal(fattn_context_query(context, &info), FATTN_OK);
    assert_in_range(info.threads, 1, sysconf(_SC_NPROCESSORS_ONLN));
    assert_int_equal(info.builtin_pool, 1);
    assert_null(info.kernel);
    assert_true(strlen(info.build) > 0);
    fattn_context_destroy(context);
}

/* --------------------------------------------------------------------------------------------------- caller's parallel_for */

typedef struct caller {
    int calls, bodies;
    int32_t most;
    bool reversed;
    fattn_context *inner; /* used before the bodies run */
    const results *wanted;
    bool failed;
} caller;

static void one_after_the_other(void *user, int32_t count, void (*body)(void *arg, int32_t index), void *arg)
{
    caller *c = user;
    c->calls++;
    c->bodies += count;
    c->failed = c->failed || count < 1 || count > c->most;
    if (c->inner && !agrees(c->inner, c->wanted))
        c->failed = true;
    for (int32_t i = 0; i < count; i++)
        body(arg, c->reversed ? count - 1 - i : i);
}

static void own_parallel_for(void **state)
{
    (void)state;
    for (int n = 0; n < KERNELS; n++) {
        results wanted;
        expected(kernels[n], &wanted);
        for (int reversed = 0; reversed < 2; reversed++) {
            caller c = {.most = 5, .reversed = reversed, .wanted = &wanted};
            const fattn_context_options options = {.struct_size = sizeof options,
                                                   .threads = 5,
                                                   .parallel_for = one_after_the_other,
                                                   .user = &c,
                                                   .kernel = kernels[n]};
            fattn_context *context;
            fattn_context_info info = {.struct_size = sizeof info};
            assert_int_equal(fattn_context_create(&options, &context), FATTN_OK);
            assert_int_equal(fattn_context_query(context, &info), FATTN_OK);
            assert_true(info.threads == 5 && info.builtin_pool == 0);
            assert_true(agrees(context, &wanted));
            if (n == 1) /* ref has a unit for each batch and key head, whatever the size */
                assert_true(c.calls == 2 && c.bodies == 2 * 5);
            c.inner = make_context(3, kernels[n]);
            assert_true(agrees(context, &wanted));
            assert_false(c.failed);
            fattn_context_destroy(c.inner);
            fattn_context_destroy(context);
        }
    }
}

/* A parallel_for with threads of its own, on which the library's calls are nested: its bodies run while the pool of another
 * context works too. */
typedef struct body_call {
    void (*body)(void *arg, int32_t index);
    void *arg;
    int32_t index;
} body_call;

static void *run_body(void *arg)
{
    const body_call *b = arg;
    b->body(b->arg, b->index);
    return NULL;
}

static void on_new_threads(void *user, int32_t count, void (*body)(void *arg, int32_t index), void *arg)
{
    pthread_t threads[8];
    body_call calls[8];
    bool started[8];
    (void)user;
    for (int32_t i = 0; i < count; i++) {
        calls[i] = (body_call){body, arg, i};
        started[i] = pthread_create(&threads[i], NULL, run_body, &calls[i]) == 0;
    }
    for (int32_t i = 0; i < count; i++) {
        if (started[i])
            pthread_join(threads[i], NULL);
        else
            body(arg, i);
    }
}

static void parallel_for_with_threads(void **state)
{
    results wanted;
    fattn_context *context;
    const fattn_context_options options = {.struct_size = sizeof options, .threads = 8, .parallel_for = on_new_threads};
    (void)state;
    expected(NULL, &wanted);
    assert_int_equal(fattn_context_create(&options, &context), FATTN_OK);
    for (int again = 0; again < 5; again++)
        assert_true(agrees(context, &wanted));
    fattn_context_destroy(context);
}

/* ----------------------------------------------------------------------------------------------------------- concurrency */

typedef struct user {
    const fattn_context *context;
    const results *wanted;
    bool ok;
    char error[64];
} user;

static void *use_many_times(void *arg)
{
    user *u = arg;
    results *r = malloc(sizeof *r);
    u->ok = r != NULL;
    for (int i = 0; i < 30 && u->ok; i++)
        u->ok = compute(u->context, r) && memcmp(r, u->wanted, sizeof *r) == 0;
    free(r);
    /* The last error is this thread's own. */
    if (fattn_last_error()[0] != '\0' || fattn_forward(u->context, &desc, NULL) != FATTN_ERROR_ARGUMENT)
        u->ok = false;
    snprintf(u->error, sizeof u->error, "%s", fattn_last_error());
    return NULL;
}

static void many_users(void **state)
{
    (void)state;
    for (int n = 0; n < 2; n++) {
        results wanted;
        expected(kernels[n], &wanted);
        fattn_context *context = make_context(3, kernels[n]);
        pthread_t threads[4];
        user users[4];
        for (int t = 0; t < 4; t++) {
            users[t] = (user){.context = context, .wanted = &wanted};
            assert_int_equal(pthread_create(&threads[t], NULL, use_many_times, &users[t]), 0);
        }
        for (int t = 0; t < 4; t++)
            pthread_join(threads[t], NULL);
        for (int t = 0; t < 4; t++) {
            assert_true(users[t].ok);
            assert_string_equal(users[t].error, "args is NULL");
        }
        fattn_context_destroy(context);
    }
}

/* ------------------------------------------------------------------------------------------------------------------ fork */

/* Runs check in a child; true if it says so within a minute. */
static bool child_says(bool (*check)(fattn_context *context, const results *wanted), fattn_context *context,
                       const results *wanted)
{
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);
        _exit(check(context, wanted) ? 0 : 1);
    }
    int status = 0;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool use_and_destroy(fattn_context *context, const results *wanted)
{
    const bool ok = agrees(context, wanted) && agrees(context, wanted);
    fattn_context_destroy(context);
    return ok;
}

static bool only_destroy(fattn_context *context, const results *wanted)
{
    (void)wanted;
    fattn_context_destroy(context);
    return true;
}

/* The child forks again after it has used the context, and so does its child. */
static bool use_in_grandchild(fattn_context *context, const results *wanted)
{
    return agrees(context, wanted) && child_says(use_and_destroy, context, wanted) && agrees(context, wanted);
}

static void forked_children(void **state)
{
    results wanted;
    (void)state;
    if (SANITIZED) /* they do not follow threads into children */
        skip();
    expected("ref", &wanted);
    fattn_context *context = make_context(3, "ref");
    assert_true(child_says(use_and_destroy, context, &wanted)); /* before its threads started */
    assert_true(agrees(context, &wanted));
    assert_true(child_says(use_and_destroy, context, &wanted));
    assert_true(child_says(only_destroy, context, &wanted));
    assert_true(child_says(use_in_grandchild, context, &wanted));
    assert_true(agrees(context, &wanted)); /* the parent's threads are still there */
    fattn_context_destroy(context);
}

typedef struct busy {
    const fattn_context *context;
    _Atomic int stop;
} busy;

static void *keep_busy(void *arg)
{
    busy *b = arg;
    results *r = malloc(sizeof *r);
    while (r && !b->stop)
        if (!compute(b->context, r))
            break;
    free(r);
    return NULL;
}

/* A child that was forked while another thread had the pool at work. */
static void forked_while_busy(void **state)
{
    results wanted;
    pthread_t thread;
    (void)state;
    if (SANITIZED)
        skip();
    expected("ref", &wanted);
    fattn_context *context = make_context(2, "ref");
    busy b = {.context = context};
    assert_int_equal(pthread_create(&thread, NULL, keep_busy, &b), 0);
    bool ok = true;
    for (int i = 0; i < 10; i++)
        ok = child_says(use_and_destroy, context, &wanted) && ok;
    b.stop = 1;
    pthread_join(thread, NULL);
    assert_true(ok);
    fattn_context_destroy(context);
}

/* ------------------------------------------------------------------------------------------------------------ no threads */

static void *nothing(void *arg)
{
    return arg;
}

/* With no memory for stacks, no thread starts; the caller then does all the work. */
static bool use_without_threads(fattn_context *context, const results *wanted)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld", &pages) != 1)
        return true; /* not a system where this can be arranged */
    fclose(file);
    const rlim_t bytes = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + (2 << 20);
    const struct rlimit limit = {bytes, bytes};
    pthread_t thread;
    if (setrlimit(RLIMIT_AS, &limit) != 0)
        return true;
    if (pthread_create(&thread, NULL, nothing, NULL) == 0) /* the arrangement does not work here */
        return true;
    return use_and_destroy(context, wanted);
}

static void system_without_threads(void **state)
{
    results wanted;
    (void)state;
    if (SANITIZED)
        skip();
    expected("ref", &wanted);
    fattn_context *context = make_context(7, "ref");
    assert_true(child_says(use_without_threads, context, &wanted));
    fattn_context_destroy(context);
}

/* ------------------------------------------------------------------------------------------------------- floating point */

#if defined(__SSE__)
#include <xmmintrin.h>

/* The caller's mode neither changes nor matters. */
static void floating_point_mode(void **state)
{
    results wanted;
    (void)state;
    expected(NULL, &wanted);
    const unsigned int before = _mm_getcsr();
    for (int32_t threads = 1; threads <= 2; threads++) {
        const unsigned int odd = 0x1f80 | 0x6000; /* rounding toward zero, nothing flushed */
        _mm_setcsr(odd);
        fattn_context *context = make_context(threads, NULL);
        const bool ok = agrees(context, &wanted);
        const unsigned int after = _mm_getcsr();
        _mm_setcsr(before);
        assert_true(ok);
        assert_int_equal(after & ~0x3fu, odd);
        fattn_context_destroy(context);
    }
}
#else
static void floating_point_mode(void **state)
{
    (void)state;
    skip();
}
#endif

int main(void)
{
    fill(q, FATTN_F32, ROWS * D, 11);
    fill(k, FATTN_F32, KEYS * D, 12);
    fill(v, FATTN_F32, KEYS * D, 13);
    fill(dout, FATTN_F32, ROWS * D, 14);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(system_without_threads), /* first: the system keeps the stacks of threads that ended */
        cmocka_unit_test(any_number_of_threads),
        cmocka_unit_test(threads_that_make_no_sense),
        cmocka_unit_test(devices_that_make_no_sense),
        cmocka_unit_test(gpus_that_are_not_there),
        cmocka_unit_test(as_many_as_there_are),
        cmocka_unit_test(own_parallel_for),
        cmocka_unit_test(parallel_for_with_threads),
        cmocka_unit_test(many_users),
        cmocka_unit_test(forked_children),
        cmocka_unit_test(forked_while_busy),
        cmocka_unit_test(floating_point_mode),
    };
    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
