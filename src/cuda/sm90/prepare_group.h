/* prepare_group.h: a warp's group of 32 tokens, in registers: which lane has what, its loads, and
 * where a group of q or k goes.
 *
 * A lane has 16 bytes of each of its tokens; a load of the warp is whole lines of memory. Where a
 * token is wider than registers allow, two warps take half of it each.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_SM90_PREPARE_GROUP_H
#define MXA_CUDA_SM90_PREPARE_GROUP_H

#include "cuda/common/load.h"
#include "cuda/common/prepare_params.h"
#include "cuda/dev/barrier.h"
#include "cuda/dev/cluster.h"
#include "cuda/sm90/prepare_fold.h"

/* How a group lies: head dim, dims of a lane (16 bytes), warps that share a token. Constants. */
typedef struct group_shape {
    int dims, each, halves;
} group_shape;

/* Shared memory of an item, four groups. */
enum {
    AT_SCALES = 0, /* v: 2^exponent of each group, 0 where it adds nothing */
    AT_ARRIVED = 16,
    AT_LEANS = 20,
    AT_PAIR = 32, /* v: (sequence, head), the item's number in it, its tokens */
    AT_MOST = 0,  /* q, k: norm of each group, */
    AT_OF = 32,   /* and its (sequence, head) */
    AT_TOPS = 48, /* of each half of a group, or its tokens' norms: */
    AT_NORMS = 80,
    AT_TILE = 80 /* v: the tile, turned; then sums of lanes */
};

/* A group: where its first token comes from, and how many tokens count from there on. */
typedef struct prepare_group {
    load_place place;
    int left;
} prepare_group;

/* What a CTA takes: 128 tokens of one head of v, k or q. */
typedef struct prepare_piece {
    const mxa_prepare_params *p;
    int head, item;
} prepare_piece;

MXA_DEVICE int group_lane(void)
{
    return dev_thread() & 31;
}

MXA_DEVICE int group_threads(group_shape s)
{
    return 128 * s.halves;
}

/* Lanes of a warp that share a token, and loads of each. */
MXA_DEVICE int group_lanes(group_shape s)
{
    return s.dims / s.each / s.halves;
}

/* Number of the warp's group in its item; of the warp in the group is group_half. */
MXA_DEVICE int group_number(group_shape s)
{
    return dev_thread() / (32 * s.halves);
}

/* Number of the warp's group in the copy. The whole warp. WHY shuffled: the compiler then knows
 * that lanes do not differ, and spends fewer registers on addresses and branches. */
MXA_DEVICE int group_of_warp(group_shape s, int item)
{
    return 4 * item + shuffle_i32(group_number(s), 0);
}

MXA_DEVICE int group_half(group_shape s)
{
    return dev_thread() / 32 % s.halves;
}

/* Number of the lane among all that share its token, and its first dim. */
MXA_DEVICE int group_column(group_shape s)
{
    const int lanes = group_lanes(s);
    return lanes * group_half(s) + group_lane() % lanes;
}

MXA_DEVICE int group_dim(group_shape s)
{
    return s.each * group_column(s);
}

/* Token of the lane's first load. q, k: the others follow, 32 / lanes apart. v: four loads are the
 * tokens of a word of its copy, t + {0, 1, 8, 9}, t = 16*(quad/4) + 2*(quad%4), and a lane's words
 * are neighbours. */
MXA_DEVICE int group_token(group_shape s, int is_v)
{
    const int row = group_lane() / group_lanes(s), quad = group_lanes(s) / 4 * row;
    return is_v ? 16 * (quad >> 2) + 2 * (quad & 3) : row;
}

/* Of load i, from there. */
MXA_DEVICE int group_step(group_shape s, int is_v, int i)
{
    const int quad = i / 4;
    return is_v ? 16 * (quad >> 2) + 2 * (quad & 3) + (i & 1) + 8 * (i >> 1 & 1)
                : 32 / group_lanes(s) * i;
}

/* Piece of this CTA. x: kv head. y and z, 65,535 of y where there is more than one z: items of v,
 * of k, of q. */
MXA_DEVICE prepare_piece piece_find(const mxa_prepare_all_params *all)
{
    const int heads = all->v.heads, chunks = all->v.groups / 4;
    prepare_piece piece = {&all->v, dev_block_x(), 65535 * dev_block_z() + dev_block_y()};
    if (piece.item >= chunks) {
        piece.p = &all->k;
        piece.item -= chunks;
        if (piece.item >= chunks) {
            piece.p = &all->q;
            piece.item -= chunks;
            if (all->group > 1) {
                piece.head += heads * (piece.item % all->group);
                piece.item /= all->group;
            }
        }
    }
    return piece;
}

/* Group `group` of the private copy, number `number` of the item's four; the item's first token is
 * found for the whole CTA. */
