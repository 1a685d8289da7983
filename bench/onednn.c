/* onednn.c: BF16 matrix products of oneDNN, opened at run time through version 2's C interface.
 *
 * Primitives take milliseconds to make: each thread keeps those of the shapes it has met.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "onednn.h"

#include "error.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of dnnl_types.h, version 2. */
enum {
    SUCCESS = 0,
    CPU = 1,
    IN_ORDER = 1,
    BF16 = 2,
    F32 = 3,
    SCRATCHPAD_OF_CALLER = 1,
    QUERY_SCRATCHPAD = 136,
    ARG_SOURCE = 1,
    ARG_RESULT = 17,
    ARG_WEIGHTS = 33,
    ARG_SCRATCHPAD = 80
};

typedef struct argument {
    int which;
    void *memory;
} argument;

/* Descriptors are structs of 696 and 2,800 bytes there, which only the library looks into. */
typedef struct descriptor {
    _Alignas(16) char bytes[4096];
} descriptor;

static struct library {
    int (*engine_create)(void **engine, int kind, size_t index);
    int (*stream_create)(void **stream, void *engine, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*memory_desc_init_by_strides)(descriptor *desc, int ndims, const int64_t *dims, int type,
                                       const int64_t *strides);
    size_t (*memory_desc_get_size)(const void *desc);
    int (*matmul_desc_init)(descriptor *desc, const descriptor *source, const descriptor *weights,
                            const descriptor *bias, const descriptor *result);
    int (*primitive_attr_create)(void **attributes);
    int (*primitive_attr_set_scratchpad_mode)(void *attributes, int mode);
    int (*primitive_attr_set_post_ops)(void *attributes, void *operations);
    int (*primitive_attr_destroy)(void *attributes);
    int (*post_ops_create)(void **operations);
    int (*post_ops_append_sum)(void *operations, float scale);
    int (*post_ops_destroy)(void *operations);
    int (*primitive_desc_create)(void **made, const void *desc, void *attributes, void *engine,
                                 const void *hint);
    const void *(*primitive_desc_query_md)(void *made, int what, int index);
    int (*primitive_desc_destroy)(void *made);
    int (*primitive_create)(void **primitive, void *made);
    int (*primitive_execute)(void *primitive, void *stream, int count, const argument *arguments);
    int (*primitive_destroy)(void *primitive);
    int (*memory_create)(void **memory, const void *desc, void *engine, void *data);
    int (*memory_set_data_handle)(void *memory, void *data);
    int (*memory_destroy)(void *memory);
} dnnl;

/* In the order of the members above. */
static const char *const names[] = {"engine_create",
                                    "stream_create",
                                    "stream_destroy",
                                    "memory_desc_init_by_strides",
                                    "memory_desc_get_size",
                                    "matmul_desc_init",
                                    "primitive_attr_create",
                                    "primitive_attr_set_scratchpad_mode",
                                    "primitive_attr_set_post_ops",
                                    "primitive_attr_destroy",
                                    "post_ops_create",
                                    "post_ops_append_sum",
                                    "post_ops_destroy",
                                    "primitive_desc_create",
                                    "primitive_desc_query_md",
                                    "primitive_desc_destroy",
                                    "primitive_create",
                                    "primitive_execute",
                                    "primitive_destroy",
                                    "memory_create",
                                    "memory_set_data_handle",
                                    "memory_destroy"};
_Static_assert(sizeof dnnl == sizeof names / sizeof *names * sizeof(void *), "a name a member");

static void *engine;
static void (*set_threads)(int threads); /* of the library's OpenMP */

typedef struct product {
    mxc_onednn_shape shape;
    void *primitive, *a, *b, *c, *scratchpad;
    void *room; /* of the scratchpad */
} product;

enum { PRODUCTS_MOST = 256 };

struct mxc_onednn_worker {
    void *stream;
    int count;
    product products[PRODUCTS_MOST];
};

static void need(int status, const char *what)
{
    if (status != SUCCESS)
        mxc_die("oneDNN: %s gave status %d", what, status);
}

