/*
 * GGUF, version 3, little-endian:
 *
 *     "GGUF", u32 3, u64 tensors, u64 pairs
 *     pair     text key, u32 type, value; a text is a u64 length and its bytes, a list is u32 type, u64 count and its items
 *     tensor   text name, u32 rank, u64 extents with the fastest first, u32 type, u64 offset into the data
 *     data     at a multiple of ALIGNMENT, as each tensor in it
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "error.h"
#include "export.h"
#include "publish.h"
#include "sha256.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are written as they lie in memory: little-endian");

enum { GGUF_VERSION = 3, ALIGNMENT = 32 };
/* Types of values. */
enum { VALUE_U32 = 4, VALUE_I32 = 5, VALUE_F32 = 6, VALUE_BOOL = 7, VALUE_TEXT = 8, VALUE_LIST = 9 };

/* GGML_TYPE_* and LLAMA_FTYPE_*. */
static const struct {
    uint32_t tensor, file;
} types[] = {[NARROW_F32] = {0, 0}, [NARROW_F16] = {1, 1}, [NARROW_BF16] = {30, 32}};

/* Parameters by their names here, which are transformers', with % for the layer. */
static const struct {
    const char *own, *gguf;
} names[] = {{"model.embed_tokens.weight", "token_embd.weight"},
             {"model.norm.weight", "output_norm.weight"},
             {"lm_head.weight", "output.weight"},
             {"model.layers.%.input_layernorm.weight", "blk.%.attn_norm.weight"},
             {"model.layers.%.self_attn.q_proj.weight", "blk.%.attn_q.weight"},
             {"model.layers.%.self_attn.k_proj.weight", "blk.%.attn_k.weight"},
             {"model.layers.%.self_attn.v_proj.weight", "blk.%.attn_v.weight"},
             {"model.layers.%.self_attn.o_proj.weight", "blk.%.attn_output.weight"},
             {"model.layers.%.self_attn.q_norm.weight", "blk.%.attn_q_norm.weight"},
             {"model.layers.%.self_attn.k_norm.weight", "blk.%.attn_k_norm.weight"},
             {"model.layers.%.post_attention_layernorm.weight", "blk.%.ffn_norm.weight"},
             {"model.layers.%.mlp.gate_proj.weight", "blk.%.ffn_gate.weight"},
             {"model.layers.%.mlp.up_proj.weight", "blk.%.ffn_up.weight"},
             {"model.layers.%.mlp.down_proj.weight", "blk.%.ffn_down.weight"}};

/* --------------------------------------------------------------------------------------------------------------- pairs */

typedef struct header {
    text_buffer bytes; /* the pairs, then the tensors */
    uint64_t pairs;
} header;

static void put_u32(header *h, uint32_t value)
{
    text_bytes(&h->bytes, &value, sizeof value);
}

static void put_u64(header *h, uint64_t value)
{
    text_bytes(&h->bytes, &value, sizeof value);
}

static void put_bytes(header *h, const char *bytes, size_t size)
{
    put_u64(h, size);
    text_bytes(&h->bytes, bytes, size);
}

static void put_text(header *h, const char *text)
{
    put_bytes(h, text, strlen(text));
}

static void put_key(header *h, const char *key, uint32_t type)
{
    h->pairs++;
    put_text(h, key);
    put_u32(h, type);
}

static void pair_bytes(header *h, const char *key, const char *bytes, size_t size)
{
    put_key(h, key, VALUE_TEXT);
    put_bytes(h, bytes, size);
}

static void pair_text(header *h, const char *key, const char *value)
{
    pair_bytes(h, key, value, strlen(value));
}

static void pair_u32(header *h, const char *key, int64_t value)
{
    put_key(h, key, VALUE_U32);
    put_u32(h, (uint32_t)value);
}

static void pair_f32(header *h, const char *key, double value)
{
    const float number = (float)value;
    put_key(h, key, VALUE_F32);
    text_bytes(&h->bytes, &number, sizeof number);
}

static void pair_bool(header *h, const char *key, bool value)
{
    const char byte = value;
    put_key(h, key, VALUE_BOOL);
    text_bytes(&h->bytes, &byte, 1);
}

static void pair_list(header *h, const char *key, uint32_t type, int64_t count)
{
    put_key(h, key, VALUE_LIST);
    put_u32(h, type);
    put_u64(h, (uint64_t)count);
}

static void put_model(header *h, const export_job *job)
{
    const model_config *c = &job->config.model;
    pair_text(h, "general.architecture", "qwen3");
    pair_text(h, "general.name", "fattn");
    pair_u32(h, "general.file_type", types[job->type].file);
    pair_u32(h, "general.alignment", ALIGNMENT);
    pair_u32(h, "qwen3.context_length", c->max_seq);
    pair_u32(h, "qwen3.embedding_length", c->hidden);
    pair_u32(h, "qwen3.block_count", c->layers);
    pair_u32(h, "qwen3.feed_forward_length", c->ffn);
    pair_u32(h, "qwen3.attention.head_count", c->heads);
    pair_u32(h, "qwen3.attention.head_count_kv", c->heads_kv);
    pair_u32(h, "qwen3.attention.key_length", c->head_dim);
    pair_u32(h, "qwen3.attention.value_length", c->head_dim);
    pair_f32(h, "qwen3.attention.layer_norm_rms_epsilon", c->rms_eps);
    pair_f32(h, "qwen3.rope.freq_base", c->rope_theta);
}

