/*
 * A tokenizer.json of byte-level byte-pair encoding, as GPT-2, Qwen2, Qwen3 and Llama 3 ship it:
 *
 *     model           BPE: vocab, merges as "a b" or ["a", "b"], ignore_merges; every byte is a token
 *     normalizer      none or NFC
 *     pre_tokenizer   Split by the expressions of word_split.c, ByteLevel; or a Sequence of them that ends with ByteLevel
 *     post_processor  none, ByteLevel, TemplateProcessing for one text; or a Sequence of them
 *     decoder         none or ByteLevel
 *     added_tokens    with all their properties
 *
 * Everything else is refused by its name, but for truncation and padding, which are not looked at: texts are whole here.
 */
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "json.h"
#include "tokenizer_parts.h"
#include "unicode.h"

enum { MOST_TOKENS = 1 << 22, MOST_MERGES = 1 << 24 };

typedef struct file {
    const char *path;
    tokenizer *t;
    char *next; /* free bytes of the pool */
} file;

static const cJSON *member(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static const char *text_of(const cJSON *object, const char *name)
{
    const cJSON *item = member(object, name);
    return cJSON_IsString(item) ? item->valuestring : "";
}

static bool is_true(const cJSON *object, const char *name)
{
    return cJSON_IsTrue(member(object, name));
}

static bool absent(const cJSON *item)
{
    return !item || cJSON_IsNull(item);
}

/* Whether what says true or false in some part is one of them, where it is there at all. */
static bool check_flags(const file *f, const cJSON *part)
{
    static const char *const names[] = {"single_word",   "lstrip",        "rstrip", "normalized",       "special",
                                        "ignore_merges", "byte_fallback", "invert", "add_prefix_space", "use_regex"};
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        const cJSON *item = member(part, names[i]);
        if (!absent(item) && !cJSON_IsBool(item))
            return train_fail("%s: '%s' is neither true nor false", f->path, names[i]);
    }
    return true;
}

static bool refuse(const file *f, const char *part, const char *type)
{
    return train_fail("%s: %s '%s' is not known here", f->path, part, *type ? type : "without a type");
}

/* ------------------------------------------------------------------------------------------------------------- characters */

/* The bytes that a text is written for, which are no longer than it. False if it has another character. */
static bool bytes_of(const char *text, size_t size, char *out, size_t *length)
{
    unicode_char c;
    *length = 0;
    for (size_t i = 0; i < size; i += c.size) {
        c = unicode_at(text + i, size - i);
        const int byte = tokenizer_byte(c.code);
        if (byte < 0)
            return false;
        out[(*length)++] = (char)byte;
    }
    return true;
}

/* ------------------------------------------------------------------------------------------------------------------ model */

static int32_t id_of(const cJSON *item)
{
    const double value = cJSON_IsNumber(item) ? item->valuedouble : -1;
    return value >= 0 && value < MOST_TOKENS && value == (double)(int32_t)value ? (int32_t)value : -1;
}

/* The largest id and all the room that texts need. */
static bool measure(const file *f, const cJSON *vocab, const cJSON *added, size_t *room)
{
    const cJSON *item;
    int32_t most = -1;
    *room = 0;
    cJSON_ArrayForEach(item, vocab)
    {
        const int32_t id = id_of(item);
        if (id < 0)
            return train_fail("%s: the id of token '%.60s' is not a whole number below %d", f->path, item->string, MOST_TOKENS);
        most = id > most ? id : most;
        *room += strlen(item->string);
    }
    cJSON_ArrayForEach(item, added)
    {
        const char *content = text_of(item, "content");
        const int32_t id = id_of(member(item, "id"));
        if (id < 0 || !*content || strlen(content) > ADDED_TOKEN_MOST_BYTES)
            return train_fail("%s: added token '%.60s': its id is not a whole number below %d, or it has not 1 to %d bytes",
                              f->path, content, MOST_TOKENS, ADDED_TOKEN_MOST_BYTES);
        most = id > most ? id : most;
        *room += strlen(content);
    }
    f->t->vocab = most + 1;
    return true;
}

static bool read_vocab(file *f, const cJSON *vocab)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, vocab)
    {
        const int32_t id = id_of(item);
        size_t size = strlen(item->string);
        tokenizer_entry *e = &f->t->entries[id];
        if (e->bytes || size == 0)
            return train_fail("%s: token %d ('%.60s') is there twice or is empty", f->path, id, item->string);
        const bool reachable = bytes_of(item->string, size, f->next, &size);
        if (!reachable)
            memcpy(f->next, item->string, size = strlen(item->string));
        *e = (tokenizer_entry){.bytes = f->next, .size = size, .plain = !reachable};
        f->next += size;
        if (reachable && !bpe_add_token(f->t->model, id, e->bytes, size))
            return train_fail("%s: '%.60s' is token %d and token %d", f->path, item->string,
                              bpe_find(f->t->model, e->bytes, size), id);
    }
    const int byte = bpe_missing_byte(f->t->model);
    return byte < 0 || train_fail("%s: byte %d is not a token: this is no byte-level vocabulary", f->path, byte);
}

