/* producer_cases.c: the cases of a device's producers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "producer_cases.h"

#include "fill.h"
#include "guard.h"
#include "mx/element.h"
#include "mx/scales.h"
#include "mx/tensor.h"
#include "quantize_case.h"
#include "ref/ref.h"
#include "report.h"
#include "status.h"
#include "thresholds.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct memories {
    mxt_memory list[MXT_MEMORIES_MOST];
    int count;
} memories;

static void add(memories *m, const void *at, size_t bytes)
{
    if (at && bytes) {
        m->list[m->count++] = (mxt_memory){(void *)(uintptr_t)at, bytes};
    }
}

static void add_batch(memories *m, const mxt_quantize_case *c)
{
    add(m, c->cu_seqlens, sizeof c->cu_seqlens);
    add(m, c->seqused, sizeof c->seqused);
    add(m, c->cu_scale, sizeof c->cu_scale);
}

static memories memories_of(const mxt_quantize_case *c, const mxt_quantize_outputs *o)
{
    memories m = {.count = 0};
    add_batch(&m, c);
    add(&m, c->wide.data, c->wide_bytes);
    for (int i = 0; i < 5; i++) {
        add(&m, o->memory[i], o->bytes[i]);
    }
    return m;
}

/* Any FP32 bits: every exponent, subnormals, infinities and NaN. A row's values lie up to 40
 * binades below its largest, mantissas are random or ties. */
static void fill_bits(mxt_quantize_case *c, uint64_t seed)
{
    const mxattn_tensor *wide = &c->wide;
    mxt_random random = {seed};
    const int64_t *shape = wide->shape;
    for (int64_t row = 0; row < shape[0] * shape[1] * shape[2]; row++) {
        const int64_t h = row % shape[2], s = row / shape[2] % shape[1],
                      b = row / shape[2] / shape[1];
        const int64_t index = b * wide->stride[0] + s * wide->stride[1] + h * wide->stride[2];
        const int most = (int)mxt_random_int(&random, 0, row % 7 ? 254 : 255);
        for (int64_t d = 0; d < shape[3]; d++) {
            const uint64_t bits = mxt_random_u64(&random);
            const int below = most - (int)(bits >> 40 & 63) % 41;
            uint32_t mantissa = (uint32_t)bits & 0x7FFFFF;
            mantissa = bits >> 63 ? mantissa & 0x780000 : mantissa;
            const uint32_t field = below < 0 ? 0 : (uint32_t)below;
            const uint32_t word = field << 23 | mantissa | (uint32_t)(bits >> 62 & 1) << 31;
            float x;
            memcpy(&x, &word, sizeof x);
            mxa_store(wide->data, wide->tags.dtype, index + d, x);
        }
    }
}

static void check_quantize(const mxt_producer_runner *runner, const char *name,
                           const mxt_quantize_spec *spec, uint64_t seed)
{
    mxt_quantize_case c;
    mxt_quantize_outputs want, got;
    const int kind = (int)(seed % (MXT_KINDS + 1));
    mxt_case("%s: seed %llu, %s, %s", name, (unsigned long long)seed,
             kind == MXT_KINDS ? "any bits" : mxt_kind_name((mxt_kind)kind),
             mxt_quantize_spec_text(spec));
    mxt_quantize_case_make(&c, spec);
    if (kind == MXT_KINDS) {
        fill_bits(&c, seed);
    } else {
        mxt_quantize_case_fill(&c, (mxt_kind)kind, seed);
    }
    mxt_quantize_outputs_make(&want, &c);
    mxt_quantize_outputs_make(&got, &c);
    mxt_quantize_reference(&c, &want);
    const memories m = memories_of(&c, &got);
    const mxa_quantize_call call = mxt_quantize_call_of(&c, &got);
    if (CHECK_STATUS(MXATTN_OK, runner->quantize(&call, m.list, m.count))) {
        mxt_quantize_same(&got, &want);
    }
    mxt_quantize_outputs_free(&want);
    mxt_quantize_outputs_free(&got);
    mxt_quantize_case_free(&c);
}

