/*
 * Random problems: every feature is drawn, independent of the others, and what makes no sense together is drawn again. Small
 * sizes, for many of them, with a long one now and then.
 */
#include "list.h"

static bool chance(maker *m, int64_t of)
{
    return random_below(&m->random, of) == 0;
}

static int64_t draw_length(maker *m)
{
    static const int64_t most[] = {6, 20, 20, 33, 33, 33, 70, 70, 130, 300};
    return random_below(&m->random, most[random_below(&m->random, 10)] + 1);
}

static int64_t draw_dim(maker *m)
{
    return chance(m, 2)   ? 1 + random_below(&m->random, 40)
           : chance(m, 3) ? 1 + random_below(&m->random, 130)
                          : 8 * (1 + random_below(&m->random, 8));
}

static void draw_sizes(maker *m, problem *p)
{
    p->seq_q = draw_length(m);
    p->seq_k = chance(m, 3) ? p->seq_q : draw_length(m);
    p->dim = p->dim_v = draw_dim(m);
    if (chance(m, 3))
        p->dim_v = draw_dim(m);
    if (chance(m, 6))
        p->seq_q = 1;
    p->batch = chance(m, 40) ? 0 : 1 + random_below(&m->random, 3);
}

static void draw_types(maker *m, problem *p)
{
    static const fattn_dtype types[] = {FATTN_F32, FATTN_F32, FATTN_F32, FATTN_F64, FATTN_F16, FATTN_BF16, FATTN_BF16};
    p->op = chance(m, 2) ? FATTN_OP_FORWARD : FATTN_OP_BACKWARD;
    p->dtype = types[random_below(&m->random, 7)];
    p->out_f32 = type_is_narrow(p->dtype) && chance(m, 3);
    p->grad_f32 = type_is_narrow(p->dtype) && p->op == FATTN_OP_BACKWARD && chance(m, 3);
    p->kv_i8 = p->op == FATTN_OP_FORWARD && p->dtype != FATTN_F64 && chance(m, 6);
}

static void draw_lists(maker *m, problem *p)
{
    length_list *const lists[] = {&p->packed_q, &p->packed_k, &p->used_q, &p->used_k};
    const int64_t both = random_below(&m->random, 5);
    for (int i = 0; i < 4; i++)
        if (i / 2 == both || chance(m, 8))
            lists[i]->kind = LENGTHS_DRAWN;
    if (p->op == FATTN_OP_FORWARD && !p->packed_k.kind && chance(m, 4))
        p->page_size = chance(m, 2) ? 1 << random_below(&m->random, 8) : 1 + random_below(&m->random, 40);
}

static void draw_scores(maker *m, problem *p)
{
    static const double caps[] = {0.3, 2, 15, 50}, drops[] = {0.001, 0.1, 0.5, 0.25};
    p->bias = chance(m, 3);
    p->bias_dims = p->bias ? (unsigned)random_below(&m->random, HAS_ALL + 1) : 0;
    p->alibi = chance(m, 4);
    p->softcap = chance(m, 4) ? caps[random_below(&m->random, 4)] : 0;
    p->sinks = chance(m, 4);
    p->dropout = chance(m, 5) ? drops[random_below(&m->random, 4)] : 0;
    if (p->alibi && chance(m, 2))
        p->align = FATTN_ALIGN_BOTTOM_RIGHT;
    if (chance(m, 8))
        p->scale = random_normal(&m->random);
}

static void draw_gradients(maker *m, problem *p)
{
    if (p->op == FATTN_OP_FORWARD)
        return;
    p->dbias = p->bias && !chance(m, 3);
    p->dbias_dims = !p->dbias ? 0 : chance(m, 3) ? (unsigned)random_below(&m->random, HAS_ALL + 1) : p->bias_dims;
    p->dsinks = p->sinks && !chance(m, 3);
    p->dlse = chance(m, 4);
    p->part = chance(m, 8);
}

static void draw_fill(maker *m, problem *p)
{
    static const fill_kind fills[] = {FILL_SPIKY, FILL_EQUAL,     FILL_LARGE,     FILL_RISING,     FILL_FALLING,
                                      FILL_LOW,   FILL_ZERO,      FILL_ONES,      FILL_NAN_UNUSED, FILL_BIAS_INF,
                                      FILL_NAN_Q, FILL_SUBNORMAL, FILL_NAN_UNUSED};
    if (chance(m, 3))
        p->fill = fills[random_below(&m->random, COUNT(fills))];
}

/* Some problems have one feature, some many: a plain one shows what it breaks alone. */
static problem draw(maker *m)
{
    problem p = problem_of(1, 1, 1);
    draw_sizes(m, &p);
    draw_types(m, &p);
    list_pick_heads(m, &p);
    if (!chance(m, 3))
        draw_lists(m, &p);
    list_pick_mask(m, &p);
    if (chance(m, 2) && (p.mask == FATTN_MASK_WINDOW || p.mask == FATTN_MASK_CHUNKED || p.mask == FATTN_MASK_PREFIX)) {
        const bool window = p.mask == FATTN_MASK_WINDOW;
        p.left = window ? draw_length(m) - 1 : 0;
        p.right = window ? draw_length(m) - 1 : 0;
        p.mask_size = window ? 0 : draw_length(m) + (p.mask == FATTN_MASK_CHUNKED);
    }
    if (!chance(m, 4))
        draw_scores(m, &p);
    draw_gradients(m, &p);
    list_pick_layout(m, &p);
    draw_fill(m, &p);
    return p;
}

void list_add_random(maker *m)
{
    static const unsigned types[] = {[FATTN_F32] = F32, [FATTN_F64] = F64, [FATTN_F16] = F16, [FATTN_BF16] = BF16};
    const int count = m->level == LIST_FULL ? 16500 : m->level == LIST_DEFAULT ? 400 : 40;
    m->random = random_start(m->seed, 1000);
    for (int i = 0; i < count; i++) {
        problem p = draw(m);
        while (problem_wrong(&p))
            p = draw(m);
        list_add(m, p, types[p.dtype] | (p.op == FATTN_OP_FORWARD ? FWD : BWD));
    }
}
