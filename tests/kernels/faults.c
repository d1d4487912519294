/*
 * One test for each kind of fault that users of attention libraries met: on every kernel that can run it, in every type that
 * holds its numbers, forward and backward, with the neighbours of the case in which it was met. Only the public interface is
 * used; the truth is plain loops in double (truth.h). A failure says kernel, type and element.
 */
#include "faults.h"

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fully_masked_row_gives_zeros),
        cmocka_unit_test(empty_row_in_one_of_two_batches),
        cmocka_unit_test(finite_stand_in_for_minus_infinity),
        cmocka_unit_test(running_maximum_stuck_at_zero),
        cmocka_unit_test(empty_batch_queries_or_keys),
        cmocka_unit_test(empty_segment),
        cmocka_unit_test(decoding_query_sees_its_key),
        cmocka_unit_test(window_off_by_one),
        cmocka_unit_test(causal_equals_window_minus_one_zero),
        cmocka_unit_test(padding_keys_overflow_exp),
        cmocka_unit_test(big_inputs),
        cmocka_unit_test(negative_scale),
        cmocka_unit_test(nan_in_unused_slots),
        cmocka_unit_test(nan_in_a_query_stays_there),
        cmocka_unit_test(nan_in_a_key_or_value_stays_there),
        cmocka_unit_test(softcap_before_mask),
        cmocka_unit_test(softcap_gradient),
        cmocka_unit_test(half_precision_accumulators),
        cmocka_unit_test(probabilities_not_rounded),
        cmocka_unit_test(partials_merged_in_float),
        cmocka_unit_test(lse_is_natural),
        cmocka_unit_test(every_head_of_a_group_is_written),
        cmocka_unit_test(grouped_heads_order),
        cmocka_unit_test(strides_honoured),
        cmocka_unit_test(broadcast_strides_honoured),
        cmocka_unit_test(offsets_of_64_bits),
        cmocka_unit_test(many_short_sequences),
        cmocka_unit_test(grid_limit),
        cmocka_unit_test(rows_outside_sequences_untouched),
        cmocka_unit_test(bitwise_deterministic),
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(dropout_probability_exact),
        cmocka_unit_test(dropout_is_the_same_everywhere),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("faults", tests, NULL, contexts_free);
}
