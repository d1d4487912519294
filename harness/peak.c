/*
 * Peaks: multiply-adds that depend on nothing but themselves, and loads that nobody uses. The loops are assembly, so that no
 * compiler removes, fuses or reorders them: 12 chains hide a latency of up to 6 cycles at two a cycle.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "machine.h"

enum { FMA_ROUNDS = 20000 };

/* One window: returns the operations done. */
typedef double (*fma_window)(void);

/* Reads `bytes` (a multiple of 4096) from `from`. */
typedef void (*read_pass)(const char *from, size_t bytes);

#if defined(__x86_64__)
#include <immintrin.h>

/* clang-format off */
#define FMA12(F) F(a0) F(a1) F(a2) F(a3) F(a4) F(a5) F(a6) F(a7) F(a8) F(a9) F(b0) F(b1)
/* clang-format on */

#define FMA_PS(r) __asm__ volatile("vfmadd213ps %2, %1, %0" : "+v"(r) : "v"(x), "v"(y));
#define FMA_PD(r) __asm__ volatile("vfmadd213pd %2, %1, %0" : "+v"(r) : "v"(x), "v"(y));

__attribute__((target("avx2,fma"), noinline)) static double window_avx2_f32(void)
{
    const __m256 x = _mm256_set1_ps(0.999999f), y = _mm256_set1_ps(1e-7f);
    __m256 a0 = y, a1 = y, a2 = y, a3 = y, a4 = y, a5 = y, a6 = y, a7 = y, a8 = y, a9 = y, b0 = y, b1 = y;
    for (int i = 0; i < FMA_ROUNDS; i++) {
        FMA12(FMA_PS)
    }
    return 12.0 * 2 * 8 * FMA_ROUNDS;
}

__attribute__((target("avx2,fma"), noinline)) static double window_avx2_f64(void)
{
    const __m256d x = _mm256_set1_pd(0.999999), y = _mm256_set1_pd(1e-7);
    __m256d a0 = y, a1 = y, a2 = y, a3 = y, a4 = y, a5 = y, a6 = y, a7 = y, a8 = y, a9 = y, b0 = y, b1 = y;
    for (int i = 0; i < FMA_ROUNDS; i++) {
        FMA12(FMA_PD)
    }
    return 12.0 * 2 * 4 * FMA_ROUNDS;
}

__attribute__((target("avx512f"), noinline)) static double window_avx512_f32(void)
{
    const __m512 x = _mm512_set1_ps(0.999999f), y = _mm512_set1_ps(1e-7f);
    __m512 a0 = y, a1 = y, a2 = y, a3 = y, a4 = y, a5 = y, a6 = y, a7 = y, a8 = y, a9 = y, b0 = y, b1 = y;
    for (int i = 0; i < FMA_ROUNDS; i++) {
        FMA12(FMA_PS)
    }
    return 12.0 * 2 * 16 * FMA_ROUNDS;
}

__attribute__((target("avx512f"), noinline)) static double window_avx512_f64(void)
{
    const __m512d x = _mm512_set1_pd(0.999999), y = _mm512_set1_pd(1e-7);
    __m512d a0 = y, a1 = y, a2 = y, a3 = y, a4 = y, a5 = y, a6 = y, a7 = y, a8 = y, a9 = y, b0 = y, b1 = y;
    for (int i = 0; i < FMA_ROUNDS; i++) {
        FMA12(FMA_PD)
    }
    return 12.0 * 2 * 8 * FMA_ROUNDS;
}

/* SSE2 has no fused multiply-add: six chains of multiplications and six of additions side by side. */
#define PAIR_PS(r, s) __asm__ volatile("mulps %2, %0\n\taddps %3, %1" : "+x"(r), "+x"(s) : "x"(x), "x"(y));
#define PAIR_PD(r, s) __asm__ volatile("mulpd %2, %0\n\taddpd %3, %1" : "+x"(r), "+x"(s) : "x"(x), "x"(y));

