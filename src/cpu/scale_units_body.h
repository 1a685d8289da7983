/* scale_units_body.h: units of tiled scales, put together in vector registers, one body for every
 * instruction set. Included after a definition of UNITS_NAME.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cpu/scale_units.h"

#include <string.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

enum { BLOCK = 32, UNITS = 4, GROUPS = 4, ROWS = 64 / MXA_UNIT_ROW };

/* Before each short loop over vectors; unrolled early, they stay in registers. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* WHY: four tokens by four units, or four groups of a row, fill 16 bytes; wider registers would
 * only take more of the same. Stores are another matter (store_two). */
typedef uint8_t bytes __attribute__((vector_size(16)));
typedef uint16_t halves __attribute__((vector_size(16)));
typedef uint32_t words __attribute__((vector_size(16)));
typedef uint64_t longs __attribute__((vector_size(16)));

static inline bytes load(const uint8_t *from)
{
    bytes x;
    memcpy(&x, from, sizeof x);
    return x;
}

/* Two rows. WHY: past the caches half as many stores of 32 bytes write 1.4 times as fast (Zen 3).
 */
static inline void store_two(uint8_t *to, words x, words y, int stream)
{
#if defined(__AVX2__)
    const __m256i both = _mm256_set_m128i((__m128i)y, (__m128i)x);
    if (stream)
        _mm256_stream_si256((__m256i *)(void *)to, both);
    else
        _mm256_storeu_si256((__m256i *)(void *)to, both);
#elif defined(__SSE2__)
    if (stream) {
        _mm_stream_si128((__m128i *)(void *)to, (__m128i)x);
        _mm_stream_si128((__m128i *)(void *)(to + MXA_UNIT_ROW), (__m128i)y);
        return;
    }
#else
    (void)stream;
#endif
#if !defined(__AVX2__)
    memcpy(to, &x, sizeof x);
    memcpy(to + MXA_UNIT_ROW, &y, sizeof y);
#endif
}

/* Bytes 0 8 1 9 2 10 3 11 4 12 5 13 6 14 7 15; twice, a 4 x 4 matrix is turned. WHY two steps: SSE2
 * has an instruction for each, and none for both, which gcc then does byte by byte. */
