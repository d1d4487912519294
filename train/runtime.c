/* Threads and contexts: see runtime.h. */
#include "runtime.h"
#include "error.h"
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

/* One OpenMP thread for each index, as far as there are any. */
static void run_on_openmp(void *user, int32_t count, void (*body)(void *arg, int32_t index), void *arg)
{
    (void)user;
#pragma omp parallel for schedule(static, 1)
    for (int32_t i = 0; i < count; i++)
        body(arg, i);
}

/* ----------------------------------------------------------------------------------------------- threads that do not spin */

/* A thread that owns a second team of OpenMP threads, which all sleep until the end. */
typedef struct sleepers {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int count;        /* threads of the team */
    bool there, done; /* the team exists; it may go */
} sleepers;

/* OpenMP ends the process if it cannot make a thread, and a machine with this many idle processors is not crowded. */
enum { SLEEPERS_MOST = 64 };

static void *sleep_beside(void *arg)
{
    sleepers *s = arg;
    int counted = 0; /* keeps the team from being optimised away */
#pragma omp parallel num_threads(s->count) reduction(+ : counted)
    counted++;
    pthread_mutex_lock(&s->lock);
    s->there = counted > 0;
    pthread_cond_signal(&s->changed);
    while (!s->done)
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void sleepers_free(sleepers *s)
{
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
    free(s);
}

/* Without them work is slower at worst, so that not making them is no failure. */
static sleepers *sleepers_start(int threads)
{
    int idle = omp_get_num_procs() - threads, count = (idle > 0 ? idle : 0) + 2;
    if (threads < 2 || count > SLEEPERS_MOST || getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT"))
        return NULL;
    sleepers *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->count = count;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    if (pthread_create(&s->thread, NULL, sleep_beside, s)) {
        sleepers_free(s);
        return NULL;
    }
    pthread_mutex_lock(&s->lock);
    while (!s->there)
        pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    return s;
}

static void sleepers_stop(sleepers *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->done = true;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    sleepers_free(s);
}

/* ------------------------------------------------------------------------------------------------------------- processor */

/* Flush to zero (results) and denormals are zero (operands), on this thread; threads made later inherit it. */
static void flush_subnormals(void)
{
#if defined(__SSE__)
    _mm_setcsr(_mm_getcsr() | 0x8040u);
#elif defined(__aarch64__)
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    __asm__ volatile("msr fpcr, %0" ::"r"(fpcr | (1u << 24)));
#endif
}

/* The layers' loops are compiled for AVX2 and FMA where the build says so. */
static bool processor_fits(void)
{
#if defined(__x86_64__) && defined(__AVX2__)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return train_fail("this build of the trainer needs a processor with AVX2 and FMA");
#endif
    return true;
}

/* ------------------------------------------------------------------------------------------------------------ the runtime */

bool runtime_library_did(fattn_status status)
{
    const bool given = status == FATTN_ERROR_ARGUMENT || status == FATTN_ERROR_UNSUPPORTED;
    return status == FATTN_OK ||
           train_fail_as(given ? TRAIN_ERROR_GIVEN : TRAIN_ERROR_WORK, "attention library: %s", fattn_last_error());
}

static fattn_context *make_context(const runtime_options *o, const char *kernel)
{
    const bool cpu = o->device == FATTN_DEVICE_CPU;
    fattn_context_options options = {.struct_size = sizeof options,
                                     .threads = cpu ? o->threads : 0,
                                     .parallel_for = cpu ? run_on_openmp : NULL,
                                     .kernel = kernel,
                                     .device = o->device,
                                     .device_index = o->index};
    fattn_context *context;
    runtime_library_did(fattn_context_create(&options, &context));
    return context;
}

/* Is there a kernel of this family for the simplest of problems? */
static bool has_kernel(const runtime_options *o, const char *family)
{
    fattn_desc desc = {.struct_size = sizeof desc,
                       .dtype = FATTN_F32,
                       .mask = FATTN_MASK_CAUSAL,
                       .batch = 1,
                       .heads_q = 1,
                       .heads_kv = 1,
                       .seq_q = 8,
                       .seq_k = 8,
                       .dim = 8,
                       .dim_v = 8};
    fattn_context *context = make_context(o, family);
    size_t bytes;
    bool can = context && fattn_workspace_size(context, &desc, FATTN_OP_FORWARD, &bytes) == FATTN_OK;
    fattn_context_destroy(context);
    return can;
}

/* On a GPU the trainer needs cuBLAS as this kernel does, so that it is there. */
static const char *composed_kernel(const runtime_options *o)
{
    if (o->device == FATTN_DEVICE_CUDA)
        return "cuda_composed";
    return has_kernel(o, "composed") ? "composed" : "ref";
}

/* Sets the threads that OpenMP's loops run on from now on, and returns how many there are. OMP_THREAD_LIMIT may allow fewer;
 * then oneDNN, which divides its work by the number it was told, must be told the true one, or it leaves parts undone. */
static int set_threads(int threads)
{
    int there = 0;
    omp_set_dynamic(0);
    omp_set_num_threads(threads);
#pragma omp parallel reduction(+ : there)
    {
        flush_subnormals();
        there++;
    }
    omp_set_num_threads(there);
    return there;
}

static bool open_device(runtime *r, const runtime_options *o)
{
    r->device = o->device == FATTN_DEVICE_CPU ? device_cpu() : device_open_cuda(o->index);
    r->type = o->type;
    return r->device != NULL;
}

static bool open_contexts(runtime *r, const runtime_options *o, int *threads)
{
    fattn_context_info info = {.struct_size = sizeof info};
    r->flash = make_context(o, NULL);
    r->composed = make_context(o, composed_kernel(o));
    r->composed_widens = o->device == FATTN_DEVICE_CPU;
    if (!r->flash || !r->composed || fattn_context_query(r->flash, &info) != FATTN_OK)
        return false;
    *threads = o->device == FATTN_DEVICE_CPU ? info.threads : 1;
    return true;
}

static bool open_ranks(runtime *r, const runtime_options *o)
{
    const ranks_place alone = {.size = 1};
    r->ranks = ranks_open(o->place ? o->place : &alone, r->device);
    return r->ranks != NULL;
}

bool runtime_open(runtime *r, const runtime_options *o)
{
    int threads;
    memset(r, 0, sizeof *r);
    if (o->threads < 0 || o->threads > 1024)
        return train_fail("threads must be 0 .. 1024, not %d", o->threads);
    if (!processor_fits())
        return false;
    if (!open_device(r, o) || !open_contexts(r, o, &threads) || !open_ranks(r, o)) {
        runtime_close(r);
        return false;
    }
    flush_subnormals();
    r->threads = set_threads(threads);
    r->sleepers = sleepers_start(r->threads);
    return true;
}

void runtime_close(runtime *r)
{
    fattn_context_destroy(r->flash);
    fattn_context_destroy(r->composed);
    sleepers_stop(r->sleepers);
    ranks_close(r->ranks, 0);
    device_close(r->device);
    memset(r, 0, sizeof *r);
}
