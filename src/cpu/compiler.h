/* What compilers are told beyond C. */
#ifndef FATTN_CPU_COMPILER_H
#define FATTN_CPU_COMPILER_H

#define INLINE static inline __attribute__((always_inline))
#define APART  static __attribute__((noinline))
#if defined(__clang__)
#define UNROLL   _Pragma("unroll")
#define UNROLL_4 _Pragma("unroll 4")
#else
#define UNROLL   _Pragma("GCC unroll 32")
#define UNROLL_4 _Pragma("GCC unroll 4")
#endif

#endif