MXA_DEVICE void group_find(const mxa_prepare_params *p, int group, int number, prepare_group *g)
{
    load_find(&p->batch, p->is_k_side, MXA_PREPARE_GROUP * (group - number), &g->place);
    g->place.position += MXA_PREPARE_GROUP * number;
    if (!p->is_k_side && g->place.position >= g->place.used) { /* another sequence, or none */
        load_find(&p->batch, p->is_k_side, MXA_PREPARE_GROUP * group, &g->place);
    }
    g->left = g->place.used - g->place.position;
}

MXA_DEVICE void group_load_words(mxa_global at, uint32_t *raw)
{
    const mxa_u32x4 v = dev_load_global_u32x4(at);
    raw[0] = v.x;
    raw[1] = v.y;
    raw[2] = v.z;
    raw[3] = v.w;
}

/* The lane's 16 bytes of each of its tokens; for those that do not count zeros, or, with `stand`,
 * the last one that does. WHY a clamped address: all loads are in flight before one is looked at.
 */
MXA_DEVICE void group_load(const mxa_gpu_operand *from, const prepare_group *g, group_shape s,
                           int is_v, int stand, int head, uint32_t *raw)
{
    const int loads = group_lanes(s), first = group_token(s, is_v), bytes = 16 / s.each;
    if (g->left <= 0) {
        MXA_UNROLL
        for (int i = 0; i < 4 * loads; i++) {
            raw[i] = 0;
        }
        return;
    }
    const uint64_t step = (uint64_t)(bytes * from->stride_token);
    mxa_global at = from->data + (uint64_t)bytes * load_index(from, &g->place, g->place.position,
                                                              head, group_dim(s));
    if (g->left < MXA_PREPARE_GROUP) {
        MXA_UNROLL
        for (int i = 0; i < loads; i++) {
            const int token = first + group_step(s, is_v, i), there = token < g->left;
            group_load_words(at + (uint64_t)(there ? token : g->left - 1) * step, raw + 4 * i);
            MXA_UNROLL
            for (int n = 0; n < 4; n++) {
                raw[4 * i + n] = there || stand ? raw[4 * i + n] : 0;
            }
        }
        return;
    }
    at += (uint64_t)first * step;
    MXA_UNROLL
    for (int i = 0; i < loads; i++) {
        group_load_words(at + (uint64_t)group_step(s, is_v, i) * step, raw + 4 * i);
    }
}

/* Bytes of a word of v's copy whose tokens, those of loads i.. i + 3, count. */
MXA_DEVICE uint32_t group_there(const prepare_group *g, group_shape s, int i)
{
    uint32_t there = 0;
    MXA_UNROLL
    for (int t = 0; t < 4; t++) {
        const int token = group_token(s, 1) + group_step(s, 1, i + t);
        there |= token < g->left ? (uint32_t)0xFF << (8 * t) : 0;
    }
    return there;
}

/* The larger of what the group's warps have; the same in all lanes of each. */
MXA_DEVICE uint32_t group_largest(group_shape s, mxa_shared shared, uint32_t top)
{
    if (s.halves == 1) {
        return top;
    }
    const int number = group_number(s);
    const mxa_shared at = shared + AT_TOPS + 8 * (uint32_t)number;
    if (group_lane() == 0) {
        dev_store_shared_u32(at + 4 * (uint32_t)group_half(s), top);
    }
    named_sync(1 + number, 64);
    return max_u32(dev_load_shared_u32(at), dev_load_shared_u32(at + 4));
}

/* Of the rows (8, or as many as lanes share one) whose parts neighbouring lanes have in x, this
 * lane's own one's sum. */
MXA_DEVICE float row_sum(group_shape s, float *x)
{
    const int lanes = group_lanes(s);
    MXA_UNROLL
    for (int step = lanes < 8 ? lanes / 2 : 4; step >= 1; step >>= 1) {
        const int high = group_lane() & step;
        MXA_UNROLL
        for (int n = 0; n < step; n++) {
            const float mine = high ? x[n + step] : x[n], theirs = high ? x[n] : x[n + step];
            x[n] = add_rn(mine, shuffle_xor_f32(theirs, step));
        }
    }
    MXA_UNROLL
    for (int mask = 8; mask < lanes; mask <<= 1) {
        x[0] = add_rn(x[0], shuffle_xor_f32(x[0], mask));
    }
    return x[0];
}

