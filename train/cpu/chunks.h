/*
 * Sums over rows that do not depend on the number of threads: the rows are cut into a fixed number of chunks, each chunk
 * is summed by one thread in order, and the chunks' sums are added in order.
 */
#ifndef TRAIN_CHUNKS_H
#define TRAIN_CHUNKS_H

#include <stdint.h>

enum { ROW_CHUNKS = 32 };

/* The first row of a chunk; of chunk ROW_CHUNKS: rows. */
static inline int64_t chunk_begin(int64_t rows, int64_t chunk)
{
    return rows * chunk / ROW_CHUNKS;
}

/* total[c] += sum over chunks of partial[chunk][c] */
static inline void add_chunks(float *total, const float *partial, int64_t cols)
{
    for (int64_t chunk = 0; chunk < ROW_CHUNKS; chunk++)
        for (int64_t c = 0; c < cols; c++)
            total[c] += partial[chunk * cols + c];
}

/* Loops over less work than this stay on one thread: waking the others costs some microseconds. */
enum { PARALLEL_WORK = 16384 };

#endif