/* The two parts of a merge, written either way. */
static bool parts_of(const cJSON *merge, const char *part[2], size_t size[2])
{
    if (cJSON_IsString(merge)) {
        const char *space = strchr(merge->valuestring, ' ');
        if (!space || strchr(space + 1, ' '))
            return false;
        part[0] = merge->valuestring;
        size[0] = (size_t)(space - part[0]);
        part[1] = space + 1;
        size[1] = strlen(part[1]);
        return true;
    }
    if (!cJSON_IsArray(merge) || cJSON_GetArraySize(merge) != 2)
        return false;
    for (int i = 0; i < 2; ++i) {
        const cJSON *item = cJSON_GetArrayItem(merge, i);
        if (!cJSON_IsString(item))
            return false;
        part[i] = item->valuestring;
        size[i] = strlen(part[i]);
    }
    return true;
}

static bool read_merge(const file *f, const cJSON *item, int32_t rank, char *room)
{
    const char *part[2];
    size_t size[2], left = 0, right = 0;
    if (!parts_of(item, part, size))
        return train_fail("%s: merge %d is no pair of tokens", f->path, rank);
    const bool good = bytes_of(part[0], size[0], room, &left) && bytes_of(part[1], size[1], room + left, &right);
    const int32_t a = good ? bpe_find(f->t->model, room, left) : -1, b = good ? bpe_find(f->t->model, room + left, right) : -1;
    const int32_t whole = good ? bpe_find(f->t->model, room, left + right) : -1;
    if (a < 0 || b < 0 || whole < 0)
        return train_fail("%s: merge %d joins '%.*s' and '%.*s', but not both of them and the whole are tokens", f->path, rank,
                          (int)(size[0] < 60 ? size[0] : 60), part[0], (int)(size[1] < 60 ? size[1] : 60), part[1]);
    bpe_add_merge(f->t->model, rank, a, b, whole);
    f->t->merges[rank] = (tokenizer_merge){a, b};
    f->t->merge_count = rank + 1;
    return true;
}

static size_t longest_text(const cJSON *merges)
{
    const cJSON *item;
    size_t most = 0;
    cJSON_ArrayForEach(item, merges)
    {
        const char *part[2];
        size_t size[2];
        if (parts_of(item, part, size) && size[0] + size[1] > most)
            most = size[0] + size[1];
    }
    return most;
}

static bool read_merges(const file *f, const cJSON *merges)
{
    const cJSON *item;
    int32_t rank = 0;
    bool good = true;
    char *room = text_alloc(longest_text(merges));
    cJSON_ArrayForEach(item, merges)
    {
        if (good)
            good = read_merge(f, item, rank++, room);
    }
    free(room);
    return good;
}

