/* test_tma.c: boxes of tensor maps: places under every swizzle, zeros outside, stores that drop
 * what is outside, additions in each type; linear copies; and arguments that are refused.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/dev/barrier.h"
#include "cuda/dev/mbarrier.h"
#include "cuda/dev/memory.h"
#include "cuda/dev/tma.h"
#include "emu/launch.h"
#include "emu/map.h"
#include "fill.h"
#include "mx/element.h"
#include "report.h"

#include <stdlib.h>
#include <string.h>

enum { AT_BARRIER = 0, AT_BOX = 1024, BOX_MOST = 32768, SHARED = AT_BOX + BOX_MOST + 1024 };

/* What one thread does with one box. */
typedef struct box_params {
    mxa_device_map map;
    int32_t rank, at[4];
    int32_t bytes;
    int32_t add;       /* store: 1 */
    mxa_global linear; /* the box's shared memory, byte for byte: written by load, read by store */
} box_params;

MXA_DEVICE mxa_shared box_base(void)
{
    return ((dev_shared() + 1023) & ~1023u) + AT_BOX;
}

/* Loads the box and copies shared memory out as it lies. */
MXA_KERNEL(load_box, 32, box_params, parameters)
{
    const box_params *p = &parameters;
    const mxa_shared box = box_base(), barrier = box - AT_BOX + AT_BARRIER;
    if (dev_thread() == 0) {
        mbarrier_init(barrier, 1);
        mbarrier_init_fence();
        mbarrier_arrive_expect(barrier, (uint32_t)p->bytes);
        if (p->rank == 2) {
            tma_load_2d(box, &p->map, p->at[0], p->at[1], barrier);
        } else if (p->rank == 3) {
            tma_load_3d(box, &p->map, p->at[0], p->at[1], p->at[2], barrier);
        } else {
            tma_load_4d(box, &p->map, p->at[0], p->at[1], p->at[2], p->at[3], barrier);
        }
        mbarrier_wait(barrier, 0);
        bulk_store(p->linear, box, (uint32_t)p->bytes);
        bulk_commit();
        bulk_wait_read(0);
    }
}

/* Copies shared memory in as it is to lie, and stores or adds the box. */
MXA_KERNEL(store_box, 32, box_params, parameters)
{
    const box_params *p = &parameters;
    const mxa_shared box = box_base(), barrier = box - AT_BOX + AT_BARRIER;
    if (dev_thread() == 0) {
        mbarrier_init(barrier, 1);
        mbarrier_init_fence();
        mbarrier_arrive_expect(barrier, (uint32_t)p->bytes);
        bulk_load(box, p->linear, (uint32_t)p->bytes, barrier);
        mbarrier_wait(barrier, 0);
        if (p->add) {
            tma_add_4d(&p->map, p->at[0], p->at[1], p->at[2], p->at[3], box);
        } else {
            tma_store_4d(&p->map, p->at[0], p->at[1], p->at[2], p->at[3], box);
        }
        bulk_commit();
        bulk_wait(0);
    }
}

/* A row copied in, and added to global memory as FP32 and as FP16, by two threads at once. */
MXA_KERNEL(add_row, 32, box_params, parameters)
{
    const box_params *p = &parameters;
    const mxa_shared row = box_base(), barrier = row - AT_BOX + AT_BARRIER;
    tma_prefetch_map(&p->map); /* a hint; of no map it is an error */
    if (dev_thread() == 0) {
        mbarrier_init(barrier, 1);
        mbarrier_init_fence();
        mbarrier_arrive_expect(barrier, (uint32_t)p->bytes);
        bulk_load(row, p->linear, (uint32_t)p->bytes, barrier);
    }
    cta_sync();
    mbarrier_wait(barrier, 0);
    if (dev_thread() < 2) {
        bulk_add_f32(p->linear + (uint64_t)p->bytes, row, (uint32_t)p->bytes);
        bulk_add_f16(p->linear + 2 * (uint64_t)p->bytes, row, (uint32_t)p->bytes);
        bulk_commit();
        bulk_wait(0);
    }
}

typedef struct box_case {
    int type, element_bytes, swizzle, rank;
    uint64_t size[4];
    uint32_t box[4];
    int32_t at[4];
} box_case;

