/* The registry rows of one instruction set: each operation, for each type of tensors that this file's numbers stand for. */
#ifndef FATTN_CPU_ROWS_H
#define FATTN_CPU_ROWS_H

/* The tensors' type that a row takes. */
#define REFUSE(type, number)                                                                                                   \
    static inline const char *refuse_forward_##type(const fattn_problem *problem)                                              \
    {                                                                                                                          \
        return problem->desc.dtype == (number) ? NULL : "takes " #type " only";                                                \
    }                                                                                                                          \
    static inline const char *refuse_backward_##type(const fattn_problem *problem)                                             \
    {                                                                                                                          \
        return refuse_forward_##type(problem);                                                                                 \
    }                                                                                                                          \
    static inline const char *refuse_decode_##type(const fattn_problem *problem)                                               \
    {                                                                                                                          \
        const char *reason = refuse_forward_##type(problem);                                                                   \
        return reason ? reason : decode_refuse(problem);                                                                       \
    }
REFUSE(f32, FATTN_F32)
REFUSE(f64, FATTN_F64)
REFUSE(f16, FATTN_F16)
REFUSE(bf16, FATTN_BF16)

#define KERNEL_ROW(type, word, number, also, should_not)                                                                       \
    {                                                                                                                          \
        .name = VEC_FAMILY "_" #word "_" #type, .family = VEC_FAMILY, .op = number, .needs = VEC_NEEDS | (also),               \
        .refuse = refuse_##word##_##type, .unworthy = should_not, .workspace = word##_workspace, .run = word##_run             \
    }
/* Decode first: it says itself when it should not. */
#define TYPE_ROWS(type, also)                                                                                                  \
    KERNEL_ROW(type, decode, FATTN_OP_FORWARD, also, decode_unworthy),                                                         \
        KERNEL_ROW(type, forward, FATTN_OP_FORWARD, also, NULL), KERNEL_ROW(type, backward, FATTN_OP_BACKWARD, also, NULL)

#define ROWS_F32 TYPE_ROWS(f32, 0), TYPE_ROWS(f16, VEC_NEEDS_F16), TYPE_ROWS(bf16, 0)
#define ROWS_F64 TYPE_ROWS(f64, 0)

#endif
