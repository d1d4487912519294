/*
 * Problems of features: fixed ones, each where a fault that is known from other systems would show, and sweeps over the edges
 * of each feature. Names leave out operation and type, which the numbers beside them say.
 */
#include "list.h"

#include <stdio.h>

typedef struct entry {
    const char *name;
    unsigned which;
    list_level level; /* the least that has it */
} entry;

enum { SINGLE = F32 | BOTH };

/* ---------------------------------------------------------------------------------------------------- known situations */

static const entry empty[] = {
    /* 0/0 in a row that keeps nothing; rows 4 .. 7 of 8 */
    {"q8k4/d16/window:0,0", ALL, LIST_QUICK},
    {"q8k4/d16/window:0,0/sinks/dsinks/dlse", ALL, LIST_QUICK},
    {"b2/h2/q8k8/d8/intervals/seed5", ALL, LIST_DEFAULT},
    {"q8k8/d16/chunked-br:4/bias:qk/dbias", ALL, LIST_DEFAULT},
    /* 0 * NaN in backward: an empty row in one of two sequences */
    {"b2/h2/q8k8/d16/used-k:7,8/causal-br", ALL, LIST_QUICK},
    {"b2/h2/q8k8/d16/used-k:8,0", ALL, LIST_DEFAULT},
    {"b2/h2/q8k8/d16/packed-k:3,8/causal-br/bias:bhqk/dbias", SINGLE, LIST_DEFAULT},
    {"b2/q4k4/d8/bias:qk/dbias/fill-bias-inf", ALL, LIST_QUICK},
    /* a finite number for -inf: every key dropped, or every score below it */
    {"b2/q5k9/d16/used-k:0,9/fill-low", ALL, LIST_QUICK},
    {"h2/q40k150/d32/bias:bhqk/fill-low", ALL, LIST_DEFAULT},
    {"h2/q20k50/d32/alibi/causal/fill-low", ALL, LIST_DEFAULT},
    {"b2/h2/q20k50/d32/bias:bhqk/dbias/fill-bias-inf", ALL, LIST_QUICK},
    {"b2/h2/q20k50/d32/bias:bhqk/dbias/fill-bias-inf/sinks/dsinks/causal", ALL, LIST_DEFAULT},
    /* lse of an empty row: -inf, or the sink */
    {"h4/q9k4/d16/causal-br", ALL, LIST_QUICK},
    {"h4/q9k4/d16/causal-br/sinks/dsinks/dlse", ALL, LIST_QUICK},
    {"b2/h4/q9k4/d16/used-k/sinks/dsinks/dlse", ALL, LIST_DEFAULT},
    /* a running maximum that stays at 0 from a tile without keys */
    {"q88k448/d32/causal-br/fill-low/bias:k", F32 | BF16 | BOTH, LIST_DEFAULT},
    {"q88k448/d32/prefix-br:3/fill-low", F32 | BF16 | BOTH, LIST_DEFAULT},
    {"q60k300/d32/intervals/fill-low", F32 | BF16 | BOTH, LIST_DEFAULT},
    /* no sequences, no rows, no keys */
    {"b0/h2/q9k5/d16/bias:bhqk/dbias/sinks/dsinks/dlse/alibi/dropout:0.5/softcap:3", ALL, LIST_DEFAULT},
    {"b0/h2/q9k5/d16/bias:hqk/dbias/packed-seqs/used", ALL, LIST_DEFAULT},
    {"b2/h2/q0k5/d16/bias:hk/dbias/sinks/dsinks/dlse", ALL, LIST_DEFAULT},
    {"b2/h2/q9k0/d16/bias:hk/dbias/sinks/dsinks/dlse/dropout:0.5", ALL, LIST_DEFAULT},
    {"b2/h2/q9k0/d16/paged:16/sinks", ALL, LIST_DEFAULT},
    {"b2/h2/q9k7/d16/packed-seqs:0,0", ALL, LIST_DEFAULT},
    {"b2/h2/q9k7/d16/used:0,0/sinks/dsinks", ALL, LIST_DEFAULT},
    /* segments without rows */
    {"b4/h2/q121k121/d16/packed-seqs:0,121,84,0/causal", ALL, LIST_QUICK},
    {"b4/q1208k1208/d8/packed-seqs:0,1208,840,0/causal", SINGLE, LIST_DEFAULT},
    {"b4/h2/q7k9/d8/packed-q:0,7,0,1/packed-k:3,0,0,9", ALL, LIST_DEFAULT},
};

