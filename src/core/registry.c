/*
 * The tables of kernels, in the order of preference: the first row that can and should run a problem does.
 *
 * A new kernel file adds one extern line and one line in `tables`.
 */
#include "core/registry.h"

#include <string.h>

#ifdef FATTN_HAVE_X86
extern const fattn_kernel_table fattn_cpu_avx512_f32, fattn_cpu_avx512_f64, fattn_cpu_avx2_f32, fattn_cpu_avx2_f64;
#endif
#ifdef FATTN_HAVE_NEON
extern const fattn_kernel_table fattn_cpu_neon_f32, fattn_cpu_neon_f64;
#endif
extern const fattn_kernel_table fattn_cpu_generic_f32, fattn_cpu_generic_f64;
#ifdef FATTN_HAVE_CUDA
extern const fattn_kernel_table fattn_cuda_hopper, fattn_cuda_hopper_backward, fattn_cuda_decode, fattn_cuda_tensor,
    fattn_cuda_split, fattn_cuda_exact, fattn_cuda_composed;
#endif
#ifdef FATTN_WITH_ONEDNN
extern const fattn_kernel_table fattn_composed;
#endif
extern const fattn_kernel_table fattn_ref;

static const fattn_kernel_table *const tables[] = {
#ifdef FATTN_HAVE_CUDA
    &fattn_cuda_hopper,
    &fattn_cuda_hopper_backward,
    &fattn_cuda_decode,
    &fattn_cuda_tensor,
    &fattn_cuda_split,
    &fattn_cuda_exact,    /* refuses nothing valid but what no grid has blocks for */
    &fattn_cuda_composed, /* never chosen unless forced */
#endif
#ifdef FATTN_HAVE_X86
    &fattn_cpu_avx512_f32,
    &fattn_cpu_avx512_f64,
    &fattn_cpu_avx2_f32,
    &fattn_cpu_avx2_f64,
#endif
#ifdef FATTN_HAVE_NEON
    &fattn_cpu_neon_f32,
    &fattn_cpu_neon_f64,
#endif
    &fattn_cpu_generic_f32,
    &fattn_cpu_generic_f64,
#ifdef FATTN_WITH_ONEDNN
    &fattn_composed, /* never chosen unless forced */
#endif
    &fattn_ref, /* last: refuses nothing valid */
};

int32_t fattn_registry_list(fattn_op op, const fattn_kernel *list[FATTN_MAX_KERNELS])
{
    int32_t count = 0;
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (int32_t i = 0; i < tables[t]->count; i++)
            if (tables[t]->rows[i].op == op && count < FATTN_MAX_KERNELS)
                list[count++] = &tables[t]->rows[i];
    return count;
}

/* The next entry of a list, without the spaces around it; false at the end. Empty entries are skipped. */
static bool next_entry(const char **list, const char **entry, size_t *length)
{
    while (**list != '\0') {
        const size_t all = strcspn(*list, ",");
        *entry = *list;
        *length = all;
        *list += all + ((*list)[all] == ',');
        while (*length > 0 && (**entry == ' ' || **entry == '\t'))
            ++*entry, --*length;
        while (*length > 0 && ((*entry)[*length - 1] == ' ' || (*entry)[*length - 1] == '\t'))
            --*length;
        if (*length > 0)
            return true;
    }
    return false;
}

static bool entry_matches(const char *entry, size_t length, const char *name)
{
    return strncmp(entry, name, length) == 0 && (name[length] == '\0' || name[length] == '_');
}

bool fattn_kernel_matches(const char *list, const char *name)
{
    const char *entry;
    size_t length;
    while (next_entry(&list, &entry, &length))
        if (entry_matches(entry, length, name))
            return true;
    return false;
}

const char *fattn_registry_unknown(const char *list, int *length)
{
    const char *entry;
    size_t size;
    while (next_entry(&list, &entry, &size)) {
        bool known = false;
        for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
            for (int32_t i = 0; i < tables[t]->count; i++)
                known = known || entry_matches(entry, size, tables[t]->rows[i].name);
        *length = size > 100 ? 100 : (int)size;
        if (!known)
            return entry;
    }
    return NULL;
}