/* A spec a GPU takes, now and then with dims that 8 does not divide. */
static mxt_quantize_spec random_spec(uint64_t seed)
{
    static const int64_t odd[] = {1, 20, 33, 100, 130, 257};
    mxt_random random = {seed};
    mxt_quantize_spec spec = mxt_quantize_spec_random(&random);
    spec.aligned = 1;
    for (int b = 0; b < spec.batch && !spec.jagged && spec.lengths[b] == 0; b++) {
        spec.lengths[b] = 1; /* without a token nothing is called */
    }
    if (seed % 5 == 0) {
        spec.head_dim = odd[seed / 5 % 6];
    }
    return spec;
}

static void quantize_random(const mxt_producer_runner *runner)
{
    for (int i = 1; i <= runner->seeds; i++) {
        const mxt_quantize_spec spec = random_spec((uint64_t)i);
        check_quantize(runner, "quantize", &spec, (uint64_t)i);
    }
}

/* Every block of every type, tokens 1 to 33 in turn: what a tail is. */
static void quantize_tails(const mxt_producer_runner *runner)
{
    for (int tokens = 1; tokens <= 33; tokens++) {
        mxt_quantize_spec spec;
        memset(&spec, 0, sizeof spec);
        spec.batch = 1;
        spec.lengths[0] = tokens;
        spec.heads = 2;
        spec.head_dim = tokens % 2 ? 128 : 64;
        spec.aligned = 1;
        spec.wide = (mxattn_dtype)(MXATTN_F32 + tokens % 3);
        spec.tags.dtype = tokens % 4 ? MXATTN_E4M3 : MXATTN_E5M2;
        spec.tags.block = (mxattn_block)(MXATTN_BLOCK_ROW + tokens / 3 % 3);
        spec.layouts[0] = spec.tags.block == MXATTN_BLOCK_COLUMN ? MXT_NO_SCALES : MXATTN_TILED;
        spec.layouts[1] = spec.tags.block == MXATTN_BLOCK_ROW ? MXT_NO_SCALES : MXATTN_TILED;
        spec.transposed = 1;
        check_quantize(runner, "tail", &spec, (uint64_t)tokens);
    }
}

/* More sequences than a CTA has threads, empty ones among them. */
static void many_sequences(const mxt_producer_runner *runner)
{
    enum { BATCH = 700, HEADS = 1, DIMS = 32 };
    static int32_t cu[BATCH + 1], used[BATCH];
    mxt_random random = {7};
    for (int b = 0; b < BATCH; b++) {
        const int length = (int)mxt_random_int(&random, 0, 2);
        cu[b + 1] = cu[b] + length;
        used[b] = (int32_t)mxt_random_int(&random, 0, length);
    }
    const int64_t total = cu[BATCH] + 5;
    mxt_case("many sequences: %d, %lld tokens", BATCH, (long long)total);
    const size_t count = (size_t)(total * DIMS);
    float *wide = mxt_guard_end_aligned(count * sizeof *wide, 16);
    uint8_t *payload[2], *scales[2];
    mxa_quantize_call call;
    memset(&call, 0, sizeof call);
    call.wide.tags.dtype = MXATTN_F32;
    call.wide.ndim = 4;
    call.wide.data = wide;
    memcpy(call.wide.shape, (int64_t[4]){1, total, HEADS, DIMS}, sizeof call.wide.shape);
    memcpy(call.wide.stride, (int64_t[4]){0, DIMS, DIMS, 1}, sizeof call.wide.stride);
    mxt_fill_f32(wide, total, DIMS, MXT_GAUSSIAN, 1);
    call.quantized = call.wide;
    call.quantized.tags = (mxattn_tags){MXATTN_E4M3, MXATTN_BLOCK_ROW, MXATTN_RCEIL, 0};
    call.batch = (mxa_batch){BATCH, 0, cu, used};
    for (int i = 0; i < 2; i++) {
        payload[i] = mxt_guard_end_aligned(count, 16);
        scales[i] = mxt_guard_end_aligned((size_t)total, 16);
        call.quantized.data = payload[i];
        call.quantized.scales[MXATTN_HDIM] =
            (mxattn_scales){scales[i], MXATTN_LINEAR, 0, 1, 1, 1, NULL};
        if (i == 0) {
            mxa_quantize_tensor(&call.wide, &call.quantized, &call.batch);
            continue;
        }
        memories m = {.count = 0};
        add(&m, cu, sizeof cu);
        add(&m, used, sizeof used);
        add(&m, wide, count * sizeof *wide);
        add(&m, payload[1], count);
        add(&m, scales[1], (size_t)total);
        CHECK_STATUS(MXATTN_OK, runner->quantize(&call, m.list, m.count));
    }
    CHECK(memcmp(payload[0], payload[1], count) == 0, "payloads differ");
    CHECK(memcmp(scales[0], scales[1], (size_t)total) == 0, "scales differ");
    for (int i = 0; i < 2; i++) {
        mxt_guard_free(payload[i]);
        mxt_guard_free(scales[i]);
    }
    mxt_guard_free(wide);
}