static const entry aligned[] = {
    /* a decoding query: top-left sees key 0 alone, bottom-right all */
    {"b2/h2/q1k77/d24/chunked:16", ALL, LIST_DEFAULT},
    {"b2/h2/q1k77/d24/chunked-br:16", ALL, LIST_DEFAULT},
    {"b2/h2/q1k77/d24/prefix:5", ALL, LIST_DEFAULT},
    {"b2/h2/q1k77/d24/window-br:9,0/alibi", ALL, LIST_DEFAULT},
    {"b2/h2/q1k77/d24/full-br/alibi", ALL, LIST_QUICK},
    {"b2/h2/q1k77/d24/full/alibi", ALL, LIST_DEFAULT},
    {"b3/h2/q1k77/d24/causal-br/used-k:77,1,40/alibi", ALL, LIST_QUICK},
    {"b3/h2/q4k77/d24/causal-br/used-q:4,1,0/used-k:77,1,40", ALL, LIST_DEFAULT},
    /* a window meant as a distance or as a count, at both ends */
    {"q2060k2060/d4/window:2048,0", F32 | FWD, LIST_FULL},
    {"q3k2060/d8/window-br:2048,0", ALL, LIST_DEFAULT},
    {"q2060k3/d8/window:2048,0", SINGLE, LIST_DEFAULT},
    {"q40k40/d16/window:7,0", ALL, LIST_QUICK},
    {"q40k40/d16/window:0,7", ALL, LIST_DEFAULT},
    /* causal and window (-1, 0), far out */
    {"q33k16384/d8/causal-br", F32 | BOTH, LIST_FULL},
    {"q2100k2100/d4/causal", F32 | FWD, LIST_FULL},
};

