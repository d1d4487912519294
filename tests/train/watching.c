/*
 * What shows a run: CRC-32C, a log's losses and their drawing, work and peak. Event files are read back by
 * tests/cli/trainer.sh.
 */
#include "folder.h"
#include "support.h"
#include "train/error.h"
#include "train/events.h"
#include "train/flops.h"
#include "train/loss_curve.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* RFC 3720, appendix B.4. */
static void crc(void **state)
{
    (void)state;
    unsigned char bytes[32] = {0};
    assert_int_equal(events_crc(bytes, 32), 0x8a9136aa);
    memset(bytes, 0xff, 32);
    assert_int_equal(events_crc(bytes, 32), 0x62a8ab43);
    for (int i = 0; i < 32; i++)
        bytes[i] = (unsigned char)i;
    assert_int_equal(events_crc(bytes, 32), 0x46dd794e);
    assert_int_equal(events_crc("123456789", 9), 0xe3069283);
}

static void ticks(void **state)
{
    (void)state;
    const struct {
        double least, most, first, distance;
    } cases[] = {
        {0, 100, 0, 20}, {1.3, 5.7, 2, 1}, {-0.013, 0.031, -0.01, 0.01}, {1, 5000, 1000, 1000}, {3.01, 3.02, 3.01, 0.002}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double distance, first = curve_ticks(cases[i].least, cases[i].most, &distance);
        check_error("first tick", fabs(first - cases[i].first), 1e-9);
        check_error("distance", fabs(distance - cases[i].distance), 1e-9);
    }
}

static int count_of(const char *text, const char *part)
{
    int count = 0;
    for (; (text = strstr(text, part)); text += strlen(part))
        count++;
    return count;
}

static void read_log(const char *path, const char *text, loss_curve *c)
{
    file_write(path, text, strlen(text));
    require(loss_curve_read(path, c));
}

/* A continued run's steps replace those it does again; what is not finite interrupts the curve. */
static void curves(void **state)
{
    (void)state;
    char folder[FOLDER_PATH], path[FOLDER_PATH];
    loss_curve c;
    text_buffer svg = {0};
    folder_make(folder);
    folder_file(path, folder, "log");
    read_log(
        path,
        "{\"version\":\"1\"}\n{\"step\":1,\"loss\":4}\n{\"step\":2,\"loss\":3,\"val_loss\":3.5}\n{\"step\":3,\"loss\":9}\n"
        "{\"version\":\"1\"}\n{\"step\":2,\"loss\":2,\"val_loss\":2.5}\n{\"step\":3,\"loss\":null}\n{\"step\":4,\"loss\":1}\n",
        &c);
    assert_int_equal(c.count, 4);
    assert_true(c.points[1].loss == 2 && c.points[1].val_loss == 2.5 && isnan(c.points[2].loss) && isnan(c.points[3].val_loss));
    loss_curve_draw(&c, false, "a<b & c", &svg);
    assert_non_null(strstr(svg.bytes, "a&#60;b &#38; c"));
    assert_int_equal(count_of(svg.bytes, "<circle"), 1);
    /* Steps 1 .. 4 across 64 .. 784; losses 1 .. 4, and 0.12 of room at both ends, across 402 .. 44. */
    assert_non_null(strstr(svg.bytes, "<path class='train' d='M64.0 57.3L304.0 278.2M784.0 388.7'/>"));
    text_free(&svg);
    loss_curve_free(&c);

    file_write(path, "{\"step\":1}\n", 11);
    assert_false(loss_curve_read(path, &c));
    assert_non_null(strstr(train_error(), "no step with a loss"));
    loss_curve_free(&c);
    file_write(path, "{\"step\":1,\"loss\":1}\n[\n", 22);
    assert_false(loss_curve_read(path, &c));
    assert_non_null(strstr(train_error(), "line 2 is no JSON object"));
    loss_curve_free(&c);
    folder_remove(folder);
}

/* However many steps, a bounded drawing; and losses that no logarithm can have are left out of it. */
static void long_runs(void **state)
{
    (void)state;
    enum { STEPS = 200000 };
    loss_curve c = {.points = text_alloc(STEPS * sizeof(loss_point)), .count = STEPS};
    for (int i = 0; i < STEPS; i++)
        c.points[i] = (loss_point){i + 1, i % 7 ? 2 + i % 5 : 0, NAN};
    for (int logarithmic = 0; logarithmic < 2; logarithmic++) {
        text_buffer svg = {0};
        loss_curve_draw(&c, logarithmic, "long", &svg);
        assert_true(svg.length < 80000);
        assert_null(strstr(svg.bytes, "nan"));
        assert_null(strstr(svg.bytes, "inf"));
        text_free(&svg);
    }
    loss_curve_free(&c);
}

static void work(void **state)
{
    (void)state;
    const model_config c = {.vocab = 100, .hidden = 64, .layers = 3, .heads = 4, .heads_kv = 2, .head_dim = 16, .ffn = 96};
    const double weights = 3 * (64.0 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96) + 100 * 64;
    check_error("causal", fabs(flops_per_token(&c, 5, path_of("flash")) - 6 * weights - 12 * 3 * 64 * 3.0), 1e-6);
    check_error("window", fabs(flops_per_token(&c, 5, path_of("window:2")) - 6 * weights - 12 * 3 * 64 * 1.8), 1e-6);
    const double peak = flops_peak(test_runtime());
    assert_true(peak > 1e6 && peak < 1e15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(crc), cmocka_unit_test(ticks), cmocka_unit_test(curves),
                                       cmocka_unit_test(long_runs), cmocka_unit_test(work)};
    return cmocka_run_group_tests_name("watching", tests, NULL, NULL);
}
