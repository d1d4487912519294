/*
 * The tape: see tape.h.
 *
 * The plan is a list of calls, forward of all nodes and then backward in reverse; the index of a call is the time in the
 * arena's plan. Forward of late nodes is a part of its own, which may be left out. With recomputing, the forward calls of a
 * segment stand once more before its backward calls:
 *
 *     without   F0 F1 F2 F3 | B3 B2 B1 B0
 *     with      F0 F1 F2 F3 | F2 F3 B3 B2  F0 F1 B1 B0         segments {0, 1} and {2, 3}
 *
 * A tensor that is written and read within one segment then lives twice: for the first forward calls, and again from its
 * second writing to its last reading.
 */
#include "tape.h"
#include "error.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef struct call {
    node *n;
    bool backward;
    int life; /* which life of the segment's inner tensors it belongs to */
    int workspace_buffer;
    void *workspace;
} call;

/* Calls that a device notes down and repeats as a whole: forward, and backward up to where somebody wants to know. */
typedef struct part {
    int first, end;
    int tells;   /* what somebody is told at the end of this part; -1: nothing */
    bool ran;    /* since tape_changed */
    void *noted; /* the device's; NULL: nothing yet */
} part;

enum { PART_FORWARD, PART_LATE, FORWARD_PARTS };

struct tape {
    device *device;
    number_type type;
    node **nodes;
    int node_count, node_capacity;
    tensor **tensors;
    int tensor_count, tensor_capacity;
    call *calls;
    int call_count, first_late, first_backward;
    memory_plan memory;
    int segments; /* begun so far */
    int segment;  /* being recorded; -1: none */
    bool failed;
    part *parts; /* those of forward first: FORWARD_PARTS */
    int part_count;
    tape_options options;
    node scrap_node;
    tensor scrap_tensor;
    unsigned char scrap_state[NODE_STATE];
};

tape *tape_create(device *d, number_type type)
{
    tape *t = train_calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->segment = -1;
    t->device = t->scrap_node.device = d;
    t->type = type;
    return t;
}

void tape_free(tape *t)
{
    if (!t)
        return;
    for (int i = 0; i < t->node_count; i++) {
        free(t->nodes[i]->state);
        free(t->nodes[i]);
    }
    for (int i = 0; i < t->tensor_count; i++)
        free(t->tensors[i]);
    for (int way = 0; way < TAPE_DIRECTIONS; way++)
        tape_changed(t, (tape_direction)way);
    free(t->nodes);
    free(t->tensors);
    free(t->calls);
    free(t->parts);
    memory_free(&t->memory);
    free(t);
}

/* ------------------------------------------------------------------------------------------------------------- record */

void tape_fail(tape *t)
{
    t->failed = true;
}

static void out_of_memory(tape *t)
{
    train_fail_as(TRAIN_ERROR_WORK, "no memory for the tape");
    tape_fail(t);
}

/* Room for one more pointer in a list. */
static bool grow(void ***list, int count, int *capacity)
{
    if (count < *capacity)
        return true;
    int larger = *capacity ? 2 * *capacity : 64;
    void **grown = realloc(*list, (size_t)larger * sizeof *grown);
    if (!grown)
        return false;
    *list = grown;
    *capacity = larger;
    return true;
}

static tensor *new_tensor(tape *t)
{
    tensor *x = calloc(1, sizeof *x);
    if (!x || !grow((void ***)&t->tensors, t->tensor_count, &t->tensor_capacity)) {
        free(x);
        out_of_memory(t);
        return &t->scrap_tensor;
    }
    return t->tensors[t->tensor_count++] = x;
}

tensor *tape_tensor(tape *t, int64_t rows, int64_t cols, number_type type)
{
    tensor *x = new_tensor(t);
    x->type = x->grad_type = type;
    x->rows = rows;
    x->cols = x->stride = cols;
    x->whole = x;
    return x;
}

tensor *tape_columns(tape *t, tensor *whole, int64_t first, int64_t cols)
{
    assert(t->failed || (first >= 0 && cols > 0 && first + cols <= whole->cols && whole->whole == whole));
    tensor *x = new_tensor(t);
    x->rows = whole->rows;
    x->cols = cols;
    x->type = whole->type;
    x->grad_type = whole->grad_type;
    x->stride = whole->stride;
    x->whole = whole;
    x->first = first;
    return x;
}

