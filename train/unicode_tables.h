/*
 * Tables of Unicode, written by tools/unicode_tables.py; for unicode.c.
 */
#ifndef TRAIN_UNICODE_TABLES_H
#define TRAIN_UNICODE_TABLES_H

#include "unicode.h"

typedef struct unicode_range {
    uint32_t first, last, value; /* in the order of `first` */
} unicode_range;

typedef struct unicode_triple {
    uint32_t a, b, c; /* in the order of a, then b */
} unicode_triple;

extern const unicode_range unicode_classes[]; /* a unicode_class; UNICODE_OTHER is left out */
extern const int unicode_classes_count;
extern const unicode_range unicode_words[]; /* what a regular expression calls \w */
extern const int unicode_words_count;
/* Characters that may join those before them: the combining class, or 255 where that is 0. */
extern const unicode_range unicode_joins[];
extern const int unicode_joins_count;
extern const unicode_triple unicode_splits[]; /* a is b, or b and c: canonical decompositions without Hangul */
extern const int unicode_splits_count;
extern const unicode_triple unicode_pairs[]; /* a and b are composed to c */
extern const int unicode_pairs_count;

#endif
