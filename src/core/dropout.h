/*
 * Dropout: which elements are kept, by Philox4x32-10 (Salmon, Moraes, Dror and Shaw 2011, "Parallel random numbers: as easy as
 * 1, 2, 3", section 3.3), a function of the seed and the element's place alone. So forward and backward, any tiling, any number
 * of threads and any device draw the same. Plain C that CUDA compiles too.
 */
#ifndef FATTN_CORE_DROPOUT_H
#define FATTN_CORE_DROPOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/inline.h"
#include "fattn/fattn.h"

enum { FATTN_PHILOX_WORDS = 4, FATTN_PHILOX_ROUNDS = 10 };
#define FATTN_PHILOX_M0 0xD2511F53u /* multipliers and key increments of the paper's table 2 */
#define FATTN_PHILOX_M1 0xCD9E8D57u
#define FATTN_PHILOX_W0 0x9E3779B9u
#define FATTN_PHILOX_W1 0xBB67AE85u

typedef struct fattn_dropout {
    uint32_t key[2];
    uint64_t threshold; /* words of at least this are kept; 0: all are */
} fattn_dropout;

FATTN_INLINE fattn_dropout fattn_dropout_of(const fattn_desc *desc)
{
    /* Exact in each step, so that it does not depend on how the caller rounds. */
    const double words = desc->dropout * 4294967296.0;
    const uint64_t whole = (uint64_t)words;
    return (fattn_dropout){{(uint32_t)desc->seed, (uint32_t)(desc->seed >> 32)}, whole + (words - (double)whole >= 0.5)};
}

/* The words of keys 4 * quad .. 4 * quad + 3 of row i of list bh = b * heads_q + h. */
FATTN_INLINE void fattn_philox(const fattn_dropout *d, uint32_t quad, uint32_t i, uint32_t bh,
                               uint32_t word[FATTN_PHILOX_WORDS])
{
    uint32_t c0 = quad, c1 = i, c2 = bh, c3 = 0, k0 = d->key[0], k1 = d->key[1];
    for (int round = 0; round < FATTN_PHILOX_ROUNDS; round++) {
        const uint64_t a = (uint64_t)FATTN_PHILOX_M0 * c0, b = (uint64_t)FATTN_PHILOX_M1 * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += FATTN_PHILOX_W0;
        k1 += FATTN_PHILOX_W1;
    }
    word[0] = c0, word[1] = c1, word[2] = c2, word[3] = c3;
}

FATTN_INLINE bool fattn_dropout_keeps(const fattn_dropout *d, int64_t bh, int64_t i, int64_t j)
{
    uint32_t word[FATTN_PHILOX_WORDS];
    fattn_philox(d, (uint32_t)(j / FATTN_PHILOX_WORDS), (uint32_t)i, (uint32_t)bh, word);
    return word[j % FATTN_PHILOX_WORDS] >= d->threshold;
}

#endif
