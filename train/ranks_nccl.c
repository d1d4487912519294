/*
 * Ranks by NCCL, a GPU each: see ranks.h.
 *
 * NCCL's work has a stream of its own, so that the GPU goes on computing meanwhile. Two events keep the order: what begins
 * waits for the device's work so far, and what ends makes the device's work wait. The meeting (meeting.h) tells NCCL's id, and
 * notices ranks that are gone: a kernel of NCCL would wait for them for ever.
 */
#include <stdlib.h>

#include "error.h"
#include "gpu/driver.h"
#include "gpu/nccl.h"
#include "meeting.h"
#include "ranks.h"

typedef struct nccl_ranks {
    ranks base;
    meeting *meeting;
    ncclComm_t comm;
    CUstream stream;
    CUevent computed, told; /* the device's work so far; NCCL's */
    char *staging;          /* of the device: gather_host */
    size_t room;
} nccl_ranks;

static nccl_ranks *nccl_of(ranks *r)
{
    return (nccl_ranks *)r;
}

static bool did(const nccl_ranks *n, ncclResult_t result, const char *what)
{
    if (result == ncclSuccess)
        return true;
    const char *more = gpu_nccl()->ncclGetLastError(n->comm);
    return train_fail_as(TRAIN_ERROR_WORK, "NCCL: %s: %s%s%s", what, gpu_nccl()->ncclGetErrorString(result),
                         more && *more ? ": " : "", more ? more : "");
}

static bool driver_did(CUresult result, const char *what)
{
    char text[200];
    return result == CUDA_SUCCESS ||
           train_fail_as(TRAIN_ERROR_WORK, "GPU: %s: %s", what, gpu_error_text(result, text, sizeof text));
}

/* What comes to NCCL's stream now waits for the device's work so far. */
static bool begin(nccl_ranks *n)
{
    const gpu_driver_calls *cu = gpu_driver();
    return driver_did(cu->cuEventRecord(n->computed, n->base.device->stream), "noting an event") &&
           driver_did(cu->cuStreamWaitEvent(n->stream, n->computed, 0), "waiting for an event");
}

/* What comes to the device now waits for NCCL's work so far. */
static bool end(ranks *r)
{
    nccl_ranks *n = nccl_of(r);
    const gpu_driver_calls *cu = gpu_driver();
    return driver_did(cu->cuEventRecord(n->told, n->stream), "noting an event") &&
           driver_did(cu->cuStreamWaitEvent(r->device->stream, n->told, 0), "waiting for an event");
}

static bool sum_begin(ranks *r, float *data, const int64_t *cuts, bool everywhere)
{
    nccl_ranks *n = nccl_of(r);
    const gpu_nccl_calls *nccl = gpu_nccl();
    if (!begin(n))
        return false;
    if (everywhere) {
        float *first = data + cuts[0];
        const size_t count = (size_t)(cuts[r->size] - cuts[0]);
        return did(n, nccl->ncclAllReduce(first, first, count, ncclFloat32, ncclSum, n->comm, n->stream), "a sum");
    }
    ncclResult_t result = nccl->ncclGroupStart();
    for (int i = 0; i < r->size && result == ncclSuccess; i++) {
        float *first = data + cuts[i];
        const size_t count = (size_t)(cuts[i + 1] - cuts[i]);
        if (count)
            result = nccl->ncclReduce(first, first, count, ncclFloat32, ncclSum, i, n->comm, n->stream);
    }
    const ncclResult_t ended = nccl->ncclGroupEnd();
    return did(n, result, "a sum") && did(n, ended, "a sum");
}

static bool gather(ranks *r, void *data, size_t bytes, const int64_t *cuts)
{
    nccl_ranks *n = nccl_of(r);
    const gpu_nccl_calls *nccl = gpu_nccl();
    if (!begin(n))
        return false;
    ncclResult_t result = nccl->ncclGroupStart();
    for (int i = 0; i < r->size && result == ncclSuccess; i++) {
        char *first = (char *)data + (size_t)cuts[i] * bytes;
        const size_t count = (size_t)(cuts[i + 1] - cuts[i]) * bytes;
        if (count)
            result = nccl->ncclBroadcast(first, first, count, ncclInt8, i, n->comm, n->stream);
    }
    const ncclResult_t ended = nccl->ncclGroupEnd();
    return did(n, result, "gathering") && did(n, ended, "gathering") && end(r);
}