/* Payload, scales and centre of any bytes: every code under every scale. */
static void any_bytes(mxt_quantize_outputs *o, mxt_random *random)
{
    for (int i = 0; i < 5; i++) {
        const uint64_t state = random->state; /* both scale arrays hold the same bytes */
        for (size_t at = 0; at < o->bytes[i]; at++) {
            ((uint8_t *)o->memory[i])[at] = (uint8_t)mxt_random_u64(random);
        }
        random->state = i == 1 ? state : random->state;
    }
}

static void dequantize_random(const mxt_producer_runner *runner)
{
    for (int i = 1; i <= runner->seeds; i++) {
        const uint64_t seed = (uint64_t)i;
        mxt_random random = {seed};
        mxt_quantize_spec spec = random_spec(seed);
        mxt_quantize_case c;
        mxt_quantize_outputs o;
        spec.transposed = 0;
        mxt_case("dequantize: seed %d, %s", i, mxt_quantize_spec_text(&spec));
        mxt_quantize_case_make(&c, &spec);
        mxt_quantize_outputs_make(&o, &c);
        if (i % 2) {
            any_bytes(&o, &random);
        } else {
            mxt_quantize_case_fill(&c, (mxt_kind)(i / 2 % MXT_KINDS), seed);
            mxt_quantize_reference(&c, &o);
        }
        mxattn_tensor want = c.wide, got = c.wide;
        want.data = mxt_guard_end_aligned(c.wide_bytes, 16);
        got.data = mxt_guard_end_aligned(c.wide_bytes, 16);
        mxa_dequantize_tensor(&o.quantized, &want, &c.batch);
        mxa_quantize_call call = mxt_quantize_call_of(&c, &o);
        call.wide = got;
        memories m = memories_of(&c, &o);
        add(&m, got.data, c.wide_bytes);
        if (CHECK_STATUS(MXATTN_OK, runner->dequantize(&call, m.list, m.count))) {
            const uint8_t *a = got.data, *b = want.data;
            size_t at = 0;
            while (at < c.wide_bytes && a[at] == b[at]) {
                at++;
            }
            if (at < c.wide_bytes) {
                CHECK(0, "byte %zu of %zu: got 0x%02X, want 0x%02X", at, c.wide_bytes, a[at],
                      b[at]);
            }
        }
        mxt_guard_free(want.data);
        mxt_guard_free(got.data);
        mxt_quantize_outputs_free(&o);
        mxt_quantize_case_free(&c);
    }
}

/* Quantizes the case by its meaning into one array of this arrangement, made here. */
static mxt_quantize_outputs one_array(const mxt_quantize_case *c, mxattn_axis axis,
                                      mxattn_scale_layout layout)
{
    mxt_quantize_case bare = *c;
    bare.spec.layouts[0] = bare.spec.layouts[1] = MXT_NO_SCALES;
    bare.spec.layouts[axis] = (int)layout;
    bare.spec.transposed = 0;
    mxt_quantize_outputs o;
    mxt_quantize_outputs_make(&o, &bare);
    mxt_quantize_reference(&bare, &o);
    if (o.quantized.scales[axis].cu_scale) {
        o.quantized.scales[axis].cu_scale = c->cu_scale; /* bare is gone */
    }
    return o;
}

