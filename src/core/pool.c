/*
 * The built-in pool, and fattn_run_units over it or over the caller's parallel_for.
 *
 * A job is run by lanes. Lane 0 is the calling thread; lane w > 0 is worker w, which sleeps on its own word. The caller stores
 * the job, counts the lanes that it calls in `remaining`, changes their words, runs lane 0, and waits for `remaining` to become
 * 0. Both kinds of waiting first look at the word for SPIN_NS, since calls often come close together, and then sleep.
 *
 * A pool runs one job at a time, which `owner` guards: its lowest bit says that a job runs. A call that finds it set, from
 * another thread, runs its units itself, on one lane. So does a call from within a lane (of any context), which would
 * otherwise wait for itself.
 *
 * Fork: a child has none of its parent's workers. The bits of `owner` above the lowest are the number of forks between the
 * first process and the one for which the pool was last set up; if another process finds an older number, the first call there
 * sets the pool up anew, whatever state it was in when the parent forked.
 *
 * Threads start when a job first needs them. If the system refuses one, the pool goes on with those it has.
 */
#include "core/pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdalign.h>
#include <stdlib.h>
#include <time.h>

#include "core/context.h"
#include "core/flush.h"
#include "core/system.h"

enum { SPIN_NS = 50000, LOOKS_PER_CLOCK = 64 };

typedef struct job {
    fattn_unit_fn fn;
    void *arg;
    int64_t units;
    _Atomic int64_t next; /* the first unit that no lane took */
} job;

/* A word that one thread waits for and others change. Who waits says so before it looks for the last time, and who changed
 * the word looks for that afterwards, so one of the two notices the other; nobody is woken who does not sleep. */
typedef struct gate {
    _Atomic uint32_t word;
    _Atomic uint32_t sleeps;
} gate;

typedef struct worker {
    alignas(FATTN_ALIGNMENT) gate jobs; /* how many this worker was given, the end included */
    int32_t lane;
    pthread_t thread;
    fattn_pool *pool;
} worker;

struct fattn_pool {
    alignas(FATTN_ALIGNMENT) _Atomic uint64_t owner; /* forks << 1 | busy */
    alignas(FATTN_ALIGNMENT) gate remaining;         /* workers that did not finish the job */
    /* Written only by the owner while no worker runs. */
    job *current; /* NULL: end */
    int64_t spin_ns;
    int32_t started;  /* workers 1 .. started have threads */
    int32_t limit;    /* of workers; lower than asked for once the system refused one */
    worker workers[]; /* [threads]; number 0 is not used */
};

static _Atomic uint64_t forks;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static _Thread_local bool in_lane;

static void count_fork(void)
{
    atomic_fetch_add(&forks, 1);
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, count_fork);
}

/* ------------------------------------------------------------------------------------------------------------- waiting */

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Looks until the word is no longer `value` or the time is over. */
static bool spin_while(_Atomic uint32_t *word, uint32_t value, int64_t ns)
{
    if (ns <= 0)
        return atomic_load_explicit(word, memory_order_acquire) != value;
    const int64_t end = now_ns() + ns;
    do {
        for (int i = 0; i < LOOKS_PER_CLOCK; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != value)
                return true;
            relax();
        }
    } while (now_ns() < end);
    return false;
}

/* Returns when the word is no longer `value`. */
static void gate_wait(gate *g, uint32_t value, int64_t spin_ns)
{
    if (spin_while(&g->word, value, spin_ns))
        return;
    atomic_store(&g->sleeps, 1);
    while (atomic_load(&g->word) == value)
        fattn_word_wait(&g->word, value);
    atomic_store(&g->sleeps, 0);
}

static void gate_notify(gate *g)
{
    if (atomic_load(&g->sleeps))
        fattn_word_wake(&g->word);
}

static void gate_init(gate *g, uint32_t value)
{
    atomic_store(&g->word, value);
    atomic_store(&g->sleeps, 0);
}

/* ------------------------------------------------------------------------------------------------------------- workers */

static void run_lane(job *j, int32_t lane)
{
    const fattn_fp_mode mode = fattn_fp_enter();
    const bool outer = in_lane;
    in_lane = true;
    for (;;) {
        const int64_t unit = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed);
        if (unit >= j->units)
            break;
        j->fn(j->arg, lane, unit);
    }
    in_lane = outer;
    fattn_fp_leave(mode);
}

