/*
 * A Hugging Face folder from one input: a byte, whose lowest bit says whether the weights are one file or a part that an index
 * names; two bytes with the length of config.json, that, two bytes with the length of the index, that, and the weights. The
 * second part is also read as a list of checksums. What is accepted is written and read again, the same.
 */
#include "fuzz.h"
#include "train/checksums.h"
#include "train/error.h"
#include "train/hf_weights.h"
#include "train/model_folder.h"

#include <math.h>
#include <string.h>

enum { CONFIG, INDEX, WEIGHTS };
enum { LARGEST = 4096 }; /* of any number of a model that is loaded, so that runs are short */

static void lay_out(bool whole)
{
    static int before = -1;
    if (before == whole)
        return;
    char paths[2][320];
    static const char *const names[] = {"part.safetensors", "model.safetensors"};
    for (int i = 0; i < 2; i++)
        snprintf(paths[i], sizeof paths[i], "%s/%s", fuzz_folder(), names[i]);
    if (before < 0) {
        fuzz_link("config.json", CONFIG);
        fuzz_link("model.safetensors.index.json", INDEX);
        fuzz_link(names[whole], WEIGHTS);
    } else {
        FUZZ_CHECK(rename(paths[!whole], paths[whole]) == 0);
    }
    before = whole;
}

static bool on_line(void *user, const char *name, const char *sha256)
{
    (void)user;
    FUZZ_CHECK(*name && !strchr(name, '/') && strspn(sha256, "0123456789abcdef") == 64 && strlen(sha256) == 64);
    return true;
}

static void check_sums(const fuzz_input *part)
{
    char *text = fuzz_guarded(part->bytes, part->left);
    if (!checksums_parse(text, part->left, "input", on_line, NULL))
        FUZZ_CHECK(*train_error());
    fuzz_unguarded(text, part->left);
}

static void check_written(const hf_config *c)
{
    text_buffer json = {0};
    hf_config again;
    hf_config_write(&json, c, NARROW_F32);
    FUZZ_CHECK(hf_config_parse(json.bytes, json.length, "written", &again), "%s in %s", train_error(), json.bytes);
    FUZZ_CHECK(again.window == c->window && again.bos == c->bos && again.eos == c->eos);
    FUZZ_CHECK(again.model.hidden == c->model.hidden && again.model.max_seq == c->model.max_seq);
    FUZZ_CHECK(again.model.rope_theta == c->model.rope_theta && again.model.rms_eps == c->model.rms_eps);
    text_free(&json);
}

static bool is_small(const model_config *m)
{
    return m->vocab <= LARGEST && m->hidden <= 64 && m->layers <= 8 && m->heads * m->head_dim <= LARGEST && m->ffn <= LARGEST &&
           m->max_seq <= LARGEST;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input in = {data, size};
    lay_out(fuzz_byte(&in) & 1);
    const fuzz_input config = fuzz_part(&in, fuzz_number(&in, 2)), index = fuzz_part(&in, fuzz_number(&in, 2));
    fuzz_file(CONFIG, config.bytes, config.left);
    fuzz_file(INDEX, index.bytes, index.left);
    fuzz_file(WEIGHTS, in.bytes, in.left);
    check_sums(&index);
    model_folder f;
    if (model_folder_open(fuzz_folder(), &f)) {
        check_written(&f.config);
        model *m = is_small(&f.model) ? model_folder_load(&f) : NULL;
        FUZZ_CHECK(m || !is_small(&f.model) || *train_error());
        model_free(m);
    } else {
        FUZZ_CHECK(*train_error());
    }
    model_folder_close(&f);
    return 0;
}
