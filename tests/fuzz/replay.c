/* replay.c: runs a fuzz target without a fuzzer: every file of its corpus, then mutations of them
 * from a fixed seed. usage: fuzz_NAME CORPUS_FOLDER [MUTATIONS]
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "input.h"

#include "fill.h"

#include <dirent.h>
#include <signal.h>
#include <unistd.h>

enum { MOST_FILES = 256, MOST_BYTES = 4096, SECONDS = 120 };

static struct {
    uint8_t bytes[MOST_FILES][MOST_BYTES];
    size_t size[MOST_FILES];
    char name[MOST_FILES][64];
    int files;
} corpus;

/* What is running, for the signal handler: name, and number of the mutation. */
static const char *current_name = "";
static long current_mutation;

static void say_which(int signal_number)
{
    char text[160];
    int n =
        snprintf(text, sizeof text, "\nFAIL signal %d in %s, mutation %ld\n0 passed, 1 failed\n",
                 signal_number, current_name, current_mutation);
    if (write(STDOUT_FILENO, text, (size_t)n) < 0)
        _exit(3);
    _exit(2);
}

static int load_corpus(const char *folder)
{
    struct dirent **entries;
    int count = scandir(folder, &entries, NULL, alphasort);
    for (int e = 0; e < count; e++) {
        char path[1024];
        (void)snprintf(path, sizeof path, "%s/%s", folder, entries[e]->d_name);
        FILE *file = NULL;
        if (entries[e]->d_name[0] != '.' && corpus.files < MOST_FILES)
            file = fopen(path, "rb");
        if (file) {
            int i = corpus.files++;
            corpus.size[i] = fread(corpus.bytes[i], 1, MOST_BYTES, file);
            (void)snprintf(corpus.name[i], sizeof corpus.name[i], "%.63s", entries[e]->d_name);
            (void)fclose(file);
        }
        free(entries[e]);
    }
    if (count >= 0)
        free(entries);
    return corpus.files;
}

/* One to eight bytes changed, or the end cut, or bytes appended. */
static size_t mutate(uint8_t *bytes, size_t size, mxt_random *random)
{
    int changes = (int)mxt_random_int(random, 1, 8);
    for (int i = 0; i < changes && size; i++) {
        size_t at = (size_t)mxt_random_int(random, 0, (int64_t)size - 1);
        bytes[at] = (uint8_t)mxt_random_u64(random);
    }
    if (mxt_random_int(random, 0, 7) == 0)
        size = (size_t)mxt_random_int(random, 0, (int64_t)size);
    while (mxt_random_int(random, 0, 7) == 0 && size < MOST_BYTES)
        bytes[size++] = (uint8_t)mxt_random_u64(random);
    return size;
}

/* An exact copy on the heap, so that a sanitizer sees a read beyond its end. */
static void run_one(const uint8_t *bytes, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    if (!copy)
        abort();
    memcpy(copy, bytes, size);
    (void)LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

int main(int argc, char **argv)
{
    long mutations = argc > 2 ? atol(argv[2]) : 0;
    if (argc < 2 || !load_corpus(argv[1])) {
        printf("no corpus in %s\n0 passed, 1 failed\n", argc > 1 ? argv[1] : "(no folder)");
        return 1;
    }
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGALRM};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        (void)signal(signals[i], say_which);
    (void)alarm(SECONDS);

    for (int i = 0; i < corpus.files; i++) {
        current_name = corpus.name[i];
        run_one(corpus.bytes[i], corpus.size[i]);
    }
    mxt_random random = {251};
    static uint8_t bytes[MOST_BYTES];
    for (current_mutation = 1; current_mutation <= mutations; current_mutation++) {
        int i = (int)mxt_random_int(&random, 0, corpus.files - 1);
        current_name = corpus.name[i];
        memcpy(bytes, corpus.bytes[i], corpus.size[i]);
        size_t size = mutate(bytes, corpus.size[i], &random);
        run_one(bytes, size);
    }
    printf("%d files and %ld mutations\n%d passed, 0 failed\n", corpus.files, mutations,
           corpus.files + (mutations > 0));
    return 0;
}
