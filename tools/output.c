/* output.c: output files that appear whole or not at all.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "output.h"

#include "error.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_OUTPUTS = 8 };

static struct output {
    const char *option, *path;
    char *final;     /* where the rename goes: path with links resolved */
    char *temporary; /* NULL: a pipe or device, written directly */
    FILE *file;
    int failed; /* errno of the first write that did */
} outputs[MAX_OUTPUTS];
static int output_count;

/* What a signal handler may touch: the temporary names that exist now. */
static char *volatile pending[MAX_OUTPUTS];

static void remove_pending(int signal_number)
{
    for (int i = 0; i < MAX_OUTPUTS; i++)
        if (pending[i])
            (void)unlink(pending[i]);
    (void)signal(signal_number, SIG_DFL);
    (void)raise(signal_number);
}

/* Every signal that ends a program and can be caught, faults of its own too. A file grown beyond
 * its limit is told by the write instead. */
static void watch_signals(void)
{
    static const int signals[] = {SIGINT,  SIGTERM, SIGHUP,  SIGPIPE, SIGQUIT,   SIGXCPU,
                                  SIGALRM, SIGUSR1, SIGUSR2, SIGPROF, SIGVTALRM, SIGABRT,
                                  SIGSEGV, SIGBUS,  SIGFPE,  SIGILL};
    (void)signal(SIGXFSZ, SIG_IGN);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (signal(signals[i], SIG_IGN) != SIG_IGN)
            (void)signal(signals[i], remove_pending);
}

/* The full name of a file that may not exist yet, with links resolved; NULL and errno where its
 * folder does not exist. Freed with free. */
static char *full_name(const char *path)
{
    char *resolved = realpath(path, NULL);
    if (resolved || errno != ENOENT)
        return resolved;
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    resolved = folder ? realpath(folder, NULL) : NULL;
    free(folder);
    if (!resolved)
        return NULL;
    const char *name = slash ? slash + 1 : path;
    size_t bytes = strlen(resolved) + strlen(name) + 2;
    char *full = mxc_tool_alloc(bytes);
    (void)snprintf(full, bytes, "%s/%s", resolved, name);
    free(resolved);
    return full;
}

FILE *mxc_output_open(const char *option, const char *path)
{
    struct stat status;
    if (output_count == MAX_OUTPUTS)
        mxc_die("%s is one output file too many; at most %d are written", option, MAX_OUTPUTS);
    if (output_count == 0)
        watch_signals();
    struct output *out = &outputs[output_count];
    *out = (struct output){.option = option, .path = path};
    int exists = stat(path, &status) == 0;
    if (exists && S_ISDIR(status.st_mode))
        mxc_die("%s %s is a folder; the name of a file is needed", option, path);
    out->final = full_name(path);
    if (!out->final)
        mxc_die("%s %s cannot be written: %s", option, path, strerror(errno));
    for (int i = 0; i < output_count; i++)
        if (strcmp(outputs[i].final, out->final) == 0)
            mxc_die("%s %s is already the file of %s; each output needs a file of its own", option,
                    path, outputs[i].option);
    if (exists && !S_ISREG(status.st_mode)) {
        out->file = fopen(path, "wb");
    } else {
        static const char suffix[] = ".tmp-XXXXXX";
        size_t bytes = strlen(out->final) + sizeof suffix;
        out->temporary = mxc_tool_alloc(bytes);
        (void)snprintf(out->temporary, bytes, "%s%s", out->final, suffix);
        pending[output_count] = out->temporary; /* before it exists: mkstemp fills the name in */
        int descriptor = mkstemp(out->temporary);
        if (descriptor >= 0) {
            mode_t mask = umask(0);
            (void)umask(mask);
            (void)fchmod(descriptor, exists ? status.st_mode & 0777 : 0666 & ~mask);
            out->file = fdopen(descriptor, "wb");
        }
    }
    if (!out->file) {
        int failed = errno;
        pending[output_count] = NULL;
        free(out->final);
        mxc_die("%s %s cannot be written: %s", option, path, strerror(failed));
    }
    output_count++;
    return out->file;
}

void mxc_output_npy(FILE *file, mxc_npy_type type, int ndim, const int64_t *shape, const void *data)
{
    uint8_t header[MXC_NPY_HEADER_MAX];
    size_t count = 1;
    for (int i = 0; i < ndim; i++)
        count *= (size_t)shape[i];
    size_t header_bytes = mxc_npy_header(header, type, ndim, shape);
    errno = 0; /* told at commit */
    if (fwrite(header, 1, header_bytes, file) == header_bytes &&
        (!count || fwrite(data, mxc_npy_type_bytes(type), count, file) == count))
        return;
    for (int i = 0; i < output_count; i++)
        if (outputs[i].file == file && !outputs[i].failed)
            outputs[i].failed = errno;
}

void mxc_outputs_commit(void)
{
    for (int i = 0; i < output_count; i++) {
        struct output *out = &outputs[i];
        int failed = !ferror(out->file) ? 0 : out->failed ? out->failed : EIO;
        errno = 0;
        if (fclose(out->file) != 0 && !failed)
            failed = errno ? errno : EIO;
        out->file = NULL;
        if (failed)
            mxc_die("%s %s cannot be written: %s", out->option, out->path, strerror(failed));
    }
    for (int i = 0; i < output_count; i++) {
        struct output *out = &outputs[i];
        if (out->temporary && rename(out->temporary, out->final) != 0)
            mxc_die("%s %s cannot be written: %s", out->option, out->path, strerror(errno));
        pending[i] = NULL;
    }
    mxc_outputs_discard();
}

void mxc_outputs_discard(void)
{
    for (int i = 0; i < output_count; i++) {
        struct output *out = &outputs[i];
        if (out->file)
            (void)fclose(out->file);
        if (pending[i])
            (void)unlink(pending[i]);
        pending[i] = NULL;
        free(out->temporary);
        free(out->final);
    }
    output_count = 0;
}
