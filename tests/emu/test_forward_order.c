/* test_forward_order.c: the order in which the Hopper forward takes a dense batch's tiles: each
 * once; with a diagonal those of some pairs of sequence and head together, longest first.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cuda/sm90/forward_tile.h"
#include "report.h"

#include <string.h>

enum { TILE_Q = 192, TILE_K = 128, PIECE_Q = 192, TILES_MOST = 2048 };

typedef struct order_case {
    int batch, heads, tiles, together; /* together: 0 without a diagonal */
} order_case;

static const order_case cases[] = {
    {2, 16, 43, 8}, {1, 3, 5, 2}, {3, 5, 7, 4},   {1, 1, 1, 1},  {2, 4, 9, 8},
    {1, 7, 4, 1},   {4, 2, 6, 3}, {2, 16, 11, 0}, {1, 3, 86, 0},
};

/* The piece at `index` of the order; what is wrong with it, or NULL. */
static const char *look(const mxa_forward_params *params, const order_case *c, int index,
                        unsigned char *seen, int *before)
{
    forward_tile tile;
    const int tiles = c->tiles, section_tiles = tiles * c->together;
    if (!forward_tile_find(params, index, TILE_Q, PIECE_Q, TILE_K, &tile)) {
        return "empty";
    }
    const int pair = tile.sequence * c->heads + tile.head,
              place = pair * tiles + tile.first / TILE_Q;
    if (tile.sequence >= c->batch || tile.head >= c->heads || tile.first >= tiles * TILE_Q) {
        return "outside of the batch";
    }
    if (seen[place]++) {
        return "taken twice";
    }
    if (!c->together) {
        return place == index ? NULL : "not next to its head's others";
    }
    if (pair / c->together != index / section_tiles) {
        return "not among its pairs";
    }
    const int longer = index % section_tiles && tile.block_end > *before;
    *before = tile.block_end;
    return longer ? "longer than the one before it" : NULL;
}

static void check(const order_case *c)
{
    unsigned char seen[TILES_MOST];
    mxa_forward_params params;
    const char *wrong = NULL;
    int before = 0;
    memset(&params, 0, sizeof params);
    memset(seen, 0, sizeof seen);
    params.batch.batch = c->batch;
    params.batch.seqlen_q = params.batch.seqlen_k = c->tiles * TILE_Q;
    params.batch.tiles_per_sequence = c->tiles;
    params.heads = c->heads;
    params.group = 1;
    params.tile_q = TILE_Q;
    params.together = c->together;
    params.window_left = -1;
    params.window_right = c->together ? 0 : -1;
    mxt_case("batch %d, heads %d, tiles %d, together %d", c->batch, c->heads, c->tiles,
             c->together);
    for (int index = 0; index < c->batch * c->heads * c->tiles && !wrong; index++) {
        wrong = look(&params, c, index, seen, &before);
        CHECK(!wrong, "tile %d of the order is %s", index, wrong ? wrong : "right");
    }
}

int main(void)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check(&cases[i]);
    }
    return mxt_finish();
}
