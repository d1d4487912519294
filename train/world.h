/*
 * A small world to learn from: a corpus that is generated, so that no download is needed, and that is small enough for a
 * model to learn in a minute or two. The same seed gives the same bytes on every machine.
 *
 * A world has towns, which lie in countries and on rivers, and people, who have a home, a job, a pet, a best friend and a
 * favourite food; these do not contradict each other anywhere in its text. Lines are of three sorts:
 *
 *   facts     "Ada lives in Bern.", "Where does Ada live? In Bern.": every fact in four phrasings. One of the four, another
 *             one for each fact, is kept for validation, so that validation asks for known facts in unseen words.
 *   stories   "Ada buys a red hat at the market and goes home. What does Ada have? The red hat.": made up for the line, so the
 *             answer can only be looked up in the line itself, thirty to sixty characters back.
 *   sums      "12+30=42", of numbers from 10 to 49: one in eight pairs, in both orders, is kept for validation.
 *
 * No line occurs in both splits.
 */
#ifndef TRAIN_WORLD_H
#define TRAIN_WORLD_H

#include <stddef.h>
#include <stdint.h>

enum { WORLD_PEOPLE = 16, WORLD_TOWNS = 12, WORLD_LINE_MAX = 192 };

typedef enum world_split { WORLD_TRAIN, WORLD_VAL } world_split;

typedef struct world_person {
    int home, job, pet, pet_name, friend_of, food;
} world_person;

typedef struct world {
    uint64_t seed;
    world_person people[WORLD_PEOPLE];
} world;

void world_init(world *w, uint64_t seed);

/* Line number `index` of a split, without newline; returns its length. Any index exists. */
size_t world_line(const world *w, world_split split, uint64_t index, char line[WORLD_LINE_MAX]);

/* The first `lines` lines of a split, each with its newline. The caller frees it. */
char *world_text(uint64_t seed, world_split split, int64_t lines, size_t *size);

#endif
