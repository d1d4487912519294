/*
 * Bytes as training data: a file of 16-bit tokens or of .npy, a text, or several texts. Whatever is opened gives tokens of its
 * vocabulary, in training's order and in evaluation's.
 */
#include "fuzz.h"
#include "train/data.h"
#include "train/error.h"
#include "train/text.h"
#include "train/tokenizer.h"

#include <string.h>

enum { KIND_TOKENS, KIND_TEXT, KIND_FOLDER, KINDS, KIND_NPY = KINDS };
enum { SEQ_MOST = 40, BATCH_MOST = 3 };

static const char *const names[] = {"a.txt", "b.txt", "c.txt"};

/* Sets the files up and returns what to open. */
static const char *lay_out(fuzz_input *in, int kind, char path[320])
{
    static bool linked;
    if (!linked) {
        for (int i = 0; i < 3; i++)
            fuzz_link(names[i], i);
        fuzz_link("tokens.bin", 3);
        fuzz_link("tokens.npy", 3);
        linked = true;
    }
    if (kind == KIND_FOLDER) {
        for (int i = 0; i < 3; i++) {
            const fuzz_input part = fuzz_part(in, i < 2 ? fuzz_byte(in) : in->left);
            fuzz_file(i, part.bytes, part.left);
        }
        snprintf(path, 320, "%s/?.txt", fuzz_folder());
        return path;
    }
    fuzz_file(kind == KIND_TEXT ? 0 : 3, in->bytes, in->left);
    const char *name = kind == KIND_TEXT ? names[0] : kind == KIND_NPY ? "tokens.npy" : "tokens.bin";
    snprintf(path, 320, "%s/%s", fuzz_folder(), name);
    return path;
}

static void check_tokens(const int32_t *tokens, int64_t count, int64_t least, int64_t vocab)
{
    for (int64_t i = 0; i < count; i++)
        FUZZ_CHECK(tokens[i] >= least && tokens[i] < vocab, "token %d of %d", (int)tokens[i], (int)vocab);
}

static void read_split(const dataset *d, world_split split, int64_t seq, int64_t batch, uint64_t seed, data_position position)
{
    int32_t tokens[SEQ_MOST * BATCH_MOST], targets[SEQ_MOST * BATCH_MOST];
    const data_tokens run = data_split(d, split);
    data_reader reader;
    if (data_reader_init(&reader, &run, seq, seed, "input")) {
        if (!data_reader_seek(&reader, position))
            FUZZ_CHECK(*train_error());
        for (int i = 0; i < 3; i++) {
            data_reader_next(&reader, batch, tokens, targets);
            check_tokens(tokens, seq * batch, 0, data_vocab(d));
            check_tokens(targets, seq * batch, 0, data_vocab(d));
        }
    }
    const int64_t windows = data_windows(&run, seq);
    for (int64_t i = 0; i < windows && i < 50; i++) {
        const int64_t many = windows - i < batch ? windows - i : batch;
        data_window_batch(&run, seq, i, many, tokens, targets);
        check_tokens(tokens, seq * many, 0, data_vocab(d));
        check_tokens(targets, seq * many, -1, data_vocab(d));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in = {data, size};
    char path[320];
    const int first = fuzz_byte(&in), kind = first < 3 * 64 ? first % KINDS : KIND_NPY;
    const int64_t seq = fuzz_byte(&in) % SEQ_MOST + 1, batch = fuzz_byte(&in) % BATCH_MOST + 1;
    const uint64_t seed = fuzz_byte(&in);
    const data_position position = {(int8_t)fuzz_byte(&in), (int8_t)fuzz_byte(&in)};
    const data_options options = {.source = lay_out(&in, kind, path)};
    dataset *d = data_open(&options);
    FUZZ_CHECK(d || *train_error());
    if (d) {
        read_split(d, WORLD_TRAIN, seq, batch, seed, position);
        read_split(d, WORLD_VAL, seq, batch, seed, position);
        FUZZ_CHECK(data_is_text(d) == (kind == KIND_TEXT || kind == KIND_FOLDER));
    }
    data_close(d);
    return 0;
}
