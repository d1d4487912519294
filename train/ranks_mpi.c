/*
 * Ranks by MPI, for devices whose memory is the host's: see ranks.h.
 *
 * A sum sends every rank its part from all others, adds these in the tree's order, and, where it is wanted everywhere, gathers
 * the results. MPI_Allreduce would add in an order that depends on the library, its version and the sizes. MPI moves messages
 * only while it is called; each sum that begins moves those that are under way.
 *
 * Whatever waits does so in wait_for(), which looks at the clock. A rank that has lost patience calls the roll: it sends an
 * empty message to every other. A rank that waits and hears one calls as well, at once. Whose call has not come when that
 * should long be over is missing.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "ranks.h"

/* A sum under way. */
typedef struct sum {
    float *data;
    int64_t *cuts; /* [size + 1] */
    bool everywhere;
    float *received; /* [size - 1, own part]: the other ranks', in their order */
    int64_t room;    /* floats of it */
    MPI_Request *requests;
    int count;
} sum;

typedef struct mpi_ranks {
    ranks base;
    sum *sums; /* [room]; the first `used` are under way */
    int used, room;
    float **parts; /* [size], while a sum is added up */
    int *counts, *firsts;
    MPI_Request exchange[2];
    bool *called; /* [size]: who has called the roll */
    void (*lost)(const char *why);
} mpi_ranks;

static mpi_ranks *mpi_of(ranks *r)
{
    return (mpi_ranks *)r;
}

static bool no_memory(void)
{
    return train_fail_as(TRAIN_ERROR_WORK, "no memory for messages between ranks");
}

/* -------------------------------------------------------------------------------------------------------------- waiting */

enum { TAG_EXCHANGE = 1 << 14, TAG_ROLL };
static const double LISTEN = 1, ROLL_SECONDS = 2; /* it is heard by who has waited so long; time for all to answer */

/* Whether somebody has called by now. */
static bool hear_calls(mpi_ranks *m)
{
    MPI_Status status;
    int there;
    bool any = false;
    for (;;) {
        MPI_Iprobe(MPI_ANY_SOURCE, TAG_ROLL, MPI_COMM_WORLD, &there, &status);
        if (!there)
            return any;
        MPI_Recv(NULL, 0, MPI_BYTE, status.MPI_SOURCE, TAG_ROLL, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        m->called[status.MPI_SOURCE] = any = true;
    }
}

/* "rank 1, rank 3", who has not called; "" if all have. */
static void name_missing(const mpi_ranks *m, char *text, size_t size)
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < m->base.size && used < size; i++)
        if (!m->called[i])
            used += (size_t)snprintf(text + used, size - used, "%srank %d", used ? ", " : "", i);
}

static bool call_roll(mpi_ranks *m, double waited)
{
    const ranks *r = &m->base;
    const double end = MPI_Wtime() + ROLL_SECONDS;
    char missing[200];
    MPI_Request ignored;
    m->called[r->rank] = true;
    for (int i = 0; i < r->size; i++)
        if (i != r->rank) {
            MPI_Isend(NULL, 0, MPI_BYTE, i, TAG_ROLL, MPI_COMM_WORLD, &ignored);
            MPI_Request_free(&ignored);
        }
    do {
        hear_calls(m);
        name_missing(m, missing, sizeof missing);
    } while (*missing && MPI_Wtime() < end);
    return train_fail_as(TRAIN_ERROR_WORK, "rank %d waited %.0f s in step %lld (--rank-timeout): %s%s", r->rank, waited,
                         (long long)atomic_load(&r->step), *missing ? "missing: " : "nobody is missing any more", missing);
}

/* Instead of MPI_Waitall. */
static bool wait_for(mpi_ranks *m, int count, MPI_Request *requests)
{
    const double patience = m->base.patience;
    double waited = 0, last = MPI_Wtime();
    for (;;) {
        int done;
        MPI_Testall(count, requests, &done, MPI_STATUSES_IGNORE);
        if (done)
            return true;
        const double now = MPI_Wtime(), passed = now - last;
        waited += passed < LISTEN ? passed : LISTEN; /* more: this rank was stopped itself, and is to let the others come */
        last = now;
        const bool called = waited > LISTEN && hear_calls(m);
        if (called || (patience > 0 && waited > patience))
            return call_roll(m, waited);
    }
}

/* ----------------------------------------------------------------------------------------------------------------- sums */

static int64_t owned(const int64_t *cuts, int rank)
{
    return cuts[rank + 1] - cuts[rank];
}