/* Types: 0 u8, 1 u16, 6 f16, 7 f32, 9 bf16. */
static const box_case boxes[] = {
    {0, 1, 3, 2, {128, 200, 1, 1}, {128, 128, 1, 1}, {0, 96, 0, 0}}, /* rows beyond the end */
    {0, 1, 3, 3, {256, 64, 3, 1}, {128, 64, 2, 1}, {128, 0, 2, 0}},  /* a plane beyond */
    {0, 1, 2, 2, {64, 70, 1, 1}, {64, 64, 1, 1}, {0, -7, 0, 0}},     /* rows before the start */
    {0, 1, 1, 2, {96, 40, 1, 1}, {32, 40, 1, 1}, {80, 0, 0, 0}},     /* half a row beyond */
    {1, 2, 0, 2, {256, 4, 1, 1}, {256, 2, 1, 1}, {0, 1, 0, 0}},      /* scales: no swizzle */
    {6, 2, 3, 4, {64, 5, 3, 9}, {64, 2, 2, 8}, {0, 4, 1, 3}},        /* rank 4 */
    {7, 4, 3, 4, {32, 4, 4, 16}, {32, 1, 1, 16}, {0, 2, 3, 4}},
};

static uint64_t count_of(const box_case *c)
{
    return c->size[0] * c->size[1] * c->size[2] * c->size[3];
}

static int encode(const box_case *c, void *memory, mxa_device_map *map)
{
    static const uint32_t ones[] = {1, 1, 1, 1};
    uint64_t strides[3];
    uint64_t bytes = c->size[0] * (uint64_t)c->element_bytes;
    for (int i = 0; i < 3; i++) {
        strides[i] = bytes;
        bytes *= c->size[i + 1];
    }
    return mxa_emu_map_encode(map, c->type, (uint32_t)c->rank, memory, c->size, strides, c->box,
                              ones, 0, c->swizzle, 0, 0);
}

/* Byte of the tensor that belongs at byte `i` of the box; -1: outside. */
static int64_t tensor_byte(const box_case *c, uint32_t i)
{
    const uint32_t row_bytes = c->box[0] * (uint32_t)c->element_bytes;
    uint32_t rest = i / row_bytes;
    int64_t x = c->at[0] + (int64_t)(i % row_bytes) / c->element_bytes, at = x, step = 1;
    int inside = x >= 0 && x < (int64_t)c->size[0];
    for (int d = 1; d < c->rank; d++) {
        step *= (int64_t)c->size[d - 1];
        x = c->at[d] + (int64_t)(rest % c->box[d]);
        rest /= c->box[d];
        inside &= x >= 0 && x < (int64_t)c->size[d];
        at += x * step;
    }
    return inside ? at * c->element_bytes + i % (uint32_t)c->element_bytes : -1;
}

/* Where byte i of a box lies: 16-byte units permuted by address bits 7..9, as the ISA's table. */
static uint32_t swizzled(uint32_t i, int swizzle)
{
    static const uint32_t units[] = {0, 1, 3, 7};
    return i ^ ((i >> 7 & units[swizzle]) << 4);
}

static uint32_t box_bytes(const box_case *c)
{
    return c->box[0] * c->box[1] * c->box[2] * c->box[3] * (uint32_t)c->element_bytes;
}

static void run(const mxa_emu_kernel *kernel, const box_params *params, uint64_t seed,
                uint32_t expected, mxa_emu_result *result)
{
    static const int grid[] = {1, 1, 1};
    mxa_emu_options options;
    mxa_emu_options_init(&options);
    options.seed = seed;
    (void)mxa_emu_launch(kernel, grid, 32, SHARED, params, &options, result);
    CHECK((result->errors == 0) == (expected == 0) && (result->hazards & expected) == expected,
          "seed %llu: %s", (unsigned long long)seed, result->text ? result->text : "no report");
    mxa_emu_result_free(result);
}

