/*
 * Dropout's random numbers, written from the paper (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"):
 * Philox4x32-10, ten rounds of two multiplications whose halves are swapped and mixed with the key.
 */
#ifndef HARNESS_NAIVE_FEATURES_H
#define HARNESS_NAIVE_FEATURES_H

#include <math.h>
#include <stdint.h>

static inline void philox_round(uint32_t x[4], const uint32_t key[2])
{
    const uint64_t first = (uint64_t)x[0] * 0xD2511F53u, second = (uint64_t)x[2] * 0xCD9E8D57u;
    const uint32_t y[4] = {(uint32_t)(second >> 32) ^ x[1] ^ key[0], (uint32_t)second, (uint32_t)(first >> 32) ^ x[3] ^ key[1],
                           (uint32_t)first};
    for (int i = 0; i < 4; i++)
        x[i] = y[i];
}

/* The word of element (sequence and head bh, row i, key j). */
static inline uint32_t philox_word(uint64_t seed, int64_t bh, int64_t i, int64_t j)
{
    uint32_t x[4] = {(uint32_t)(j / 4), (uint32_t)i, (uint32_t)bh, 0};
    uint32_t key[2] = {(uint32_t)(seed & 0xffffffffu), (uint32_t)(seed >> 32)};
    for (int round = 0; round < 10; round++) {
        if (round > 0) { /* Weyl sequences of the golden ratio and the square root of 3 */
            key[0] += 0x9E3779B9u;
            key[1] += 0xBB67AE85u;
        }
        philox_round(x, key);
    }
    return x[j % 4];
}

/* 0 for a dropped element, else 1 / (1 - p). A word drops its element if it is less than p 2^32, rounded. */
static inline double dropout_factor(double p, uint64_t seed, int64_t bh, int64_t i, int64_t j)
{
    if (p == 0)
        return 1;
    return (double)philox_word(seed, bh, i, j) >= floor(p * 4294967296.0 + 0.5) ? 1 / (1 - p) : 0;
}

#endif
