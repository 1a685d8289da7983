/* site.c: source lines of places in kernels, by addr2line on this program's own file.
 *
 * Only when a report is printed: 4 ms for each place, remembered.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "emu/engine.h"

#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

const char mxa_emu_anchor = 0;

enum { REMEMBERED = 128, TEXT_BYTES = 240 };

static struct {
    pthread_mutex_t lock;
    int count;
    mxa_emu_site site[REMEMBERED];
    char text[REMEMBERED][TEXT_BYTES];
} memory = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Path of the file a place lies in, and the address that its line table uses. */
static int locate(mxa_emu_site site, char *path, size_t bytes, unsigned long *address)
{
    const uintptr_t at = (uintptr_t)((intptr_t)&mxa_emu_anchor + site) - 1;
    Dl_info info;
    void *pointer;
    memcpy(&pointer, &at, sizeof pointer);
    if (!dladdr(pointer, &info) || !info.dli_fname || !info.dli_fbase) {
        return 0;
    }
    Elf64_Ehdr header;
    memcpy(&header, info.dli_fbase, sizeof header);
    *address = header.e_type == ET_EXEC ? at : at - (uintptr_t)info.dli_fbase;
    (void)snprintf(path, bytes, "%s", info.dli_fname);
    FILE *file = fopen(path, "rb");
    if (!file) { /* started by a name that was found along PATH */
        (void)snprintf(path, bytes, "/proc/self/exe");
        return 1;
    }
    (void)fclose(file);
    return strchr(path, '\'') == NULL;
}

/* The emulator's own wrappers are left out; the rest is the chain of stages, innermost first. */
static void ask_addr2line(const char *path, unsigned long address, char *text, size_t bytes)
{
    char command[512], function[128], line[512];
    size_t used = 0;
    text[0] = '\0';
    (void)snprintf(command, sizeof command, "addr2line -i -f -e '%s' 0x%lx 2>/dev/null", path,
                   address);
    FILE *answer = popen(command, "r");
    while (answer && fgets(function, sizeof function, answer) && fgets(line, sizeof line, answer)) {
        function[strcspn(function, "\n")] = '\0';
        line[strcspn(line, " \n")] = '\0';
        const size_t length = strlen(function);
        const int is_thunk = length > 7 && strcmp(function + length - 7, "_thread") == 0;
        if (is_thunk || strstr(line, "src/emu/") || line[0] == '?' || used >= bytes) {
            continue;
        }
        const char *name = strrchr(line, '/');
        const int more = snprintf(text + used, bytes - used, "%s%s %s", used ? " < " : "",
                                  name ? name + 1 : line, function);
        used += more > 0 ? (size_t)more : 0;
    }
    if (answer) {
        (void)pclose(answer);
    }
}

void mxa_emu_site_text(mxa_emu_site site, char *text, size_t bytes)
{
    char path[256], found[TEXT_BYTES];
    unsigned long address;
    if (site == 0) {
        (void)snprintf(text, bytes, "-");
        return;
    }
    (void)pthread_mutex_lock(&memory.lock);
    for (int i = 0; i < memory.count; i++) {
        if (memory.site[i] == site) {
            (void)snprintf(text, bytes, "%s", memory.text[i]);
            (void)pthread_mutex_unlock(&memory.lock);
            return;
        }
    }
    (void)pthread_mutex_unlock(&memory.lock);
    found[0] = '\0';
    if (locate(site, path, sizeof path, &address)) {
        ask_addr2line(path, address, found, sizeof found);
        if (!found[0]) {
            (void)snprintf(found, sizeof found, "%.160s+0x%lx (no line table, or no addr2line)",
                           path, address);
        }
    } else {
        (void)snprintf(found, sizeof found, "an unknown place");
    }
    (void)pthread_mutex_lock(&memory.lock);
    if (memory.count < REMEMBERED) {
        memory.site[memory.count] = site;
        memcpy(memory.text[memory.count++], found, sizeof found);
    }
    (void)pthread_mutex_unlock(&memory.lock);
    (void)snprintf(text, bytes, "%s", found);
}
