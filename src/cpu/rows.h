/* The registry rows of one instruction set and type. */
#ifndef FATTN_CPU_ROWS_H
#define FATTN_CPU_ROWS_H

static const char *refuse(const fattn_problem *problem)
{
    return problem->desc.dtype == VEC_DTYPE ? NULL : "takes " VEC_TYPE " only";
}

#define FORWARD_ROW                                                                                                            \
    {                                                                                                                          \
        .name = VEC_FAMILY "_forward_" VEC_TYPE, .op = FATTN_OP_FORWARD, .needs = VEC_NEEDS, .refuse = refuse,                 \
        .workspace = forward_workspace, .run = forward_run                                                                     \
    }
#define BACKWARD_ROW                                                                                                           \
    {                                                                                                                          \
        .name = VEC_FAMILY "_backward_" VEC_TYPE, .op = FATTN_OP_BACKWARD, .needs = VEC_NEEDS, .refuse = refuse,               \
        .workspace = backward_workspace, .run = backward_run                                                                   \
    }

#endif
