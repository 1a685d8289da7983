/* compare.c: measures and judges differences.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "compare.h"

#include "report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

mxt_shape mxt_shape1(int64_t a)
{
    return (mxt_shape){1, {a, 1, 1, 1}};
}

mxt_shape mxt_shape3(int64_t a, int64_t b, int64_t c)
{
    return (mxt_shape){3, {a, b, c, 1}};
}

mxt_shape mxt_shape4(int64_t a, int64_t b, int64_t c, int64_t d)
{
    return (mxt_shape){4, {a, b, c, d}};
}

static int64_t shape_count(mxt_shape shape)
{
    int64_t count = 1;
    for (int i = 0; i < shape.ndim; i++)
        count *= shape.size[i];
    return count;
}

typedef struct coordinate {
    char text[96];
} coordinate;

static coordinate coordinate_of(mxt_shape shape, int64_t index)
{
    coordinate c = {"("};
    int64_t stride = shape_count(shape);
    size_t used = 1;
    for (int i = 0; i < shape.ndim; i++) {
        stride = shape.size[i] ? stride / shape.size[i] : 1;
        int n = snprintf(c.text + used, sizeof c.text - used, "%s%lld", i ? "," : "",
                         (long long)(index / stride));
        used += (size_t)n;
        index %= stride;
    }
    (void)snprintf(c.text + used, sizeof c.text - used, ")");
    return c;
}

/* Sums of one pass over pairs. */
typedef struct sums {
    double difference2, got2, want2, product, largest_want;
    int unequal_special;
    mxt_error error;
} sums;

static void sums_add(sums *s, double got, double want, int64_t index)
{
    if (!isfinite(got) || !isfinite(want)) {
        int agree = (isnan(got) && isnan(want)) || (isinf(got) && got == want);
        if (!agree && !s->unequal_special) {
            s->unequal_special = 1;
            s->error.worst = index;
        }
        return;
    }
    double difference = fabs(got - want);
    s->difference2 += difference * difference;
    s->got2 += got * got;
    s->want2 += want * want;
    s->product += got * want;
    s->largest_want = fmax(s->largest_want, fabs(want));
    if (difference > s->error.max_abs) {
        s->error.max_abs = difference;
        if (!s->unequal_special)
            s->error.worst = index;
    }
}

static double ratio(double a, double b)
{
    if (b > 0)
        return a / b;
    return a > 0 ? INFINITY : 0;
}

static mxt_error sums_error(const sums *s)
{
    mxt_error e = s->error;
    double norms = sqrt(s->got2) * sqrt(s->want2);
    e.relative_rms = ratio(sqrt(s->difference2), sqrt(s->want2));
    e.max_relative = ratio(e.max_abs, s->largest_want);
    e.cosine = norms > 0 ? s->product / norms : (s->got2 == s->want2 ? 1 : 0);
    if (s->unequal_special) {
        e.relative_rms = e.max_abs = e.max_relative = INFINITY;
        e.cosine = -1;
    }
    return e;
}

mxt_error mxt_error_f32(const float *got, const float *want, int64_t count)
{
    sums s = {0};
    for (int64_t i = 0; i < count; i++)
        sums_add(&s, got[i], want[i], i);
    return sums_error(&s);
}

mxt_error mxt_error_f64(const double *got, const double *want, int64_t count)
{
    sums s = {0};
    for (int64_t i = 0; i < count; i++)
        sums_add(&s, got[i], want[i], i);
    return sums_error(&s);
}

int mxt_check_bytes(const char *what, const void *got, const void *want, size_t element_bytes,
                    mxt_shape shape)
{
    const uint8_t *a = got, *b = want;
    int64_t bytes = shape_count(shape) * (int64_t)element_bytes;
    int64_t different = 0, first = -1;
    for (int64_t i = 0; i < bytes; i++) {
        if (a[i] != b[i]) {
            different++;
            if (first < 0)
                first = i;
        }
    }
    if (!different)
        return CHECK(1, "%s", what);
    return CHECK(0, "%s: %lld of %lld bytes differ, first at %s: got 0x%02X, want 0x%02X", what,
                 (long long)different, (long long)bytes,
                 coordinate_of(shape, first / (int64_t)element_bytes).text, a[first], b[first]);
}

/* FP32 bits as an integer that orders like the values. */
static int64_t ordered(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits < 0 ? -(int64_t)(bits & 0x7FFFFFFF) : bits;
}

int64_t mxt_ulp_f32(float a, float b)
{
    if (isnan(a) || isnan(b))
        return isnan(a) && isnan(b) ? 0 : INT64_MAX;
    int64_t d = ordered(a) - ordered(b);
    return d < 0 ? -d : d;
}

int mxt_check_ulp(const char *what, const float *got, const float *want, mxt_shape shape,
                  int64_t ulps)
{
    int64_t count = shape_count(shape), most = -1, worst = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t d = mxt_ulp_f32(got[i], want[i]);
        if (d > most) {
            most = d;
            worst = i;
        }
    }
    if (most <= ulps)
        return CHECK(1, "%s", what);
    return CHECK(0, "%s: %lld ulp apart (limit %lld) at %s: got %.9g, want %.9g", what,
                 (long long)most, (long long)ulps, coordinate_of(shape, worst).text,
                 (double)got[worst], (double)want[worst]);
}

int mxt_check_rms(const char *what, const float *got, const float *want, mxt_shape shape,
                  double limit)
{
    int64_t count = shape_count(shape);
    mxt_error e = mxt_error_f32(got, want, count);
    if (e.relative_rms <= limit)
        return CHECK(1, "%s", what);
    return CHECK(0, "%s: relative RMS %.3g (limit %.3g), worst at %s: got %.9g, want %.9g", what,
                 e.relative_rms, limit, coordinate_of(shape, e.worst).text, (double)got[e.worst],
                 (double)want[e.worst]);
}

int mxt_check_close(const char *what, const float *got, const float *want, mxt_shape shape,
                    double absolute, double relative)
{
    int64_t count = shape_count(shape), worst = -1;
    double most = 0;
    for (int64_t i = 0; i < count; i++) {
        double a = got[i], b = want[i];
        if ((isnan(a) && isnan(b)) || a == b)
            continue;
        double over = fabs(a - b) - (absolute + relative * fabs(b));
        if (!isfinite(a) || !isfinite(b))
            over = INFINITY;
        if (over > most) {
            most = over;
            worst = i;
        }
    }
    if (worst < 0)
        return CHECK(1, "%s", what);
    return CHECK(0, "%s: beyond %.3g + %.3g*|want|, worst at %s: got %.9g, want %.9g", what,
                 absolute, relative, coordinate_of(shape, worst).text, (double)got[worst],
                 (double)want[worst]);
}

int mxt_check_model(const char *what, const float *got, const float *model, const float *truth,
                    mxt_shape shape, double factor, double floor)
{
    int64_t count = shape_count(shape);
    mxt_error e = mxt_error_f32(got, truth, count);
    mxt_error m = mxt_error_f32(model, truth, count);
    if (e.relative_rms <= factor * m.relative_rms + floor)
        return CHECK(1, "%s", what);
    return CHECK(0,
                 "%s: error %.3g of truth, model's %.3g (factor %.3g, floor %.3g), worst at %s: "
                 "got %.9g, truth %.9g",
                 what, e.relative_rms, m.relative_rms, factor, floor,
                 coordinate_of(shape, e.worst).text, (double)got[e.worst], (double)truth[e.worst]);
}
