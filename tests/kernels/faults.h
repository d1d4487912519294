/*
 * Faults that users of attention libraries met, one test each, with the cases next to it: see faults.c for the list.
 */
#ifndef FATTN_TESTS_KERNELS_FAULTS_H
#define FATTN_TESTS_KERNELS_FAULTS_H

#include "placed.h"

/* faults_rows.c: rows and sequences with nothing in them, alignment, windows. */
void fully_masked_row_gives_zeros(void **state);
void empty_row_in_one_of_two_batches(void **state);
void finite_stand_in_for_minus_infinity(void **state);
void running_maximum_stuck_at_zero(void **state);
void empty_batch_queries_or_keys(void **state);
void empty_segment(void **state);
void decoding_query_sees_its_key(void **state);
void window_off_by_one(void **state);
void causal_equals_window_minus_one_zero(void **state);

/* faults_numbers.c: what arithmetic can do wrong. */
void padding_keys_overflow_exp(void **state);
void big_inputs(void **state);
void negative_scale(void **state);
void nan_in_unused_slots(void **state);
void nan_in_a_query_stays_there(void **state);
void nan_in_a_key_or_value_stays_there(void **state);
void softcap_before_mask(void **state);
void softcap_gradient(void **state);
void half_precision_accumulators(void **state);
void probabilities_not_rounded(void **state);

/* faults_parts.c: logsumexp and partial results. */
void partials_merged_in_float(void **state);
void lse_is_natural(void **state);

/* faults_layout.c: where things lie. */
void every_head_of_a_group_is_written(void **state);
void grouped_heads_order(void **state);
void strides_honoured(void **state);
void broadcast_strides_honoured(void **state);
void offsets_of_64_bits(void **state);
void many_short_sequences(void **state);
void grid_limit(void **state);
void rows_outside_sequences_untouched(void **state);

/* faults_state.c: what must not matter. */
void bitwise_deterministic(void **state);
void threads_change_nothing(void **state);
void dropout_probability_exact(void **state);
void dropout_is_the_same_everywhere(void **state);

/* A problem of these sizes, with head dimensions of 8. */
static inline fattn_desc sizes(int64_t batch, int64_t heads_q, int64_t heads_kv, int64_t seq_q, int64_t seq_k)
{
    return (fattn_desc){.struct_size = sizeof(fattn_desc),
                        .batch = batch,
                        .heads_q = heads_q,
                        .heads_kv = heads_kv,
                        .seq_q = seq_q,
                        .seq_k = seq_k,
                        .dim = 8,
                        .dim_v = 8};
}

static inline fattn_desc masked(fattn_desc d, int32_t mask, int32_t align)
{
    d.mask = mask;
    d.align = align;
    return d;
}

/* Everything that a problem can have at once. */
static inline fattn_desc featured(fattn_desc d)
{
    d = masked(d, FATTN_MASK_WINDOW, FATTN_ALIGN_BOTTOM_RIGHT);
    d.window_left = 20;
    d.window_right = 3;
    d.flags = FATTN_WITH_BIAS | FATTN_WITH_SLOPES | FATTN_WITH_SINKS | FATTN_WITH_DLSE | FATTN_WITH_DBIAS | FATTN_WITH_DSINKS;
    d.softcap = 3;
    d.dropout = 0.25;
    d.seed = 0x123456789abcdef;
    return d;
}

/* Makes the scene of a descriptor, checks it in a form, and frees it. */
static inline void check(fattn_desc desc, form how)
{
    scene s = scene_make(&desc, 1);
    check_scene(&s, &how);
    scene_free(&s);
}

static inline void fill(double *x, int64_t count, double value)
{
    for (int64_t i = 0; i < count; i++)
        x[i] = value;
}

/* Every score becomes its random part plus 7 q k: only element 0 of queries and keys stays random. */
static inline void shift_scores(scene *s, double q, double k)
{
    const fattn_desc *d = &s->desc;
    for (int64_t x = 0; x < d->batch * d->heads_q * d->seq_q * d->dim; x++)
        s->q[x] = x % d->dim > 0 ? q : s->q[x];
    for (int64_t x = 0; x < d->batch * d->heads_kv * d->seq_k * d->dim; x++)
        s->k[x] = x % d->dim > 0 ? k : s->k[x];
}

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

#endif
