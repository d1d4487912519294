/*
 * fattn_mask_interval against the definition in the header, key by key, for all small problems and some enormous windows.
 */
#include "api.h"

/* Whether row i keeps key j: the words of fattn_mask, one after the other. */
static bool keeps(const fattn_desc *d, int64_t i, int64_t j)
{
    const int64_t off = d->align == FATTN_ALIGN_BOTTOM_RIGHT ? d->seq_k - d->seq_q : 0;
    const int64_t distance = j - (i + off);
    if (d->mask == FATTN_MASK_CAUSAL)
        return distance <= 0;
    if (d->mask == FATTN_MASK_WINDOW)
        return (d->window_left == -1 || distance >= -d->window_left) && (d->window_right == -1 || distance <= d->window_right);
    if (d->mask == FATTN_MASK_CHUNKED) /* keys of the row's own chunk, as far as the row itself */
        return distance <= 0 && j / d->mask_size == (i + off) / d->mask_size;
    if (d->mask == FATTN_MASK_PREFIX)
        return distance <= 0 || j < d->mask_size;
    return true;
}

static void check_rows(const fattn_desc *d)
{
    for (int64_t i = 0; i < d->seq_q; i++) {
        int64_t lo = -1, hi = -1;
        assert_int_equal(fattn_mask_interval(d, i, &lo, &hi), FATTN_OK);
        assert_true(0 <= lo && lo <= hi && hi <= d->seq_k);
        for (int64_t j = 0; j < d->seq_k; j++)
            if (keeps(d, i, j) != (lo <= j && j < hi))
                fail_msg("mask %d align %d window %lld,%lld size %lld seq_q %lld seq_k %lld row %lld: [%lld, %lld)",
                         (int)d->mask, (int)d->align, (long long)d->window_left, (long long)d->window_right,
                         (long long)d->mask_size, (long long)d->seq_q, (long long)d->seq_k, (long long)i, (long long)lo,
                         (long long)hi);
    }
}

static fattn_desc small(int32_t mask, int32_t align, int64_t seq_q, int64_t seq_k)
{
    return (fattn_desc){.struct_size = sizeof(fattn_desc),
                        .dtype = FATTN_F32,
                        .mask = mask,
                        .align = align,
                        .batch = 1,
                        .heads_q = 1,
                        .heads_kv = 1,
                        .seq_q = seq_q,
                        .seq_k = seq_k,
                        .dim = 1,
                        .dim_v = 1};
}

static void full_and_causal(void **state)
{
    (void)state;
    for (int32_t mask = FATTN_MASK_FULL; mask <= FATTN_MASK_CAUSAL; mask++)
        for (int32_t align = 0; align < 2; align++)
            for (int64_t seq_q = 0; seq_q < 12; seq_q++)
                for (int64_t seq_k = 0; seq_k < 12; seq_k++) {
                    const fattn_desc d = small(mask, align, seq_q, seq_k);
                    check_rows(&d);
                }
}

static void windows(void **state)
{
    static const int64_t sizes[] = {-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 18, 19, 1000, INT64_MAX - 1, INT64_MAX};
    const size_t count = sizeof sizes / sizeof *sizes;
    (void)state;
    for (int32_t align = 0; align < 2; align++)
        for (int64_t seq_q = 0; seq_q < 10; seq_q++)
            for (int64_t seq_k = 0; seq_k < 10; seq_k++)
                for (size_t l = 0; l < count; l++)
                    for (size_t r = 0; r < count; r++) {
                        fattn_desc d = small(FATTN_MASK_WINDOW, align, seq_q, seq_k);
                        d.window_left = sizes[l];
                        d.window_right = sizes[r];
                        check_rows(&d);
                    }
}