/* MPI counts in int. */
static bool fits(const int64_t *cuts, int size)
{
    for (int i = 0; i < size; i++)
        if (owned(cuts, i) > INT32_MAX)
            return train_fail("a part of %lld numbers for one rank: MPI moves at most %d at once", (long long)owned(cuts, i),
                              INT32_MAX);
    return true;
}

/* Room for one more sum; NULL: no memory. */
static sum *next_sum(mpi_ranks *m, int64_t own)
{
    const size_t size = (size_t)m->base.size;
    if (m->used == m->room) {
        sum *larger = realloc(m->sums, (size_t)(m->room + 1) * sizeof *larger);
        if (!larger)
            return NULL;
        m->sums = larger;
        m->sums[m->room++] =
            (sum){.cuts = calloc(size + 1, sizeof(int64_t)), .requests = calloc(2 * size, sizeof(MPI_Request))};
    }
    sum *s = &m->sums[m->used];
    const int64_t need = own * (m->base.size - 1);
    if (s->room < need) {
        free(s->received);
        s->received = malloc((size_t)need * sizeof(float));
        s->room = s->received ? need : 0;
    }
    return s->cuts && s->requests && s->room >= need ? s : NULL;
}

static void move_messages(mpi_ranks *m)
{
    int done;
    for (int i = 0; i < m->used; i++)
        MPI_Testall(m->sums[i].count, m->sums[i].requests, &done, MPI_STATUSES_IGNORE);
}

static bool sum_begin(ranks *r, float *data, const int64_t *cuts, bool everywhere)
{
    mpi_ranks *m = mpi_of(r);
    const int64_t own = owned(cuts, r->rank);
    if (!fits(cuts, r->size))
        return false;
    sum *s = next_sum(m, own);
    if (!s)
        return no_memory();
    const int tag = m->used++;
    s->data = data;
    s->everywhere = everywhere;
    s->count = 0;
    memcpy(s->cuts, cuts, (size_t)(r->size + 1) * sizeof *cuts);
    float *room = s->received;
    for (int i = 0; i < r->size; i++) {
        if (i == r->rank)
            continue;
        if (own) {
            MPI_Irecv(room, (int)own, MPI_FLOAT, i, tag, MPI_COMM_WORLD, &s->requests[s->count++]);
            room += own;
        }
        if (owned(cuts, i))
            MPI_Isend(data + cuts[i], (int)owned(cuts, i), MPI_FLOAT, i, tag, MPI_COMM_WORLD, &s->requests[s->count++]);
    }
    move_messages(m);
    return true;
}

/* parts[0] += the others, numbers first .. end - 1, in the tree's order. */
static void add_tree(float **parts, int count, int64_t first, int64_t end)
{
    for (int step = 1; step < count; step *= 2)
        for (int i = 0; i + step < count; i += 2 * step) {
            float *restrict to = parts[i];
            const float *restrict from = parts[i + step];
            for (int64_t j = first; j < end; j++)
                to[j] += from[j];
        }
}

static void add_parts(mpi_ranks *m, const sum *s)
{
    enum { BLOCK = 4096 };
    const int size = m->base.size, rank = m->base.rank;
    const int64_t own = owned(s->cuts, rank);
    float *result = s->data + s->cuts[rank];
    for (int i = 0; i < size; i++)
        m->parts[i] = i == rank ? result : s->received + (i - (i > rank)) * own;
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < own; first += BLOCK) {
        const int64_t end = own - first < BLOCK ? own : first + BLOCK;
        add_tree(m->parts, size, first, end);
        if (rank != 0)
            memcpy(result + first, m->parts[0] + first, (size_t)(end - first) * sizeof(float));
    }
}

static bool gather(ranks *r, void *data, size_t bytes, const int64_t *cuts)
{
    mpi_ranks *m = mpi_of(r);
    const MPI_Datatype type = bytes == 8 ? MPI_DOUBLE : bytes == 4 ? MPI_FLOAT : bytes == 2 ? MPI_UINT16_T : MPI_BYTE;
    if (!fits(cuts, r->size) || (cuts[r->size] > INT32_MAX && !fits((int64_t[]){0, cuts[r->size]}, 1)))
        return false;
    for (int i = 0; i < r->size; i++) {
        m->counts[i] = (int)owned(cuts, i);
        m->firsts[i] = (int)cuts[i];
    }
    MPI_Request request;
    MPI_Iallgatherv(MPI_IN_PLACE, 0, type, data, m->counts, m->firsts, type, MPI_COMM_WORLD, &request);
    return wait_for(m, 1, &request);
}

