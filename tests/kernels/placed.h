/*
 * Scenes in memory as a caller of the library has them, in one type and one layout, and every kernel run on them and compared
 * with the truth. All memory that no element of a sequence occupies is poison: NaN in inputs, and in outputs it must stay.
 */
#ifndef FATTN_TESTS_KERNELS_PLACED_H
#define FATTN_TESTS_KERNELS_PLACED_H

#include "truth.h"

typedef enum layout {
    LAYOUT_BHSD,
    LAYOUT_BSHD,     /* heads interleaved */
    LAYOUT_ODD,      /* rows one element longer than they need be, all of it one element off its alignment */
    LAYOUT_REVERSED, /* inputs run backwards in memory, outputs are [heads, seq, batch, dim] */
    LAYOUT_QKV,      /* q, k, v are parts of one [batch, seq, heads_q + 2 heads_kv, dim] tensor; dq, dk, dv of another */
    LAYOUT_SPARSE,   /* strides of 2^30 elements and more, in memory of which only pages in use exist */
    LAYOUTS
} layout;

typedef struct form {
    layout layout;
    bool packed;       /* one sequence behind the other */
    int gap;           /* packed: rows behind each sequence that belong to it but are not used */
    bool infinite;     /* unused slots of inputs hold infinities, not NaN */
    bool wide;         /* 16-bit inputs, results of float */
    int64_t page_size; /* forward: k and v are paged, in a shuffled order */
    bool forward_only, backward_only;
    bool quick;        /* leave out the kernels that are slow */
    bool blank;        /* compute no truth */
    double most_bound; /* if not 0, no bound but lse's is larger: where scores are so large that bounds say nothing */
    uint32_t types;    /* bits 1 << fattn_dtype; 0: all */
    int sparse;        /* which of batch, heads, rows (0, 1, 2) has the huge stride */
    int threads;       /* 0: 2 */
    const char *what;  /* for messages */
} form;

typedef struct tensor {
    unsigned char *memory; /* with room around it */
    size_t bytes;
    size_t mapped; /* bytes of sparse memory, which nothing looks through; else 0 */
    int32_t dtype;
    fattn_view view;
} tensor;

enum {
    SLOT_Q,
    SLOT_K,
    SLOT_V,
    SLOT_DOUT,
    SLOT_OUT,
    SLOT_LSE,
    SLOT_DLSE,
    SLOT_BIAS,
    SLOT_DQ,
    SLOT_DK,
    SLOT_DV,
    SLOT_DBIAS,
    SLOTS
};

typedef struct placed {
    const scene *s;
    form f;
    fattn_desc desc;
    tensor t[SLOTS];
    float *dsinks;
    int64_t *first_q, *first_k;
    int32_t *cu_q, *cu_k, *used_q, *used_k, *lo, *hi, *document_q, *document_k, *pages;
    fattn_view bias, dbias;
} placed;

/* backward's out and lse are the truth's, rounded. */
placed placed_make(const scene *s, const truth *t, const form *f, int32_t dtype);
void placed_free(placed *p);

/* The calls' arguments, without workspace; outputs poisoned. */
fattn_forward_args placed_forward_args(placed *p);
fattn_backward_args placed_backward_args(placed *p);
void placed_forward(placed *p, const fattn_context *context);
void placed_backward(placed *p, const fattn_context *context);

/* Element `x` of a row of a slot. */
void *placed_at(const placed *p, int slot, int64_t b, int64_t h, int64_t i, int64_t *index);

/* Compares all results of the operation, and checks that nothing else was written. label: kernel and so on. */
void placed_compare(placed *p, fattn_op op, const truth *t, const char *label);

/* Copies of the outputs' whole memory, to compare runs bit by bit. */
typedef struct snapshot {
    unsigned char *bytes;
    size_t size;
} snapshot;
snapshot snapshot_of(const placed *p, fattn_op op);
bool snapshot_same(const snapshot *a, const snapshot *b);

/* -------------------------------------------------------------------------------------------------------------- kernels */

enum { NAMES_MOST = 64 };

/* The kernels that can run this operation of a problem, whether they should or not. */
int kernels_of(const fattn_desc *desc, fattn_op op, const char *name[NAMES_MOST]);
bool kernel_is_slow(const char *name);                            /* reference, baseline, or plain C */
const fattn_context *context_of(const char *kernel, int threads); /* kept until contexts_free() */
int contexts_free(void **state);

/* Calls body for every type that holds the scene's numbers, operation and kernel. */
typedef void scene_body(placed *p, fattn_op op, const truth *t, const char *kernel, const char *label, void *arg);
void for_each_kernel(const scene *s, const form *f, scene_body *body, void *arg);

/* Every kernel in every type that holds the scene's numbers, forward and backward, against the truth. */
void check_scene(const scene *s, const form *f);
/* The same against given values, with the truth's bounds; a NULL value is not compared. */
void check_scene_against(const scene *s, const form *f, double *const value[RESULTS]);

extern const int32_t all_types[4];

/* What a type's backward is given and must reach. */
truth truth_for(const scene *s, const form *f, int32_t dtype);

#endif
