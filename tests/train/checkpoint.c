/*
 * Checkpoints: what was saved loads, bit for bit; any damage is refused by name; a save that dies leaves the older one.
 */
#include "train/checkpoint.h"
#include "folder.h"
#include "support.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const model_config shape = {SHAPE_8, .vocab = 11, .layers = 1, .max_seq = 16};
static const char *const names[] = {"model.safetensors", "optimizer.safetensors", "state.json"};

typedef struct fixture {
    char folder[FOLDER_PATH], path[FOLDER_PATH]; /* path: the checkpoint */
    model *m;
    optimizer *o;
} fixture;

static checkpoint_state state_of(const fixture *f, int64_t step)
{
    return (checkpoint_state){.step = step,
                              .seed = 9007199254740991,
                              .position = {2, 34},
                              .model = f->m->config,
                              .configuration = (char *)(uintptr_t) "{\"lr\":0.1,\"data\":\"a \\\"b\\\"\"}"};
}

static void save(fixture *f, int64_t step)
{
    checkpoint_state state = state_of(f, step);
    require(checkpoint_save(f->path, f->m, f->o, &state));
}

static int set_up(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    folder_make(f->folder);
    folder_file(f->path, f->folder, "run");
    f->m = random_model(&shape, 1);
    const optimizer_options adam = optimizer_defaults();
    f->o = optimizer_create(f->m, &adam);
    fill_normal(f->o->m, f->m->size, 0, 1, 2);
    fill_normal(f->o->v, f->m->size, 0, 1, 3);
    save(f, 17);
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    optimizer_free(f->o);
    model_free(f->m);
    folder_remove(f->folder);
    free(f);
    return 0;
}

/* Loads everything; false, with train_error() set, if anything is refused. */
static bool load(const fixture *f, int64_t *step)
{
    checkpoint_state state;
    const optimizer_options adam = optimizer_defaults();
    if (!checkpoint_read_state(f->path, &state))
        return false;
    model *m = checkpoint_load_model(f->path, &state);
    optimizer *o = m ? optimizer_create(m, &adam) : NULL;
    bool good = o && checkpoint_load_optimizer(f->path, &state, o);
    for (int i = 0; good && i < m->parameter_count; ++i) {
        const parameter *p = &m->parameters[i];
        assert_memory_equal(p->data, f->m->parameters[i].data, (size_t)p->size * sizeof(float));
        assert_memory_equal(o->m + p->offset, f->o->m + p->offset, (size_t)p->size * sizeof(float));
        assert_memory_equal(o->v + p->offset, f->o->v + p->offset, (size_t)p->size * sizeof(float));
    }
    if (good)
        *step = o->step;
    optimizer_free(o);
    model_free(m);
    checkpoint_state_free(&state);
    return good;
}

static void check_loads(const fixture *f, int64_t expected)
{
    int64_t step = -1;
    require(load(f, &step));
    assert_int_equal(step, expected);
}

static void check_refused(const fixture *f, const char *name)
{
    int64_t step;
    assert_false(load(f, &step));
    if (!strstr(train_error(), name))
        fail_msg("expected '%s' in: %s", name, train_error());
}

static void test_round_trip(void **data)
{
    const fixture *f = *data;
    checkpoint_state state;
    check_loads(f, 17);
    require(checkpoint_read_state(f->path, &state));
    assert_int_equal(state.step, 17);
    assert_int_equal(state.seed, 9007199254740991);
    assert_int_equal(state.position.epoch, 2);
    assert_int_equal(state.position.window, 34);
    assert_memory_equal(&state.model.vocab, &shape.vocab, sizeof shape.vocab);
    assert_int_equal(state.model.heads_kv, 1);
    assert_true(state.model.rope_theta == shape.rope_theta && state.model.rms_eps == shape.rms_eps);
    assert_false(state.model.tied);
    assert_string_equal(state.configuration, "{\"lr\":0.1,\"data\":\"a \\\"b\\\"\"}");
    checkpoint_state_free(&state);
}

/* One flipped bit, anywhere, in each of the files. */
static void test_altered(void **data)
{
    const fixture *f = *data;
    char path[FOLDER_PATH];
    for (int file = 0; file < 3; ++file) {
        size_t size;
        char *bytes = file_read(folder_file(path, f->path, names[file]), &size);
        for (size_t at = 0; at < size; at += size / 40 + 1) {
            bytes[at] ^= 4;
            file_write(path, bytes, size);
            check_refused(f, names[file]);
            bytes[at] ^= 4;
        }
        bytes[size - 1] ^= 4;
        file_write(path, bytes, size);
        check_refused(f, names[file]);
        bytes[size - 1] ^= 4;
        file_write(path, bytes, size);
        free(bytes);
    }
    check_loads(f, 17);
}