static void chunks_and_prefixes(void **state)
{
    static const int64_t sizes[] = {0, 1, 2, 3, 4, 5, 9, 10, 11, 12, 1000, INT64_MAX - 1, INT64_MAX};
    (void)state;
    for (int32_t mask = FATTN_MASK_CHUNKED; mask <= FATTN_MASK_PREFIX; mask++)
        for (int32_t align = 0; align < 2; align++)
            for (int64_t seq_q = 0; seq_q < 12; seq_q++)
                for (int64_t seq_k = 0; seq_k < 12; seq_k++)
                    for (size_t s = mask == FATTN_MASK_CHUNKED; s < sizeof sizes / sizeof *sizes; s++) {
                        fattn_desc d = small(mask, align, seq_q, seq_k);
                        d.mask_size = sizes[s];
                        check_rows(&d);
                    }
}

/* A chunk as long as the sequence, and a prefix of nothing, are causal; a prefix as long as the sequence keeps everything. */
static void chunks_and_prefixes_without_end(void **state)
{
    (void)state;
    for (int64_t i = 0; i < 300; i += 13) {
        const fattn_desc causal = small(FATTN_MASK_CAUSAL, 0, 300, 280);
        fattn_desc chunked = small(FATTN_MASK_CHUNKED, 0, 300, 280), prefix = small(FATTN_MASK_PREFIX, 0, 300, 280);
        int64_t lo[3], hi[3];
        chunked.mask_size = 300;
        assert_int_equal(fattn_mask_interval(&causal, i, &lo[0], &hi[0]), FATTN_OK);
        assert_int_equal(fattn_mask_interval(&chunked, i, &lo[1], &hi[1]), FATTN_OK);
        assert_int_equal(fattn_mask_interval(&prefix, i, &lo[2], &hi[2]), FATTN_OK);
        assert_true(lo[0] == lo[1] && hi[0] == hi[1] && lo[0] == lo[2] && hi[0] == hi[2]);
        prefix.mask_size = 280;
        assert_int_equal(fattn_mask_interval(&prefix, i, &lo[2], &hi[2]), FATTN_OK);
        assert_true(lo[2] == 0 && hi[2] == 280);
    }
}

/* What stands in a call's arrays cannot be asked for without them. */
static void masks_of_arrays(void **state)
{
    fattn_desc d = small(FATTN_MASK_DOCUMENT, 0, 4, 4);
    int64_t lo = 7, hi = 8;
    (void)state;
    d.window_left = d.window_right = -1;
    assert_int_equal(fattn_mask_interval(&d, 0, &lo, &hi), FATTN_ERROR_UNSUPPORTED);
    assert_non_null(strstr(fattn_last_error(), "desc.mask is 5"));
    d = small(FATTN_MASK_INTERVALS, 0, 4, 4);
    assert_int_equal(fattn_mask_interval(&d, 0, &lo, &hi), FATTN_ERROR_UNSUPPORTED);
    assert_true(lo == 7 && hi == 8);
}

/* A window of (-1, 0) is causal, also at sizes too large to go through. */
static void causal_is_a_window(void **state)
{
    const int64_t rows[] = {0, 1, 4095, 8190, 16382, 16383};
    (void)state;
    for (int32_t align = 0; align < 2; align++) {
        const fattn_desc causal = small(FATTN_MASK_CAUSAL, align, 16384, 9000);
        fattn_desc window = small(FATTN_MASK_WINDOW, align, 16384, 9000);
        window.window_left = -1;
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            int64_t lo[2], hi[2];
            assert_int_equal(fattn_mask_interval(&causal, rows[i], &lo[0], &hi[0]), FATTN_OK);
            assert_int_equal(fattn_mask_interval(&window, rows[i], &lo[1], &hi[1]), FATTN_OK);
            assert_true(lo[0] == lo[1] && hi[0] == hi[1]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_and_causal),     cmocka_unit_test(windows),
        cmocka_unit_test(chunks_and_prefixes), cmocka_unit_test(chunks_and_prefixes_without_end),
        cmocka_unit_test(masks_of_arrays),     cmocka_unit_test(causal_is_a_window),
    };
    return cmocka_run_group_tests_name("mask", tests, NULL, NULL);
}
