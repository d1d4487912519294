/* Matrix products by oneDNN: dnnl_sgemm, and for bf16 see product_bf16.c. */
#include <assert.h>
#include <dnnl.h>

#include "train/cpu/cpu.h"

static bool product_f32(const product_call *c)
{
    dnnl_status_t status = dnnl_sgemm(c->transpose_a ? 'T' : 'N', c->transpose_b ? 'T' : 'N', c->m, c->n, c->k, 1.0f, c->a,
                                      c->lda, c->b, c->ldb, c->beta, c->c, c->ldc);
    /* It refuses only sizes and letters that make no sense, which the tape's shapes rule out. */
    assert(status == dnnl_success);
    (void)status;
    return true;
}

bool cpu_product(device *d, const product_call *c)
{
    if (c->m == 0 || c->n == 0)
        return true;
    if (c->from && c->from != c->c) {
        const copy_call first = {.rows = c->m,
                                 .cols = c->n,
                                 .to_stride = c->ldc,
                                 .from_stride = c->ldc,
                                 .to_type = c->c_type,
                                 .from_type = c->c_type,
                                 .to = c->c,
                                 .from = c->from};
        d->run->copy(d, &first);
    }
    return c->type == NUMBER_F32 ? product_f32(c) : cpu_product_bf16(d, c);
}
