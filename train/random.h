/*
 * Random numbers from integers alone, so that they are the same on every machine: SplitMix64 (Steele, Lea, Flood 2014), a
 * counter that is scrambled. random_mix alone is the hash that turns names and positions into numbers.
 */
#ifndef TRAIN_RANDOM_H
#define TRAIN_RANDOM_H

#include <stdint.h>

typedef struct random_state {
    uint64_t counter;
} random_state;

static inline uint64_t random_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* A hash of several numbers: random_with(random_with(a, b), c). */
static inline uint64_t random_with(uint64_t hash, uint64_t value)
{
    return random_mix(hash ^ random_mix(value));
}

static inline uint64_t random_next(random_state *state)
{
    uint64_t value = random_mix(state->counter);
    state->counter += 0x9e3779b97f4a7c15u;
    return value;
}

/* 0 .. bound - 1; the bias of scaling is below bound / 2^64. */
static inline uint64_t random_below(random_state *state, uint64_t bound)
{
    return (uint64_t)((unsigned __int128)random_next(state) * bound >> 64);
}

/* [0, 1), a multiple of 2^-53. */
static inline double random_unit(random_state *state)
{
    return (double)(random_next(state) >> 11) * 0x1p-53;
}

#endif