static bool sum_end(ranks *r)
{
    mpi_ranks *m = mpi_of(r);
    bool good = true;
    for (int i = 0; i < m->used && good; i++) {
        sum *s = &m->sums[i];
        good = wait_for(m, s->count, s->requests);
        if (good)
            add_parts(m, s);
        good = good && (!s->everywhere || gather(r, s->data, sizeof(float), s->cuts));
    }
    m->used = 0;
    return good;
}

/* ----------------------------------------------------------------------------------------------------------- the others */

static bool exchange_begin(ranks *r, const void *send, int to, void *receive, int from, size_t bytes)
{
    mpi_ranks *m = mpi_of(r);
    if (bytes / sizeof(float) > INT32_MAX)
        return train_fail("a message of %zu bytes: MPI moves at most 2^31 numbers at once", bytes);
    const int count = (int)(bytes / sizeof(float));
    MPI_Irecv(receive, count, MPI_FLOAT, from, TAG_EXCHANGE, MPI_COMM_WORLD, &m->exchange[0]);
    MPI_Isend(send, count, MPI_FLOAT, to, TAG_EXCHANGE, MPI_COMM_WORLD, &m->exchange[1]);
    return true;
}

static bool exchange_end(ranks *r)
{
    return wait_for(mpi_of(r), 2, mpi_of(r)->exchange);
}

static bool gather_host(ranks *r, void *all, size_t bytes)
{
    MPI_Request request;
    MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, all, (int)bytes, MPI_BYTE, MPI_COMM_WORLD, &request);
    return wait_for(mpi_of(r), 1, &request);
}

/* MPI_Finalize waits for all ranks, however long. */
static bool all_are_done(mpi_ranks *m)
{
    MPI_Request request;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    return wait_for(m, 1, &request);
}

/* A rank that has failed must not wait for the others, which may be waiting for it. */
static void close_ranks(ranks *r, int code)
{
    mpi_ranks *m = mpi_of(r);
    if (!code && !all_are_done(m)) {
        if (m->lost)
            m->lost(train_error());
        code = 1;
    }
    if (code) {
        fflush(NULL);
        MPI_Abort(MPI_COMM_WORLD, code);
    }
    MPI_Finalize();
    for (int i = 0; i < m->room; i++) {
        free(m->sums[i].cuts);
        free(m->sums[i].requests);
        free(m->sums[i].received);
    }
    free(m->sums);
    free(m->parts);
    free(m->counts);
    free(m->firsts);
    free(m->called);
    free(m);
}

static bool start(const ranks_place *place, mpi_ranks *m)
{
    int given;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &given) != MPI_SUCCESS)
        return train_fail_as(TRAIN_ERROR_WORK, "MPI does not start");
    MPI_Comm_rank(MPI_COMM_WORLD, &m->base.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &m->base.size);
    if (m->base.rank == place->rank && m->base.size == place->size)
        return true;
    return train_fail(
        "the environment's %s says rank %d of %d, but for MPI this is rank %d of %d: ranks on CPUs are started by "
        "mpirun, or srun with --mpi",
        place->said_by, place->rank, place->size, m->base.rank, m->base.size);
}

ranks *ranks_open_mpi(const ranks_place *place, device *d)
{
    static const ranks_table table = {.sum_begin = sum_begin,
                                      .sum_end = sum_end,
                                      .gather = gather,
                                      .exchange_begin = exchange_begin,
                                      .exchange_end = exchange_end,
                                      .gather_host = gather_host,
                                      .close = close_ranks};
    const size_t size = (size_t)place->size;
    mpi_ranks *m = calloc(1, sizeof *m);
    if (!m) {
        no_memory();
        return NULL;
    }
    m->base = (ranks){.run = &table, .device = d, .patience = place->patience};
    m->lost = place->lost;
    m->called = calloc(size, sizeof *m->called);
    m->parts = calloc(size, sizeof *m->parts);
    m->counts = calloc(size, sizeof *m->counts);
    m->firsts = calloc(size, sizeof *m->firsts);
    m->exchange[0] = m->exchange[1] = MPI_REQUEST_NULL;
    if ((m->parts && m->counts && m->firsts && m->called) ? start(place, m) : no_memory())
        return &m->base;
    free(m->parts);
    free(m->counts);
    free(m->firsts);
    free(m->called);
    free(m);
    return NULL;
}
