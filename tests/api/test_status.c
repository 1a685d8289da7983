/* test_status.c: version, names of statuses, sentences per thread, device status words.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mxattn/mxattn.h"
#include "report.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

static void test_version(void)
{
    char text[32];
    mxt_case("version");
    (void)snprintf(text, sizeof text, "%d.%d.%d", MXATTN_VERSION_MAJOR, MXATTN_VERSION_MINOR,
                   MXATTN_VERSION_PATCH);
    CHECK(mxattn_version() == MXATTN_VERSION, "mxattn_version is %d", (int)mxattn_version());
    CHECK(strcmp(mxattn_version_string(), text) == 0, "string is %s", mxattn_version_string());
}

static void test_names(void)
{
    static const char *const names[] = {"MXATTN_OK",
                                        "MXATTN_ARGUMENT",
                                        "MXATTN_SHAPE",
                                        "MXATTN_DTYPE",
                                        "MXATTN_LAYOUT",
                                        "MXATTN_ALIGNMENT",
                                        "MXATTN_CU_SEQLENS",
                                        "MXATTN_UNSUPPORTED",
                                        "MXATTN_NO_BACKEND",
                                        "MXATTN_WORKSPACE",
                                        "MXATTN_MEMORY",
                                        "MXATTN_DEVICE",
                                        "MXATTN_VERSION_MISMATCH"};
    mxt_case("names of statuses: values are pinned");
    for (int i = 0; i < 13; i++)
        CHECK(strcmp(mxattn_status_name((mxattn_status)i), names[i]) == 0, "%d is %s", i,
              mxattn_status_name((mxattn_status)i));
    CHECK(strcmp(mxattn_status_name((mxattn_status)13), "MXATTN_?") == 0, "13 has a name");
}

static void *fail_elsewhere(void *arg)
{
    const int clean = mxattn_last_error()[0] == '\0';
    (void)mxattn_device_status_check(5);
    *(int *)arg = clean && strstr(mxattn_last_error(), "seqused") != NULL;
    return NULL;
}

static void test_threads(void)
{
    pthread_t thread;
    int fine = 0;
    mxt_case("each thread has its own sentence");
    CHECK(mxattn_device_status_check(0) == MXATTN_OK, "word 0 is not ok");
    CHECK_STATUS(MXATTN_CU_SEQLENS, mxattn_device_status_check(1));
    (void)pthread_create(&thread, NULL, fail_elsewhere, &fine);
    (void)pthread_join(thread, NULL);
    CHECK(fine, "the other thread saw this thread's sentence, or none of its own");
    CHECK(strstr(mxattn_last_error(), "start at 0") != NULL, "sentence is \"%s\"",
          mxattn_last_error());
}

static void test_words(void)
{
    static const struct {
        uint32_t word;
        const char *start;
    } words[] = {
        {0x00000001, "cu_seqlens_q[0] "}, {0x00000302, "cu_seqlens_q[4] "},
        {0x00000783, "cu_seqlens_k[8] "}, {0x00000084, "cu_seqlens_k[1] "},
        {0x00000585, "seqused_k[5] "},    {0xffffff05, "seqused_q[16777215] "},
        {0x00000342, "cu_seqlens[4] "},   {0x00000246, "cu_scale[2] "},
    };
    mxt_case("device status words");
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        CHECK_STATUS(MXATTN_CU_SEQLENS, mxattn_device_status_check(words[i].word));
        CHECK(strncmp(mxattn_last_error(), words[i].start, strlen(words[i].start)) == 0,
              "word 0x%08x gives \"%s\"", (unsigned)words[i].word, mxattn_last_error());
    }
    CHECK_STATUS(MXATTN_ARGUMENT, mxattn_device_status_check(0x00000100));
    CHECK_STATUS(MXATTN_ARGUMENT, mxattn_device_status_check(0x00000007));
}

int main(void)
{
    test_version();
    test_names();
    test_threads();
    test_words();
    return mxt_finish();
}