static void check_load(const box_case *c, uint64_t seed)
{
    const uint32_t bytes = box_bytes(c);
    const uint64_t size = count_of(c) * (uint64_t)c->element_bytes;
    unsigned char *tensor = aligned_alloc(64, (size + 63) / 64 * 64);
    unsigned char *linear = aligned_alloc(64, BOX_MOST);
    box_params params = {.rank = c->rank, .bytes = (int32_t)bytes};
    mxa_emu_result result;
    for (uint64_t i = 0; i < size; i++) {
        tensor[i] = (unsigned char)(1 + i % 251);
    }
    memset(linear, 0xEE, BOX_MOST);
    memcpy(params.at, c->at, sizeof params.at);
    params.linear = (mxa_global)(uintptr_t)linear;
    CHECK(encode(c, tensor, &params.map) == 0, "the map is refused");
    (void)mxa_emu_memory_add(tensor, size);
    (void)mxa_emu_memory_add(linear, BOX_MOST);
    run(&load_box_kernel, &params, seed, 0, &result);
    for (uint32_t i = 0; i < bytes; i++) {
        const int64_t from = tensor_byte(c, i);
        const unsigned char want = from < 0 ? 0 : tensor[from];
        if (!CHECK(linear[swizzled(i, c->swizzle)] == want, "byte %u: 0x%02x, want 0x%02x", i,
                   linear[swizzled(i, c->swizzle)], want)) {
            break;
        }
    }
    mxa_emu_memory_remove(tensor);
    mxa_emu_memory_remove(linear);
    free(tensor);
    free(linear);
}

/* One element as a number; integers wrap at their width. */
static float element(const unsigned char *at, int type)
{
    const mxattn_dtype dtype = type == 6 ? MXATTN_F16 : type == 9 ? MXATTN_BF16 : MXATTN_F32;
    return mxa_load(at, dtype, 0);
}

static void check_store(const box_case *c, int add, uint64_t seed)
{
    const uint32_t bytes = box_bytes(c), e = (uint32_t)c->element_bytes;
    const mxattn_dtype dtype = c->type == 6 ? MXATTN_F16 : c->type == 9 ? MXATTN_BF16 : MXATTN_F32;
    const uint64_t size = count_of(c) * e;
    unsigned char *tensor = aligned_alloc(64, (size + 63) / 64 * 64), *before = malloc(size);
    unsigned char *linear = aligned_alloc(64, BOX_MOST);
    box_params params = {.rank = 4, .bytes = (int32_t)bytes, .add = add};
    mxa_emu_result result;
    for (uint64_t i = 0; i < size / e; i++) {
        mxa_store(tensor, dtype, (int64_t)i, (float)(i % 61) * 0.25f - 3.0f);
    }
    for (uint32_t i = 0; i < bytes / e; i++) { /* in the box's order, laid out by the swizzle */
        unsigned char value[4];
        mxa_store(value, dtype, 0, (float)(i % 37) * 0.5f - 7.0f);
        memcpy(linear + swizzled(i * e, c->swizzle), value, e);
    }
    memcpy(before, tensor, size);
    memcpy(params.at, c->at, sizeof params.at);
    params.linear = (mxa_global)(uintptr_t)linear;
    CHECK(encode(c, tensor, &params.map) == 0, "the map is refused");
    (void)mxa_emu_memory_add(tensor, size);
    (void)mxa_emu_memory_add(linear, BOX_MOST);
    run(&store_box_kernel, &params, seed, 0, &result);
    for (uint32_t i = 0; i < bytes; i += e) {
        const int64_t to = tensor_byte(c, i);
        const float given = element(linear + swizzled(i, c->swizzle), c->type);
        if (to >= 0) {
            const float want = given + (add ? element(before + to, c->type) : 0.0f);
            CHECK(element(tensor + to, c->type) == want, "byte %lld: %g, want %g", (long long)to,
                  (double)element(tensor + to, c->type), (double)want);
            memcpy(before + to, tensor + to, e);
        }
    }
    CHECK(memcmp(before, tensor, size) == 0, "elements outside of the box were written");
    mxa_emu_memory_remove(tensor);
    mxa_emu_memory_remove(linear);
    free(tensor);
    free(before);
    free(linear);
}

