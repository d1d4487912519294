/*
 * A device: where the trainer's numbers lie and what works on them. There is one trainer; the CPU and a GPU differ in this
 * table, in what memory is and in how each operation is done.
 *
 * Work of a device is done in order. Calls may return before it is done; get and wait do not. Calls that return false, or NULL,
 * have set train_error().
 */
#ifndef TRAIN_DEVICE_H
#define TRAIN_DEVICE_H

#include <fattn/fattn.h>

#include "operations.h"

typedef struct device device;

/* Points in a device's work that the host waits for. */
typedef enum device_mark { MARK_LOSS, MARK_NORM, DEVICE_MARKS } device_mark;

typedef struct device_table {
    /* Memory, aligned to 64 bytes. Releasing NULL does nothing. */
    void *(*allocate)(device *d, size_t bytes);
    void (*release)(device *d, void *memory);
    /* A few bytes that the host reads and the device writes. */
    void *(*allocate_shared)(device *d, size_t bytes);
    void (*release_shared)(device *d, void *memory);
    /* Copies from the host, whose bytes may be changed at once, and back, once all work is done; sets every byte. */
    bool (*put)(device *d, void *to, const void *host, size_t bytes);
    bool (*get)(device *d, void *host, const void *from, size_t bytes);
    bool (*fill)(device *d, void *to, unsigned char byte, size_t bytes);
    /* Notes the work so far, and waits until what was noted last is done. */
    bool (*mark)(device *d, device_mark mark);
    bool (*wait)(device *d, device_mark mark);
    void (*close)(device *d);
    /* Operations between note_begin and note_end are not done, but noted with all their fields; replay does them as a whole, in
     * less time than one by one. NULL where a device gains nothing by that. good: false, where one of them failed; then what
     * was noted is dropped, note_end gives NULL and train_error() stays. */
    bool (*note_begin)(device *d);
    void *(*note_end)(device *d, bool good);
    bool (*replay)(device *d, void *noted);
    void (*forget)(device *d, void *noted);

    bool (*product)(device *d, const product_call *c);
    bool (*copy)(device *d, const copy_call *c);
    bool (*embedding_forward)(device *d, const embedding_call *c);
    bool (*embedding_backward)(device *d, const embedding_call *c);
    bool (*rmsnorm_forward)(device *d, const rmsnorm_call *c);
    bool (*rmsnorm_backward)(device *d, const rmsnorm_call *c);
    bool (*qknorm_rope_forward)(device *d, const qknorm_rope_call *c);
    bool (*qknorm_rope_backward)(device *d, const qknorm_rope_call *c);
    bool (*dropout)(device *d, const dropout_call *c);
    bool (*swiglu_forward)(device *d, const swiglu_call *c);
    bool (*swiglu_backward)(device *d, const swiglu_call *c);
    bool (*cross_entropy)(device *d, const cross_entropy_call *c);
    bool (*loss_sum)(device *d, const loss_sum_call *c);
    bool (*merge)(device *d, const merge_call *c);
    bool (*grad_squares)(device *d, const update_call *c);
    bool (*grad_norm)(device *d, const update_call *c);
    bool (*update)(device *d, const update_call *c);
} device_table;

struct device {
    const device_table *run;
    fattn_device kind; /* for contexts of the attention library */
    void *stream;      /* for its calls */
    int chunks;        /* parts that sums over rows are cut into */
    size_t own_bytes;  /* memory that the device itself needs, for products */
    const char *name;  /* "NVIDIA H200"; NULL for the CPU */
};

/* The processor; always there, never closed. */
device *device_cpu(void);
/* A GPU, with a stream of its own; it belongs to the thread that opened it. NULL, with train_error() set, where that cannot be.
 */
device *device_open_cuda(int32_t index);
/* Does nothing to the CPU and to NULL. */
void device_close(device *d);

/* `bytes` of the device's memory as the host reads them: in place where the device's memory is the host's, else a copy. */
const void *device_look(device *d, const void *from, size_t bytes);
void device_look_end(device *d, const void *seen);

#endif
