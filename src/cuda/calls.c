/*
 * Launching the calls beside forward and backward. calls.cu has the kernels.
 */
#include "cuda/calls.h"

#include <inttypes.h>
#include <string.h>

#include "core/cache.h"
#include "core/look.h"
#include "cuda/cuda.h"

enum { CALLS_MERGE, CALLS_MERGE_BACKWARD, CALLS_APPEND, CALLS_LOOK, CALLS_FUNCTIONS };

static const cuda_function functions[CALLS_FUNCTIONS] = {[CALLS_MERGE] = {"calls_merge", 0},
                                                         [CALLS_MERGE_BACKWARD] = {"calls_merge_backward", 0},
                                                         [CALLS_APPEND] = {"calls_append", 0},
                                                         [CALLS_LOOK] = {"calls_look", 0}};

CUDA_IMAGE_DEFINE(calls, functions, 0);

/* A warp for each row, as far as a grid goes: warps then take several. */
static cuda_shape shape_of(int64_t rows)
{
    const int64_t warps = CALLS_THREADS / CALLS_WARP, blocks = (rows + warps - 1) / warps;
    return (cuda_shape){blocks < CUDA_BLOCKS_MOST ? blocks : CUDA_BLOCKS_MOST, CALLS_THREADS};
}

static fattn_status merge_forward(const fattn_launch *at, const fattn_merging *m, merge_launch *launch)
{
    void *arguments[] = {launch};
    if (m->count > MERGE_PARTS)
        return fattn_fail(FATTN_ERROR_UNSUPPORTED, "args.count is %" PRId32 ", but a GPU joins at most %d partial results",
                          m->count, MERGE_PARTS);
    memcpy(launch->views, m->outs, (size_t)m->count * sizeof *m->outs);
    memcpy(launch->numbers, m->lses, (size_t)m->count * sizeof *m->lses);
    return cuda_launch(at, CUDA_IMAGE_CALLS, CALLS_MERGE, shape_of(fattn_merging_rows(m)), arguments);
}

/* Parts know nothing of each other, so that each launch takes the next few. */
static fattn_status merge_backward(const fattn_launch *at, const fattn_merging *m, merge_launch *launch)
{
    void *arguments[] = {launch};
    fattn_status status = FATTN_OK;
    for (int32_t first = 0; first < m->count && status == FATTN_OK; first += MERGE_HALF) {
        const int32_t count = m->count - first < MERGE_HALF ? m->count - first : MERGE_HALF;
        launch->call.count = count;
        memcpy(launch->views, m->outs + first, (size_t)count * sizeof *m->outs);
        memcpy(launch->views + MERGE_HALF, m->douts + first, (size_t)count * sizeof *m->douts);
        memcpy(launch->numbers, m->lses + first, (size_t)count * sizeof *m->lses);
        memcpy(launch->numbers + MERGE_HALF, m->dlses + first, (size_t)count * sizeof *m->dlses);
        status = cuda_launch(at, CUDA_IMAGE_CALLS, CALLS_MERGE_BACKWARD, shape_of(fattn_merging_rows(m)), arguments);
    }
    return status;
}

fattn_status cuda_merge(const fattn_context *context, const fattn_merging *m)
{
    const fattn_launch at = {.context = context, .stream = m->stream};
    merge_launch launch = {.call = *m};
    return m->backward ? merge_backward(&at, m, &launch) : merge_forward(&at, m, &launch);
}

fattn_status cuda_append(const fattn_context *context, const fattn_appending *a)
{
    const fattn_desc *d = &a->problem.desc;
    int64_t slots = 2 * d->heads_kv + (a->args.q.data && fattn_appending_turned(a) > 0 ? d->heads_q : 0);
    void *arguments[] = {(void *)(uintptr_t)a, &slots};
    (void)context; /* a->at has it */
    return cuda_launch(&a->at, CUDA_IMAGE_CALLS, CALLS_APPEND, shape_of(d->batch * d->seq_q * slots), arguments);
}

fattn_status cuda_look(const fattn_context *context, const fattn_looking *looking)
{
    fattn_looking l = *looking;
    void *arguments[] = {
        (void *)(uintptr_t)l.problem, (void *)(uintptr_t)l.at, &l.batch, &l.head, &l.row, &l.scores, &l.probabilities};
    (void)context; /* l.at has it */
    return cuda_launch(l.at, CUDA_IMAGE_CALLS, CALLS_LOOK, (cuda_shape){1, CALLS_THREADS}, arguments);
}
