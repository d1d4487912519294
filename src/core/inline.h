/*
 * How functions of headers are defined that C and CUDA both compile.
 */
#ifndef FATTN_CORE_INLINE_H
#define FATTN_CORE_INLINE_H

#ifdef __CUDACC__
#define FATTN_INLINE static inline __host__ __device__
#else
#define FATTN_INLINE static inline
#endif

#endif