static const entry numbers[] = {
    /* padding keys overflow exp(-lse) in backward */
    {"h2/q50k192/d32/fill-low", F32 | NARROW | BOTH, LIST_DEFAULT},
    {"h2/q50k192/d32/fill-low/used-k/b2", F32 | BF16 | BOTH, LIST_DEFAULT},
    /* big inputs: bf16 133120, f16 256 */
    {"q1k1/d80/fill-high", ALL, LIST_QUICK},
    {"q3k20/d80/fill-high", ALL, LIST_DEFAULT},
    /* negative scale */
    {"q30k50/d16/scale:-10000/softcap:20", ALL, LIST_DEFAULT},
    {"q30k50/d16/scale:-10000/bias:qk/alibi", ALL, LIST_DEFAULT},
    /* NaN in slots that are not used (all that no sequence has is NaN) */
    {"b2/h2/q1k3/d16/used-k:1,3", ALL, LIST_QUICK},
    {"b2/h2/q3k3/d16/used:1,3", ALL, LIST_QUICK},
    {"b2/h2/q1k40/d16/used-k:17,33/paged:16", ALL, LIST_QUICK},
    {"b2/h2/q20k40/d16/used-k/bias:bhqk/dbias/causal-br/fill-nan-unused", ALL, LIST_QUICK},
    /* ranges of keys in backward, of several heads and of groups; in place, and through partials */
    {"b2/h4/gqa2/q70k1100/d16/window:600,3", F32 | BF16 | BWD, LIST_DEFAULT},
    {"h6/gqa3/q48k1600/d16/causal-br", F32 | BWD, LIST_DEFAULT},
    {"b3/h2/q33k1200/d24/used-q/bias:bhqk/dbias", F32 | BWD, LIST_DEFAULT},
    {"b2/h3/q40k1100/d16/packed-q/intervals/softcap:4", F32 | BF16 | BWD, LIST_DEFAULT},
    {"h2/q64k1024/d16/chunked-br:300/dropout:0.2", F32 | F64 | BWD, LIST_DEFAULT},
    /* several steps of a GPU's large tiles, whose reference is too low or stays the largest; tiles of groups and of short
       sequences */
    {"h2/q300k700/d64/causal-br/fill-rising", NARROW | FWD, LIST_DEFAULT},
    {"h2/q300k700/d128/fill-falling", NARROW | FWD, LIST_DEFAULT},
    {"h2/q200k600/d256/causal-br/fill-falling", NARROW | FWD, LIST_DEFAULT},
    {"h2/q200k500/d128/window-br:150,20/fill-spiky", NARROW | FWD, LIST_DEFAULT},
    {"b3/h8/gqa8/q70k400/d128/v64/intervals/out-f32/sinks", NARROW | FWD, LIST_DEFAULT},
    {"b3/h4/gqa2/q300k300/d64/packed-seqs/causal-br/fill-nan-unused", NARROW | FWD, LIST_DEFAULT},
    {"b3/h2/q150k300/d256/used/prefix:100/scale:-0.1", NARROW | FWD, LIST_DEFAULT},
    {"b2/h4/gqa4/q90k300/d128/broadcast-row", NARROW | FWD, LIST_DEFAULT},
    /* NaN in a query: that row alone */
    {"b2/h2/q20k40/d16/fill-nan-q/bias:hqk/sinks/alibi/softcap:5", ALL, LIST_DEFAULT},
    {"b2/h2/q20k40/d16/fill-nan-q/packed-seqs", ALL, LIST_DEFAULT},
    {"h2/q32k6/d16/causal-br/fill-nan-q", ALL, LIST_DEFAULT}, /* one that keeps nothing; with a sink, and as a part */
    {"h2/q32k6/d16/causal-br/fill-nan-q/sinks", ALL, LIST_DEFAULT},
    {"h2/q32k6/d16/causal-br/fill-nan-q/part", ALL, LIST_DEFAULT},
    {"b2/h2/q20k40/d16/fill-nan-q/used/dropout:0.2", ALL, LIST_DEFAULT},
    {"b2/h2/q70k40/d16/fill-nan-v/causal-br/used-k", ALL & ~BWD, LIST_DEFAULT},
    /* softcap behind the mask: what is dropped has an effect */
    {"h2/q33k70/d16/softcap:15/causal/fill-nan-unused", ALL, LIST_QUICK},
    {"h2/q33k70/d16/softcap:15/window:4,3/fill-nan-unused", ALL, LIST_DEFAULT},
    {"b2/h2/q33k70/d16/softcap:2/used-k/fill-low", ALL, LIST_DEFAULT},
    /* the gradient of cap tanh(x / cap) */
    {"q128k217/d16/softcap:15", ALL, LIST_DEFAULT},
    {"q16k21/d16/softcap:15/fill-large", ALL, LIST_QUICK},
    {"q16k21/d16/softcap:0.5", ALL, LIST_QUICK},
    /* accumulators of 16 bits */
    {"q2k8192/d16", BF16 | BOTH, LIST_DEFAULT},
    {"q8192k2/d16", BF16 | BOTH, LIST_DEFAULT},
    {"q2k8192/d16/out-f32/grad-f32", NARROW | BOTH, LIST_FULL},
    {"h2/gqa2/q1030k3/d16/bias:k/dbias/sinks/dsinks", F32 | BF16 | BWD, LIST_DEFAULT},
    /* probabilities rounded to 16 bits, while their sum is not */
    {"h2/q9k300/d16/fill-ones", NARROW | BOTH, LIST_QUICK},
    {"h2/q9k300/d16/fill-ones/out-f32", NARROW | BOTH, LIST_QUICK},
    {"h2/q9k300/d16/fill-ones/dropout:0.5/out-f32", NARROW | BOTH, LIST_DEFAULT},
    /* partial results of 16 bits, and lse in base 2: one row over many keys */
    {"h2/q1k4096/d16", ALL & ~BWD, LIST_DEFAULT},
    {"h8/gqa8/q1k4096/d16/kv-i8", NARROW | F32 | FWD, LIST_DEFAULT},
    {"q1k4096/d32/out-f32/causal-br", NARROW | FWD, LIST_DEFAULT},
    {"q1k4096/d32/sinks", ALL & ~BWD, LIST_DEFAULT},
};