/* What a model may ask for beside its tables. */
static bool check_model(const file *f, const cJSON *model)
{
    static const char *const texts[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    if (strcmp(text_of(model, "type"), "BPE") != 0 && member(model, "type"))
        return refuse(f, "model", text_of(model, "type"));
    if (!check_flags(f, model))
        return false;
    if (is_true(model, "byte_fallback"))
        return refuse(f, "model with", "byte_fallback");
    if (!absent(member(model, "dropout")) && member(model, "dropout")->valuedouble != 0)
        return refuse(f, "model with", "dropout");
    for (int i = 0; i < 2; ++i)
        if (*text_of(model, texts[i]))
            return refuse(f, "model with", texts[i]);
    return (cJSON_IsObject(member(model, "vocab")) && cJSON_IsArray(member(model, "merges"))) ||
           train_fail("%s: model: no object 'vocab', or no array 'merges'", f->path);
}

static bool read_model(file *f, const cJSON *model, const cJSON *added)
{
    size_t room;
    const cJSON *vocab = member(model, "vocab"), *merges = member(model, "merges");
    if (!check_model(f, model) || !measure(f, vocab, added, &room))
        return false;
    const int tokens = cJSON_GetArraySize(vocab), merge_count = cJSON_GetArraySize(merges);
    if (merge_count > MOST_MERGES)
        return train_fail("%s: %d merges, the most are %d", f->path, merge_count, MOST_MERGES);
    f->t->entries = text_alloc((size_t)f->t->vocab * sizeof *f->t->entries);
    f->t->pool = f->next = text_alloc(room);
    f->t->merges = text_alloc((size_t)merge_count * sizeof *f->t->merges);
    f->t->whole = is_true(model, "ignore_merges");
    f->t->model = bpe_create((size_t)tokens, (size_t)merge_count, f->t->whole);
    return read_vocab(f, vocab) && read_merges(f, merges);
}

/* ----------------------------------------------------------------------------------------------------------- added tokens */

/* Whether the vocabulary, where it has this text, has it as this id. */
static bool fits_vocab(const file *f, const char *content, size_t size, int32_t id)
{
    const tokenizer_entry *e = &f->t->entries[id];
    char bytes[ADDED_TOKEN_MOST_BYTES];
    size_t length;
    const bool reachable = bytes_of(content, size, bytes, &length);
    const int32_t known = reachable ? bpe_find(f->t->model, bytes, length) : -1;
    if (known >= 0 ? known == id : !e->bytes || (e->size == size && memcmp(e->bytes, content, size) == 0))
        return true;
    return train_fail("%s: added token '%.60s' is %d, but the vocabulary has %s %d", f->path, content, id,
                      known >= 0 ? "it as" : "another token", known >= 0 ? known : id);
}

/* Where a text is looked for this token. */
static void look_for_it(tokenizer *t, const char *content, size_t size, bool normalized, added_token token)
{
    text_buffer normal = {0};
    if (!normalized) {
        added_tokens_add(&t->raw, content, size, token);
        return;
    }
    if (t->normalises)
        unicode_nfc(content, size, &normal);
    else
        text_bytes(&normal, content, size);
    if (normal.length <= ADDED_TOKEN_MOST_BYTES)
        added_tokens_add(&t->normal, normal.bytes, normal.length, token);
    text_free(&normal);
}

/* The package gives tokens that are not in the vocabulary the next free numbers, whatever the file says. */
static bool check_order(const file *f, const char *content, int32_t id, int32_t expected)
{
    return f->t->entries[id].bytes || id == expected ||
           train_fail("%s: added token '%.60s' is %d, but the next number is %d", f->path, content, id, expected);
}

static bool read_added(file *f, const cJSON *added, int32_t next)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, added)
    {
        const char *content = text_of(item, "content");
        const size_t size = strlen(content);
        const added_token token = {id_of(member(item, "id")), is_true(item, "single_word"), is_true(item, "lstrip"),
                                   is_true(item, "rstrip")};
        if (!check_flags(f, item) || !fits_vocab(f, content, size, token.id) || !check_order(f, content, token.id, next))
            return false;
        next = token.id >= next ? token.id + 1 : next;
        memcpy(f->next, content, size);
        f->t->entries[token.id] = (tokenizer_entry){
            .bytes = f->next, .size = size, .named = true, .special = is_true(item, "special"), .plain = true};
        f->next += size;
        look_for_it(f->t, content, size, is_true(item, "normalized"), token);
    }
    return true;
}

/* --------------------------------------------------------------------------------------------------------------- the rest */

/* Calls `read` for a part, or in order for the parts of a Sequence, whose list has this name. */
static bool for_parts(file *f, const char *name, const char *list, const cJSON *part, bool (*read)(file *f, const cJSON *part))
{
    if (absent(part))
        return true;
    if (strcmp(text_of(part, "type"), "Sequence") != 0)
        return read(f, part);
    const cJSON *item, *all = member(part, list);
    if (!cJSON_IsArray(all))
        return train_fail("%s: %s: a Sequence without '%s'", f->path, name, list);
    cJSON_ArrayForEach(item, all)
    {
        if (!read(f, item))
            return false;
    }
    return true;
}

static bool read_normalizer(file *f, const cJSON *part)
{
    if (strcmp(text_of(part, "type"), "NFC") != 0)
        return refuse(f, "normalizer", text_of(part, "type"));
    f->t->normalises = true;
    return true;
}

static bool read_split(const file *f, const cJSON *part, tokenizer_step *step)
{
    const char *expression = text_of(member(part, "pattern"), "Regex");
    if (strcmp(text_of(part, "behavior"), "Isolated") != 0)
        return refuse(f, "pre_tokenizer Split with behavior", text_of(part, "behavior"));
    if (is_true(part, "invert"))
        return refuse(f, "pre_tokenizer Split with", "invert");
    step->splits = word_pattern_of(expression, &step->pattern);
    return step->splits || refuse(f, "pre_tokenizer Split by expression", expression);
}

