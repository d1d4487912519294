/*
 * The floating-point mode in which kernels run: subnormals are zero (they cost a hundred cycles each on many processors, and
 * far-off keys make plenty), rounding is to nearest, nothing traps. Threads inherit the mode of whoever made them, so setting
 * all of it is what makes results independent of the caller's mode and the same on every thread. On processors other than x86
 * and aarch64 the mode is left as it is.
 */
#ifndef FATTN_CORE_FLUSH_H
#define FATTN_CORE_FLUSH_H

#if defined(__SSE__)

#include <xmmintrin.h>

typedef unsigned int fattn_fp_mode;

static inline fattn_fp_mode fattn_fp_enter(void)
{
    const fattn_fp_mode before = _mm_getcsr();
    _mm_setcsr(0x1f80 | 0x8000 | 0x40); /* the default, flush to zero, denormals are zero */
    return before;
}

static inline void fattn_fp_leave(fattn_fp_mode before)
{
    _mm_setcsr(before);
}

#elif defined(__aarch64__)

#include <stdint.h>

typedef uint64_t fattn_fp_mode;

/* One register rules scalar and NEON instructions alike (only 32-bit ARM's NEON flushes whatever it says). FZ makes subnormal
 * floats and doubles zero, operands as well as results. FZ16 stays 0; conversions between float and half ignore both on the
 * half's side, so subnormal halves stay exact. */
static inline void fattn_fp_leave(fattn_fp_mode before)
{
    __asm__ volatile("msr fpcr, %0" ::"r"(before) : "memory");
}

static inline fattn_fp_mode fattn_fp_enter(void)
{
    fattn_fp_mode before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before)::"memory");
    fattn_fp_leave(1u << 24); /* FZ, and nothing else: to nearest, NaNs with their payload, IEEE halves, no traps */
    return before;
}

#else

typedef int fattn_fp_mode;

static inline fattn_fp_mode fattn_fp_enter(void)
{
    return 0;
}

static inline void fattn_fp_leave(fattn_fp_mode before)
{
    (void)before;
}

#endif

#endif