static const entry places[] = {
    /* lse of the first head of a group alone is written */
    {"h8/gqa4/q1k40/d16", ALL, LIST_QUICK},
    {"b2/h8/gqa4/q1k40/d16/used-k/paged:16/sinks", ALL, LIST_DEFAULT},
    /* offsets beyond 32 bits; a bias of more than 2^31 elements */
    {"b3/q6k10/d24/far", ALL, LIST_DEFAULT},
    {"b3/q6k10/d24/bias:bqk/dbias/far", ALL, LIST_QUICK},
    {"b3/h2/q6k10/d24/bias:bhqk/dbias:bhk/used/far", ALL, LIST_DEFAULT},
    {"b8300/h16/q1k1/d128", F32 | FWD, LIST_FULL},
    /* more sequences than grids have blocks */
    {"b65536/q1k1/d4/packed-seqs", SINGLE, LIST_DEFAULT},
    {"b65536/q1k2/d2/used-k/sinks/dsinks", F32 | BF16 | BOTH, LIST_FULL},
    /* row stride 65, pointers off by one element */
    {"b2/h2/q20k40/d64/padded/bias:bhqk/dbias", ALL, LIST_DEFAULT},
    {"b2/h2/q20k41/d64/offset/bias:bhqk/dbias", ALL, LIST_DEFAULT},
    {"b2/h2/q20k41/d63/bshd/bias:bhqk/dbias", ALL, LIST_DEFAULT},
    {"b2/h2/q20k41/d63/negative/bias:bhqk/dbias", ALL, LIST_DEFAULT},
    {"b2/h2/q17k17/d9/packed/packed-seqs/causal", ALL, LIST_DEFAULT},
    {"b2/h2/q17k23/d9/packed/paged:5/used-k", ALL, LIST_DEFAULT},
    {"b2/h4/gqa2/q17k23/d9/broadcast/used/bias:bhqk", ALL, LIST_DEFAULT},
    {"b2/h4/gqa2/q17k23/d9/broadcast-row/packed-seqs", ALL, LIST_DEFAULT},
    /* the order of grouped heads */
    {"h48/gqa24/q3k5/d8/alibi/sinks/dsinks/bias:hk/dbias", ALL, LIST_DEFAULT},
    /* rows outside cu_seqlens and behind used lengths are written (all of these are looked at) */
    {"b4/h2/q31k31/d16/used-q:31,1,0,17/used-k:2,31,5,0", ALL, LIST_QUICK},
    {"b4/h2/q31k31/d16/packed-seqs:31,1,0,17/used:30,0,0,16/causal", ALL, LIST_QUICK},
    {"b3/h2/q31k31/d16/packed-q:31,1,17/used-q:9,1,17/causal-br", ALL, LIST_DEFAULT},
    /* sums in any order, and a key that all rows keep */
    {"b2/h4/gqa2/q130k257/d64/causal-br/unordered", ALL & ~FWD, LIST_QUICK},
    {"h2/q300k1/d32/unordered", ALL & ~FWD, LIST_DEFAULT},
    /* all at once: the same bits in every run and with every number of threads */
    {"b3/h4/gqa2/q33k47/d16/packed-seqs/used/window-br:20,3/bias:bhqk/dbias:hk/alibi/softcap:9/sinks/dsinks/dlse/dropout:0.25",
     ALL, LIST_QUICK},
    {"b3/h4/gqa2/q33k47/d16/document:20,3/bias:hqk/dbias/alibi/softcap:9/sinks/dsinks/dlse/dropout:0.25/part", ALL,
     LIST_DEFAULT},
    {"b3/h4/gqa2/q13k47/d16/kv-i8/paged:8/used/causal-br/bias:k/alibi/softcap:9/sinks/dropout:0.1", F32 | NARROW | FWD,
     LIST_QUICK},
    /* dropout's probability in 8 bits; another mask in backward */
    {"q100k300/d4/dropout:0.001", ALL, LIST_DEFAULT},
    {"q60k100/d4/dropout:0.001/fill-ones", F32 | BOTH, LIST_QUICK},
    {"b2/h3/q30k41/d8/dropout:0.1", ALL, LIST_QUICK},
    {"b2/h4/gqa2/q30k41/d8/dropout:0.5/causal-br/bias:hk/dbias", ALL, LIST_DEFAULT},
    {"b2/h2/q30k41/d8/dropout:0.999", ALL, LIST_DEFAULT},
    {"b3/h2/q30k41/d8/dropout:0.3/packed-seqs:30,2,17/used-k:5,2,17", ALL, LIST_DEFAULT},
};

static void add_entries(maker *m, const entry *entries, int count)
{
    for (int i = 0; i < count; i++)
        if (m->level >= entries[i].level) {
            const bool quick = m->level == LIST_QUICK && (entries[i].which & F32);
            list_add_named(m, entries[i].name, quick ? entries[i].which & ~(unsigned)(F64 | F16) : entries[i].which);
        }
}

/* -------------------------------------------------------------------------------------------------------------- sweeps */