static bool read_pre_tokenizer(file *f, const cJSON *part)
{
    const char *type = text_of(part, "type");
    const bool bytes = strcmp(type, "ByteLevel") == 0;
    tokenizer_step step = {0};
    if (!check_flags(f, part))
        return false;
    if (!bytes && strcmp(type, "Split") != 0)
        return refuse(f, "pre_tokenizer", type);
    if (!bytes && !read_split(f, part, &step))
        return false;
    if (bytes) {
        /* Both are true where nothing is said. */
        step.prefix = !cJSON_IsFalse(member(part, "add_prefix_space"));
        step.splits = !cJSON_IsFalse(member(part, "use_regex"));
    }
    if (f->t->step_count == TOKENIZER_STEPS)
        return train_fail("%s: pre_tokenizer: more than %d steps", f->path, TOKENIZER_STEPS);
    f->t->steps[f->t->step_count++] = step;
    return true;
}

/* Words are bytes from ByteLevel on, so it has to be there once, at the end. */
static bool check_pre_tokenizer(const file *f, const cJSON *part)
{
    const cJSON *item, *last = part;
    int found = 0;
    cJSON_ArrayForEach(item, member(part, "pretokenizers"))
    {
        found += strcmp(text_of(item, "type"), "ByteLevel") == 0;
        last = item;
    }
    if (!absent(part) && strcmp(text_of(last, "type"), "ByteLevel") == 0 && found <= 1)
        return true;
    return train_fail("%s: pre_tokenizer: not with ByteLevel once, at its end: this is no byte-level tokenizer", f->path);
}

static bool add_template(file *f, const cJSON *processor, const cJSON *piece, token_list *list)
{
    const char *name = text_of(member(piece, "SpecialToken"), "id");
    const cJSON *id, *ids = member(member(member(processor, "special_tokens"), name), "ids");
    if (!*name || !cJSON_IsArray(ids))
        return train_fail("%s: post_processor: special token '%.60s' has no ids", f->path, name);
    cJSON_ArrayForEach(id, ids)
    {
        if (id_of(id) < 0 || id_of(id) >= f->t->vocab || list->count >= 64)
            return train_fail("%s: post_processor: '%.60s' has an id that is no token, or they are more than 64", f->path,
                              name);
        token_list_add(list, id_of(id));
    }
    return true;
}

static bool read_post_processor(file *f, const cJSON *part)
{
    const char *type = text_of(part, "type");
    const cJSON *piece;
    int texts = 0;
    if (strcmp(type, "ByteLevel") == 0)
        return true;
    if (strcmp(type, "TemplateProcessing") != 0)
        return refuse(f, "post_processor", type);
    if (f->t->before.count || f->t->after.count)
        return train_fail("%s: post_processor: more than one TemplateProcessing", f->path);
    cJSON_ArrayForEach(piece, member(part, "single"))
    {
        if (member(piece, "Sequence"))
            ++texts;
        else if (!add_template(f, part, piece, texts ? &f->t->after : &f->t->before))
            return false;
    }
    return texts == 1 || train_fail("%s: post_processor: its 'single' has %d texts, not one", f->path, texts);
}

static bool read_decoder(file *f, const cJSON *part)
{
    return strcmp(text_of(part, "type"), "ByteLevel") == 0 || refuse(f, "decoder", text_of(part, "type"));
}

static void find_end(tokenizer *t)
{
    static const char *const names[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>"};
    t->end = -1;
    for (size_t i = 0; i < sizeof names / sizeof *names && t->end < 0; ++i)
        t->end = tokenizer_named(t, names[i]);
}

static bool read_root(file *f, const cJSON *root)
{
    const cJSON *added = member(root, "added_tokens"), *words = member(root, "pre_tokenizer");
    if (!for_parts(f, "normalizer", "normalizers", member(root, "normalizer"), read_normalizer) ||
        !for_parts(f, "pre_tokenizer", "pretokenizers", words, read_pre_tokenizer) || !check_pre_tokenizer(f, words) ||
        !for_parts(f, "decoder", "decoders", member(root, "decoder"), read_decoder) ||
        !read_model(f, member(root, "model"), added) ||
        !read_added(f, added, cJSON_GetArraySize(member(member(root, "model"), "vocab"))) ||
        !for_parts(f, "post_processor", "processors", member(root, "post_processor"), read_post_processor))
        return false;
    find_end(f->t);
    return true;
}

bool tokenizer_read(tokenizer *t, const char *path, const char *json, size_t size)
{
    file f = {.path = path, .t = t};
    cJSON *root = json_object(json, size, path);
    const bool good = root && read_root(&f, root);
    cJSON_Delete(root);
    return good;
}