static void *work(void *arg)
{
    worker *w = arg;
    fattn_pool *pool = w->pool;
    for (uint32_t seen = 0;; seen++) {
        gate_wait(&w->jobs, seen, pool->spin_ns);
        if (!pool->current)
            return NULL;
        run_lane(pool->current, w->lane);
        atomic_fetch_sub(&pool->remaining.word, 1);
        gate_notify(&pool->remaining);
    }
}

/* Gives workers 1 .. count the current job. */
static void call_workers(fattn_pool *pool, int32_t count)
{
    for (int32_t w = 1; w <= count; w++) {
        atomic_fetch_add(&pool->workers[w].jobs.word, 1);
        gate_notify(&pool->workers[w].jobs);
    }
}

/* Has workers 1 .. count started, or as many as the system allows; returns how many there are. They get no signals: those are
 * for the program's own threads. */
static int32_t start_workers(fattn_pool *pool, int32_t count)
{
    if (count > pool->limit)
        count = pool->limit;
    if (pool->started >= count)
        return count;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (pool->started < count) {
        worker *w = &pool->workers[pool->started + 1];
        gate_init(&w->jobs, 0);
        w->lane = pool->started + 1;
        w->pool = pool;
        if (pthread_create(&w->thread, NULL, work, w) != 0) {
            pool->limit = count = pool->started;
            break;
        }
        pool->started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return count;
}

/* ---------------------------------------------------------------------------------------------------------------- pool */

fattn_pool *fattn_pool_create(int32_t threads)
{
    const size_t bytes = fattn_round_up(sizeof(fattn_pool) + (size_t)threads * sizeof(worker), FATTN_ALIGNMENT);
    fattn_pool *pool = aligned_alloc(FATTN_ALIGNMENT, bytes);
    if (!pool)
        return NULL;
    pthread_once(&fork_once, watch_forks);
    atomic_init(&pool->owner, atomic_load(&forks) << 1);
    gate_init(&pool->remaining, 0);
    pool->current = NULL;
    /* With more threads than processors, looking takes time away from those that work. */
    pool->spin_ns = threads <= fattn_usable_cpus() ? SPIN_NS : 0;
    pool->started = 0;
    pool->limit = threads - 1;
    return pool;
}

void fattn_pool_destroy(fattn_pool *pool)
{
    if (atomic_load(&pool->owner) >> 1 == atomic_load(&forks)) {
        pool->current = NULL;
        call_workers(pool, pool->started);
        for (int32_t w = 1; w <= pool->started; w++)
            pthread_join(pool->workers[w].thread, NULL);
    }
    free(pool);
}

/* Makes the caller the pool's owner, if it has none. */
static bool acquire(fattn_pool *pool)
{
    const uint64_t epoch = atomic_load(&forks);
    uint64_t owner = atomic_load(&pool->owner);
    const bool stale = owner >> 1 != epoch;
    if ((owner & 1 && !stale) || !atomic_compare_exchange_strong(&pool->owner, &owner, epoch << 1 | 1))
        return false;
    if (stale) {
        pool->started = 0;
        gate_init(&pool->remaining, 0);
    }
    return true;
}

static void release(fattn_pool *pool)
{
    atomic_fetch_and(&pool->owner, ~(uint64_t)1);
}

/* False if the pool is busy with another call. */
static bool run_on_pool(fattn_pool *pool, job *j, int32_t lanes)
{
    if (!acquire(pool))
        return false;
    const int32_t helpers = start_workers(pool, lanes - 1);
    pool->current = j;
    atomic_store(&pool->remaining.word, (uint32_t)helpers);
    call_workers(pool, helpers);
    run_lane(j, 0);
    for (uint32_t left; (left = atomic_load(&pool->remaining.word)) != 0;)
        gate_wait(&pool->remaining, left, pool->spin_ns);
    release(pool);
    return true;
}

static void run_index(void *arg, int32_t index)
{
    run_lane(arg, index);
}

void fattn_run_units(const fattn_context *context, int32_t lanes, int64_t units, fattn_unit_fn fn, void *arg)
{
    job j = {.fn = fn, .arg = arg, .units = units};
    if (lanes > context->threads)
        lanes = context->threads;
    if (lanes > units)
        lanes = (int32_t)units;
    if (lanes > 1 && !in_lane) {
        if (context->parallel_for) {
            context->parallel_for(context->user, lanes, run_index, &j);
            return;
        }
        if (run_on_pool(context->pool, &j, lanes))
            return;
    }
    const fattn_fp_mode mode = fattn_fp_enter();
    for (int64_t unit = 0; unit < units; unit++)
        fn(arg, 0, unit);
    fattn_fp_leave(mode);
}