__attribute__((noinline)) static double window_base_f32(void)
{
    const __m128 x = _mm_set1_ps(0.999999f), y = _mm_set1_ps(1e-7f);
    __m128 a0 = x, a1 = x, a2 = x, a3 = x, a4 = x, a5 = x, b0 = y, b1 = y, b2 = y, b3 = y, b4 = y, b5 = y;
    for (int i = 0; i < FMA_ROUNDS; i++) {
        PAIR_PS(a0, b0) PAIR_PS(a1, b1) PAIR_PS(a2, b2) PAIR_PS(a3, b3) PAIR_PS(a4, b4) PAIR_PS(a5, b5)
    }
    return 12.0 * 4 * FMA_ROUNDS;
}

__attribute__((noinline)) static double window_base_f64(void)
{
    const __m128d x = _mm_set1_pd(0.999999), y = _mm_set1_pd(1e-7);
    __m128d a0 = x, a1 = x, a2 = x, a3 = x, a4 = x, a5 = x, b0 = y, b1 = y, b2 = y, b3 = y, b4 = y, b5 = y;
    for (int i = 0; i < FMA_ROUNDS; i++) {
        PAIR_PD(a0, b0) PAIR_PD(a1, b1) PAIR_PD(a2, b2) PAIR_PD(a3, b3) PAIR_PD(a4, b4) PAIR_PD(a5, b5)
    }
    return 12.0 * 2 * FMA_ROUNDS;
}

__attribute__((noinline)) static void read_base(const char *from, size_t bytes)
{
    for (const char *end = from + bytes; from < end; from += 64)
        __asm__ volatile(
            "movaps (%0), %%xmm0\n\tmovaps 16(%0), %%xmm1\n\tmovaps 32(%0), %%xmm2\n\tmovaps 48(%0), %%xmm3" ::"r"(from)
            : "xmm0", "xmm1", "xmm2", "xmm3");
}

__attribute__((target("avx2"), noinline)) static void read_avx2(const char *from, size_t bytes)
{
    for (const char *end = from + bytes; from < end; from += 128)
        __asm__ volatile(
            "vmovaps (%0), %%ymm0\n\tvmovaps 32(%0), %%ymm1\n\tvmovaps 64(%0), %%ymm2\n\tvmovaps 96(%0), %%ymm3" ::"r"(from)
            : "xmm0", "xmm1", "xmm2", "xmm3");
}

__attribute__((target("avx512f"), noinline)) static void read_avx512(const char *from, size_t bytes)
{
    for (const char *end = from + bytes; from < end; from += 256)
        __asm__ volatile(
            "vmovaps (%0), %%zmm0\n\tvmovaps 64(%0), %%zmm1\n\tvmovaps 128(%0), %%zmm2\n\tvmovaps 192(%0), %%zmm3" ::"r"(from)
            : "xmm0", "xmm1", "xmm2", "xmm3");
}

static const fma_window windows[3][2] = {
    {window_base_f32, window_base_f64}, {window_avx2_f32, window_avx2_f64}, {window_avx512_f32, window_avx512_f64}};
static const read_pass readers[3] = {read_base, read_avx2, read_avx512};

#else

typedef float base_f32 __attribute__((vector_size(16)));
typedef double base_f64 __attribute__((vector_size(16)));

__attribute__((noinline)) static double window_base_f32(void)
{
    base_f32 x = {0.999999f, 0.999999f, 0.999999f, 0.999999f}, y = {1e-7f, 1e-7f, 1e-7f, 1e-7f}, a[12] = {y};
    for (int i = 0; i < FMA_ROUNDS; i++)
        for (int j = 0; j < 12; j++) {
            a[j] = a[j] * x + y;
            __asm__ volatile("" : "+w"(a[j]));
        }
    return 12.0 * 2 * 4 * FMA_ROUNDS;
}

__attribute__((noinline)) static double window_base_f64(void)
{
    base_f64 x = {0.999999, 0.999999}, y = {1e-7, 1e-7}, a[12] = {y};
    for (int i = 0; i < FMA_ROUNDS; i++)
        for (int j = 0; j < 12; j++) {
            a[j] = a[j] * x + y;
            __asm__ volatile("" : "+w"(a[j]));
        }
    return 12.0 * 2 * 2 * FMA_ROUNDS;
}