static bool exchange_begin(ranks *r, const void *send, int to, void *receive, int from, size_t bytes)
{
    nccl_ranks *n = nccl_of(r);
    const gpu_nccl_calls *nccl = gpu_nccl();
    if (!begin(n))
        return false;
    ncclResult_t result = nccl->ncclGroupStart();
    if (result == ncclSuccess)
        result = nccl->ncclSend(send, bytes, ncclInt8, to, n->comm, n->stream);
    if (result == ncclSuccess)
        result = nccl->ncclRecv(receive, bytes, ncclInt8, from, n->comm, n->stream);
    const ncclResult_t ended = nccl->ncclGroupEnd();
    return did(n, result, "an exchange") && did(n, ended, "an exchange");
}

static bool make_staging(nccl_ranks *n, size_t bytes)
{
    device *d = n->base.device;
    if (n->room >= bytes)
        return true;
    d->run->release(d, n->staging);
    n->staging = d->run->allocate(d, bytes);
    n->room = n->staging ? bytes : 0;
    return n->staging != NULL;
}

static bool gather_host(ranks *r, void *all, size_t bytes)
{
    nccl_ranks *n = nccl_of(r);
    device *d = r->device;
    const size_t own = (size_t)r->rank * bytes;
    return make_staging(n, (size_t)r->size * bytes) && d->run->put(d, n->staging + own, (char *)all + own, bytes) && begin(n) &&
           did(n, gpu_nccl()->ncclAllGather(n->staging + own, n->staging, bytes, ncclInt8, n->comm, n->stream), "gathering") &&
           end(r) && d->run->get(d, all, n->staging, (size_t)r->size * bytes);
}

/* ------------------------------------------------------------------------------------------------------ opening, closing */

/* A rank that has failed leaves at once; the others learn it from the meeting. */
static void close_ranks(ranks *r, int code)
{
    nccl_ranks *n = nccl_of(r);
    const gpu_driver_calls *cu = gpu_driver();
    if (code)
        meeting_close(n->meeting, false);
    if (n->comm && code)
        gpu_nccl()->ncclCommAbort(n->comm);
    else if (n->comm)
        gpu_nccl()->ncclCommDestroy(n->comm);
    if (!code)
        meeting_close(n->meeting, true);
    if (n->computed)
        cu->cuEventDestroy(n->computed);
    if (n->told)
        cu->cuEventDestroy(n->told);
    if (n->stream)
        cu->cuStreamDestroy(n->stream);
    r->device->run->release(r->device, n->staging);
    free(n);
}

static bool start(nccl_ranks *n, const ranks_place *place)
{
    const gpu_driver_calls *cu = gpu_driver();
    const gpu_nccl_calls *nccl = gpu_nccl();
    ncclUniqueId id;
    if (!nccl)
        return train_fail("ranks on GPUs: %s", gpu_nccl_absent());
    if (place->rank == 0 && !did(n, nccl->ncclGetUniqueId(&id), "an id"))
        return false;
    n->meeting = meeting_open(place, &n->base, &id, sizeof id);
    return n->meeting && driver_did(cu->cuStreamCreate(&n->stream, CU_STREAM_NON_BLOCKING), "a stream") &&
           driver_did(cu->cuEventCreate(&n->computed, CU_EVENT_DISABLE_TIMING), "an event") &&
           driver_did(cu->cuEventCreate(&n->told, CU_EVENT_DISABLE_TIMING), "an event") &&
           did(n, nccl->ncclCommInitRank(&n->comm, place->size, id, place->rank), "a communicator");
}

ranks *ranks_open_nccl(const ranks_place *place, device *d)
{
    static const ranks_table table = {.sum_begin = sum_begin,
                                      .sum_end = end,
                                      .gather = gather,
                                      .exchange_begin = exchange_begin,
                                      .exchange_end = end,
                                      .gather_host = gather_host,
                                      .close = close_ranks};
    nccl_ranks *n = calloc(1, sizeof *n);
    if (!n) {
        train_fail_as(TRAIN_ERROR_WORK, "no memory for a rank");
        return NULL;
    }
    n->base = (ranks){.run = &table, .rank = place->rank, .size = place->size, .device = d, .patience = place->patience};
    ranks_go_on(&n->base);
    if (start(n, place))
        return &n->base;
    close_ranks(&n->base, 1);
    return NULL;
}
