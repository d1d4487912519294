/* SwiGLU on the CPU: see layers/swiglu.c. */
#ifndef TRAIN_CPU_SWIGLU_H
#define TRAIN_CPU_SWIGLU_H

#include "train/cpu/chunks.h"
#include "train/cpu/fastmath.h"
#include "train/cpu/numbers.h"
#include "train/device.h"

/* Numbers that a loop takes at once: as many of the next row's are asked for meanwhile as a core can wait for. */
enum { STEP = 128 };

static int64_t step_at(int64_t i, int64_t ffn)
{
    return ffn - i < STEP ? ffn - i : STEP;
}

/* Of a gate and its up. */
__attribute__((always_inline)) static inline void prefetch_halves(const void *x, number_type type, int64_t at, int64_t ffn,
                                                                  int64_t count)
{
    prefetch_numbers(x, type, at, count);
    prefetch_numbers(x, type, at + ffn, count);
}

static void swiglu_forward_piece(float *restrict out, const float *restrict gate, const float *restrict up, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

static bool swiglu_forward(device *d, const swiglu_call *c)
{
    const int64_t rows = c->rows, ffn = c->ffn;
    (void)d;
#pragma omp parallel for schedule(static) if (rows * ffn > PARALLEL_WORK)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < ffn; i += STEP) {
            const int64_t count = step_at(i, ffn), to = r * ffn + i, from = r * 2 * ffn + i;
            float gate[STEP], up[STEP], out[STEP];
            if (r + 1 < rows) {
                prefetch_halves(c->x, c->type, from + 2 * ffn, ffn, count);
                prefetch_numbers(c->out, c->type, to + ffn, count);
            }
            swiglu_forward_piece(room_for_numbers(c->out, c->type, to, out), read_numbers(c->x, c->type, from, count, gate),
                                 read_numbers(c->x, c->type, from + ffn, count, up), count);
            write_numbers(c->out, c->type, to, count, out);
        }
    return true;
}

/* out: what forward made */
static void swiglu_backward_piece(float *restrict dgate, float *restrict dup, float *restrict out, const float *restrict dout,
                                  const float *restrict gate, const float *restrict up, int64_t ffn)
{
    for (int64_t c = 0; c < ffn; c++) {
        float s = sigmoid(gate[c]), silu = gate[c] * s;
        dgate[c] = dout[c] * up[c] * (s + silu * (1.0f - s));
        dup[c] = dout[c] * silu;
        out[c] = silu * up[c];
    }
}

static bool swiglu_backward(device *d, const swiglu_call *c)
{
    const int64_t rows = c->rows, ffn = c->ffn;
    (void)d;
#pragma omp parallel for schedule(static) if (rows * ffn > PARALLEL_WORK)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < ffn; i += STEP) {
            const int64_t count = step_at(i, ffn), at = r * 2 * ffn + i;
            float gate[STEP], up[STEP], dout[STEP], dgate[STEP], dup[STEP], out[STEP];
            if (r + 1 < rows) {
                prefetch_halves(c->x, c->type, at + 2 * ffn, ffn, count);
                prefetch_halves(c->dx, c->type, at + 2 * ffn, ffn, count);
                prefetch_numbers(c->dout, c->type, (r + 1) * ffn + i, count);
            }
            swiglu_backward_piece(room_for_numbers(c->dx, c->type, at, dgate), room_for_numbers(c->dx, c->type, at + ffn, dup),
                                  out, read_numbers(c->dout, c->type, r * ffn + i, count, dout),
                                  read_numbers(c->x, c->type, at, count, gate),
                                  read_numbers(c->x, c->type, at + ffn, count, up), count);
            write_numbers(c->dx, c->type, at, count, dgate);
            write_numbers(c->dx, c->type, at + ffn, count, dup);
            if (c->out)
                put_numbers(c->out, c->type, r * ffn + i, count, out);
        }
    return true;
}

#endif