/* The model's tokens; a number without one gets a text that no text gives. */
static void put_tokens(header *h, const tokenizer *words, int64_t count)
{
    static const uint32_t kinds[] = {[TOKEN_NORMAL] = 1, [TOKEN_SPECIAL] = 3, [TOKEN_ADDED] = 4, [TOKEN_UNUSED] = 5};
    uint32_t *kind = text_alloc((size_t)count * sizeof *kind);
    pair_list(h, "tokenizer.ggml.tokens", VALUE_TEXT, count);
    for (int64_t i = 0; i < count; ++i) {
        text_buffer text = {0};
        kind[i] = kinds[tokenizer_written(words, (int32_t)i, &text)];
        if (!text.length)
            text_format(&text, "[PAD%lld]", (long long)i);
        put_bytes(h, text.bytes, text.length);
        text_free(&text);
    }
    pair_list(h, "tokenizer.ggml.token_type", VALUE_I32, count);
    text_bytes(&h->bytes, kind, (size_t)count * sizeof *kind);
    free(kind);
}

/* llama.cpp opens no such file without the list of merges, though it may be empty. */
static void put_merges(header *h, const tokenizer *words)
{
    int64_t count;
    const tokenizer_merge *merges = tokenizer_merges(words, &count);
    pair_list(h, "tokenizer.ggml.merges", VALUE_TEXT, count);
    for (int64_t i = 0; i < count; ++i) {
        text_buffer text = {0};
        tokenizer_written(words, merges[i].left, &text);
        text_bytes(&text, " ", 1);
        tokenizer_written(words, merges[i].right, &text);
        put_bytes(h, text.bytes, text.length);
        text_free(&text);
    }
}

/* How llama.cpp calls what is done to a text before it is merged; NULL if it has no name for it. */
static const char *pre_tokenizer(const tokenizer *words)
{
    return tokenizer_cuts(words, WORDS_GPT2, false)    ? "gpt-2"
           : tokenizer_cuts(words, WORDS_QWEN, false)  ? "qwen2"
           : tokenizer_cuts(words, WORDS_LLAMA3, true) ? "llama-bpe"
                                                       : NULL;
}

/* How messages become one text: a file of its own, or of older folders a field of tokenizer_config.json. */
static void put_chat_template(header *h, const tokenizer *words)
{
    static const char key[] = "tokenizer.chat_template";
    const tokenizer_file *own = tokenizer_file_named(words, CHAT_TEMPLATE);
    const tokenizer_file *settings = tokenizer_file_named(words, TOKENIZER_CONFIG_JSON);
    cJSON *root = !own && settings ? cJSON_ParseWithLength(settings->bytes, settings->size) : NULL;
    const cJSON *field = cJSON_GetObjectItemCaseSensitive(root, "chat_template");
    if (own)
        pair_bytes(h, key, own->bytes, own->size);
    else if (cJSON_IsString(field))
        pair_text(h, key, field->valuestring);
    cJSON_Delete(root);
}

static void put_vocabulary(header *h, const export_job *job)
{
    pair_text(h, "tokenizer.ggml.model", "gpt2");
    pair_text(h, "tokenizer.ggml.pre", pre_tokenizer(job->words));
    put_tokens(h, job->words, job->config.model.vocab);
    put_merges(h, job->words);
    if (job->config.bos >= 0)
        pair_u32(h, "tokenizer.ggml.bos_token_id", job->config.bos);
    if (job->config.eos >= 0)
        pair_u32(h, "tokenizer.ggml.eos_token_id", job->config.eos);
    pair_bool(h, "tokenizer.ggml.add_bos_token", tokenizer_before(job->words)->count > 0);
    pair_bool(h, "tokenizer.ggml.add_eos_token", tokenizer_after(job->words)->count > 0);
    put_chat_template(h, job->words);
}

/* ------------------------------------------------------------------------------------------------------------- tensors */

/* The layer of "model.layers.LAYER.x" goes where the pattern has its %. */
static void gguf_name(const char *own, char out[PARAMETER_NAME_SIZE])
{
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        const char *hole = strchr(names[i].own, '%');
        const size_t before = hole ? (size_t)(hole - names[i].own) : strlen(own);
        if (strncmp(own, names[i].own, before) != 0)
            continue;
        const size_t digits = hole ? strspn(own + before, "0123456789") : 0;
        if (strcmp(own + before + digits, hole ? hole + 1 : names[i].own + before) != 0)
            continue;
        hole = strchr(names[i].gguf, '%');
        if (hole)
            snprintf(out, PARAMETER_NAME_SIZE, "%.*s%.*s%s", (int)(hole - names[i].gguf), names[i].gguf, (int)digits,
                     own + before, hole + 1);
        else
            snprintf(out, PARAMETER_NAME_SIZE, "%s", names[i].gguf);
        return;
    }
    snprintf(out, PARAMETER_NAME_SIZE, "%s", own); /* the model has no other names */
}