/* Names made of a beginning and each of a list of ends. In quick every `step`th. */
static void add_ends(maker *m, const char *beginning, const char *const *ends, int count, unsigned which)
{
    char name[PROBLEM_NAME_SIZE];
    for (int i = 0; i < count; i += m->level == LIST_QUICK ? 4 : 1) {
        snprintf(name, sizeof name, "%s/%s", beginning, ends[i]);
        list_add_named(m, name, m->level == LIST_QUICK ? which & (SINGLE | BF16) & (i % 8 ? ~0u : ~(unsigned)BF16) : which);
    }
}

static void sweep_masks(maker *m)
{
    static const char *const ends[] = {"chunked:1",
                                       "chunked-br:1",
                                       "chunked:7",
                                       "chunked-br:7",
                                       "chunked:16",
                                       "chunked-br:64",
                                       "chunked:1000",
                                       "prefix:0",
                                       "prefix:1",
                                       "prefix:12",
                                       "prefix-br:12",
                                       "prefix:40",
                                       "prefix:1000",
                                       "prefix-br:0",
                                       "document",
                                       "document-br",
                                       "document:0,0",
                                       "document:3,-1",
                                       "document:-1,2",
                                       "intervals",
                                       "intervals:shared",
                                       "document-br:2,1",
                                       "intervals-br",
                                       "prefix:64",
                                       "chunked:3",
                                       "prefix-br:64",
                                       "document:5,0",
                                       "chunked-br:33",
                                       "chunked:9223372036854775807",
                                       "prefix:9223372036854775807"};
    static const char *const beginnings[] = {"h2/q40k40/d16",     "b2/q33k70/d16",
                                             "b2/q70k33/d16",     "b3/q40k40/d8/packed-seqs",
                                             "b3/q40k50/d8/used", "q130k130/d16/fill-nan-unused",
                                             "b2/q1k50/d8"};
    for (int i = 0; i < (m->level == LIST_FULL ? COUNT(beginnings) : m->level == LIST_DEFAULT ? 4 : 1); i++)
        for (int j = 0; j<COUNT(ends); j += i> 0 && m->level == LIST_DEFAULT ? 3 : 1)
            if (i != 3 || j != 20) /* packed rows share no intervals */
                add_ends(m, beginnings[i], &ends[j], 1, i == 0 && m->level == LIST_FULL ? ALL : SINGLE | (j % 3 ? BF16 : F64));
}

static void sweep_bias(maker *m)
{
    static const char *const dims[] = {"k", "bk", "hk", "bhk", "qk", "bqk", "hqk", "bhqk"};
    static const char *const others[] = {"causal",
                                         "padded",
                                         "used/bshd",
                                         "packed-seqs",
                                         "window-br:9,4/fill-nan-unused",
                                         "fill-bias-inf",
                                         "offset/fence-high",
                                         "packed-q/hsbd"};
    char name[PROBLEM_NAME_SIZE];
    for (int i = 0; i < COUNT(dims); i += m->level == LIST_QUICK ? 3 : 1)
        for (int j = 0; j < COUNT(dims); j++) {
            if (i != j && m->level != LIST_FULL && (i + j) % 4 != 1)
                continue;
            snprintf(name, sizeof name, "b3/h4/gqa2/q17k29/d8/bias:%s/dbias:%s/%s", dims[i], dims[j], others[(i + 3 * j) % 8]);
            list_add_named(m, name, m->level == LIST_QUICK ? SINGLE : j % 2 ? ALL : SINGLE | BF16);
        }
}

static void sweep_pages(maker *m)
{
    static const char *const ends[] = {
        "paged:1",       "paged:2/used",  "paged:3",        "paged:16",           "paged:16/used/causal-br",
        "paged:64",      "paged:128",     "paged:256/used", "paged:7/used/kv-i8", "paged:16/kv-i8",
        "paged:1/kv-i8", "paged:128/used"};
    static const char *const beginnings[] = {"b2/h4/gqa2/q3k50/d16", "b3/q1k129/d8", "b2/h2/q20k128/d64/v40", "b4/q9k3/d16",
                                             "b2/h2/q7k33/d16/padded"};
    for (int i = 0; i < (m->level == LIST_FULL ? 5 : m->level == LIST_DEFAULT ? 3 : 1); i++)
        add_ends(m, beginnings[i], ends, COUNT(ends), F32 | NARROW | (i % 2 ? F64 : 0) | FWD);
}

