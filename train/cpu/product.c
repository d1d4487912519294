/* Matrix products by oneDNN's dnnl_sgemm. */
#include <assert.h>
#include <dnnl.h>

#include "train/cpu/cpu.h"

bool cpu_product(device *d, const product_call *c)
{
    if (c->m == 0 || c->n == 0)
        return true;
    if (c->from && c->from != c->c) {
        copy_call first = {.rows = c->m, .cols = c->n, .to_stride = c->ldc, .from_stride = c->ldc, .to = c->c, .from = c->from};
        cpu_copy(d, &first);
    }
    dnnl_status_t status = dnnl_sgemm(c->transpose_a ? 'T' : 'N', c->transpose_b ? 'T' : 'N', c->m, c->n, c->k, 1.0f, c->a,
                                      c->lda, c->b, c->ldb, c->beta, c->c, c->ldc);
    /* It refuses only sizes and letters that make no sense, which the tape's shapes rule out. */
    assert(status == dnnl_success);
    (void)status;
    return true;
}