static narrow_type type_of(const export_job *job, const parameter *p)
{
    return p->ndim == 1 ? NARROW_F32 : job->type;
}

static uint64_t aligned(uint64_t at)
{
    return (at + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void put_tensors(header *h, const export_job *job)
{
    uint64_t offset = 0;
    for (int i = 0; i < job->m->parameter_count; ++i) {
        const parameter *p = &job->m->parameters[i];
        char name[PARAMETER_NAME_SIZE];
        gguf_name(p->name, name);
        put_text(h, name);
        put_u32(h, (uint32_t)p->ndim);
        for (int d = p->ndim - 1; d >= 0; --d)
            put_u64(h, (uint64_t)p->shape[d]);
        put_u32(h, types[type_of(job, p)].tensor);
        put_u64(h, offset);
        offset = aligned(offset + (uint64_t)p->size * narrow_size(type_of(job, p)));
    }
}

static bool pad(FILE *stream, uint64_t at)
{
    static const char zeros[ALIGNMENT];
    const size_t count = (size_t)(aligned(at) - at);
    return count == 0 || fwrite(zeros, count, 1, stream) == 1;
}

typedef struct contents {
    const export_job *job;
    const header *h;
} contents;

static bool write_all(void *user, FILE *stream)
{
    const contents *c = user;
    const export_job *job = c->job;
    const header *h = c->h;
    const struct {
        char magic[4];
        uint32_t version;
        uint64_t tensors, pairs;
    } begin = {{'G', 'G', 'U', 'F'}, GGUF_VERSION, (uint64_t)job->m->parameter_count, h->pairs};
    if (fwrite(&begin, sizeof begin, 1, stream) != 1 || fwrite(h->bytes.bytes, h->bytes.length, 1, stream) != 1 ||
        !pad(stream, sizeof begin + h->bytes.length))
        return false;
    for (int i = 0; i < job->m->parameter_count; ++i) {
        const parameter *p = &job->m->parameters[i];
        if (!narrow_write(type_of(job, p), p->data, p->size, stream) ||
            !pad(stream, (uint64_t)p->size * narrow_size(type_of(job, p))))
            return false;
    }
    return true;
}

/* ---------------------------------------------------------------------------------------------------------------- file */

/* What is no GGUF file stays. */
static bool check_place(const char *path)
{
    char magic[4] = {0};
    const int old = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe is refused, not waited for */
    if (old < 0)
        return errno == ENOENT || train_fail("%s: %s", path, strerror(errno));
    const bool same = read(old, magic, sizeof magic) == sizeof magic && memcmp(magic, "GGUF", sizeof magic) == 0;
    close(old);
    return same || train_fail("%s: exists and is no GGUF file", path);
}

static bool write_file(const export_job *job, const header *h, const char *path)
{
    char digest[65];
    const bool good = publish_file(path, write_all, &(contents){job, h}) && sha256_file(path, digest);
    if (good && job->written)
        job->written(job->user, path, digest);
    return good;
}

/* A list of tokens that llama.cpp puts beside a text by its own means: at most this one. */
static bool frames(const token_list *list, int64_t token)
{
    return list->count == 0 || (list->count == 1 && list->ids[0] == token);
}

/* The file cannot be without a tokenizer, and says less of it than tokenizer.json. */
static bool check_tokenizer(const export_job *job)
{
    const tokenizer *words = job->words;
    if (!words)
        return train_fail("gguf: the file holds the tokenizer, and none is known for this model of %lld tokens (--tokenizer)",
                          (long long)job->config.model.vocab);
    if (!pre_tokenizer(words))
        return train_fail("gguf: llama.cpp has no name for how this tokenizer cuts a text into words and merges them (use hf)");
    return (frames(tokenizer_before(words), job->config.bos) && frames(tokenizer_after(words), job->config.eos)) ||
           train_fail("gguf: the tokenizer puts other tokens beside a text than one that begins and one that ends it (use hf)");
}

bool export_gguf(const export_job *job, const char *path)
{
    header h = {0};
    if (job->config.window)
        return train_fail("gguf: the model was trained with a window of %lld keys, which llama.cpp's qwen3 has not (use hf)",
                          (long long)job->config.window);
    bool good = check_place(path) && export_check(job) && check_tokenizer(job);
    if (good) {
        put_model(&h, job);
        put_vocabulary(&h, job);
        put_tensors(&h, job);
        good = write_file(job, &h, path);
    }
    text_free(&h.bytes);
    return good;
}
