/*
 * CPU features of x86, asked of the processor itself: the compiler's __builtin_cpu_supports knows different names in different
 * compilers, and does not know AMX in some.
 *
 * A feature counts only if the system also saves the registers it needs (XCR0), and for AMX only if the kernel is willing to
 * let a process use tiles. It is not asked for here: kernels that use tiles would have to.
 */
#include <cpuid.h>
#include <stdbool.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "core/system.h"
#include "fattn/fattn.h"

/* XCR0: which registers the system saves. */
enum { STATE_SSE_AVX = 0x6, STATE_AVX512 = 0xe0, STATE_TILES = 0x60000 };

static uint64_t saved_state(void)
{
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool tiles_granted_on_request(void)
{
#if defined(__linux__) && defined(SYS_arch_prctl)
    enum { ARCH_GET_XCOMP_SUPP = 0x1021 };
    unsigned long mask = 0;
    return syscall(SYS_arch_prctl, ARCH_GET_XCOMP_SUPP, &mask) == 0 && (mask & STATE_TILES) == STATE_TILES;
#else
    return false;
#endif
}

static bool has(uint32_t word, int bit)
{
    return word >> bit & 1;
}

uint32_t fattn_cpu_features(void)
{
    uint32_t a, b, c, d, b7, c7, d7, features = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, 27)) /* OSXSAVE */
        return 0;
    const uint32_t c1 = c;
    const uint64_t state = saved_state();
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7) || (state & STATE_SSE_AVX) != STATE_SSE_AVX || !has(c1, 28)) /* AVX */
        return 0;
    if (has(b7, 5) && has(c1, 12)) /* AVX2, FMA */
        features |= FATTN_CPU_AVX2;
    if (has(c1, 29))
        features |= FATTN_CPU_F16C;
    if ((state & STATE_AVX512) == STATE_AVX512 && has(b7, 16) && has(b7, 30) && has(b7, 17) &&
        has(b7, 31)) { /* F, BW, DQ, VL */
        features |= FATTN_CPU_AVX512;
        if (__get_cpuid_count(7, 1, &a, &b, &c, &d) && has(a, 5))
            features |= FATTN_CPU_AVX512_BF16;
    }
    if ((state & STATE_TILES) == STATE_TILES && has(d7, 24) && has(d7, 22) && tiles_granted_on_request()) /* TILE, BF16 */
        features |= FATTN_CPU_AMX_BF16;
    return features;
}