static void check_scales(const mxt_producer_runner *runner, const mxt_quantize_case *c,
                         mxattn_axis from_axis, mxattn_scale_layout from_layout,
                         mxattn_axis to_axis, mxattn_scale_layout to_layout)
{
    mxt_case("scales: axis %d layout %d to axis %d layout %d, %s", (int)from_axis, (int)from_layout,
             (int)to_axis, (int)to_layout, mxt_quantize_spec_text(&c->spec));
    mxt_quantize_outputs from = one_array(c, from_axis, from_layout);
    mxt_quantize_outputs want = one_array(c, to_axis, to_layout);
    mxt_quantize_outputs got = one_array(c, to_axis, to_layout);
    memset(got.memory[1 + to_axis], 0xFF, got.bytes[1 + to_axis]);
    mxa_scales_call call;
    memset(&call, 0, sizeof call);
    call.tags = c->spec.tags;
    call.from_axis = from_axis;
    call.to_axis = to_axis;
    call.from = from.quantized.scales[from_axis];
    call.to = got.quantized.scales[to_axis];
    call.batch = c->batch;
    call.heads = c->spec.heads;
    call.head_dim = c->spec.head_dim;
    call.tokens = c->spec.jagged ? c->wide.shape[1] : c->batch.batch * c->batch.seqlen;
    memories m = {.count = 0};
    add_batch(&m, c);
    add(&m, from.memory[1 + from_axis], from.bytes[1 + from_axis]);
    add(&m, got.memory[1 + to_axis], got.bytes[1 + to_axis]);
    CHECK_STATUS(MXATTN_OK, runner->scales(&call, m.list, m.count));
    mxt_quantize_same(&got, &want);
    mxt_quantize_outputs_free(&from);
    mxt_quantize_outputs_free(&want);
    mxt_quantize_outputs_free(&got);
}

static void scales_random(const mxt_producer_runner *runner)
{
    for (int i = 1; i <= runner->seeds / 4; i++) {
        const mxt_quantize_spec spec = random_spec((uint64_t)i);
        mxt_quantize_case c;
        mxt_quantize_case_make(&c, &spec);
        mxt_quantize_case_fill(&c, MXT_LONG_TAIL, (uint64_t)i);
        for (int at = 0; at < 36; at++) {
            const mxattn_axis from_axis = (mxattn_axis)(at % 2),
                              to_axis = (mxattn_axis)(at / 2 % 2);
            const mxattn_scale_layout from = (mxattn_scale_layout)(at / 4 % 3);
            const mxattn_scale_layout to = (mxattn_scale_layout)(at / 12);
            if (from_axis == to_axis && from == MXATTN_TILED) {
                continue; /* a scatter reads linear or compact */
            }
            if (mxa_scales_legal(&spec.tags, from_axis, from) &&
                mxa_scales_legal(&spec.tags, to_axis, to)) {
                check_scales(runner, &c, from_axis, from, to_axis, to);
            }
        }
        mxt_quantize_case_free(&c);
    }
}

/* Tiled units of dense sequences, turned: more tiles than a warp takes at a time, with a short last
 * one and without. */
static void scales_runs(const mxt_producer_runner *runner)
{
    for (int i = 0; i < 4; i++) {
        const int tokens = i < 2 ? 1200 : 1152;
        const mxattn_axis from = (mxattn_axis)(i % 2), to = (mxattn_axis)(1 - i % 2);
        const mxt_quantize_spec spec = {.batch = 2,
                                        .lengths = {tokens, tokens},
                                        .heads = 1 + i / 2,
                                        .head_dim = i == 1 ? 256 : 128,
                                        .wide = MXATTN_BF16,
                                        .tags = {MXATTN_E4M3, MXATTN_BLOCK_SQUARE, MXATTN_RCEIL, 0},
                                        .layouts = {MXATTN_TILED, MXATTN_TILED},
                                        .aligned = 1};
        mxt_quantize_case c;
        mxt_quantize_case_make(&c, &spec);
        mxt_quantize_case_fill(&c, MXT_LONG_TAIL, (uint64_t)i);
        check_scales(runner, &c, from, MXATTN_TILED, to, MXATTN_TILED);
        mxt_quantize_case_free(&c);
    }
}

enum { B = 2, S = 37, H = 3, D = 72, GAP = 5 };

typedef struct state {
    mxattn_tensor o, lse;
    size_t o_bytes, lse_bytes;
} state;