__attribute__((noinline)) static void read_base(const char *from, size_t bytes)
{
    base_f32 sum = {0};
    for (size_t i = 0; i < bytes; i += 16)
        sum += *(const base_f32 *)(from + i);
    __asm__ volatile("" : "+w"(sum));
}

static const fma_window windows[3][2] = {
    {window_base_f32, window_base_f64}, {window_base_f32, window_base_f64}, {window_base_f32, window_base_f64}};
static const read_pass readers[3] = {read_base, read_base, read_base};

#endif

/* ------------------------------------------------------------------------------------------------------------ threads */

enum { PROBE_THREADS_MAX = 1024 };

typedef struct probe {
    fma_window window; /* or */
    read_pass read;
    const char *from;
    size_t bytes;
    double seconds;
    atomic_int *waiting; /* threads that are not there yet */
    double best;         /* operations or bytes per second */
} probe;

/* Some megabytes: a single pass through a first-level cache is too short for the clock. */
static double read_window(const probe *p)
{
    const size_t passes = 1 + ((size_t)4 << 20) / p->bytes;
    for (size_t i = 0; i < passes; i++)
        p->read(p->from, p->bytes);
    return (double)passes * (double)p->bytes;
}

static void *run_probe(void *argument)
{
    probe *p = argument;
    atomic_fetch_sub(p->waiting, 1);
    while (atomic_load(p->waiting) > 0) {
    }
    const double end = machine_seconds() + p->seconds;
    for (double now = 0; now < end;) {
        const double start = machine_seconds();
        const double work = p->window ? p->window() : read_window(p);
        now = machine_seconds();
        if (work / (now - start) > p->best)
            p->best = work / (now - start);
    }
    return NULL;
}

/* Runs the probes on threads, all at once. Returns the sum of their best, in 1e9. */
static double run_all(probe *probes, int count)
{
    pthread_t threads[PROBE_THREADS_MAX];
    bool started[PROBE_THREADS_MAX] = {false};
    atomic_int waiting = count;
    for (int i = 0; i < count; i++)
        probes[i].waiting = &waiting;
    for (int i = 1; i < count; i++) {
        started[i] = pthread_create(&threads[i], NULL, run_probe, &probes[i]) == 0;
        if (!started[i])
            atomic_fetch_sub(&waiting, 1);
    }
    run_probe(&probes[0]);
    double sum = probes[0].best;
    for (int i = 1; i < count; i++)
        if (started[i]) {
            pthread_join(threads[i], NULL);
            sum += probes[i].best;
        }
    return sum * 1e-9;
}

static int usable_threads(int threads)
{
    const int cpus = machine_cpus();
    const int count = threads < cpus ? threads : cpus;
    return count < 1 ? 1 : count > PROBE_THREADS_MAX ? PROBE_THREADS_MAX : count;
}

double machine_fma_peak(vector_unit unit, bool f64, int threads, double seconds)
{
    probe probes[PROBE_THREADS_MAX];
    const int count = usable_threads(threads);
    for (int i = 0; i < count; i++)
        probes[i] = (probe){.window = windows[unit][f64], .seconds = seconds};
    return run_all(probes, count);
}

double machine_read_bandwidth(vector_unit unit, size_t bytes, int threads, double seconds)
{
    probe probes[PROBE_THREADS_MAX];
    const int count = usable_threads(threads);
    const size_t part = (bytes / (size_t)count + 4095) / 4096 * 4096, total = part * (size_t)count;
    char *memory = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 0;
#ifdef MADV_HUGEPAGE
    madvise(memory, total, MADV_HUGEPAGE);
#endif
    memset(memory, 1, total); /* pages of their own; untouched ones are all the same page of zeros */
    for (int i = 0; i < count; i++)
        probes[i] = (probe){.read = readers[unit], .from = memory + (size_t)i * part, .bytes = part, .seconds = seconds};
    const double result = run_all(probes, count);
    munmap(memory, total);
    return result;
}
