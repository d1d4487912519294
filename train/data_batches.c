/*
 * The order of windows. A permutation of 0 .. n-1 that needs no memory: a four-round Feistel network over the smallest even
 * number of bits that holds n, applied again while its result is n or more ("cycle walking"; the network is a bijection on
 * the larger set, so walking is one on the smaller).
 */
#include "data.h"

#include "error.h"
#include "random.h"

static uint64_t permute(uint64_t index, uint64_t count, uint64_t key)
{
    int half = 1;
    while (half < 31 && (uint64_t)1 << 2 * half < count)
        ++half;
    const uint64_t mask = ((uint64_t)1 << half) - 1;
    do {
        uint64_t left = index >> half, right = index & mask;
        for (uint64_t round = 0; round < 4; ++round) {
            uint64_t mixed = left ^ (random_with(key + round, right) & mask);
            left = right;
            right = mixed;
        }
        index = left << half | right;
    } while (index >= count);
    return index;
}

bool data_reader_init(data_reader *reader, const data_tokens *tokens, int64_t seq, uint64_t seed, const char *name)
{
    *reader = (data_reader){.tokens = *tokens, .seq = seq, .seed = seed};
    if (tokens->count < seq + 1)
        return train_fail("%s: %lld tokens are fewer than a window of --seq %lld + 1", name, (long long)tokens->count,
                          (long long)seq);
    return true;
}

/* How far this epoch's windows are shifted; at least one window always fits. */
static int64_t epoch_shift(const data_reader *reader, uint64_t key)
{
    int64_t spare = reader->tokens.count - (reader->seq + 1);
    random_state random = {random_with(key, 1)};
    return (int64_t)random_below(&random, (uint64_t)(spare < reader->seq ? spare : reader->seq - 1) + 1);
}

static uint64_t epoch_key(const data_reader *reader)
{
    return random_with(random_with(reader->seed, 2), (uint64_t)reader->position.epoch);
}

static int64_t epoch_windows(const data_reader *reader, int64_t shift)
{
    return (reader->tokens.count - shift - 1) / reader->seq;
}

bool data_reader_seek(data_reader *reader, data_position position)
{
    data_reader moved = *reader;
    moved.position = position;
    int64_t windows = position.epoch < 0 ? 0 : epoch_windows(&moved, epoch_shift(&moved, epoch_key(&moved)));
    if (position.window < 0 || position.window >= windows)
        return train_fail("data position: window %lld of epoch %lld, but there are %lld windows", (long long)position.window,
                          (long long)position.epoch, (long long)windows);
    *reader = moved;
    return true;
}

static void next_window(data_reader *reader, int32_t *tokens, int32_t *targets)
{
    const int64_t seq = reader->seq;
    uint64_t key = epoch_key(reader);
    int64_t shift = epoch_shift(reader, key);
    int64_t windows = epoch_windows(reader, shift);
    int64_t window = (int64_t)permute((uint64_t)reader->position.window, (uint64_t)windows, key);
    data_copy(&reader->tokens, shift + window * seq, seq, tokens);
    data_copy(&reader->tokens, shift + window * seq + 1, seq, targets);
    if (++reader->position.window == windows)
        reader->position = (data_position){reader->position.epoch + 1, 0};
}

void data_reader_next(data_reader *reader, int64_t batch, int32_t *tokens, int32_t *targets)
{
    for (int64_t b = 0; b < batch; ++b)
        next_window(reader, tokens + b * reader->seq, targets + b * reader->seq);
}

void data_reader_skip(data_reader *reader, int64_t count)
{
    while (count > 0) {
        const int64_t left = epoch_windows(reader, epoch_shift(reader, epoch_key(reader))) - reader->position.window;
        if (count < left) {
            reader->position.window += count;
            return;
        }
        count -= left;
        reader->position = (data_position){reader->position.epoch + 1, 0};
    }
}

int64_t data_windows(const data_tokens *tokens, int64_t seq)
{
    return tokens->count < 2 ? 0 : (tokens->count - 2) / seq + 1;
}

void data_window_batch(const data_tokens *tokens, int64_t seq, int64_t first, int64_t batch, int32_t *inputs, int32_t *targets)
{
    for (int64_t b = 0; b < batch; ++b, inputs += seq, targets += seq) {
        int64_t start = (first + b) * seq, left = tokens->count - 1 - start;
        int64_t count = left < 0 ? 0 : left < seq ? left : seq;
        data_copy(tokens, start, count, inputs);
        data_copy(tokens, start + 1, count, targets);
        for (int64_t i = count; i < seq; ++i) {
            inputs[i] = 0;
            targets[i] = -1;
        }
    }
}