node *tape_node(tape *t, const char *name, size_t state_bytes)
{
    assert(state_bytes <= NODE_STATE);
    node *n = calloc(1, sizeof *n);
    void *state = calloc(1, state_bytes ? state_bytes : 1);
    if (!n || !state || !grow((void ***)&t->nodes, t->node_count, &t->node_capacity)) {
        free(n);
        free(state);
        out_of_memory(t);
        t->scrap_node.state = t->scrap_state;
        return &t->scrap_node;
    }
    n->name = name;
    n->device = t->device;
    n->type = t->type;
    n->state = state;
    n->passes_gradient = -1;
    n->segment = t->segment;
    n->tells = -1;
    return t->nodes[t->node_count++] = n;
}

void tape_keep(tape *t, tensor *x)
{
    (void)t;
    x->whole->kept = true;
}

void tape_begin_segment(tape *t)
{
    assert(t->segment == -1);
    t->segment = t->segments++;
}

void tape_end_segment(tape *t)
{
    t->segment = -1;
}

void tape_tell(tape *t, int what)
{
    if (t->node_count)
        t->nodes[t->node_count - 1]->tells = what;
}

/* --------------------------------------------------------------------------------------------------- plan: what to run */

/* Who writes and who reads each tensor. */
static void find_uses(tape *t)
{
    for (int i = 0; i < t->node_count; i++)
        if (t->nodes[i]->out)
            t->nodes[i]->out->whole->writer = t->nodes[i];
    for (int i = 0; i < t->node_count; i++)
        for (int j = 0; j < NODE_INPUTS; j++) {
            tensor *x = t->nodes[i]->in[j];
            if (!x)
                continue;
            x->whole->read = true;
            if (!x->whole->writer || x->whole->writer->segment != t->nodes[i]->segment)
                x->whole->leaves_segment = true;
        }
}

/* Is this tensor dropped after forward and made again? */
static bool remade(const tape *t, const tensor *x)
{
    const tensor *w = x->whole;
    return t->options.recompute && w->writer && w->writer->segment >= 0 && w->read && !w->leaves_segment && !w->kept;
}

static bool saved_again(const tape *t, const node *n)
{
    return t->options.recompute && n->segment >= 0;
}

/* Does the second run need x: does a backward call of its segment read it, or a forward call that runs again? */
static bool needed_again(const tape *t, const tensor *x)
{
    for (int i = 0; i < t->node_count; i++) {
        const node *n = t->nodes[i];
        if (n->out && n->out->whole == x->whole && n->reads_out)
            return true;
        for (int j = 0; j < NODE_INPUTS; j++)
            if (n->in[j] && n->in[j]->whole == x->whole && (n->reads_in[j] || n->again))
                return true;
    }
    return false;
}

/* From the last node to the first, since a node is needed by later ones. */
static void find_again(tape *t)
{
    for (int i = t->node_count - 1; i >= 0; i--) {
        node *n = t->nodes[i];
        n->again = saved_again(t, n) && (n->saved_bytes || (n->out && remade(t, n->out) && needed_again(t, n->out)));
    }
}

static void add_call(tape *t, node *n, bool backward, int life)
{
    t->calls[t->call_count++] = (call){.n = n, .backward = backward, .life = life, .workspace_buffer = -1};
}

static bool list_calls(tape *t, bool backward)
{
    t->calls = calloc(3 * (size_t)t->node_count + 1, sizeof *t->calls);
    if (!t->calls)
        return train_fail_as(TRAIN_ERROR_WORK, "no memory for the tape");
    for (int i = 0; i < t->node_count; i++) {
        assert(i == 0 || t->nodes[i]->late >= t->nodes[i - 1]->late);
        t->first_late += !t->nodes[i]->late;
        add_call(t, t->nodes[i], false, 0);
    }
    t->first_backward = t->call_count;
    int redone = -1;
    for (int i = t->node_count - 1; i >= 0 && backward; i--) {
        int segment = t->nodes[i]->segment;
        if (t->options.recompute && segment >= 0 && segment != redone) {
            for (int j = 0; j <= i; j++)
                if (t->nodes[j]->segment == segment && t->nodes[j]->again)
                    add_call(t, t->nodes[j], false, 1);
            redone = segment;
        }
        add_call(t, t->nodes[i], true, 1);
    }
    return true;
}

static void end_part(tape *t, int end, int tells)
{
    const int first = t->part_count ? t->parts[t->part_count - 1].end : 0;
    t->parts[t->part_count++] = (part){.first = first, .end = end, .tells = tells};
}

