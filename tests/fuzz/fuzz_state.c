/*
 * Bytes as the state.json of a checkpoint: once as they are, once with the checksum put behind them that they have to end in,
 * since no fuzzer guesses a SHA-256. What is accepted can be written and read again.
 */
#include "fuzz.h"
#include "train/checkpoint_state.h"
#include "train/error.h"
#include "train/sha256.h"
#include "train/text.h"

#include <math.h>
#include <string.h>

static bool same(const checkpoint_state *a, const checkpoint_state *b)
{
    return a->step == b->step && a->seed == b->seed && a->position.epoch == b->position.epoch &&
           a->position.window == b->position.window && memcmp(&a->model_file, &b->model_file, sizeof a->model_file) == 0 &&
           a->optimizer_file.bytes == b->optimizer_file.bytes && a->model.vocab == b->model.vocab &&
           a->model.max_seq == b->model.max_seq && !(a->model.rope_theta < b->model.rope_theta) &&
           !(a->model.rope_theta > b->model.rope_theta) && a->model.tied == b->model.tied;
}

static bool is_text(const char *text)
{
    for (size_t left = strlen(text), step; left > 0; text += step, left -= step)
        if ((step = text_utf8(text, left)) == 0 || (unsigned char)*text < 0x20 || *text == '"' || *text == '\\')
            return false;
    return true;
}

/* Digests go into the file as they came: an odd one, which no file has, is not written as it was read. */
static bool writable(const checkpoint_state *s)
{
    return isfinite(s->model.rope_theta) && isfinite(s->model.rms_eps) && is_text(s->model_file.sha256) &&
           is_text(s->optimizer_file.sha256);
}

static void read_state(const void *bytes, size_t size)
{
    checkpoint_state first, second;
    const char *path = fuzz_file(1, "", 0);
    if (!checkpoint_state_read(fuzz_file(0, bytes, size), &first)) {
        FUZZ_CHECK(*train_error());
    } else if (writable(&first)) {
        FUZZ_CHECK(checkpoint_state_write(path, &first), "%s", train_error());
        FUZZ_CHECK(checkpoint_state_read(path, &second), "%s", train_error());
        FUZZ_CHECK(same(&first, &second) && strcmp(first.configuration, second.configuration) == 0);
        checkpoint_state_free(&second);
    }
    checkpoint_state_free(&first);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char digest[65];
    sha256 hash;
    text_buffer sealed = {0};
    read_state(data, size);
    sha256_begin(&hash);
    sha256_add(&hash, data, size);
    sha256_end(&hash, digest);
    text_bytes(&sealed, data, size);
    text_format(&sealed, ",\n\"sha256\":\"%s\"}\n", digest);
    read_state(sealed.bytes, sealed.length);
    text_free(&sealed);
    return 0;
}
