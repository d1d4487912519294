/*
 * The harness's random numbers: splitmix64, so that a seed means the same numbers everywhere.
 */
#ifndef HARNESS_RANDOM_H
#define HARNESS_RANDOM_H

#include <math.h>
#include <stdint.h>

typedef struct random_state {
    uint64_t state;
} random_state;

static inline uint64_t random_bits(random_state *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* A stream of its own for every (seed, stream). */
static inline random_state random_start(uint64_t seed, uint64_t stream)
{
    random_state r = {seed * 0x2545f4914f6cdd1du + stream};
    r.state = random_bits(&r);
    return r;
}

/* In (0, 1). */
static inline double random_unit(random_state *r)
{
    return ((double)(random_bits(r) >> 12) + 0.5) * 0x1p-52;
}

/* 0 .. below-1. */
static inline int64_t random_below(random_state *r, int64_t below)
{
    return (int64_t)(random_bits(r) % (uint64_t)below);
}

/* Standard normal (Box and Muller; one of the pair is thrown away, which keeps the state one number). */
static inline double random_normal(random_state *r)
{
    const double radius = sqrt(-2 * log(random_unit(r)));
    return radius * cos(6.283185307179586 * random_unit(r));
}

#endif
