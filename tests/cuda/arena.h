/*
 * Memory of the host and as much of a GPU's for the tensors of a call, which lie at the same offsets in both: the call runs on
 * the CPU with pointers to the one, on the GPU with pointers to the other, and then all bytes are compared, gaps between
 * tensors too.
 */
#ifndef FATTN_TESTS_CUDA_ARENA_H
#define FATTN_TESTS_CUDA_ARENA_H

#include <pthread.h>

#include "gpu/driver.h"
#include "gpu/memory.h"
#include "tests/api/numbers.h"

enum { ARENA_ROOM = 16 << 20, ARENA_GAP = 64 };

typedef struct arena {
    gpu_device *gpu; /* NULL: there is none */
    char why[200];   /* there is none */
    fattn_context *cpu_context, *gpu_context;
    unsigned char *host, *back; /* the CPU's, and what came back from the GPU */
    unsigned char *there;       /* the GPU's */
    void *stream;               /* for calls on the GPU */
    size_t used;
} arena;

static arena a;

/* For a group of tests. */
static inline int arena_open(void **state)
{
    const fattn_context_options cpu = {.struct_size = sizeof cpu, .threads = 2, .kernel = ""},
                                gpu = {.struct_size = sizeof gpu, .device = FATTN_DEVICE_CUDA, .kernel = ""};
    (void)state;
    a.gpu = gpu_open(0, a.why, sizeof a.why);
    if (!a.gpu)
        return 0; /* the tests are skipped */
    a.host = malloc(ARENA_ROOM);
    a.back = malloc(ARENA_ROOM);
    a.there = gpu_allocate(a.gpu, ARENA_ROOM);
    a.stream = gpu_stream(a.gpu);
    assert_true(a.host && a.back && a.there);
    assert_ok(fattn_context_create(&cpu, &a.cpu_context));
    assert_ok(fattn_context_create(&gpu, &a.gpu_context));
    return 0;
}

static inline int arena_close(void **state)
{
    (void)state;
    if (!a.gpu)
        return 0;
    fattn_context_destroy(a.gpu_context);
    fattn_context_destroy(a.cpu_context);
    gpu_release(a.gpu, a.there);
    gpu_close(a.gpu);
    free(a.host), free(a.back);
    return 0;
}

/* The first line of every test. */
static inline void needs_gpu(void)
{
    if (a.gpu)
        return;
    print_message("skipped: %s\n", a.why);
    skip();
}

/* Before each case. */
static inline void arena_clear(void)
{
    memset(a.host, POISON, ARENA_ROOM);
    a.used = ARENA_GAP;
}

static inline void *take(size_t bytes)
{
    void *taken = a.host + a.used;
    a.used += (bytes + 2 * ARENA_GAP - 1) / ARENA_GAP * ARENA_GAP;
    assert_true(a.used <= ARENA_ROOM);
    return taken;
}

/* Room for `count` numbers, random ones in [-size, size) where seed is not 0, else poison. */
static inline void *take_numbers(int32_t dtype, int64_t count, uint64_t seed, double size)
{
    void *data = take((size_t)count * size_of(dtype));
    for (int64_t i = 0; seed && i < count; i++)
        set(data, dtype, i, size * random_number(&seed));
    return data;
}

/* NaN or an infinity too. */
static inline void set_any(void *data, int32_t dtype, int64_t i, double x)
{
    if (dtype == FATTN_F16 && !isfinite(x))
        ((uint16_t *)data)[i] = isnan(x) ? 0x7e00 : signbit(x) ? 0xfc00 : 0x7c00;
    else if (dtype == FATTN_BF16 && isnan(x))
        ((uint16_t *)data)[i] = 0x7fc0;
    else
        set(data, dtype, i, x);
}

/* Where on the GPU the bytes at `host` are; NULL stays. */
static inline void *there(const void *host)
{
    return host ? a.there + ((const unsigned char *)host - a.host) : NULL;
}

static inline fattn_view view_there(fattn_view view)
{
    view.data = there(view.data);
    return view;
}

/* A call on the GPU. */
typedef struct gpu_call {
    fattn_status (*run)(const void *what);
    const void *what;
    fattn_status status;
    bool clean; /* no context was current before, none is after */
    char error[300];
} gpu_call;

static inline bool has_no_context(void)
{
    CUcontext now;
    return gpu_driver()->cuCtxGetCurrent(&now) == CUDA_SUCCESS && !now;
}

static inline void *run_call(void *arg)
{
    gpu_call *c = arg;
    c->clean = has_no_context();
    c->status = c->run(c->what);
    c->clean = c->clean && has_no_context();
    snprintf(c->error, sizeof c->error, "%s", c->status == FATTN_OK ? "" : fattn_last_error());
    return NULL;
}

/* run(what) in a thread of its own, where no context is current, on the default stream, which only a context gives a meaning.
 */
static inline void assert_ok_apart(fattn_status (*run)(const void *what), const void *what)
{
    pthread_t thread;
    gpu_call c = {.run = run, .what = what};
    assert_true(gpu_wait(a.gpu));
    a.stream = NULL;
    assert_int_equal(pthread_create(&thread, NULL, run_call, &c), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    a.stream = gpu_stream(a.gpu);
    assert_int_equal(gpu_driver()->cuCtxSynchronize(), CUDA_SUCCESS);
    assert_string_equal(c.error, "");
    assert_int_equal(c.status, FATTN_OK);
    assert_true(c.clean);
}

/* What is in the arena to the GPU, and back. */
static inline void push(void)
{
    assert_true(gpu_put(a.gpu, a.there, a.host, ARENA_ROOM));
}

static inline void pull(void)
{
    if (!gpu_get(a.gpu, a.back, a.there, ARENA_ROOM))
        print_error("%s\n", gpu_error(a.gpu));
    assert_string_equal(gpu_error(a.gpu), "");
}

static inline bool alike(double got, double wanted, double relative, double absolute)
{
    return got == wanted || (isnan(got) && isnan(wanted)) || fabs(got - wanted) <= relative * fabs(wanted) + absolute;
}

/* The `count` numbers at `host`, as the GPU and as the CPU wrote them: the same bits, or both NaN, or as far apart as said. */
static inline void assert_alike(const char *name, const void *host, int32_t dtype, int64_t count, double relative,
                                double absolute)
{
    unsigned char *got = a.back + ((const unsigned char *)host - a.host);
    const size_t size = size_of(dtype);
    for (int64_t i = 0; i < count; i++) {
        const double x = get(got, dtype, i), wanted = get(host, dtype, i);
        if (memcmp(got + (size_t)i * size, (const char *)host + (size_t)i * size, size) == 0 ||
            alike(x, wanted, relative, absolute))
            continue;
        print_error("%s[%lld] is %.17g on the GPU, %.17g on the CPU\n", name, (long long)i, x, wanted);
        fail();
    }
    memcpy(got, host, (size_t)count * size); /* done with: for assert_rest */
}

/* Nothing else differs: inputs and gaps are as they were. */
static inline void assert_rest(void)
{
    for (size_t i = 0; i < ARENA_ROOM; i++)
        if (a.back[i] != a.host[i]) {
            print_error("byte %zu of the arena, which has %zu, was written on the GPU\n", i, a.used);
            fail();
        }
}

#endif
