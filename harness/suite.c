/*
 * Suites; see suite.h. One problem at a time: its truth once, then every kernel that can.
 */
#include "suite.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mirror.h"

suite suite_make(void)
{
    return (suite){.level = LIST_DEFAULT, .seed = 1, .harness = harness_make()};
}

void suite_free(suite *s)
{
    harness_free(&s->harness);
}

static double seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* ----------------------------------------------------------------------------------------------------------- selecting */

/* Copies what stands before the @ of "name@kernel". False if it is longer than any name. */
static bool pattern_name(const char *pattern, char name[PROBLEM_NAME_SIZE])
{
    const size_t length = strcspn(pattern, "@");
    if (length >= PROBLEM_NAME_SIZE)
        return false;
    memcpy(name, pattern, length);
    name[length] = '\0';
    return true;
}

bool suite_problems(suite *s, problem_list *list)
{
    char name[PROBLEM_NAME_SIZE] = "";
    const bool possible = !s->pattern || pattern_name(s->pattern, name);
    problem p;
    *list = (problem_list){0};
    if (s->pattern && possible && problem_parse(name, &p, NULL, 0)) {
        list->item = malloc(sizeof p);
        if (list->item) {
            list->item[0] = p;
            list->count = list->capacity = 1;
        }
    } else if (possible) {
        *list = problem_list_make(s->level, s->seed);
        if (s->pattern)
            problem_list_filter(list, name);
    }
    if (list->count > 0)
        return true;
    problem_list_free(list);
    snprintf(s->complaint, sizeof s->complaint, "no problem matches '%s'", s->pattern ? s->pattern : "");
    return false;
}

static bool name_matches(const char *name, const char *wanted, size_t length)
{
    return !strncmp(name, wanted, length) && (name[length] == '\0' || name[length] == '_');
}

static bool kernel_wanted(const suite *s, const char *name)
{
    const char *at = s->pattern ? strchr(s->pattern, '@') : NULL;
    if (at && strcmp(at + 1, "automatic") != 0 && !name_matches(name, at + 1, strlen(at + 1)))
        return false;
    for (int i = 0; i < s->kernels_count; i++)
        if (name_matches(name, s->kernels[i], strlen(s->kernels[i])))
            return true;
    return s->kernels_count == 0;
}

static suite_kernel *kernel_of(suite *s, const char *name)
{
    for (int i = 0; i < s->kernel_count; i++)
        if (!strcmp(s->kernel[i].name, name))
            return &s->kernel[i];
    if (s->kernel_count == 2 * KERNELS_MAX)
        return NULL;
    suite_kernel *k = &s->kernel[s->kernel_count++];
    *k = (suite_kernel){.name = name};
    return k;
}

/* ------------------------------------------------------------------------------------------------------------- running */

/* kernel: which was to run it; "": every one. */
static void skip_for_memory(suite *s, const problem *p, const char *kernel, const char *reason)
{
    char name[PROBLEM_NAME_SIZE];
    s->unplaced++;
    s->skipped++;
    if (!s->unplaced_lines)
        return;
    problem_print(p, name);
    fprintf(s->unplaced_lines, "not reached: %s%s%s (%s)\n", name, *kernel ? "@" : "", kernel, reason);
}

static void count_verdict(suite *s, suite_kernel *k, const problem *p, const char *kernel, const verdict *v, FILE *file)
{
    if (v->no_memory) {
        skip_for_memory(s, p, kernel, v->text);
        return;
    }
    if (k) {
        double *units = &k->units[p->op == FATTN_OP_BACKWARD];
        k->worst = v->worst > k->worst ? v->worst : k->worst;
        *units = v->units > *units ? v->units : *units;
        k->passed += v->passed;
        k->failed += !v->passed;
    }
    s->passed += v->passed;
    s->failed += !v->passed;
    if (v->passed)
        return;
    char name[PROBLEM_NAME_SIZE];
    problem_print(p, name);
    fprintf(file, "FAIL %s@%s: %s\n", name, kernel, v->text);
    fflush(file);
}

static void run_kernel(suite *s, test_case *c, const kernel_entry *entry, FILE *file)
{
    suite_kernel *k = kernel_of(s, entry->name);
    if (!k)
        return;
    k->lacks |= entry->lacks;
    if (entry->refusal) {
        k->refused++;
        k->refusal = entry->refusal;
        s->skipped++;
        return;
    }
    const verdict v = case_run(&s->harness, c, entry);
    count_verdict(s, k, &c->p, entry->name, &v, file);
}

static void run_automatic(suite *s, test_case *c, const kernel_entry *entries, int count, FILE *file)
{
    for (int i = 0; i < count; i++) {
        if (!entries[i].selected)
            continue;
        const verdict v = case_run_automatic(&s->harness, c, &entries[i]);
        if (!v.passed)
            count_verdict(s, NULL, &c->p, "automatic", &v, file);
        return;
    }
    const verdict v = {.text = "the query selects no kernel"};
    count_verdict(s, NULL, &c->p, "automatic", &v, file);
}