static bool list_parts(tape *t)
{
    t->parts = calloc((size_t)t->node_count + FORWARD_PARTS + 1, sizeof *t->parts);
    if (!t->parts)
        return train_fail_as(TRAIN_ERROR_WORK, "no memory for the tape");
    end_part(t, t->first_late, -1);
    end_part(t, t->first_backward, -1);
    for (int i = t->first_backward; i < t->call_count; i++)
        if (t->calls[i].backward && t->calls[i].n->tells >= 0)
            end_part(t, i + 1, t->calls[i].n->tells);
    end_part(t, t->call_count, -1);
    return true;
}

/* ------------------------------------------------------------------------------------------------- plan: what memory */

static size_t tensor_bytes(const tensor *x, number_type type)
{
    return (size_t)(x->rows * x->cols) * number_bytes(type);
}

/* Values and what is saved need a buffer each. Gradients get theirs in the order of the backward calls: the first to write
 * a gradient writes it, the others add; a residual's gradient takes over the buffer of the sum's. */
static void add_value_buffers(tape *t)
{
    for (int i = 0; i < t->tensor_count; i++) {
        tensor *x = t->tensors[i];
        x->value_buffer = x->grad_buffer = -1;
        if (x->whole == x)
            x->value_buffer = memory_add(&t->memory, tensor_bytes(x, x->type), MEMORY_ACTIVATION);
    }
    for (int i = 0; i < t->node_count; i++) {
        node *n = t->nodes[i];
        n->saved_buffer = n->saved_bytes ? memory_add(&t->memory, n->saved_bytes, MEMORY_ACTIVATION) : -1;
    }
}

static void give_gradient(tape *t, tensor *x)
{
    if (x->whole->grad_buffer < 0)
        x->whole->grad_buffer = memory_add(&t->memory, tensor_bytes(x->whole, x->whole->grad_type), MEMORY_GRADIENT);
}

static void add_gradient_buffers(tape *t)
{
    for (int i = t->first_backward; i < t->call_count; i++) {
        node *n = t->calls[i].n;
        if (!t->calls[i].backward)
            continue;
        if (n->out)
            give_gradient(t, n->out);
        for (int j = 0; j < NODE_INPUTS; j++) {
            tensor *x = n->in[j];
            if (!x)
                continue;
            if (n->passes_gradient == j && x->whole == x && x->grad_buffer < 0)
                x->grad_buffer = n->out->whole->grad_buffer;
            give_gradient(t, x);
            n->accumulate[j] = x->grad_begun;
            x->grad_begun = true;
        }
    }
}

static void add_workspaces(tape *t)
{
    for (int i = 0; i < t->call_count; i++) {
        call *c = &t->calls[i];
        size_t bytes = c->backward ? c->n->backward_workspace : c->n->forward_workspace;
        if (bytes)
            c->workspace_buffer = memory_add(&t->memory, bytes, MEMORY_WORKSPACE);
    }
}

static void touch_value(tape *t, const tensor *x, int life, int time)
{
    memory_touch(&t->memory, x->whole->value_buffer, remade(t, x) ? life : 0, time);
}

static void touch_forward(tape *t, const call *c, int time)
{
    const node *n = c->n;
    for (int j = 0; j < NODE_INPUTS; j++)
        if (n->in[j])
            touch_value(t, n->in[j], c->life, time);
    if (n->out)
        touch_value(t, n->out, c->life, time);
    if (n->saved_bytes)
        memory_touch(&t->memory, n->saved_buffer, saved_again(t, n) ? c->life : 0, time);
}

static void touch_backward(tape *t, const call *c, int time)
{
    const node *n = c->n;
    for (int j = 0; j < NODE_INPUTS; j++) {
        if (n->in[j] && n->reads_in[j])
            touch_value(t, n->in[j], c->life, time);
        if (n->in[j])
            memory_touch(&t->memory, n->in[j]->whole->grad_buffer, 0, time);
    }
    if (n->out && n->reads_out)
        touch_value(t, n->out, c->life, time);
    if (n->out)
        memory_touch(&t->memory, n->out->whole->grad_buffer, 0, time);
    if (n->saved_bytes)
        memory_touch(&t->memory, n->saved_buffer, saved_again(t, n) ? c->life : 0, time);
}