/* 0 where the library has no such product on this machine. */
static int product_make(const mxc_onednn_shape *s, product *p)
{
    descriptor a, b, c, matmul;
    void *attributes, *operations, *made = NULL;
    *p = (product){.shape = *s};
    need(dnnl.memory_desc_init_by_strides(&a, 2, (int64_t[]){s->m, s->k}, BF16,
                                          (int64_t[]){s->a_row, s->a_column}),
         "a description of a");
    need(dnnl.memory_desc_init_by_strides(&b, 2, (int64_t[]){s->k, s->n}, BF16,
                                          (int64_t[]){s->b_row, s->b_column}),
         "a description of b");
    need(dnnl.memory_desc_init_by_strides(&c, 2, (int64_t[]){s->m, s->n}, F32,
                                          (int64_t[]){s->c_row, 1}),
         "a description of c");
    need(dnnl.matmul_desc_init(&matmul, &a, &b, NULL, &c), "a description of a product");
    need(dnnl.primitive_attr_create(&attributes), "attributes");
    need(dnnl.primitive_attr_set_scratchpad_mode(attributes, SCRATCHPAD_OF_CALLER), "a scratchpad");
    need(dnnl.post_ops_create(&operations), "operations");
    if (s->add)
        need(dnnl.post_ops_append_sum(operations, 1.0f), "a sum");
    need(dnnl.primitive_attr_set_post_ops(attributes, operations), "operations");
    if (dnnl.primitive_desc_create(&made, &matmul, attributes, engine, NULL) == SUCCESS) {
        const void *room = dnnl.primitive_desc_query_md(made, QUERY_SCRATCHPAD, 0);
        p->room = mxc_tool_alloc(dnnl.memory_desc_get_size(room));
        need(dnnl.primitive_create(&p->primitive, made), "a product");
        need(dnnl.memory_create(&p->a, &a, engine, NULL), "memory");
        need(dnnl.memory_create(&p->b, &b, engine, NULL), "memory");
        need(dnnl.memory_create(&p->c, &c, engine, NULL), "memory");
        need(dnnl.memory_create(&p->scratchpad, room, engine, p->room), "memory");
        need(dnnl.primitive_desc_destroy(made), "release");
    }
    need(dnnl.post_ops_destroy(operations), "release");
    need(dnnl.primitive_attr_destroy(attributes), "release");
    return made != NULL;
}

static void product_release(const product *p)
{
    void *const memories[] = {p->a, p->b, p->c, p->scratchpad};
    for (size_t i = 0; i < sizeof memories / sizeof *memories; i++)
        need(dnnl.memory_destroy(memories[i]), "release");
    need(dnnl.primitive_destroy(p->primitive), "release");
    free(p->room);
}

int mxc_onednn_open(char *why, size_t why_size)
{
    const char *files[] = {getenv("MXATTN_ONEDNN"), "libdnnl.so.2"};
    void *library = NULL, *found[sizeof names / sizeof *names];
    char name[64];
    product p;
    for (size_t i = 0; i < sizeof files / sizeof *files && !library; i++)
        if (files[i])
            library = dlopen(files[i], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        (void)snprintf(why, why_size, "libdnnl.so.2 is not on this machine");
        return 0;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        (void)snprintf(name, sizeof name, "dnnl_%s", names[i]);
        found[i] = dlsym(library, name);
        if (!found[i]) {
            (void)snprintf(why, why_size, "the library lacks %s", name);
            return 0;
        }
    }
    memcpy(&dnnl, found, sizeof dnnl);
    void *threads = dlsym(library, "omp_set_num_threads");
    memcpy(&set_threads, &threads, sizeof set_threads);
    need(dnnl.engine_create(&engine, CPU, 0), "an engine");
    const mxc_onednn_shape shape = {16, 16, 16, 16, 1, 16, 1, 16, 0};
    if (!product_make(&shape, &p)) {
        (void)snprintf(why, why_size, "it has no BF16 product on this machine");
        return 0;
    }
    product_release(&p);
    return 1;
}

mxc_onednn_worker *mxc_onednn_worker_create(void)
{
    mxc_onednn_worker *worker = mxc_tool_alloc(sizeof *worker);
    worker->count = 0;
    need(dnnl.stream_create(&worker->stream, engine, IN_ORDER), "a stream");
    return worker;
}

void mxc_onednn_worker_destroy(mxc_onednn_worker *worker)
{
    for (int i = 0; i < worker->count; i++)
        product_release(&worker->products[i]);
    need(dnnl.stream_destroy(worker->stream), "release");
    free(worker);
}

void mxc_onednn_alone(void)
{
    if (set_threads)
        set_threads(1);
}

static product *product_of(mxc_onednn_worker *worker, const mxc_onednn_shape *shape)
{
    for (int i = 0; i < worker->count; i++)
        if (memcmp(&worker->products[i].shape, shape, sizeof *shape) == 0)
            return &worker->products[i];
    if (worker->count == PRODUCTS_MOST) { /* many lengths: the oldest shapes are forgotten */
        for (int i = 0; i < worker->count; i++)
            product_release(&worker->products[i]);
        worker->count = 0;
    }
    product *p = &worker->products[worker->count];
    if (!product_make(shape, p))
        mxc_die("oneDNN has no product of (%lld, %lld) and (%lld, %lld)", (long long)shape->m,
                (long long)shape->k, (long long)shape->k, (long long)shape->n);
    worker->count++;
    return p;
}

void mxc_onednn_multiply(mxc_onednn_worker *worker, const mxc_onednn_shape *shape,
                         const uint16_t *a, const uint16_t *b, float *c)
{
    const product *p = product_of(worker, shape);
    const argument arguments[] = {{ARG_SOURCE, p->a},
                                  {ARG_WEIGHTS, p->b},
                                  {ARG_RESULT, p->c},
                                  {ARG_SCRATCHPAD, p->scratchpad}};
    need(dnnl.memory_set_data_handle(p->a, (void *)(uintptr_t)a), "an operand");
    need(dnnl.memory_set_data_handle(p->b, (void *)(uintptr_t)b), "an operand");
    need(dnnl.memory_set_data_handle(p->c, c), "a result");
    need(dnnl.primitive_execute(p->primitive, worker->stream, 4, arguments), "a product");
}