/* Twice the row, in the element's arithmetic: FP32 flushes subnormals, FP16 keeps them. */
static void check_additions(void)
{
    enum { WORDS = 64 };
    static uint32_t rows[3][WORDS] __attribute__((aligned(128)));
    const box_case any = {7, 4, 0, 2, {64, 3, 1, 1}, {64, 1, 1, 1}, {0, 0, 0, 0}};
    box_params params = {.bytes = WORDS * 4};
    params.linear = (mxa_global)(uintptr_t)rows;
    CHECK(encode(&any, rows, &params.map) == 0, "the map is refused");
    for (uint64_t seed = 1; seed <= 4; seed++) {
        mxt_random random = {seed};
        mxa_emu_result result;
        mxt_case("additions, seed %llu", (unsigned long long)seed);
        memset(rows, 0, sizeof rows);
        for (int i = 0; i < WORDS; i++) { /* no NaN in either type */
            rows[0][i] = (uint32_t)mxt_random_u64(&random) & 0xBBFFBBFF;
        }
        rows[0][0] = 0x00000003;
        run(&add_row_kernel, &params, seed, 0, &result);
        for (int i = 0; i < WORDS; i++) {
            const uint32_t x = rows[0][i];
            float a, sum;
            memcpy(&a, &x, 4);
            memcpy(&sum, &rows[1][i], 4);
            CHECK(sum == (x & 0x7F800000 ? 2 * a : 0), "word %d: FP32 %a, of %a", i, (double)sum,
                  (double)a);
            for (int half = 0; half < 2; half++) {
                const float b = mxa_f16_to_f32((uint16_t)(x >> (16 * half)));
                CHECK((uint16_t)(rows[2][i] >> (16 * half)) == mxa_f16_from_f32(2 * b) || b == 0,
                      "word %d: FP16 %08x, of %08x", i, rows[2][i], x);
            }
        }
    }
}

static void refusals(void)
{
    static const box_case good = {7, 4, 3, 4, {32, 4, 4, 16}, {32, 1, 1, 16}, {0, 0, 0, 0}};
    float *tensor = aligned_alloc(64, 32 * 4 * 4 * 16 * sizeof(float));
    mxa_device_map map;
    mxa_emu_result result;
    mxt_case("maps and boxes that are refused");
    CHECK(encode(&good, tensor, &map) == 0, "a good map is refused");
    CHECK(encode(&good, (unsigned char *)tensor + 8, &map), "an address not in sixteens");
    box_case bad = good;
    bad.box[0] = 64;
    CHECK(encode(&bad, tensor, &map), "rows wider than the swizzle");
    bad = good;
    bad.size[0] = 33;
    CHECK(encode(&bad, tensor, &map), "a stride not in sixteens");
    bad = good;
    bad.box[3] = 257;
    CHECK(encode(&bad, tensor, &map), "a box of 257");
    box_params params = {.rank = 4, .bytes = 2048};
    params.linear = (mxa_global)(uintptr_t)tensor;
    CHECK(encode(&good, tensor, &params.map) == 0, "a good map is refused");
    (void)mxa_emu_memory_add(tensor, 32 * 4 * 4 * 16 * sizeof(float));
    memset(tensor, 0, 32 * 4 * 4 * 16 * sizeof(float));
    params.at[1] = -1;
    run(&store_box_kernel, &params, 1, 1, &result); /* to a negative coordinate */
    params.at[1] = 0;
    params.rank = 3;
    run(&load_box_kernel, &params, 1, 1, &result); /* a map of rank 4 */
    params.rank = 4;
    params.map.opaque[0] = 0;
    run(&load_box_kernel, &params, 1, 1, &result); /* no map at all */
    params.bytes = 128;
    run(&add_row_kernel, &params, 1, 1, &result);
    mxa_emu_memory_remove(tensor);
    free(tensor);
}

int main(void)
{
    for (size_t i = 0; i < sizeof boxes / sizeof boxes[0]; i++) {
        mxt_case("box %d: type %d, swizzle %d, rank %d", (int)i, boxes[i].type, boxes[i].swizzle,
                 boxes[i].rank);
        for (uint64_t seed = 1; seed <= 3; seed++) {
            check_load(&boxes[i], seed);
            if (boxes[i].rank == 4) {
                check_store(&boxes[i], 0, seed);
                check_store(&boxes[i], 1, seed);
            }
        }
    }
    check_additions();
    refusals();
    return mxt_finish();
}
