/*
 * Ranks: the processes of one training run, each with a device of its own, and what they tell each other. Engines differ in
 * this table: one process alone, MPI for CPUs, NCCL for GPUs.
 *
 * `data` lies in the memory of the rank's device; calls on it are done in the order of the device's work and need not be
 * done when they return. Every rank makes the same calls in the same order. Calls that return false have set train_error();
 * the other ranks then wait for this one in vain, so it must end: ranks_close with a code that is not 0 ends the others too.
 *
 * A rank that has waited longer than its patience for others fails, and says which of them are missing.
 *
 * Ownership: `cuts` [size + 1] divides data, rank r owning elements cuts[r] .. cuts[r + 1] - 1; elements outside belong to
 * nobody and are left alone.
 *
 * Sums are those of a fixed tree, pairs of neighbours first: 0+1, 2+3, ..., then (0+1) + (2+3), and so on; a rank without
 * partner waits for the next round. MPI has it for any number of ranks, NCCL for two, with more it adds in an order of its own.
 */
#ifndef TRAIN_RANKS_H
#define TRAIN_RANKS_H

#include <stdatomic.h>

#include "device.h"

typedef struct ranks ranks;

typedef struct ranks_table {
    /* Begins to sum data [cuts[size]] over the ranks: afterwards each rank has the sums that it owns or, with `everywhere`, all
     * of them; what else is in data is then undefined. Several may be under way; sum_end ends them all. */
    bool (*sum_begin)(ranks *r, float *data, const int64_t *cuts, bool everywhere);
    bool (*sum_end)(ranks *r);
    /* Gives every rank what each one owns; elements of `bytes`, 1, 2, 4 or 8. If one owns all, it is a broadcast. */
    bool (*gather)(ranks *r, void *data, size_t bytes, const int64_t *cuts);
    /* Sends to one rank and receives from another. `send` is read and `receive` written until exchange_end. */
    bool (*exchange_begin)(ranks *r, const void *send, int to, void *receive, int from, size_t bytes);
    bool (*exchange_end)(ranks *r);
    /* all [size][bytes] in the memory of the host: each rank has filled in its own part and gets the others'. Waits for all
     * ranks. */
    bool (*gather_host)(ranks *r, void *all, size_t bytes);
    void (*close)(ranks *r, int code);
} ranks_table;

/* Ranks stand in groups of `shards`, which share the rows of the same sequences: rank = group * shards + shard. */
struct ranks {
    const ranks_table *run;
    int rank, size;
    int groups, group, shards, shard;
    device *device;
    double patience;      /* seconds; 0: without end */
    atomic_llong step;    /* of the run, set by the loop; told when a rank is missing; 0: not begun */
    _Atomic double alive; /* when this rank last showed that it goes on: ranks_go_on() */
};

/* What the environment says: which of how many processes this is, and of those on this machine. */
typedef struct ranks_place {
    int rank, size, local;
    const char *said_by; /* the variable that has the rank; NULL: none, and this is the only process */
    const char *address; /* where rank 0 is met: MASTER_ADDR, MASTER_PORT */
    int port;
    /* Set by the caller. */
    int shards;                    /* ranks that share each sequence; 0: 1 */
    double patience;               /* seconds that a rank may be waited for; 0: any number */
    void (*lost)(const char *why); /* perhaps from another thread, when another rank ended too early or is missing, and no call
                                      is there to fail; must not return */
} ranks_place;

/* Reads RANK, WORLD_SIZE and LOCAL_RANK (torchrun), OMPI_COMM_WORLD_..., PMI_RANK and PMI_SIZE with MPI_LOCALRANKID, or
 * SLURM_PROCID, SLURM_STEP_NUM_TASKS and SLURM_LOCALID; the first of these that are there count. False, with train_error() set,
 * for what makes no sense. */
bool ranks_look(ranks_place *place);

/* NULL, with train_error() set: built without the engine that the device needs, or it does not come about. */
ranks *ranks_open(const ranks_place *place, device *d);
/* code: what the process will exit with; not 0 ends the other ranks, and perhaps this one at once. Does nothing to NULL. */
void ranks_close(ranks *r, int code);
/* This rank computes, and waits for nobody: from time to time, where no call of the table tells. */
void ranks_go_on(ranks *r);

/* cuts of `count` elements into equal parts that are multiples of `unit`, as far as they go. */
void ranks_cut(const ranks *r, int64_t count, int64_t unit, int64_t *cuts);
/* Are these bytes the same on all ranks? Sets *same. At most 64 bytes. */
bool ranks_agree(ranks *r, const void *bytes, size_t count, bool *same);

/* ---- for the engines */

ranks *ranks_open_mpi(const ranks_place *place, device *d);
ranks *ranks_open_nccl(const ranks_place *place, device *d);

#endif