static void sweep_numbers(maker *m)
{
    static const char *const ends[] = {"softcap:0.1",
                                       "softcap:1",
                                       "softcap:15",
                                       "softcap:50",
                                       "softcap:1000",
                                       "softcap:1e30",
                                       "dropout:0.001",
                                       "dropout:0.00390625",
                                       "dropout:0.1",
                                       "dropout:0.5",
                                       "dropout:0.9",
                                       "dropout:0.9999999",
                                       "alibi",
                                       "alibi/causal",
                                       "alibi/full-br",
                                       "alibi/used",
                                       "sinks/dsinks",
                                       "sinks",
                                       "sinks/dlse",
                                       "dlse",
                                       "part",
                                       "part/sinks/dsinks",
                                       "part/causal-br/dlse",
                                       "softcap:15/fill-large",
                                       "softcap:15/fill-rising",
                                       "sinks/dsinks/fill-low",
                                       "sinks/dsinks/fill-large",
                                       "alibi/fill-subnormal",
                                       "bias:hk/fill-zero",
                                       "bias:hqk/dbias/fill-large",
                                       "dropout:0.3/fill-spiky",
                                       "sinks/fill-nan-q",
                                       "softcap:3/scale:0.001",
                                       "softcap:3/scale:30",
                                       "dlse/fill-spiky",
                                       "part/fill-low"};
    static const char *const beginnings[] = {"b2/h4/gqa2/q19k29/d16", "h2/q40k130/d24/v16", "b3/h2/q33k33/d8/packed-seqs"};
    for (int i = 0; i < (m->level == LIST_FULL ? 3 : m->level == LIST_DEFAULT ? 2 : 1); i++)
        add_ends(m, beginnings[i], ends, COUNT(ends), i == 0 ? ALL : SINGLE | BF16);
}

static void sweep_lists(maker *m)
{
    static const char *const ends[] = {"packed-seqs",      "packed-q",
                                       "packed-k",         "used",
                                       "used-q",           "used-k",
                                       "packed-seqs/used", "packed-q/used-k",
                                       "packed-k/used",    "packed-seqs/used-k",
                                       "packed-q/used-q",  "packed-k/used-q/packed"};
    static const char *const beginnings[] = {
        "b3/h2/q20k20/d16/causal",       "b4/h4/gqa2/q33k65/d8/causal-br", "b5/q1k70/d16",
        "b2/h2/q130k130/d16/window:9,0", "b3/q20k1/d8/sinks/dsinks",       "b6/q9k9/d33/alibi"};
    for (int i = 0; i < (m->level == LIST_FULL ? 6 : m->level == LIST_DEFAULT ? 3 : 1); i++)
        add_ends(m, beginnings[i], ends, COUNT(ends), i < 2 ? ALL : SINGLE | F16);
}

static void sweep_types(maker *m)
{
    static const char *const ends[] = {"d16", "d16/out-f32",       "d33/causal",   "d64/v24/out-f32/causal-br",
                                       "d64", "d8/v96/window:5,5", "d128/out-f32", "d1"};
    static const char *const gradients[] = {"d16/grad-f32", "d33/grad-f32/out-f32", "d64/grad-f32/causal", "d8/v96/grad-f32"};
    add_ends(m, "b2/h4/gqa2/q35k50", ends, COUNT(ends), NARROW | BOTH);
    add_ends(m, "b2/h4/gqa2/q35k50", gradients, COUNT(gradients), NARROW | BWD);
    add_ends(m, "b2/h4/gqa2/q5k50/kv-i8", ends, 1, F32 | NARROW | FWD);
    add_ends(m, "b2/h4/gqa2/q5k50/kv-i8/d40",
             (const char *const[]){"fill-spiky", "fill-large", "fill-low", "fill-nan-unused/causal", "fill-zero", "fill-ones",
                                   "fill-nan-v", "packed-seqs"},
             8, F32 | NARROW | FWD);
}

void list_add_features(maker *m)
{
    add_entries(m, empty, COUNT(empty));
    add_entries(m, aligned, COUNT(aligned));
    add_entries(m, numbers, COUNT(numbers));
    add_entries(m, places, COUNT(places));
    sweep_masks(m);
    sweep_bias(m);
    sweep_pages(m);
    sweep_numbers(m);
    sweep_lists(m);
    sweep_types(m);
}
