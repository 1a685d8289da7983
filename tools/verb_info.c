/* verb_info.c: mxattn info: version, backends, instruction sets, threads, kernels.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "error.h"
#include "json.h"
#include "options.h"
#include "verbs.h"

#include <stdio.h>
#include <string.h>

enum { KEY_JSON = 'j' };

static error_t parse(int key, char *arg, struct argp_state *state)
{
    (void)arg;
    mxc_parse_input *input = state->input;
    if (key != KEY_JSON)
        return ARGP_ERR_UNKNOWN;
    *(int *)input->own = 1;
    return 0;
}

static const struct argp_option options[] = {{"json", KEY_JSON, 0, 0, "For machines", 0}, {0}};
static const struct argp argp = {
    .options = options,
    .parser = parse,
    .doc = "Tells the version, and for each backend whether it is there, or the reason why not.\v"
           "Example: mxattn info --json"};

static const mxattn_backend backends[] = {MXATTN_BACKEND_CPU, MXATTN_BACKEND_REF,
                                          MXATTN_BACKEND_CUDA, MXATTN_BACKEND_EMU_SM90,
                                          MXATTN_BACKEND_EMU_SM100};
enum { BACKENDS = sizeof backends / sizeof *backends };

/* Calls each line of text. */
static void print_lines(const char *label, const char *text)
{
    while (*text) {
        size_t n = strcspn(text, "\n");
        (void)printf("  %-10s%.*s\n", label, (int)n, text);
        text += n + (text[n] == '\n');
        label = "";
    }
}

/* Device number `device` of a backend that is there; 0 past the last. One that cannot be opened has
 * the reason for a name. */
static int next_device(const mxattn_backend_info *info, mxattn_backend backend, int32_t device,
                       mxattn_device_info *found)
{
    mxattn_device_info_init(found);
    if (!info->available || device >= info->devices)
        return 0;
    if (mxattn_device_query(NULL, backend, device, found))
        (void)snprintf(found->name, sizeof found->name, "%s", mxattn_last_error());
    return 1;
}

static void print_devices(const mxattn_backend_info *info, mxattn_backend backend)
{
    mxattn_device_info device;
    for (int32_t i = 0; next_device(info, backend, i, &device); i++) {
        (void)printf("  %-10s%d: %s", i ? "" : "devices", (int)i, device.name);
        if (device.arch)
            (void)printf(", sm_%d, %d multiprocessors", (int)device.arch,
                         (int)device.multiprocessors);
        if (device.memory_bytes)
            (void)printf(", %.0f GiB", (double)device.memory_bytes / (1 << 30));
        (void)printf("\n");
    }
}

static void add_devices(cJSON *entry, const mxattn_backend_info *info, mxattn_backend backend)
{
    mxattn_device_info device;
    cJSON *list = cJSON_AddArrayToObject(entry, "device_list");
    for (int32_t i = 0; next_device(info, backend, i, &device); i++) {
        cJSON *one = cJSON_CreateObject();
        cJSON_AddItemToArray(list, one);
        cJSON_AddStringToObject(one, "name", device.name);
        cJSON_AddNumberToObject(one, "arch", device.arch);
        cJSON_AddNumberToObject(one, "multiprocessors", device.multiprocessors);
        cJSON_AddNumberToObject(one, "memory_bytes", (double)device.memory_bytes);
    }
}

static void print_text(const mxattn_backend_info *infos)
{
    (void)printf("mxattn %s\n", mxattn_version_string());
    for (int i = 0; i < BACKENDS; i++) {
        const mxattn_backend_info *info = &infos[i];
        (void)printf("%s: %s%s\n", info->name,
                     info->available ? "available" : "missing: ", info->reason);
        if (!info->available)
            continue;
        if (info->isa_name[0])
            (void)printf("  %-10s%s\n", "isa", info->isa_name);
        if (info->threads)
            (void)printf("  %-10s%d\n", "threads", info->threads);
        print_devices(info, backends[i]);
        print_lines("kernels", info->kernels);
    }
}

static void print_json(const mxattn_backend_info *infos)
{
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "version", mxattn_version_string());
    cJSON *list = cJSON_AddArrayToObject(root, "backends");
    for (int i = 0; i < BACKENDS; i++) {
        const mxattn_backend_info *info = &infos[i];
        cJSON *entry = cJSON_CreateObject();
        cJSON_AddItemToArray(list, entry);
        cJSON_AddStringToObject(entry, "name", info->name);
        cJSON_AddBoolToObject(entry, "available", info->available);
        cJSON_AddStringToObject(entry, "reason", info->reason);
        cJSON_AddNumberToObject(entry, "devices", info->devices);
        add_devices(entry, info, backends[i]);
        cJSON_AddNumberToObject(entry, "threads", info->threads);
        cJSON_AddStringToObject(entry, "isa", info->isa_name);
        cJSON *kernels = cJSON_AddArrayToObject(entry, "kernels");
        for (const char *at = info->kernels; *at;) {
            char name[256];
            size_t n = strcspn(at, "\n");
            (void)snprintf(name, sizeof name, "%.*s", (int)n, at);
            cJSON_AddItemToArray(kernels, cJSON_CreateString(name));
            at += n + (at[n] == '\n');
        }
    }
    mxc_json_print(root, stdout);
}

int mxc_verb_info(int argc, char **argv)
{
    int json = 0;
    mxattn_backend_info infos[BACKENDS];
    mxc_parse(&argp, argc, argv, NULL, &json);
    for (int i = 0; i < BACKENDS; i++) {
        mxattn_backend_info_init(&infos[i]);
        mxc_need(mxattn_backend_query(NULL, backends[i], &infos[i]));
    }
    if (json)
        print_json(infos);
    else
        print_text(infos);
    return MXC_EXIT_OK;
}
