/*
 * From a forward call to the backward call behind it.
 */
#ifndef HARNESS_CALL_H
#define HARNESS_CALL_H

#include "fattn/fattn.h"

/* What both calls take, of a forward call. dout, dlse and where the gradients go are still to be set, and the workspace,
 * which differs in size. */
static inline fattn_backward_args call_backward_of(const fattn_forward_args *f)
{
    return (fattn_backward_args){.struct_size = sizeof(fattn_backward_args),
                                 .reserved = f->reserved,
                                 .q = f->q,
                                 .k = f->k,
                                 .v = f->v,
                                 .out = f->out,
                                 .lse = f->lse,
                                 .workspace = f->workspace,
                                 .workspace_size = f->workspace_size,
                                 .kernel = f->kernel,
                                 .cu_seqlens_q = f->cu_seqlens_q,
                                 .cu_seqlens_k = f->cu_seqlens_k,
                                 .used_q = f->used_q,
                                 .used_k = f->used_k,
                                 .mask_lo = f->mask_lo,
                                 .mask_hi = f->mask_hi,
                                 .bias = f->bias,
                                 .slopes = f->slopes,
                                 .sinks = f->sinks,
                                 .stream = f->stream,
                                 .mask_stride = f->mask_stride,
                                 .document_q = f->document_q,
                                 .document_k = f->document_k};
}

#endif