/* Rows with gaps between them; LSE head-major or token-major. */
static state make_state(mxattn_dtype dtype, int token_major)
{
    state s;
    memset(&s, 0, sizeof s);
    s.o.tags.dtype = dtype;
    s.o.ndim = 4;
    memcpy(s.o.shape, (int64_t[4]){B, S, H, D}, sizeof s.o.shape);
    memcpy(s.o.stride, (int64_t[4]){S * (H * D + GAP), H * D + GAP, D, 1}, sizeof s.o.stride);
    s.o_bytes = (size_t)(B * S * (H * D + GAP) * mxa_dtype_bytes(dtype));
    s.o.data = mxt_guard_end_aligned(s.o_bytes, 4);
    s.lse.tags.dtype = MXATTN_F32;
    s.lse.ndim = 3;
    memcpy(s.lse.shape, (int64_t[4]){B, H, S, 0}, sizeof s.lse.shape);
    int64_t by_head[4] = {H * S, S, 1, 0}, by_token[4] = {H * S, 1, H, 0};
    memcpy(s.lse.stride, token_major ? by_token : by_head, sizeof s.lse.stride);
    s.lse_bytes = B * H * S * sizeof(float);
    s.lse.data = mxt_guard_end_aligned(s.lse_bytes, 4);
    return s;
}

static void fill_state(state *s, mxt_random *random)
{
    for (int64_t row = 0; row < B * S * H; row++) {
        const int64_t b = row / S / H, t = row / H % S, h = row % H;
        float lse = (float)(mxt_random_gaussian(random) * 20);
        lse = mxt_random_int(random, 0, 3) == 0 ? -INFINITY : lse;
        lse = mxt_random_int(random, 0, 30) == 0 ? NAN : lse;
        ((float *)s->lse.data)[b * s->lse.stride[0] + h * s->lse.stride[1] + t * s->lse.stride[2]] =
            lse;
        for (int64_t d = 0; d < D && lse != -INFINITY; d++) {
            mxa_store(s->o.data, s->o.tags.dtype,
                      b * s->o.stride[0] + t * s->o.stride[1] + h * s->o.stride[2] + d,
                      (float)mxt_random_gaussian(random));
        }
    }
}

/* Equal but for the last bit of what exp and log gave; a NaN where there is one. */
static void same_values(const char *what, const void *got, const void *want, mxattn_dtype dtype,
                        size_t bytes)
{
    const int64_t count = (int64_t)(bytes / (size_t)mxa_dtype_bytes(dtype));
    for (int64_t i = 0; i < count; i++) {
        const float a = mxa_load(got, dtype, i), b = mxa_load(want, dtype, i);
        const double close = dtype == MXATTN_F32 ? 0x1p-22 : dtype == MXATTN_F16 ? 0x1p-10 : 0x1p-7;
        const int both_nan = isnan(a) && isnan(b);
        if (!both_nan && a != b && !(fabs((double)a - (double)b) <= close * fabs((double)b))) {
            CHECK(0, "%s element %lld: got %g, want %g", what, (long long)i, (double)a, (double)b);
            return;
        }
    }
}

static void merge_states(const mxt_producer_runner *runner)
{
    for (int i = 0; i < 9; i++) {
        const mxattn_dtype types[] = {MXATTN_F32, MXATTN_F16, MXATTN_BF16};
        mxt_random random = {(uint64_t)i + 1};
        state a = make_state(types[i % 3], i % 2), b = make_state(types[i / 3], i / 2 % 2);
        state want = make_state(types[(i + i / 3) % 3], 0), got = make_state(want.o.tags.dtype, 0);
        mxt_case("merge: %s and %s to %s", mxa_dtype_name(a.o.tags.dtype),
                 mxa_dtype_name(b.o.tags.dtype), mxa_dtype_name(want.o.tags.dtype));
        fill_state(&a, &random);
        fill_state(&b, &random);
        mxa_merge_call call;
        memset(&call, 0, sizeof call);
        call.o_a = a.o;
        call.lse_a = a.lse;
        call.o_b = b.o;
        call.lse_b = b.lse;
        call.o = want.o;
        call.lse = want.lse;
        CHECK_STATUS(MXATTN_OK, mxa_ref_backend.states_merge(NULL, &call));
        call.o = got.o;
        call.lse = got.lse;
        memories m = {.count = 0};
        const state *all[] = {&a, &b, &got};
        for (int j = 0; j < 3; j++) {
            add(&m, all[j]->o.data, all[j]->o_bytes);
            add(&m, all[j]->lse.data, all[j]->lse_bytes);
        }
        if (CHECK_STATUS(MXATTN_OK, runner->merge(&call, m.list, m.count))) {
            same_values("o", got.o.data, want.o.data, want.o.tags.dtype, want.o_bytes);
            same_values("lse", got.lse.data, want.lse.data, MXATTN_F32, want.lse_bytes);
        }
        const state *made[] = {&a, &b, &want, &got};
        for (int j = 0; j < 4; j++) {
            mxt_guard_free(made[j]->o.data);
            mxt_guard_free(made[j]->lse.data);
        }
    }
}