/* Largest of `count` such sums of every lane, as bits; in the group's first warp. */
MXA_DEVICE uint32_t rows_largest(group_shape s, mxa_shared shared, float *sums, int count)
{
    const int number = group_number(s);
    const mxa_shared at = shared + AT_NORMS + 4 * (uint32_t)(64 * number + group_lane());
    if (s.halves == 2) {
        if (group_half(s)) {
            MXA_UNROLL
            for (int i = 0; i < count; i++) {
                dev_store_shared_f32(at + 128 * (uint32_t)i, sums[i]);
            }
        }
        named_sync(1 + number, 64);
        MXA_UNROLL
        for (int i = 0; i < count; i++) {
            sums[i] = add_rn(sums[i], dev_load_shared_f32(at + 128 * (uint32_t)i));
        }
    }
    uint32_t most = bits_f32(sums[0]);
    MXA_UNROLL
    for (int i = 1; i < count; i++) {
        most = max_u32(most, bits_f32(sums[i]));
    }
    return warp_max_u32(most);
}

/* A group's rows in the copy of q or k. */
MXA_DEVICE mxa_global rows_at(const mxa_prepare_params *p, int dims, int head, int group)
{
    const uint64_t number = (uint64_t)(head * (p->rows / MXA_PREPARE_GROUP) + group);
    return p->payload + number * (uint64_t)(MXA_PREPARE_GROUP * dims);
}

/* The lane's first byte there; a load's row is 32 / lanes rows from the one before. */
MXA_DEVICE mxa_global rows_of_lane(group_shape s, mxa_global at)
{
    return at + (uint64_t)(group_token(s, 0) * s.dims + group_dim(s));
}

/* Rows of a group that is not finite. */
MXA_DEVICE void rows_not_finite(group_shape s, mxa_global at)
{
    const mxa_u32x4 nan = {0x7F7F7F7Fu, 0x7F7F7F7Fu, 0x7F7F7F7Fu, 0x7F7F7F7Fu};
    const int each = 32 * s.halves;
    at += 16 * (uint64_t)(32 * group_half(s) + group_lane());
    MXA_NO_UNROLL
    for (int i = 0; i < 2 * s.dims / each; i++) {
        dev_store_global_u32x4(at + (uint64_t)(16 * each * i), nan);
    }
}

/* A group's norm and (sequence, head), for norms_end. By one lane. */
MXA_DEVICE void norm_note(mxa_shared shared, group_shape s, int pair, uint32_t norm)
{
    dev_store_shared_u32(shared + AT_MOST + 4 * (uint32_t)group_number(s), norm);
    dev_store_shared_u32(shared + AT_OF + 4 * (uint32_t)group_number(s), (uint32_t)pair);
}

/* After a barrier: the largest norm of each pair to its maximum, by its first group's thread. WHY
 * not each group's by itself: the CTAs at work are of a few sequences, whose heads' maxima lie in
 * few lines of memory, and there one waits for the other. */
MXA_DEVICE void norms_end(const mxa_prepare_params *p, mxa_shared shared)
{
    const int first = dev_thread();
    const mxa_shared at = shared + 4 * (uint32_t)first;
    if (first >= 4) {
        return;
    }
    const uint32_t pair = dev_load_shared_u32(at + AT_OF);
    uint32_t most = 0;
    if (first == 0 || dev_load_shared_u32(at + AT_OF - 4) != pair) {
        MXA_NO_UNROLL
        for (uint32_t i = 0; i < 4 - (uint32_t)first; i++) {
            const uint32_t norm = dev_load_shared_u32(at + AT_MOST + 4 * i);
            most = dev_load_shared_u32(at + AT_OF + 4 * i) == pair ? max_u32(most, norm) : most;
        }
    }
    grid_dependency_wait();
    if (most) {
        dev_max_global_u32(p->norm + 4 * (uint64_t)pair, most);
    }
}

/* A group's scale, and its largest norm; most: of the squares of its payload's rows, NaN where it
 * is not finite. By one lane. */
MXA_DEVICE void rows_note(const mxa_prepare_params *p, mxa_shared shared, const prepare_group *g,
                          group_shape s, int head, int group, int exponent, int finite,
                          uint32_t most)
{
    if (group_lane() != 0 || group_half(s) != 0) {
        return;
    }
    const uint32_t power = finite ? (uint32_t)(exponent + 127) << 23 : 0x7FC00000u;
    const uint32_t norm =
        finite ? bits_f32(mul_rn(sqrt_rn(f32_bits(most)), f32_bits(power))) : 0x7FC00000u;
    const uint64_t number = (uint64_t)(head * (p->rows / MXA_PREPARE_GROUP) + group);
    dev_store_global_u32(p->scale + 16 * number, power);
    norm_note(shared, s, g->place.sequence * p->heads + head, norm);
}

/* A group beyond the last. */
MXA_DEVICE void rows_absent(mxa_shared shared, group_shape s)
{
    if (group_lane() == 0 && group_half(s) == 0) {
        norm_note(shared, s, -1, 0);
    }
}

#endif
