/* A batch in a file: see saved_batch.h. */
#include "saved_batch.h"

#include <stdio.h>
#include <stdlib.h>

#include "safetensors.h"
#include "text.h"

enum { NUMBER_TEXT = 40 };

saved_batch saved_batch_room(int64_t parts, int64_t batch, int64_t seq)
{
    saved_batch b = {.parts = parts, .batch = batch, .seq = seq};
    const size_t count = (size_t)(parts * batch * seq);
    b.tokens = text_alloc(2 * count * sizeof *b.tokens);
    b.targets = b.tokens + count;
    return b;
}

void saved_batch_free(saved_batch *b)
{
    free(b->tokens);
    *b = (saved_batch){0};
}

bool saved_batch_write(const char *path, const saved_batch *b, int64_t step, double loss, double norm)
{
    char step_text[NUMBER_TEXT], loss_text[NUMBER_TEXT], norm_text[NUMBER_TEXT];
    const safetensors_tensor tensors[] = {
        {.name = "targets", .dtype = SAFETENSORS_I32, .rank = 3, .shape = {b->parts, b->batch, b->seq}, .data = b->targets},
        {.name = "tokens", .dtype = SAFETENSORS_I32, .rank = 3, .shape = {b->parts, b->batch, b->seq}, .data = b->tokens}};
    const safetensors_pair metadata[] = {{"grad_norm", norm_text}, {"loss", loss_text}, {"step", step_text}};
    snprintf(step_text, sizeof step_text, "%lld", (long long)step);
    snprintf(loss_text, sizeof loss_text, "%.17g", loss);
    snprintf(norm_text, sizeof norm_text, "%.17g", norm);
    return safetensors_write(path, tensors, 2, metadata, 3);
}

/* Its sizes against those that the run has; whatever else is wrong with it, loading says. */
static bool fits(const char *path, const safetensors_file *file, const saved_batch *b)
{
    const safetensors_tensor *t = safetensors_find(file, "tokens");
    if (!t || t->rank != 3 || (t->shape[0] == b->parts && t->shape[1] == b->batch && t->shape[2] == b->seq))
        return true;
    return train_fail("%s: %lld micro-batches of %lld windows of %lld tokens, but the run has %lld of %lld of %lld", path,
                      (long long)t->shape[0], (long long)t->shape[1], (long long)t->shape[2], (long long)b->parts,
                      (long long)b->batch, (long long)b->seq);
}

bool saved_batch_read(const char *path, saved_batch *b)
{
    const int64_t shape[] = {b->parts, b->batch, b->seq};
    safetensors_file *file = NULL;
    const bool good = safetensors_open(path, &file) && fits(path, file, b) &&
                      safetensors_load(file, "tokens", SAFETENSORS_I32, 3, shape, b->tokens) &&
                      safetensors_load(file, "targets", SAFETENSORS_I32, 3, shape, b->targets);
    safetensors_close(file);
    return good;
}