/* Malformed lengths: the word says what and where, and nothing else is written. */
static void malformed(const mxt_producer_runner *runner)
{
    static const struct {
        const char *what;
        int index;
        int32_t value; /* of cu_seqlens; index 8 and up: of seqused or cu_scale */
        uint32_t word;
    } faults[] = {
        {"first not 0", 0, 1, MXA_FAULT_CU_START},
        {"decreasing", 2, 39, MXA_FAULT_CU_ORDER | 1U << 8},
        {"past the end", 3, 1000, MXA_FAULT_CU_TOTAL | 2U << 8},
        {"seqused too large", 9, 61, MXA_FAULT_SEQUSED | 1U << 8},
        {"seqused negative", 8, -1, MXA_FAULT_SEQUSED},
        {"cu_scale odd", 17, 130, MXA_FAULT_CU_SCALE},
        {"nothing", 20, 0, 0},
    };
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        mxt_quantize_spec spec = {.jagged = 1,
                                  .batch = 3,
                                  .lengths = {40, 60, 33},
                                  .has_used = 1,
                                  .used = {40, 60, 33},
                                  .heads = 2,
                                  .head_dim = 64,
                                  .wide = MXATTN_BF16,
                                  .tags = {MXATTN_E4M3, MXATTN_BLOCK_SQUARE, MXATTN_RCEIL, 0},
                                  .layouts = {MXATTN_TILED, MXATTN_LINEAR},
                                  .given_rows = 1,
                                  .aligned = 1};
        mxt_quantize_case c;
        mxt_quantize_outputs got, want;
        uint32_t word = 0xFFFFFFFF;
        mxt_case("malformed: %s", faults[i].what);
        mxt_quantize_case_make(&c, &spec);
        mxt_quantize_case_fill(&c, MXT_GAUSSIAN, 1);
        mxt_quantize_outputs_make(&got, &c);
        mxt_quantize_outputs_make(&want, &c);
        if (faults[i].word == 0) {
            mxt_quantize_reference(&c, &want);
        }
        const int at = faults[i].index;
        if (at < 8) {
            c.cu_seqlens[at] = faults[i].value;
        } else if (at < 16) {
            c.seqused[at - 8] = faults[i].value;
        } else if (at < 20) {
            c.cu_scale[at - 16] = faults[i].value;
        }
        memories m = memories_of(&c, &got);
        add(&m, &word, sizeof word);
        mxa_quantize_call call = mxt_quantize_call_of(&c, &got);
        call.device_status = &word;
        CHECK_STATUS(MXATTN_OK, runner->quantize(&call, m.list, m.count));
        const uint32_t expected = faults[i].word ? faults[i].word | MXA_FAULT_PLAIN : 0;
        CHECK(word == expected, "word 0x%08x, want 0x%08x", word, expected);
        mxt_quantize_same(&got, &want);
        mxt_quantize_outputs_free(&got);
        mxt_quantize_outputs_free(&want);
        mxt_quantize_case_free(&c);
    }
}

void mxt_producer_cases(const mxt_producer_runner *runner, const char *word)
{
    static const struct {
        const char *name;
        void (*run)(const mxt_producer_runner *runner);
    } all[] = {
        {"tails", quantize_tails},         {"quantize", quantize_random},
        {"many", many_sequences},          {"malformed", malformed},
        {"dequantize", dequantize_random}, {"scales", scales_random},
        {"merge", merge_states},           {"runs", scales_runs},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (!word || strncmp(all[i].name, word, strlen(word)) == 0) {
            all[i].run(runner);
        }
    }
}