static void run_look(suite *s, const test_case *c, FILE *file)
{
    if (c->p.op != FATTN_OP_FORWARD || s->harness.gpu) /* tests/cuda/look.c has those */
        return;
    const verdict v = case_look(&s->harness, c);
    if (!v.passed)
        count_verdict(s, NULL, &c->p, "fattn_scores", &v, file);
}

static void run_kernels(suite *s, test_case *c, const kernel_entry *entries, int count, FILE *file)
{
    for (int i = 0; i < count; i++)
        if (entries[i].of_type && kernel_wanted(s, entries[i].name))
            run_kernel(s, c, &entries[i], file);
    if (s->kernels_count == 0) {
        run_automatic(s, c, entries, count, file);
        run_look(s, c, file);
    }
}

static void run_problem(suite *s, const problem *p, FILE *file)
{
    test_case *c = malloc(sizeof *c);
    char reason[100] = "no memory for this problem";
    kernel_entry entries[KERNELS_MAX];
    const int count = harness_kernels(&s->harness, p, entries);
    if (!c || !case_make(c, p, reason, sizeof reason)) {
        skip_for_memory(s, p, "", reason);
        free(c);
        return;
    }
    if (s->harness.gpu && !mirror_has_room(s->harness.gpu, c))
        skip_for_memory(s, p, "", "no memory: needs more than half of what the GPU has");
    else
        run_kernels(s, c, entries, count, file);
    if (s->harness.gpu)
        mirror_shrink(s->harness.gpu);
    case_free(c);
    free(c);
}

/* ----------------------------------------------------------------------------------------------------------- reporting */

static void print_features(FILE *file, uint32_t features)
{
    static const struct {
        uint32_t bit;
        const char *name;
    } known[] = {{FATTN_CPU_AVX2, "AVX2"},
                 {FATTN_CPU_AVX512, "AVX-512"},
                 {FATTN_CPU_F16C, "F16C"},
                 {FATTN_CPU_AVX512_BF16, "AVX512_BF16"},
                 {FATTN_CPU_AMX_BF16, "AMX-BF16"},
                 {FATTN_CUDA_SM80, "compute capability 8.0"},
                 {FATTN_CUDA_SM90, "compute capability 9.0"}};
    const char *comma = "";
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (features & known[i].bit) {
            fprintf(file, "%s%s", comma, known[i].name);
            comma = ", ";
        }
}

static void print_kernels(const suite *s, FILE *file)
{
    for (int i = 0; i < s->kernel_count; i++) {
        const suite_kernel *k = &s->kernel[i];
        if (k->passed + k->failed == 0)
            continue;
        fprintf(file, "%-28s %5d passed %4d failed %4d refused   error %.2f units, %.2f of what is allowed", k->name, k->passed,
                k->failed, k->refused, k->units[0] > k->units[1] ? k->units[0] : k->units[1], k->worst);
        if (k->refused)
            fprintf(file, " (refused: %s)", k->refusal);
        fputc('\n', file);
    }
    for (int i = 0; i < s->kernel_count; i++) {
        const suite_kernel *k = &s->kernel[i];
        if (k->passed + k->failed > 0)
            continue;
        fprintf(file, "not reached: %s (", k->name);
        if (k->lacks) {
            fputs("this machine lacks ", file);
            print_features(file, k->lacks);
        } else
            fputs(k->refusal ? k->refusal : "no problem of its type", file);
        fputs(")\n", file);
    }
}

bool suite_run(suite *s, FILE *file)
{
    problem_list list;
    const double start = seconds();
    if (!harness_context(&s->harness, NULL, 1)) {
        snprintf(s->complaint, sizeof s->complaint, "%s", fattn_last_error());
        return false;
    }
    if (!suite_problems(s, &list))
        return false;
    s->problems = list.count;
    char *unplaced = NULL;
    size_t unplaced_size = 0;
    s->unplaced_lines = open_memstream(&unplaced, &unplaced_size);
    for (int i = 0; i < list.count; i++) {
        if (s->progress) {
            char name[PROBLEM_NAME_SIZE];
            problem_print(&list.item[i], name);
            s->progress(i, list.count, name);
        }
        problem p = list.item[i];
        p.unordered |= s->unordered && p.op == FATTN_OP_BACKWARD;
        run_problem(s, &p, file);
    }
    problem_list_free(&list);
    if (s->unplaced_lines)
        fclose(s->unplaced_lines);
    s->seconds = seconds() - start;
    if (s->kernel_count == 0) {
        snprintf(s->complaint, sizeof s->complaint, "%s",
                 s->unplaced ? "no memory for this problem" : "no kernel has the name asked for");
        free(unplaced);
        return false;
    }
    if (!s->quiet) {
        print_kernels(s, file);
        fputs(unplaced ? unplaced : "", file);
    }
    free(unplaced);
    fprintf(file, "%d passed, %d failed, %d skipped\n", s->passed, s->failed, s->skipped);
    return true;
}
