/*
 * A tokenizer as it lies on a disk. In tokenizer.json a byte is written as a character: itself where Latin-1 prints it, else
 * U+0100 and the next ones in order.
 */
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "publish.h"
#include "tokenizer_parts.h"

enum { FILE_MOST_BYTES = 1 << 26 };

const char *const tokenizer_file_names[] = {TOKENIZER_JSON, TOKENIZER_CONFIG_JSON, "special_tokens_map.json",
                                            CHAT_TEMPLATE,  GENERATION_JSON,       NULL};

/* The names of the tokens that frame a text of bytes. */
static const char *const frame[] = {"<|startoftext|>", "<|endoftext|>"};

/* ------------------------------------------------------------------------------------------------------------ alphabet */

static bool stands_for_itself(uint32_t byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xff && byte != 0xad);
}

/* Those that do not stand for themselves are 0..32, 127..160 and 173. */
int tokenizer_byte(uint32_t code)
{
    if (code < 256)
        return stands_for_itself(code) ? (int)code : -1;
    const uint32_t n = code - 256;
    return n <= 32 ? (int)n : n <= 66 ? (int)(n - 33 + 127) : n == 67 ? 173 : -1;
}

static void write_byte(text_buffer *out, unsigned char byte)
{
    uint32_t code = byte;
    if (!stands_for_itself(byte))
        code = 256 + (byte <= 32 ? byte : byte == 173 ? 67 : byte - 127u + 33);
    const char wide[2] = {(char)(0xc0 | code >> 6), (char)(0x80 | (code & 0x3f))}, narrow = (char)code;
    text_bytes(out, code < 0x80 ? &narrow : wide, code < 0x80 ? 1 : 2);
}

/* -------------------------------------------------------------------------------------------------------------- tokens */

static tokenizer_kind written_byte(int32_t token, text_buffer *out)
{
    if (token < 256)
        write_byte(out, (unsigned char)token);
    else
        text_format(out, "%s", frame[token - 256]);
    return token < 256 ? TOKEN_NORMAL : TOKEN_SPECIAL;
}

tokenizer_kind tokenizer_written(const tokenizer *t, int32_t token, text_buffer *out)
{
    if (token < 0 || token >= t->vocab)
        return TOKEN_UNUSED;
    if (!t->model)
        return written_byte(token, out);
    const tokenizer_entry *e = &t->entries[token];
    if (!e->bytes)
        return TOKEN_UNUSED;
    for (size_t i = 0; i < e->size && !e->plain; ++i)
        write_byte(out, (unsigned char)e->bytes[i]);
    if (e->plain)
        text_bytes(out, e->bytes, e->size);
    return e->special ? TOKEN_SPECIAL : e->named ? TOKEN_ADDED : TOKEN_NORMAL;
}

const tokenizer_merge *tokenizer_merges(const tokenizer *t, int64_t *count)
{
    *count = t->merge_count;
    return t->merges;
}

bool tokenizer_cuts(const tokenizer *t, word_pattern pattern, bool whole)
{
    int cuts = 0;
    for (int i = 0; i < t->step_count; ++i) {
        const tokenizer_step *s = &t->steps[i];
        if (s->prefix || (s->splits && s->pattern != pattern))
            return false;
        cuts += s->splits;
    }
    return t->merge_count == 0 || (cuts == 1 && t->whole == whole);
}

const token_list *tokenizer_before(const tokenizer *t)
{
    return &t->before;
}

const token_list *tokenizer_after(const tokenizer *t)
{
    return &t->after;
}

/* --------------------------------------------------------------------------------------------------------------- files */

int tokenizer_file_count(const tokenizer *t)
{
    return t->file_count;
}

const tokenizer_file *tokenizer_file_at(const tokenizer *t, int index)
{
    return &t->files[index];
}

const tokenizer_file *tokenizer_file_named(const tokenizer *t, const char *name)
{
    for (int i = 0; i < t->file_count; ++i)
        if (strcmp(t->files[i].name, name) == 0)
            return &t->files[i];
    return NULL;
}

static void add_file(tokenizer *t, const char *name, char *bytes, size_t size)
{
    t->files[t->file_count++] = (tokenizer_file){name, bytes, size};
}

/* Beside a file of another name lie those of others. */
bool tokenizer_add_files(tokenizer *t, const char *path, char *json, size_t size)
{
    const char *slash = strrchr(path, '/');
    const bool alone = strcmp(slash ? slash + 1 : path, tokenizer_file_names[0]) != 0;
    char *folder = path_folder(path);
    bool good = true;
    add_file(t, tokenizer_file_names[0], json, size);
    for (int i = 1; i < TOKENIZER_FILES && !alone && good; ++i) {
        char *beside = path_join(folder, tokenizer_file_names[i]);
        if (path_exists(beside)) {
            char *bytes = config_slurp(beside, FILE_MOST_BYTES, &size);
            good = bytes != NULL;
            if (good)
                add_file(t, tokenizer_file_names[i], bytes, size);
        }
        free(beside);
    }
    free(folder);
    return good;
}

static void write_special(text_buffer *json, int32_t id)
{
    text_format(json, "%s\n    {\"id\": %d, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false, ",
                id > 256 ? "," : "", id, frame[id - 256]);
    text_format(json, "\"rstrip\": false, \"normalized\": false, \"special\": true}");
}

static void write_level(text_buffer *json, const char *part)
{
    text_format(json, "  \"%s\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": false, ", part);
    text_format(json, "\"use_regex\": false},\n");
}

/* Byte-pair encoding with a token for each byte and the two that frame a text, which merges nothing. */
static void write_bytes(text_buffer *json)
{
    text_format(json, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [");
    write_special(json, TOKEN_BOS);
    write_special(json, TOKEN_EOS);
    text_format(json, "\n  ],\n  \"normalizer\": null,\n");
    write_level(json, "pre_tokenizer");
    text_format(json, "  \"post_processor\": null,\n");
    write_level(json, "decoder");
    text_format(json, "  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n");
    text_format(json,
                "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n");
    text_format(json, "    \"byte_fallback\": false,\n    \"ignore_merges\": false,\n    \"vocab\": {");
    for (int32_t token = 0; token < TOKENIZER_VOCAB; ++token) {
        text_buffer name = {0};
        written_byte(token, &name);
        text_format(json, "%s\n      ", token ? "," : "");
        text_json_string(json, name.bytes, name.length);
        text_format(json, ": %d", token);
        text_free(&name);
    }
    text_format(json, "\n    },\n    \"merges\": []\n  }\n}\n");
}

void tokenizer_add_own_file(tokenizer *t)
{
    text_buffer json = {0};
    write_bytes(&json);
    add_file(t, tokenizer_file_names[0], json.bytes, json.length);
}
