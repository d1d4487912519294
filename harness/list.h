/*
 * How lists of problems are made: what the files list_....c share.
 */
#ifndef HARNESS_LIST_H
#define HARNESS_LIST_H

#include "numbers.h"
#include "problem.h"
#include "random.h"

typedef struct maker {
    problem_list list;
    list_level level;
    uint64_t seed;
    random_state random; /* of the sweeps: the same for every seed */
    bool ok;
} maker;

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

enum { F32 = 1, F64 = 2, F16 = 4, BF16 = 8, FWD = 16, BWD = 32, ALL = 63, NARROW = F16 | BF16, BOTH = FWD | BWD };

/* Adds a problem as every type and operation that `which` has, as far as they make sense. */
void list_add(maker *m, problem p, unsigned which);

/* The same of a name without type and operation; a mistake in it ends the program. */
void list_add_named(maker *m, const char *name, unsigned which);

int64_t list_pick(maker *m, const int *from, int count);

/* Draws a mask, heads and a layout. */
void list_pick_mask(maker *m, problem *p);
void list_pick_heads(maker *m, problem *p);
void list_pick_layout(maker *m, problem *p);

/* The parts of the list. */
void list_add_features(maker *m); /* list_features.c: sweeps of the features, and what is known from other systems */
void list_add_random(maker *m);   /* list_random.c */

#endif
