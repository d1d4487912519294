/* SwiGLU on the CPU: see layers/swiglu.c. */
#include "train/cpu/chunks.h"
#include "train/cpu/cpu.h"
#include "train/cpu/fastmath.h"

bool cpu_swiglu_forward(device *d, const swiglu_call *c)
{
    const float *x = c->x;
    float *out = c->out;
    int64_t rows = c->rows, ffn = c->ffn;
    (void)d;
#pragma omp parallel for schedule(static) if (rows * ffn > PARALLEL_WORK)
    for (int64_t r = 0; r < rows; r++) {
        const float *restrict gate = x + r * 2 * ffn, *restrict up = gate + ffn;
        float *restrict y = out + r * ffn;
        for (int64_t i = 0; i < ffn; i++)
            y[i] = gate[i] * sigmoid(gate[i]) * up[i];
    }
    return true;
}

static void backward_row(float *restrict dgate, float *restrict dup, const float *restrict dout, const float *restrict gate,
                         const float *restrict up, int64_t ffn)
{
    for (int64_t c = 0; c < ffn; c++) {
        float s = sigmoid(gate[c]), silu = gate[c] * s;
        dgate[c] = dout[c] * up[c] * (s + silu * (1.0f - s));
        dup[c] = dout[c] * silu;
    }
}

bool cpu_swiglu_backward(device *d, const swiglu_call *c)
{
    const float *x = c->x, *dout = c->dout;
    float *dx = c->dx;
    int64_t rows = c->rows, ffn = c->ffn;
    (void)d;
#pragma omp parallel for schedule(static) if (rows * ffn > PARALLEL_WORK)
    for (int64_t r = 0; r < rows; r++)
        backward_row(dx + r * 2 * ffn, dx + r * 2 * ffn + ffn, dout + r * ffn, x + r * 2 * ffn, x + r * 2 * ffn + ffn, ffn);
    return true;
}