static void test_truncated_and_missing(void **data)
{
    const fixture *f = *data;
    char path[FOLDER_PATH];
    for (int file = 0; file < 3; ++file) {
        size_t size;
        char *bytes = file_read(folder_file(path, f->path, names[file]), &size);
        for (size_t cut = 0; cut < size; cut += size / 10 + 1) {
            file_write(path, bytes, cut);
            check_refused(f, names[file]);
        }
        file_write(path, bytes, size - 1);
        check_refused(f, names[file]);
        unlink(path);
        check_refused(f, names[file]);
        file_write(path, bytes, size);
        free(bytes);
    }
    check_loads(f, 17);
}

/* A state whose checksum is right, but whose numbers are not a model's. */
static void test_bad_state(void **data)
{
    fixture *f = *data;
    checkpoint_state state = state_of(f, 17);
    state.model.hidden = 16;
    require(checkpoint_save(f->path, f->m, f->o, &state));
    check_refused(f, "expected [11, 16]");
    state.model.hidden = 0;
    require(checkpoint_save(f->path, f->m, f->o, &state));
    check_refused(f, "hidden");
}

static void test_replaces(void **data)
{
    fixture *f = *data;
    char path[FOLDER_PATH];
    file_write(folder_file(path, f->path, "log.jsonl"), "kept", 4);
    f->m->data[0] = 7;
    save(f, 18);
    check_loads(f, 18);
    size_t size;
    char *log = file_read(path, &size); /* other files of the folder stay */
    assert_string_equal(log, "kept");
    free(log);
    snprintf(path, sizeof path, "%.480s.fattn-new", f->path);
    assert_int_equal(access(path, F_OK), -1);
}

/* What a killed save leaves behind disturbs neither loading nor the next save. */
static void test_leftovers(void **data)
{
    fixture *f = *data;
    char temporary[FOLDER_PATH], path[FOLDER_PATH];
    snprintf(temporary, sizeof temporary, "%.480s.fattn-new", f->path);
    assert_int_equal(mkdir(temporary, 0777), 0);
    file_write(folder_file(path, temporary, "model.safetensors"), "half", 4);
    check_loads(f, 17);
    save(f, 18);
    check_loads(f, 18);
    assert_int_equal(access(temporary, F_OK), -1);

    /* Where names cannot be exchanged: died between the two renamings. */
    snprintf(path, sizeof path, "%.480s.fattn-old", f->path);
    assert_int_equal(rename(f->path, path), 0);
    check_loads(f, 18);
}

static void test_without_optimizer(void **data)
{
    fixture *f = *data;
    checkpoint_state state = state_of(f, 20);
    require(checkpoint_save(f->path, f->m, NULL, &state));
    require(checkpoint_read_state(f->path, &state));
    model *m = checkpoint_load_model(f->path, &state);
    require(m);
    model_free(m);
    checkpoint_state_free(&state);
    check_refused(f, "no optimizer.safetensors");
}

static void test_folders(void **data)
{
    fixture *f = *data;
    char path[FOLDER_PATH], file[FOLDER_PATH];
    assert_true(checkpoint_folder_usable(f->path)); /* a checkpoint may be replaced */
    folder_file(path, f->folder, "new");
    assert_true(checkpoint_folder_usable(path));
    assert_int_equal(mkdir(path, 0777), 0);
    assert_true(checkpoint_folder_usable(path)); /* so may an empty folder */
    checkpoint_state state = state_of(f, 1);
    require(checkpoint_save(path, f->m, f->o, &state));
    folder_file(path, f->folder, "other");
    assert_int_equal(mkdir(path, 0777), 0);
    file_write(folder_file(file, path, "thesis.txt"), "x", 1);
    assert_false(checkpoint_folder_usable(path)); /* but nothing else */
    assert_non_null(strstr(train_error(), "is no checkpoint"));
    assert_false(checkpoint_folder_usable(file));
    assert_false(checkpoint_folder_usable("./no-such-folder/run"));
    assert_false(checkpoint_save("./no-such-folder/run", f->m, f->o, &state));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(test_round_trip),        TEST(test_altered),  TEST(test_truncated_and_missing),
                                       TEST(test_bad_state),         TEST(test_replaces), TEST(test_leftovers),
                                       TEST(test_without_optimizer), TEST(test_folders)};
    return cmocka_run_group_tests_name("checkpoint", tests, NULL, NULL);
}
