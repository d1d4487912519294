/*
 * Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): four words of 32 bits from a counter and
 * a key, the same wherever they are computed. For the CPU's loops and the GPU's kernels.
 */
#ifndef TRAIN_PHILOX_H
#define TRAIN_PHILOX_H

#include <stdint.h>

#ifdef __CUDACC__
#define TRAIN_BOTH static __device__ __forceinline__
#else
#define TRAIN_BOTH static inline
#endif

typedef struct philox_words {
    uint32_t word[4];
} philox_words;

TRAIN_BOTH philox_words philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xd2511f53u * c0, p1 = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    philox_words out;
    out.word[0] = c0, out.word[1] = c1, out.word[2] = c2, out.word[3] = c3;
    return out;
}

#endif
