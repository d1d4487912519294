/*
 * Runs every file of a folder, or the files named, through a target once: what libFuzzer does with a corpus, for any compiler.
 */
#include "fuzz.h"

#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

static uint8_t *slurp(const char *path, size_t *size)
{
    struct stat info;
    FILE *file = fopen(path, "rb");
    FUZZ_CHECK(file && stat(path, &info) == 0, "%s", path);
    *size = (size_t)info.st_size;
    uint8_t *bytes = malloc(*size + 1);
    FUZZ_CHECK(bytes && fread(bytes, 1, *size, file) == *size, "%s", path);
    fclose(file);
    return bytes;
}

static void run_file(const char *path)
{
    size_t size;
    uint8_t *bytes = slurp(path, &size);
    LLVMFuzzerTestOneInput(bytes, size);
    free(bytes);
}

static int run_folder(const char *folder, DIR *directory)
{
    int count = 0;
    for (struct dirent *entry; (entry = readdir(directory));) {
        char path[1024];
        if (*entry->d_name == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        /* Named first, so that a crash says where it was. */
        printf("%s\n", entry->d_name);
        fflush(stdout);
        run_file(path);
        count++;
    }
    return count;
}

int main(int argc, char **argv)
{
    int count = 0;
    for (int i = 1; i < argc; i++) {
        DIR *directory = opendir(argv[i]);
        if (directory) {
            count += run_folder(argv[i], directory);
            closedir(directory);
        } else {
            run_file(argv[i]);
            count++;
        }
    }
    printf("%d passed, 0 failed, 0 skipped\n", count);
    return count > 0 ? 0 : 1;
}
