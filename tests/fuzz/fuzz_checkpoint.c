/*
 * A checkpoint's three files from one input: two bytes with the length of the front of state.json, that, two bytes with the
 * length of model.safetensors, that, and optimizer.safetensors. The checksums are put right, since no fuzzer guesses them.
 */
#include "fuzz.h"
#include "train/checkpoint.h"
#include "train/checkpoint_state.h"
#include "train/error.h"
#include "train/sha256.h"
#include "train/text.h"

#include <string.h>

static const char *const names[] = {"model.safetensors", "optimizer.safetensors", "state.json"};

static void seal(const fuzz_input *front)
{
    char digest[65];
    sha256 hash;
    text_buffer sealed = {0};
    sha256_begin(&hash);
    sha256_add(&hash, front->bytes, front->left);
    sha256_end(&hash, digest);
    text_bytes(&sealed, front->bytes, front->left);
    text_format(&sealed, ",\n\"sha256\":\"%s\"}\n", digest);
    fuzz_file(2, sealed.bytes, sealed.length);
    text_free(&sealed);
}

static void lay_out(fuzz_input *in)
{
    static bool linked;
    for (int i = 0; i < 3 && !linked; i++)
        fuzz_link(names[i], i);
    linked = true;
    const fuzz_input state = fuzz_part(in, fuzz_number(in, 2)), weights = fuzz_part(in, fuzz_number(in, 2));
    seal(&state);
    fuzz_file(0, weights.bytes, weights.left);
    fuzz_file(1, in->bytes, in->left);
}

static void measure(const char *name, checkpoint_file *file)
{
    char path[320];
    snprintf(path, sizeof path, "%s/%s", fuzz_folder(), name);
    FUZZ_CHECK(checkpoint_file_measure(path, file), "%s", train_error());
}

static void load(checkpoint_state *state)
{
    measure(names[0], &state->model_file);
    measure(names[1], &state->optimizer_file);
    model *m = checkpoint_load_model(fuzz_folder(), state);
    FUZZ_CHECK(m || *train_error());
    const optimizer_options options = optimizer_defaults();
    optimizer *o = m ? optimizer_create(m, &options) : NULL;
    FUZZ_CHECK(!m || o, "%s", train_error());
    if (o && !checkpoint_load_optimizer(fuzz_folder(), state, o))
        FUZZ_CHECK(*train_error());
    optimizer_free(o);
    model_free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in = {data, size};
    checkpoint_state state;
    lay_out(&in);
    if (checkpoint_read_state(fuzz_folder(), &state))
        load(&state);
    checkpoint_state_free(&state);
    return 0;
}
