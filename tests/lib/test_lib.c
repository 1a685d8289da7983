/* test_lib.c: the comparisons and guards must be able to fail, or every other test means nothing.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "compare.h"
#include "fill.h"
#include "guard.h"
#include "report.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs body in a child with its output discarded; returns its exit status, or 128 + signal. */
static int in_child(void (*body)(void))
{
    (void)fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        (void)signal(SIGSEGV, SIG_DFL);
        (void)signal(SIGBUS, SIG_DFL);
        if (!freopen("/dev/null", "w", stdout))
            _exit(99);
        mxt_reset();
        body();
        _exit(mxt_finish());
    }
    int status = 0;
    (void)waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void over_read(void)
{
    const volatile char *p = mxt_guard_end(100);
    (void)p[100];
}

static void under_read(void)
{
    const volatile char *p = mxt_guard_begin(100);
    (void)p[-1];
}

static void write_input(void)
{
    volatile char *p = mxt_guard_begin(100);
    mxt_guard_read_only((void *)p);
    p[0] = 1;
}

static void write_canary(void)
{
    mxt_case("canary");
    char *p = mxt_guard_end_aligned(100, 64);
    p[100] = 1;
    mxt_guard_free(p);
}

static void failing_bytes(void)
{
    mxt_case("bytes");
    mxt_check_bytes("x", "abc", "abd", 1, mxt_shape1(3));
}

static void failing_ulp(void)
{
    mxt_case("ulp");
    float a = 1.0f, b = 1.0f + 0x1p-22f;
    mxt_check_ulp("x", &a, &b, mxt_shape1(1), 1);
}

static void failing_nan(void)
{
    mxt_case("nan");
    float a[2] = {1.0f, NAN}, b[2] = {1.0f, 1.0f};
    mxt_check_rms("x", a, b, mxt_shape1(2), 1e9);
}

static void failing_close(void)
{
    mxt_case("close");
    float a[2] = {1.0f, 2.01f}, b[2] = {1.0f, 2.0f};
    mxt_check_close("x", a, b, mxt_shape1(2), 1e-3, 1e-3);
}

static void failing_model(void)
{
    mxt_case("model");
    float got[2] = {1.2f, 1}, model[2] = {1.1f, 1}, truth[2] = {1, 1};
    mxt_check_model("x", got, model, truth, mxt_shape1(2), 1.5, 0);
}

static void passing(void)
{
    mxt_case("pass");
    float a[3] = {1.0f, NAN, -INFINITY}, b[3] = {1.0f, NAN, -INFINITY};
    mxt_check_rms("x", a, b, mxt_shape1(3), 0);
    mxt_check_ulp("x", a, b, mxt_shape1(3), 0);
    mxt_check_close("x", a, b, mxt_shape1(3), 0, 0);
    mxt_check_bytes("x", a, b, 4, mxt_shape1(3));
}

static void only_skipped(void)
{
    mxt_case("skip");
    mxt_skip("for the test");
}

static void nothing(void)
{
}

static void check_children(void)
{
    static const struct {
        const char *name;
        void (*body)(void);
        int want; /* -1: must not exit 0 (a sanitizer turns the signal into a status) */
    } children[] = {{"guard_end over-read", over_read, -1},
                    {"guard_begin under-read", under_read, -1},
                    {"read-only write", write_input, -1},
                    {"canary", write_canary, 1},
                    {"bytes", failing_bytes, 1},
                    {"ulp", failing_ulp, 1},
                    {"nan against number", failing_nan, 1},
                    {"close", failing_close, 1},
                    {"model", failing_model, 1},
                    {"equal data", passing, 0},
                    {"skip", only_skipped, MXT_EXIT_SKIPPED},
                    {"no case at all", nothing, 1}};
    for (size_t i = 0; i < sizeof children / sizeof *children; i++) {
        mxt_case("child: %s", children[i].name);
        int got = in_child(children[i].body);
        CHECK(children[i].want < 0 ? got != 0 && got != 1 : got == children[i].want,
              "exit %d, want %d", got, children[i].want);
    }
}

int main(void)
{
    check_children();

    mxt_case("error figures");
    float got[2] = {3, 4}, want[2] = {3, 0};
    mxt_error e = mxt_error_f32(got, want, 2);
    CHECK(fabs(e.relative_rms - 4.0 / 3.0) < 1e-12 && e.max_abs == 4 && e.worst == 1 &&
              fabs(e.cosine - 0.6) < 1e-12,
          "rms %g, max %g, worst %lld, cosine %g", e.relative_rms, e.max_abs, (long long)e.worst,
          e.cosine);
    CHECK(mxt_ulp_f32(0.0f, -0.0f) == 0 && mxt_ulp_f32(0x1p-149f, -0x1p-149f) == 2, "ulp at zero");

    static float data[4096], again[4096];
    for (int kind = 0; kind < MXT_KINDS; kind++) {
        mxt_case("fill %s", mxt_kind_name((mxt_kind)kind));
        mxt_fill_f32(data, 64, 64, (mxt_kind)kind, 7);
        mxt_fill_f32(again, 64, 64, (mxt_kind)kind, 7);
        CHECK(memcmp(data, again, sizeof data) == 0, "not the same bytes for one seed");
        int special = 0;
        for (int i = 0; i < 4096; i++)
            special += !isfinite(data[i]);
        CHECK((special > 0) == (kind == MXT_SPECIAL), "%d NaN or infinite", special);
    }
    mxt_case("gaussian moments");
    mxt_fill_f32(data, 64, 64, MXT_GAUSSIAN, 1);
    double sum = 0, sum2 = 0;
    for (int i = 0; i < 4096; i++) {
        sum += data[i];
        sum2 += (double)data[i] * data[i];
    }
    CHECK(fabs(sum / 4096) < 0.06 && fabs(sum2 / 4096 - 1) < 0.08, "mean %g, variance %g",
          sum / 4096, sum2 / 4096);
    return mxt_finish();
}