static inline bytes shuffle(bytes x)
{
    const words w = (words)x;
    const bytes high = (bytes)__builtin_shufflevector(w, w, 2, 3, 2, 3);
    return __builtin_shufflevector(x, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}

static inline void repeat_units(const mxa_unit_run *run, int64_t group_step, int turned, int stream)
{
    uint8_t *to = run->to;
    const uint8_t *from = run->from;
    const int64_t to_step = run->to_step, from_step = run->from_step, ahead = run->ahead;
    for (int64_t i = 0; i < run->count; i++, to += to_step, from += from_step) {
        words x;
        mxa_unit_prefetch(from, ahead);
        if (group_step == GROUPS) {
            x = (words)load(from);
        } else {
            uint32_t group[GROUPS];
            for (int g = 0; g < GROUPS; g++)
                memcpy(&group[g], from + g * group_step, sizeof group[g]);
            x = (words){group[0], group[1], group[2], group[3]};
        }
        if (turned)
            x = (words)shuffle(shuffle((bytes)x));
        for (int r = 0; r < BLOCK; r += 2)
            store_two(to + r * MXA_UNIT_ROW, x, x, stream);
    }
}

/* WHY an instance for units of a tiled source: 80 instructions each came between its stores. */
static void units_repeat(const mxa_unit_run *run)
{
    const mxa_unit_run copy = *run; /* which stores do not alias */
    if (copy.group_step == GROUPS && copy.turned && copy.stream)
        repeat_units(&copy, GROUPS, 1, 1);
    else
        repeat_units(&copy, copy.group_step, copy.turned, copy.stream);
}

/* x[i][j] and x[j][i] change places. */
static inline void transpose(words x[4])
{
    const words a = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5);
    const words b = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
    const words c = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5);
    const words d = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
    x[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
    x[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
    x[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
    x[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}

/* Two rows side by side, of each unit a group. WHY: with one at a time shuffling took longer than
 * memory (AVX2: two at once are one instruction). */
typedef uint32_t row_pair __attribute__((vector_size(32)));

/* x[i][j] and x[j][i] change places, in both rows. */
static inline void transpose_rows(row_pair x[4])
{
    const row_pair a = __builtin_shufflevector(x[0], x[1], 0, 8, 1, 9, 4, 12, 5, 13);
    const row_pair b = __builtin_shufflevector(x[0], x[1], 2, 10, 3, 11, 6, 14, 7, 15);
    const row_pair c = __builtin_shufflevector(x[2], x[3], 0, 8, 1, 9, 4, 12, 5, 13);
    const row_pair d = __builtin_shufflevector(x[2], x[3], 2, 10, 3, 11, 6, 14, 7, 15);
    x[0] = __builtin_shufflevector(a, c, 0, 1, 8, 9, 4, 5, 12, 13);
    x[1] = __builtin_shufflevector(a, c, 2, 3, 10, 11, 6, 7, 14, 15);
    x[2] = __builtin_shufflevector(b, d, 0, 1, 8, 9, 4, 5, 12, 13);
    x[3] = __builtin_shufflevector(b, d, 2, 3, 10, 11, 6, 7, 14, 15);
}

/* The groups of four units. */
static inline words load_groups(const uint8_t *from, int width)
{
    if (width == GROUPS)
        return (words)load(from);
    uint64_t two[2] = {0, 0}; /* of each unit, in the lower half */
    memcpy(two, from, sizeof two[0]);
    const halves x = (halves)(longs){two[0], two[1]};
    return (words)__builtin_shufflevector(x, (halves){0}, 0, 8, 1, 8, 2, 8, 3, 8);
}

/* A part of the units that wait, `part` of PARTS: half of one. */
enum { PARTS = 2 * UNITS, PART_BYTES = MXA_UNIT_BYTES / 2 };

static inline void leave_in_part(const mxa_unit_queue *queue, const uint8_t *units, int part)
{
    uint8_t *to = queue->to[part / 2] + part % 2 * PART_BYTES;
    const uint8_t *from = units + part * PART_BYTES;
    UNROLL
    for (int i = 0; i < PART_BYTES; i += 2 * MXA_UNIT_ROW) {
#if defined(__AVX2__)
        _mm256_stream_si256((__m256i *)(void *)(to + i),
                            _mm256_load_si256((const __m256i *)(const void *)(from + i)));
#else
        store_two(to + i, (words)load(from + i), (words)load(from + i + MXA_UNIT_ROW), 1);
#endif
    }
}

static void units_leave(mxa_unit_queue *queue)
{
    for (int part = 0; queue->some && part < PARTS; part++)
        leave_in_part(queue, queue->units[queue->last][0], part);
    queue->some = 0;
}

/* A line of each unit at a time. WHY they are put together elsewhere before they are streamed: the
 * lines of four units, in turns, are written 0.6 to 0.85 times as fast (Zen 3). */
static inline void units_of_width(uint8_t *const to[4], const uint8_t *from, int64_t token_bytes,
                                  int width, const uint8_t *ask, int64_t ask_step,
                                  const mxa_unit_queue *queue, const uint8_t *waiting)
{
    const uint8_t *token[GROUPS];
    for (int g = 0; g < GROUPS; g++)
        token[g] = from + g * BLOCK * token_bytes;
    for (int r = 0; r < BLOCK; r += ROWS) {
        UNROLL
        for (int i = 0; i < ROWS; i += 2) {
            row_pair x[GROUPS];
            mxa_unit_prefetch(ask, (r + i) * ask_step);
            mxa_unit_prefetch(ask, (r + i + 1) * ask_step);
            UNROLL
            for (int g = 0; g < GROUPS; g++) {
                const words first = load_groups(token[g], width);
                const words second = load_groups(token[g] + token_bytes, width);
                token[g] += 2 * token_bytes;
                x[g] = __builtin_shufflevector(first, second, 0, 1, 2, 3, 4, 5, 6, 7);
            }
            transpose_rows(x);
            UNROLL
            for (int u = 0; u < UNITS; u++)
                memcpy(to[u] + (r + i) * MXA_UNIT_ROW, &x[u], sizeof x[u]);
        }
        if (waiting)
            leave_in_part(queue, waiting, r / ROWS);
    }
}

static void units_of_tokens(uint8_t *const to[4], const uint8_t *from, int64_t token_bytes,
                            int width, const uint8_t *ask, int64_t ask_step, mxa_unit_queue *queue)
{
    const int next = queue ? !queue->last : 0;
    const uint8_t *waiting = queue && queue->some ? queue->units[queue->last][0] : NULL;
    uint8_t *at[UNITS]; /* which stores do not alias */
    for (int u = 0; u < UNITS; u++)
        at[u] = queue ? queue->units[next][u] : to[u];
    if (width == GROUPS)
        units_of_width(at, from, token_bytes, GROUPS, ask, ask_step, queue, waiting);
    else
        units_of_width(at, from, token_bytes, 2, ask, ask_step, queue, waiting);
    if (!queue)
        return;
    memcpy(queue->to, to, sizeof queue->to);
    queue->last = next;
    queue->some = 1;
}

/* Four dims of one group from each of four bytes that are a block apart: x[i] has the groups of
 * dims 4i to 4i + 3. */
static inline void interleave(const uint8_t *const from[4], int64_t d, words x[4])
{
    const bytes a = load(from[0] + d), b = load(from[1] + d);
    const bytes c = load(from[2] + d), e = load(from[3] + d);
#define LOW(x, y)                                                                                  \
    __builtin_shufflevector(x, y, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define HIGH(x, y)                                                                                 \
    __builtin_shufflevector(x, y, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
    const halves ab_low = (halves)LOW(a, b), ab_high = (halves)HIGH(a, b);
    const halves ce_low = (halves)LOW(c, e), ce_high = (halves)HIGH(c, e);
#undef LOW
#undef HIGH
    x[0] = (words)__builtin_shufflevector(ab_low, ce_low, 0, 8, 1, 9, 2, 10, 3, 11);
    x[1] = (words)__builtin_shufflevector(ab_low, ce_low, 4, 12, 5, 13, 6, 14, 7, 15);
    x[2] = (words)__builtin_shufflevector(ab_high, ce_high, 0, 8, 1, 9, 2, 10, 3, 11);
    x[3] = (words)__builtin_shufflevector(ab_high, ce_high, 4, 12, 5, 13, 6, 14, 7, 15);
}

static void unit_of_dims(uint8_t *to, const uint8_t *const from[4], int stream)
{
    for (int r = 0; r < BLOCK; r += 16) {
        words x[GROUPS][4];
        for (int g = 0; g < GROUPS; g++)
            interleave(from, g * BLOCK + r, x[g]);
        for (int i = 0; i < 4; i++) {
            words rows[4] = {x[0][i], x[1][i], x[2][i], x[3][i]};
            transpose(rows);
            for (int j = 0; j < 4; j += 2)
                store_two(to + (r + 4 * i + j) * MXA_UNIT_ROW, rows[j], rows[j + 1], stream);
        }
    }
}

const mxa_unit_kernels UNITS_NAME(mxa_unit_kernels) = {units_repeat, units_of_tokens, units_leave,
                                                       unit_of_dims};