/* What somebody outside writes before the first call or reads after the last. */
static void touch_outside(tape *t)
{
    for (int i = 0; i < t->tensor_count; i++) {
        tensor *x = t->tensors[i];
        bool outside = x->whole == x && (x->kept || !x->writer || !x->read);
        if (!outside)
            continue;
        for (int end = 0; end < 2; end++) {
            int time = end ? t->call_count - 1 : 0;
            memory_touch(&t->memory, x->value_buffer, 0, time);
            if (x->grad_buffer >= 0 && (!x->writer || !x->read))
                memory_touch(&t->memory, x->grad_buffer, 0, time);
        }
    }
}

static void find_lifetimes(tape *t)
{
    for (int time = 0; time < t->call_count; time++) {
        const call *c = &t->calls[time];
        if (c->backward)
            touch_backward(t, c, time);
        else
            touch_forward(t, c, time);
        if (c->workspace_buffer >= 0)
            memory_touch(&t->memory, c->workspace_buffer, 0, time);
    }
    touch_outside(t);
}

static void set_addresses(tape *t)
{
    for (int i = 0; i < t->tensor_count; i++) {
        tensor *x = t->tensors[i];
        char *value = memory_address(&t->memory, x->whole->value_buffer);
        char *grad = memory_address(&t->memory, x->whole->grad_buffer);
        x->data = value ? value + (size_t)x->first * number_bytes(x->type) : NULL;
        x->grad = grad ? grad + (size_t)x->first * number_bytes(x->grad_type) : NULL;
    }
    for (int i = 0; i < t->node_count; i++)
        t->nodes[i]->saved = memory_address(&t->memory, t->nodes[i]->saved_buffer);
    for (int i = 0; i < t->call_count; i++)
        t->calls[i].workspace = memory_address(&t->memory, t->calls[i].workspace_buffer);
}

bool tape_plan(tape *t, const tape_options *options)
{
    if (t->failed)
        return false;
    assert(!t->calls && t->segment == -1);
    t->options = *options;
    t->options.recompute = options->backward && options->recompute;
    find_uses(t);
    find_again(t);
    if (!list_calls(t, options->backward) || !list_parts(t))
        return false;
    add_value_buffers(t);
    add_gradient_buffers(t);
    add_workspaces(t);
    if (memory_failed(&t->memory))
        return train_fail_as(TRAIN_ERROR_WORK, "no memory for the plan of a step");
    find_lifetimes(t);
    if (!memory_place(&t->memory))
        return train_fail_as(TRAIN_ERROR_WORK, "no memory for the plan of a step");
    if (!memory_allocate(&t->memory, t->device))
        return false;
    set_addresses(t);
    return true;
}

/* --------------------------------------------------------------------------------------------------------------- replay */

static bool run(tape *t, const part *p)
{
    for (int i = p->first; i < p->end; i++) {
        const call *c = &t->calls[i];
        c->n->workspace = c->workspace;
        if (!(c->backward ? c->n->backward(c->n) : c->n->forward(c->n)))
            return false;
    }
    return true;
}

static bool note(tape *t, part *p)
{
    const device_table *d = t->device->run;
    if (!d->note_begin(t->device))
        return false;
    p->noted = d->note_end(t->device, run(t, p));
    return p->noted != NULL;
}

/* The first time the calls are done one by one: noting costs more than that, and what a library sets up when it is first used
 * may not be noted. */
static bool run_or_replay(tape *t, part *p)
{
    if (p->first == p->end)
        return true;
    if (!p->ran || t->options.one_by_one || !t->device->run->note_begin) {
        p->ran = true;
        return run(t, p);
    }
    return (p->noted || note(t, p)) && t->device->run->replay(t->device, p->noted);
}

bool tape_forward(tape *t)
{
    return run_or_replay(t, &t->parts[PART_FORWARD]);
}

bool tape_finish(tape *t)
{
    return run_or_replay(t, &t->parts[PART_LATE]);
}

bool tape_backward(tape *t)
{
    const tape_options *o = &t->options;
    for (int i = FORWARD_PARTS; i < t->part_count; i++) {
        part *p = &t->parts[i];
        if (!run_or_replay(t, p) || (p->tells >= 0 && !o->told(o->user, p->tells)))
            return false;
    }
    return true;
}

void tape_changed(tape *t, tape_direction way)
{
    for (int i = 0; i < t->part_count; i++) {
        part *p = &t->parts[i];
        if ((i < FORWARD_PARTS) != (way == TAPE_FORWARD))
            continue;
        if (p->noted)
            t->device->run->forget(t->device, p->noted);
        p->noted = NULL;
        p->ran = false;
    }
}

const memory_plan *tape_memory(const tape *t)
{
    return &t->memory;
}
