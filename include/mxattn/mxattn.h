/* mxattn.h: MXFP8 FlashAttention for training, forward and backward, dense and jagged.
 *
 * This header is the whole public API. It reads top to bottom:
 *
 *   1  version, status, errors
 *   2  tensors: element types, tags, scales
 *   3  context: threads, allocator, log
 *   4  backends and devices
 *   5  attention: problem -> plan -> forward, backward
 *   6  producers: quantize, dequantize, scales, norm, GEMM
 *   7  partial results
 *   8  the emulator of GPU kernels
 *
 * Conventions that hold everywhere
 *
 * - Every fallible function returns mxattn_status: MXATTN_OK (0), or the kind of fault, and
 *   mxattn_last_error() then holds one sentence that names the argument, its value and the rule.
 *   On any status but MXATTN_OK no output has been written (MXATTN_DEVICE and device-side
 *   checks apart; see device_status).
 * - Every struct that may grow starts with struct_size. Call its _init function first: that
 *   sets struct_size and every default (defaults are not all zero). A struct larger than the
 *   library knows is accepted when its unknown tail is zero, and refused with
 *   MXATTN_VERSION_MISMATCH otherwise; of a smaller one the missing fields have their defaults. So
 *   programs and libraries of different versions meet safely. mxattn_tags, mxattn_scales,
 *   mxattn_sequences and mxattn_rope are embedded in others and therefore frozen.
 * - Shape letters: B batch (number of sequences), Sq and Sk lengths, Tq and Tk total tokens of a
 *   jagged batch, Hq heads of q, Hkv heads of k and v, D head_dim of q and k, Dv head_dim of v.
 * - Strides and sizes are in elements unless a name ends in _bytes; sizes are int64_t.
 * - Ownership: the library keeps no pointer to caller memory after a call returns (on GPUs: after
 *   the work queued by the call has run). Structs are read during the call and may be reused.
 * - Threads: contexts and plans are immutable once created; any number of threads may use one at
 *   once, with different workspaces and outputs. mxattn_last_error() is per thread.
 * - Nothing is printed, aborted or exited.
 *
 * A first program: examples/first_attention.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXATTN_H
#define MXATTN_H

#include <stddef.h>
#include <stdint.h>

#include "mxattn_version.h"

#if defined(_WIN32)
#define MXATTN_API
#elif defined(__GNUC__)
#define MXATTN_API __attribute__((visibility("default")))
#else
#define MXATTN_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------
 * 1  Version, status, errors
 * --------------------------------------------------------------------------------------------- */

/* The kinds of fault. Values are pinned for ever; new ones are appended. */
typedef enum mxattn_status {
    MXATTN_OK = 0,
    MXATTN_ARGUMENT = 1,         /* a value outside its range, a NULL that may not be */
    MXATTN_SHAPE = 2,            /* sizes that do not fit together, or beyond the plan's bounds */
    MXATTN_DTYPE = 3,            /* an element type this operation does not take */
    MXATTN_LAYOUT = 4,           /* tags, strides or a scale layout that do not match */
    MXATTN_ALIGNMENT = 5,        /* a pointer or stride not aligned as the backend needs */
    MXATTN_CU_SEQLENS = 6,       /* cumulative lengths or seqused that break their rules */
    MXATTN_UNSUPPORTED = 7,      /* legal, but this backend has no kernel for it */
    MXATTN_NO_BACKEND = 8,       /* the backend is not in this build, or its device not present */
    MXATTN_WORKSPACE = 9,        /* workspace, saved or prepared memory missing or too small */
    MXATTN_MEMORY = 10,          /* the allocator returned NULL */
    MXATTN_DEVICE = 11,          /* the device or its driver reported an error */
    MXATTN_VERSION_MISMATCH = 12 /* a struct of a newer version uses fields unknown here */
} mxattn_status;

/* Version of the library found at run time, as MXATTN_VERSION encodes it. */
MXATTN_API int32_t mxattn_version(void);

/* "0.1.0". Static storage. */
MXATTN_API const char *mxattn_version_string(void);

/* Name of a status, e.g. "MXATTN_SHAPE"; "MXATTN_?" for an unknown value. Static storage. */
MXATTN_API const char *mxattn_status_name(mxattn_status status);

/* The sentence of this thread's last failed call; "" if none failed. Valid until the thread's
 * next call into the library. A successful call leaves it as it was. */
MXATTN_API const char *mxattn_last_error(void);

/* ------------------------------------------------------------------------------------------------
 * 2  Tensors
 * --------------------------------------------------------------------------------------------- */

/* Element types. FP8 bytes may come from any library: E4M3 is the "fn" form (no infinity, NaN
 * 0x7F and 0xFF). A byte buffer is given its type here; there is no untyped 8-bit tensor. */
typedef enum mxattn_dtype {
    MXATTN_DTYPE_NONE = 0, /* an absent tensor, where the text allows one */
    MXATTN_F32 = 1,
    MXATTN_F16 = 2,
    MXATTN_BF16 = 3,
    MXATTN_E4M3 = 4,
    MXATTN_E5M2 = 5
} mxattn_dtype;

/* What shares one scale. */
typedef enum mxattn_block {
    MXATTN_BLOCK_NONE = 0,   /* not block-scaled */
    MXATTN_BLOCK_ROW = 1,    /* 1 token x 32 along the head dimension */
    MXATTN_BLOCK_COLUMN = 2, /* 32 tokens x 1 */
    MXATTN_BLOCK_SQUARE = 3  /* 32 tokens x 32: one payload serves both contraction axes */
} mxattn_block;

/* How a block's largest magnitude becomes its power-of-two scale.
 * RCEIL: the smallest power of two with amax / scale <= the element type's maximum.
 * FLOOR: OCP MX v1.0; elements above the maximum saturate. */
typedef enum mxattn_rounding { MXATTN_RCEIL = 0, MXATTN_FLOOR = 1 } mxattn_rounding;

/* Flags of mxattn_tags. */
enum {
    MXATTN_FOLDED = 1,       /* square, and scales equal across the head dimension (32 x D) */
    MXATTN_FOLDED_TOKEN = 2, /* row, and scales equal across the head dimension (1 x D) */
    MXATTN_CENTRED = 4       /* carries an FP32 mean per (sequence, head, dimension) */
};

/* What a tensor is, apart from where it lies. In a problem, a wide dtype (F32, F16, BF16) together
 * with a block means: the call quantizes this operand so. Frozen. */
typedef struct mxattn_tags {
    mxattn_dtype dtype;
    mxattn_block block;
    mxattn_rounding rounding;
    uint32_t flags;
} mxattn_tags;

/* The 32 elements that share an entry of a scale array lie along this axis. Row tensors have HDIM
 * scales, column tensors SEQ scales, square tensors both. */
typedef enum mxattn_axis { MXATTN_HDIM = 0, MXATTN_SEQ = 1 } mxattn_axis;

typedef enum mxattn_scale_layout {
    MXATTN_LINEAR = 0,  /* see mxattn_scales */
    MXATTN_COMPACT = 1, /* square only: one byte per block */
    MXATTN_TILED = 2    /* the 512-byte units that block-scaled tensor cores read */
} mxattn_scale_layout;

/* One array of E8M0 scale bytes: byte b is 2^(b-127), 0xFF is NaN. data == NULL: absent. Frozen.
 *
 * LINEAR and COMPACT: byte (row, head, k) at row*stride_row + head*stride_head + k*stride_k,
 *   LINEAR HDIM  row = token, k = d/32; default strides of shape (tokens, heads, ceil(D/32))
 *   LINEAR SEQ   row = block of 32 tokens, k = d; shape (blocks, heads, D)
 *   COMPACT      row = block of 32 tokens, k = d/32; shape (blocks, heads, ceil(D/32)); an array
 *                for either axis
 *   Tokens are numbered b*S + s (dense) or cu_seqlens[b] + s (jagged). Blocks restart with each
 *   sequence: block s/32 of sequence b is row sum_{a<b} ceil(len_a/32) + s/32.
 * TILED: byte (r%32)*16 + (r%128)/32*4 + k%4 of unit head*stride_head + (r/128)*stride_row +
 *   (k/4)*stride_k, in units of 512 bytes,
 *   HDIM  r = cu_scale[b] + s, k = d/32
 *   SEQ   r = d, k = (cu_scale[b] + s)/32
 *   default strides: stride_k = 1, stride_row = tiles of k, stride_head = stride_row * tiles of r.
 * All three strides 0: the defaults above. len_a is cu_seqlens[a+1] - cu_seqlens[a] (or S), never
 * seqused. Padding bytes are written 0x00 by every producer and never read into a result. */
typedef struct mxattn_scales {
    uint8_t *data;
    mxattn_scale_layout layout;
    int32_t reserved;    /* 0 */
    int64_t stride_head; /* bytes (LINEAR, COMPACT) or units of 512 bytes (TILED) */
    int64_t stride_row;
    int64_t stride_k;
    const int32_t *cu_scale; /* TILED: (B+1) first rows of the sequences, multiples of 128; NULL:
                              * cu_scale[b+1] = cu_scale[b] + 128*ceil(len_b/128) */
} mxattn_scales;

/* A view of caller memory. Shapes are (B, S, H, D) dense, (T, H, D) jagged, (rows, cols) for a
 * matrix (read as T = rows, H = 1), (B, H, S) or (H, T) for one number per row (LSE). The last
 * dimension's stride must be 1 (LSE apart); every other stride is honoured, so q inside a packed
 * qkv needs no copy. */
typedef struct mxattn_tensor {
    size_t struct_size;
    mxattn_tags tags;
    int32_t ndim;
    int32_t reserved; /* 0 */
    void *data;
    int64_t shape[4];
    int64_t stride[4];       /* elements; mxattn_tensor_view fills contiguous ones */
    mxattn_scales scales[2]; /* indexed by mxattn_axis; readers need one that the block has */
    float *centre;           /* with MXATTN_CENTRED: (B, H, D) contiguous FP32 */
} mxattn_tensor;

MXATTN_API void mxattn_tensor_init_sized(mxattn_tensor *tensor, size_t struct_size);
static inline void mxattn_tensor_init(mxattn_tensor *tensor)
{
    mxattn_tensor_init_sized(tensor, sizeof(mxattn_tensor));
}

/* Initialises *tensor as a contiguous view of data with ndim (1..4) sizes. Never fails; a bad
 * shape is reported by the call that uses it. */
MXATTN_API void mxattn_tensor_view_sized(mxattn_tensor *tensor, size_t struct_size,
                                         mxattn_dtype dtype, void *data, int32_t ndim,
                                         const int64_t *shape);
static inline void mxattn_tensor_view(mxattn_tensor *tensor, mxattn_dtype dtype, void *data,
                                      int32_t ndim, const int64_t *shape)
{
    mxattn_tensor_view_sized(tensor, sizeof(mxattn_tensor), dtype, data, ndim, shape);
}

/* Bytes a scale array needs with default strides, padding included.
 * tags: block and dtype of the tensor. batch: number of sequences. cu_seqlens: host int32
 * (batch+1) for a jagged batch, or NULL for a dense one of `seqlen` tokens each.
 * Errors: LAYOUT where the block has no such array, CU_SEQLENS, SHAPE, ARGUMENT. */
MXATTN_API mxattn_status mxattn_scales_bytes(const mxattn_tags *tags, mxattn_axis axis,
                                             mxattn_scale_layout layout, int64_t batch,
                                             int64_t seqlen, const int32_t *cu_seqlens,
                                             int64_t heads, int64_t head_dim, int64_t *bytes);

/* A rotary embedding of the heads of a tensor. Embedded by value; frozen. Position of a token is
 * its place in its sequence plus `offset`. The pair (d, d + dims/2), or (2d, 2d+1) when
 * interleaved, turns: (a, b) -> (a*cos - b*sin, b*cos + a*sin), each product and sum rounded to
 * FP32. Tables are FP32 (positions, dims/2), contiguous; every position met must be below
 * `positions`. */
typedef struct mxattn_rope {
    const float *cosine, *sine; /* both NULL: no rotation */
    int64_t positions;
    int64_t dims; /* first dims of each head, even; 0: head_dim */
    int64_t offset;
    int32_t interleaved;
    int32_t inverse; /* rotate back */
} mxattn_rope;

/* ------------------------------------------------------------------------------------------------
 * 3  Context
 * --------------------------------------------------------------------------------------------- */

/* Instruction sets of the CPU backend, a mask. */
enum {
    MXATTN_ISA_PORTABLE = 1,    /* plain C; always present */
    MXATTN_ISA_AVX2 = 2,        /* AVX2, FMA, F16C */
    MXATTN_ISA_AVX512 = 4,      /* AVX-512 F, BW, DQ, VL */
    MXATTN_ISA_AVX512_BF16 = 8, /* and its BF16 dot products */
    MXATTN_ISA_AVX512_VBMI = 16,
    MXATTN_ISA_AMX_BF16 = 32, /* and AMX's BF16 matrix products, where Linux gives leave */
    MXATTN_ISA_ALL = 0x7fffffff
};

typedef enum mxattn_log_level {
    MXATTN_LOG_ERROR = 0,
    MXATTN_LOG_WARNING = 1,
    MXATTN_LOG_INFO = 2,
    MXATTN_LOG_DEBUG = 3
} mxattn_log_level;

/* One unit of parallel work. */
typedef void (*mxattn_task)(void *arg, int64_t index);

typedef struct mxattn_context_options {
    size_t struct_size;
    int32_t threads;   /* most threads a call uses; 0: the processors this process may run on */
    uint32_t isa_mask; /* instruction sets allowed; default MXATTN_ISA_ALL: those fast here */
    /* Memory of plans and of the library's own state; both NULL: aligned malloc and free. */
    void *(*alloc)(void *user, size_t bytes, size_t alignment);
    void (*free)(void *user, void *memory);
    void *alloc_user;
    /* Sentences worth keeping; NULL: none. May be called from any thread that calls the library. */
    void (*log)(void *user, mxattn_log_level level, const char *sentence);
    void *log_user;
    /* Runs task(arg, i) once for each i in [0, count), in any order, on any threads, and returns
     * when all are done. NULL: a small pool of the library's own, started on first use. Results
     * have the same bits either way, and for any number of threads. */
    void (*parallel_for)(void *user, int64_t count, mxattn_task task, void *arg);
    void *parallel_user;
} mxattn_context_options;

MXATTN_API void mxattn_context_options_init_sized(mxattn_context_options *options,
                                                  size_t struct_size);
static inline void mxattn_context_options_init(mxattn_context_options *options)
{
    mxattn_context_options_init_sized(options, sizeof(mxattn_context_options));
}

/* Wherever a context is asked for, NULL means a process-wide one with default options. */
typedef struct mxattn_context mxattn_context;

/* Creates a context. options may be NULL. Errors: ARGUMENT, MEMORY, VERSION_MISMATCH. */
MXATTN_API mxattn_status mxattn_context_create(const mxattn_context_options *options,
                                               mxattn_context **context);

/* Destroys a context; its plans must be gone. NULL is allowed. */
MXATTN_API void mxattn_context_destroy(mxattn_context *context);

/* ------------------------------------------------------------------------------------------------
 * 4  Backends and devices
 * --------------------------------------------------------------------------------------------- */

typedef enum mxattn_backend {
    MXATTN_BACKEND_AUTO = 0, /* CPU; a GPU is used only when named */
    MXATTN_BACKEND_REF = 1,  /* float64 loops that say what each operation means; slow */
    MXATTN_BACKEND_CPU = 2,
    MXATTN_BACKEND_CUDA = 3,
    MXATTN_BACKEND_EMU_SM90 =
        4, /* the CUDA kernels for Hopper on an emulator that looks for races: */
    MXATTN_BACKEND_EMU_SM100 =
        5 /* slow, no GPU; device memory is its own (section 4). Blackwell's */
} mxattn_backend;

typedef struct mxattn_backend_info {
    size_t struct_size;
    const char *name;     /* "cpu"; static storage, as all strings here */
    int32_t available;    /* 1, or 0 and `reason` says why */
    const char *reason;   /* "" when available */
    int32_t devices;      /* 1 for ref and cpu */
    int32_t threads;      /* of the context; 0 on GPUs */
    uint32_t isa;         /* instruction sets in use (machine, build and context agree) */
    const char *isa_name; /* "avx2"; "" on GPUs */
    const char *kernels;  /* names of the attention kernels, one per line */
} mxattn_backend_info;

MXATTN_API void mxattn_backend_info_init_sized(mxattn_backend_info *info, size_t struct_size);
static inline void mxattn_backend_info_init(mxattn_backend_info *info)
{
    mxattn_backend_info_init_sized(info, sizeof(mxattn_backend_info));
}

/* Describes a backend, also one that is missing. Errors: ARGUMENT (unknown backend or AUTO). */
MXATTN_API mxattn_status mxattn_backend_query(const mxattn_context *context, mxattn_backend backend,
                                              mxattn_backend_info *info);

typedef struct mxattn_device_info {
    size_t struct_size;
    char name[128];
    int32_t arch;            /* 90 for sm_90; 0 for a CPU */
    int32_t multiprocessors; /* processors for a CPU */
    int64_t memory_bytes;
} mxattn_device_info;

MXATTN_API void mxattn_device_info_init_sized(mxattn_device_info *info, size_t struct_size);
static inline void mxattn_device_info_init(mxattn_device_info *info)
{
    mxattn_device_info_init_sized(info, sizeof(mxattn_device_info));
}

MXATTN_API mxattn_status mxattn_device_query(const mxattn_context *context, mxattn_backend backend,
                                             int32_t device, mxattn_device_info *info);

/* Memory and streams, for programs without a GPU runtime of their own. On REF and CPU these are
 * plain memory and streams are NULL. Programs that have a runtime pass their own pointers and
 * streams and need none of this. copy and synchronise block; a copy's pointers may each be host
 * or device memory. Errors: NO_BACKEND, ARGUMENT, MEMORY, DEVICE. */
MXATTN_API mxattn_status mxattn_device_alloc(const mxattn_context *context, mxattn_backend backend,
                                             int32_t device, size_t bytes, void **memory);
MXATTN_API mxattn_status mxattn_device_free(const mxattn_context *context, mxattn_backend backend,
                                            int32_t device, void *memory);
MXATTN_API mxattn_status mxattn_device_copy(const mxattn_context *context, mxattn_backend backend,
                                            int32_t device, void *to, const void *from,
                                            size_t bytes);
MXATTN_API mxattn_status mxattn_device_stream_create(const mxattn_context *context,
                                                     mxattn_backend backend, int32_t device,
                                                     void **stream);
MXATTN_API mxattn_status mxattn_device_stream_destroy(const mxattn_context *context,
                                                      mxattn_backend backend, int32_t device,
                                                      void *stream);
MXATTN_API mxattn_status mxattn_device_synchronise(const mxattn_context *context,
                                                   mxattn_backend backend, int32_t device,
                                                   void *stream);

/* Turns a device status word (see device_status below), copied to the host, into a status and
 * this thread's sentence. 0 gives MXATTN_OK. Bits 0..6: 1 cu_seqlens does not start at 0, 2 it
 * decreases, 3 it passes the tensor's tokens, 4 a sequence is longer than max_seqlen, 5 seqused is
 * outside [0, length]; bit 7: set for the k side; bits 8..31: the sequence (at most 2^24 - 1). */
MXATTN_API mxattn_status mxattn_device_status_check(uint32_t word);

/* ------------------------------------------------------------------------------------------------
 * 5  Attention
 *
 * A problem holds upper bounds and choices; a plan validates it, picks the kernels and knows every
 * size; a run takes the actual tensors within those bounds. For row i of q head h with kv head
 * h / (Hq/Hkv):
 *   x_ij  = softmax_scale * q_i . k_j
 *   x_ij  = softcap * tanh(x_ij / softcap)            where softcap > 0
 *   x_ij  = -inf where masked
 *   LSE_i = ln(sum_j exp(x_ij) [+ exp(sink_h)])       natural logarithm
 *   O_i   = sum_j exp(x_ij - LSE_i) v_j
 * A row that sees no key has O = 0 and LSE = -inf (sink_h with a sink) and no gradient.
 * Backward differentiates exactly this with the quantized q, k, v of forward:
 *   P = exp(x - LSE), delta_i = dO_i . O_i - dLSE_i, dS = P * (dO V^T - delta),
 *   dV = P^T dO, dQ = softmax_scale * dS K, dK = softmax_scale * dS^T Q,
 *   dsink_h = -sum_i exp(sink_h - LSE_i) * delta_i.
 * --------------------------------------------------------------------------------------------- */

typedef enum mxattn_mode { MXATTN_INFERENCE = 0, MXATTN_TRAINING = 1 } mxattn_mode;

typedef enum mxattn_format { MXATTN_DENSE = 0, MXATTN_JAGGED = 1 } mxattn_format;

/* Where the diagonal of the mask lies when Sq != Sk: key j is on the diagonal of row i when
 * j = i + Sk - Sq (BOTTOM_RIGHT) or j = i (TOP_LEFT), lengths after seqused. */
typedef enum mxattn_alignment { MXATTN_BOTTOM_RIGHT = 0, MXATTN_TOP_LEFT = 1 } mxattn_alignment;

/* What the ref backend computes. MXFP8 on every other backend. */
typedef enum mxattn_precision {
    MXATTN_PRECISION_MXFP8 = 0, /* the backend's kernels; on ref the same as MODEL */
    MXATTN_PRECISION_MODEL = 1, /* float64, rounded where the kernels round */
    MXATTN_PRECISION_F64 = 2    /* float64; wide operands are not quantized */
} mxattn_precision;

/* How P and dS are held between the two GEMMs. */
typedef enum mxattn_intermediates {
    MXATTN_INTERMEDIATES_AUTO = 0, /* the backend's default: BF16 on CPU, E4M3 on GPUs */
    MXATTN_INTERMEDIATES_BF16 = 1,
    MXATTN_INTERMEDIATES_E4M3 = 2
} mxattn_intermediates;

/* In what type partial dQ are added up. */
typedef enum mxattn_dq_reduce {
    MXATTN_DQ_REDUCE_AUTO = 0, /* FP32 on CPU, FP16 on GPUs */
    MXATTN_DQ_REDUCE_FP16 = 1,
    MXATTN_DQ_REDUCE_FP32 = 2
} mxattn_dq_reduce;

/* dq_scale_log2: the exponent is taken per (sequence, head) from a bound that provably holds. */
#define MXATTN_DQ_SCALE_AUTO INT32_MIN

typedef struct mxattn_attention_problem {
    size_t struct_size;
    mxattn_backend backend;
    int32_t device;
    mxattn_mode mode; /* TRAINING plans also run backward */
    mxattn_format format;
    mxattn_precision precision; /* ref only */
    /* Upper bounds. Dense: total_q and total_k are ignored. Default batch 1, others 0. */
    int64_t batch;
    int64_t total_q, total_k;
    int64_t max_seqlen_q, max_seqlen_k;
    /* Exact. heads is a multiple of kv_heads; head_dim_v 0 means head_dim. */
    int64_t heads, kv_heads;
    int64_t head_dim, head_dim_v;
    int32_t causal;             /* keys beyond the diagonal are masked */
    mxattn_alignment alignment; /* of causal and window */
    int64_t window[2];          /* keys left and right of the diagonal, inclusive; -1: all */
    double softmax_scale;       /* NAN: 1/sqrt(head_dim); any finite value is legal */
    double softcap;             /* 0: off */
    int32_t has_sink;
    int32_t causal_strict; /* row i's bits depend on tokens <= i only; see docs/format.md */
    int32_t deterministic; /* gradients equal bit for bit from run to run */
    mxattn_intermediates intermediates;
    mxattn_dq_reduce dq_reduce;
    int32_t dq_scale_log2; /* FP16 reduction: dQ is held times 2^this */
    /* What the operands are. Defaults: q, k, v E4M3 square; o BF16; dout BF16 with square blocks
     * (quantized in the call); dq, dk, dv BF16. q_seq, k_seq, v_seq: NONE, or the column-block
     * partner of a row-block tensor, used where a GEMM contracts over tokens. */
    mxattn_tags q, k, v;
    mxattn_tags q_seq, k_seq, v_seq;
    mxattn_tags o;
    mxattn_tags dout;
    mxattn_tags dq, dk, dv;
} mxattn_attention_problem;

MXATTN_API void mxattn_attention_problem_init_sized(mxattn_attention_problem *problem,
                                                    size_t struct_size);
static inline void mxattn_attention_problem_init(mxattn_attention_problem *problem)
{
    mxattn_attention_problem_init_sized(problem, sizeof(mxattn_attention_problem));
}

typedef struct mxattn_plan mxattn_plan;

/* Validates a problem, chooses kernels and sizes. Costs microseconds, allocates only the plan.
 * The context must outlive it. Errors: ARGUMENT, SHAPE, DTYPE, LAYOUT, UNSUPPORTED, NO_BACKEND,
 * MEMORY, VERSION_MISMATCH; the sentence says why not. */
MXATTN_API mxattn_status mxattn_plan_create(const mxattn_context *context,
                                            const mxattn_attention_problem *problem,
                                            mxattn_plan **plan);

/* NULL is allowed. */
MXATTN_API void mxattn_plan_destroy(mxattn_plan *plan);

typedef struct mxattn_plan_info {
    size_t struct_size;
    mxattn_backend backend;
    const char *kernel_forward;  /* owned by the plan, as all strings here */
    const char *kernel_backward; /* "" in an inference plan */
    const char *isa_name;
    int32_t threads;
    mxattn_intermediates intermediates; /* never AUTO */
    mxattn_dq_reduce dq_reduce;         /* never AUTO */
    int32_t max_headroom_log2;          /* binades the row maximum may be raised above need, 0..3 */
    double softmax_scale;               /* the value in use */
    int64_t workspace_forward_bytes;    /* content on entry irrelevant; aligned to 256 bytes */
    int64_t workspace_backward_bytes;
    int64_t saved_bytes;    /* forward -> backward; 0 in an inference plan */
    int64_t prepared_bytes; /* private operand copies; 0 where a backend wants none */
    uint64_t saved_id;      /* plans with equal ids read each other's saved memory */
} mxattn_plan_info;

MXATTN_API void mxattn_plan_info_init_sized(mxattn_plan_info *info, size_t struct_size);
static inline void mxattn_plan_info_init(mxattn_plan_info *info)
{
    mxattn_plan_info_init_sized(info, sizeof(mxattn_plan_info));
}

MXATTN_API mxattn_status mxattn_plan_query(const mxattn_plan *plan, mxattn_plan_info *info);

/* The tensors of one run. All pointers live where the plan's device says; structs on the host.
 * Tags must equal the plan's. An absent tensor is NULL. */
typedef struct mxattn_attention_args {
    size_t struct_size;
    const mxattn_tensor *q;     /* (B, Sq, Hq, D)   or (Tq, Hq, D) */
    const mxattn_tensor *k;     /* (B, Sk, Hkv, D)  or (Tk, Hkv, D) */
    const mxattn_tensor *v;     /* (B, Sk, Hkv, Dv) or (Tk, Hkv, Dv) */
    const mxattn_tensor *q_seq; /* with the plan's q_seq tags */
    const mxattn_tensor *k_seq;
    const mxattn_tensor *v_seq;
    const mxattn_tensor *o;    /* (B, Sq, Hq, Dv) or (Tq, Hq, Dv); written by forward */
    const mxattn_tensor *lse;  /* FP32 (B, Hq, Sq) or (Hq, Tq), any strides; NULL: not wanted in
                                * forward; needed by backward without saved */
    const float *sink;         /* (Hq), unscaled and uncapped; with has_sink */
    const mxattn_tensor *dout; /* backward: gradient of o */
    const mxattn_tensor *dlse; /* FP32 like lse, optional: gradient of LSE */
    const mxattn_tensor *dq, *dk, *dv; /* backward outputs, shapes of q, k, v */
    float *dsink;                      /* (Hq), written; optional */
    int64_t batch; /* jagged: sequences in this run, at most the plan's; -1: the plan's
                    * (dense runs take it from q) */
    const int32_t *cu_seqlens_q; /* jagged: (batch+1), from 0, not decreasing */
    const int32_t *cu_seqlens_k;
    const int32_t *seqused_q; /* optional (batch): tokens used of each sequence, from its start */
    const int32_t *seqused_k;
    const int32_t *host_cu_seqlens_q; /* GPU: optional host copies, checked before launch */
    const int32_t *host_cu_seqlens_k;
    const int32_t *host_seqused_q;
    const int32_t *host_seqused_k;
    const void *prepared; /* from mxattn_prepare or a producer; optional */
    void *saved;          /* written by a training forward, read by backward; optional unless
                           * o is MXFP8 and o_wide is not given */
    void *workspace;
    size_t workspace_bytes;
    uint32_t *device_status;     /* optional: 0 (always on REF and CPU, where cu_seqlens are checked
                                  * before anything runs), or what mxattn_device_status_check
                                  * explains; when not 0 the call wrote nothing else */
    void *stream;                /* GPU: a CUstream; ignored on CPU */
    const mxattn_tensor *o_wide; /* where o is MXFP8, optional: forward writes O once more, in F32,
                                  * F16 or BF16; backward reads it in place of saved */
    const mxattn_rope *rope_q, *rope_k; /* backward, optional: how the producers of q and k rotated
                                         * them; dq and dk (F32 or MXFP8) are turned back before
                                         * they are rounded */
} mxattn_attention_args;

MXATTN_API void mxattn_attention_args_init_sized(mxattn_attention_args *args, size_t struct_size);
static inline void mxattn_attention_args_init(mxattn_attention_args *args)
{
    mxattn_attention_args_init_sized(args, sizeof(mxattn_attention_args));
}

/* Runs a plan. A wide operand that the plan quantizes is passed as it is: dtype F32, F16 or BF16,
 * block NONE. q, k, v and o are required, lse is not; saved and prepared are not looked at where
 * the plan sizes them 0. Never allocates (on GPUs also never synchronises or reads back, and can be
 * captured in a graph). Rows of outputs that belong to no sequence are written as 0 (LSE as -inf).
 * Errors: ARGUMENT, SHAPE, DTYPE, LAYOUT, ALIGNMENT, CU_SEQLENS, WORKSPACE, DEVICE,
 * VERSION_MISMATCH. */
MXATTN_API mxattn_status mxattn_attention_forward(const mxattn_plan *plan,
                                                  const mxattn_attention_args *args);

/* Needs a TRAINING plan, dout, dq, dk, dv, and either saved, or lse and an o in F32, F16 or BF16.
 * On GPUs saved holds what is known of rows, not O: o is needed beside it. */
MXATTN_API mxattn_status mxattn_attention_backward(const mxattn_plan *plan,
                                                   const mxattn_attention_args *args);

/* Writes the private operand copies (args->prepared, sized by the plan) from q, k, v. They are laid
 * out by lengths: any number of calls may read them, of this plan or one of an equal problem, with
 * the q, k, v, cu_seqlens and seqused that they were made of. Nothing can tell that others are. */
MXATTN_API mxattn_status mxattn_prepare(const mxattn_plan *plan, const mxattn_attention_args *args);

/* Plan, workspace, run and clean up in one call, for programs that attend once. batch and totals
 * are taken from the tensors (a jagged batch: from args->batch, or the problem's where that is -1);
 * max_seqlen, heads, kv_heads and head dims too, where the problem leaves them 0 (a jagged
 * max_seqlen from cu_seqlens on the host). Workspace comes from the context's allocator; MEMORY
 * when it has none. */
MXATTN_API mxattn_status mxattn_attention_forward_once(const mxattn_context *context,
                                                       const mxattn_attention_problem *problem,
                                                       const mxattn_attention_args *args);
MXATTN_API mxattn_status mxattn_attention_backward_once(const mxattn_context *context,
                                                        const mxattn_attention_problem *problem,
                                                        const mxattn_attention_args *args);

/* ------------------------------------------------------------------------------------------------
 * 6  Producers
 *
 * Each writes payload and every scale array whose data pointer is set, in one pass. A jagged batch
 * is given by cu_seqlens: the payload stays where it is, blocks restart with each sequence, tiled
 * scales start at multiples of 128 rows. Same bytes on every backend.
 * --------------------------------------------------------------------------------------------- */

/* Which tokens form sequences. Embedded by value; frozen. Dense (B, S, H, D): leave all NULL. A
 * jagged (T, H, D) or matrix tensor without cu_seqlens is one sequence of T tokens. */
typedef struct mxattn_sequences {
    const int32_t *cu_seqlens;      /* (batch+1) */
    const int32_t *seqused;         /* optional (batch): later tokens count as zero in their block
                                     * and get payload 0 */
    const int32_t *host_cu_seqlens; /* GPU: optional host copies */
    const int32_t *host_seqused;
    int64_t batch; /* sequences of a jagged tensor */
} mxattn_sequences;

typedef struct mxattn_quantize_args {
    size_t struct_size;
    mxattn_backend backend;
    int32_t device;
    const mxattn_tensor *wide;       /* F32, F16 or BF16 */
    const mxattn_tensor *quantized;  /* E4M3 or E5M2, same shape; its tags choose block, rounding,
                                      * folding; with MXATTN_CENTRED its centre is written */
    const mxattn_tensor *transposed; /* optional, quantize only: the same payload bytes as
                                      * (B, H, D, S) or (H, D, T); stride[last] = 1 */
    mxattn_sequences sequences;
    void *workspace; /* GPU: mxattn_quantize_workspace bytes; unused on CPU */
    size_t workspace_bytes;
    uint32_t *device_status;
    void *stream;
} mxattn_quantize_args;

MXATTN_API void mxattn_quantize_args_init_sized(mxattn_quantize_args *args, size_t struct_size);
static inline void mxattn_quantize_args_init(mxattn_quantize_args *args)
{
    mxattn_quantize_args_init_sized(args, sizeof(mxattn_quantize_args));
}

/* wide -> quantized. Payload rows outside every sequence are written 0. */
MXATTN_API mxattn_status mxattn_quantize(const mxattn_context *context,
                                         const mxattn_quantize_args *args);

/* quantized -> wide (centre added). Rows outside every sequence are written 0. */
MXATTN_API mxattn_status mxattn_dequantize(const mxattn_context *context,
                                           const mxattn_quantize_args *args);

MXATTN_API mxattn_status mxattn_quantize_workspace(const mxattn_context *context,
                                                   const mxattn_quantize_args *args,
                                                   size_t *workspace_bytes);

/* Moves scale bytes between arrangements; values never change. */
typedef struct mxattn_scales_args {
    size_t struct_size;
    mxattn_backend backend;
    int32_t device;
    mxattn_tags tags;               /* of the tensor both arrays describe */
    mxattn_axis from_axis, to_axis; /* scatter: equal; transform: different, square blocks */
    mxattn_scales from, to;
    mxattn_sequences sequences;
    int64_t seqlen; /* dense: tokens of each sequence; jagged: total tokens */
    int64_t heads, head_dim;
    uint32_t *device_status;
    void *stream;
} mxattn_scales_args;

MXATTN_API void mxattn_scales_args_init_sized(mxattn_scales_args *args, size_t struct_size);
static inline void mxattn_scales_args_init(mxattn_scales_args *args)
{
    mxattn_scales_args_init_sized(args, sizeof(mxattn_scales_args));
}

/* LINEAR or COMPACT -> any layout on the same axis, e.g. rows as a producer left them to their
 * 128-aligned places per sequence. Padding bytes are written 0. */
MXATTN_API mxattn_status mxattn_scales_scatter(const mxattn_context *context,
                                               const mxattn_scales_args *args);

/* Square blocks: the HDIM array from the SEQ array or the other way round, any layouts. */
MXATTN_API mxattn_status mxattn_scales_transform(const mxattn_context *context,
                                                 const mxattn_scales_args *args);

/* y = x / sqrt(mean(x^2) + eps) * weight over the last dimension of each head, rotated, quantized.
 *
 * The mean is summed in float64, so that squares beyond FP32 count; y is FP32 (docs/math.md has
 * each rounding). The same bytes on every instruction set and for any number of threads. The last
 * dimension may be any size: its last block of 32 may be short. A row of zeros gives zeros. */
typedef struct mxattn_rmsnorm_quantize_args {
    size_t struct_size;
    mxattn_backend backend;
    int32_t device;
    const mxattn_tensor *x; /* (T, H, D) or (B, S, H, D), F32, F16 or BF16; (rows, hidden) */
    const float *weight;    /* (D), or NULL for ones */
    double eps;             /* default 1e-6; finite, not negative */
    mxattn_rope rope;
    const mxattn_tensor *y; /* quantized output, not centred; may be NULL where y_wide is set */
    const mxattn_tensor *y_wide; /* optional: y before quantization */
    float *rstd;                 /* optional (tokens, H) */
    int32_t round_to_bf16;       /* 1: quantize the BF16-rounded y, byte for byte as norm then
                                  * quantize; 0 (default): quantize the FP32 y */
    mxattn_sequences sequences;
    void *workspace;
    size_t workspace_bytes; /* mxattn_rmsnorm_quantize_workspace */
    uint32_t *device_status;
    void *stream;
} mxattn_rmsnorm_quantize_args;

MXATTN_API void mxattn_rmsnorm_quantize_args_init_sized(mxattn_rmsnorm_quantize_args *args,
                                                        size_t struct_size);
static inline void mxattn_rmsnorm_quantize_args_init(mxattn_rmsnorm_quantize_args *args)
{
    mxattn_rmsnorm_quantize_args_init_sized(args, sizeof(mxattn_rmsnorm_quantize_args));
}

/* Errors: ARGUMENT, SHAPE, DTYPE, LAYOUT, ALIGNMENT, CU_SEQLENS, WORKSPACE, UNSUPPORTED,
 * VERSION_MISMATCH; of the other producers too. */
MXATTN_API mxattn_status mxattn_rmsnorm_quantize(const mxattn_context *context,
                                                 const mxattn_rmsnorm_quantize_args *args);

/* Bytes of workspace (aligned to 256) the same call needs; workspace itself is not looked at. */
MXATTN_API mxattn_status mxattn_rmsnorm_quantize_workspace(const mxattn_context *context,
                                                           const mxattn_rmsnorm_quantize_args *args,
                                                           size_t *workspace_bytes);

/* With u = x * rstd and g = dy * weight: dx = rstd * (g - u * mean(g * u)), dweight = sum of dy * u
 * over tokens and heads. The same bits for any number of threads. */
typedef struct mxattn_rmsnorm_backward_args {
    size_t struct_size;
    mxattn_backend backend;
    int32_t device;
    const mxattn_tensor *x, *dy; /* F32, F16, BF16 or MXFP8; same shape */
    const float *weight, *rstd;  /* rstd is forward's, (tokens, H) */
    const mxattn_tensor *dx;     /* wide output; may be NULL where dx_quantized is set */
    float *dweight;              /* (D), written; optional */
    void *workspace;
    size_t workspace_bytes; /* mxattn_rmsnorm_backward_workspace */
    void *stream;
    const mxattn_tensor *dx_quantized; /* optional: dx as MXFP8, in the same pass */
    mxattn_rope rope;                  /* as forward had it: dy is turned back first */
    mxattn_sequences sequences;
    int32_t normalised; /* 1: x is forward's y, rotated if it was: nothing but rstd need be kept.
                         * weight is NULL then */
    int32_t accumulate; /* 1: dx and dweight are added to; dx_quantized holds the sum */
    uint32_t *device_status;
} mxattn_rmsnorm_backward_args;

MXATTN_API void mxattn_rmsnorm_backward_args_init_sized(mxattn_rmsnorm_backward_args *args,
                                                        size_t struct_size);
static inline void mxattn_rmsnorm_backward_args_init(mxattn_rmsnorm_backward_args *args)
{
    mxattn_rmsnorm_backward_args_init_sized(args, sizeof(mxattn_rmsnorm_backward_args));
}

MXATTN_API mxattn_status mxattn_rmsnorm_backward(const mxattn_context *context,
                                                 const mxattn_rmsnorm_backward_args *args);
MXATTN_API mxattn_status mxattn_rmsnorm_backward_workspace(const mxattn_context *context,
                                                           const mxattn_rmsnorm_backward_args *args,
                                                           size_t *workspace_bytes);

typedef enum mxattn_activation {
    MXATTN_ACTIVATION_NONE = 0,
    MXATTN_ACTIVATION_RELU = 1,
    MXATTN_ACTIVATION_GELU = 2, /* tanh form */
    MXATTN_ACTIVATION_SILU = 3,
    MXATTN_ACTIVATION_RELU_SQUARED = 4
} mxattn_activation;

/* C = activation(A * B^T + bias), normalised per head, rotated, quantized. A is (M, K), B is (N,
 * K), C is (M, N) or (M, heads, N/heads), A and B too may name their columns (heads, K/heads).
 * Operands are MXFP8 or BF16, each on its own; sums are FP32. An MXFP8 operand has its 32 elements
 * along K: row or square blocks, column or square where it is transposed. Tokens are the rows of A
 * as it is stored, and of C, or of B where both are transposed (a weight's gradient): sequences
 * says where blocks restart in those; every other tensor is one sequence. */
typedef struct mxattn_gemm_quantize_args {
    size_t struct_size;
    mxattn_backend backend;
    int32_t device;
    const mxattn_tensor *a, *b;
    const float *bias; /* (N), optional */
    mxattn_activation activation;
    mxattn_rope rope;            /* per head of c */
    const mxattn_tensor *c;      /* MXFP8, F32, F16 or BF16 */
    const mxattn_tensor *c_wide; /* optional second output, wide: c before it is quantized */
    mxattn_sequences sequences;
    void *workspace;
    size_t workspace_bytes; /* mxattn_gemm_quantize_workspace */
    uint32_t *device_status;
    void *stream;
    int32_t transpose_a; /* 1: a is given as (K, M) */
    int32_t transpose_b; /* 1: b is given as (K, N) */
    int32_t accumulate;  /* 1: c, which is wide then, is added to */
    int32_t head_norm;   /* 1: each head of c is divided by its root mean square, times norm_weight,
                          * as mxattn_rmsnorm_quantize does it */
    const float *norm_weight;       /* (N/heads), or NULL for ones */
    double norm_eps;                /* default 1e-6 */
    float *norm_rstd;               /* optional (M, norm_heads) */
    int64_t norm_heads;             /* norm and rope are for heads 0 to norm_heads-1; 0: for all */
    const mxattn_tensor *activated; /* optional, C's shape, wide or MXFP8: what forward's activation
                                     * gave. C = (A * B^T + bias) * activation', which is 1 where
                                     * activated > 0 (RELU) or 2*sqrt(activated) (RELU_SQUARED) */
} mxattn_gemm_quantize_args;

MXATTN_API void mxattn_gemm_quantize_args_init_sized(mxattn_gemm_quantize_args *args,
                                                     size_t struct_size);
static inline void mxattn_gemm_quantize_args_init(mxattn_gemm_quantize_args *args)
{
    mxattn_gemm_quantize_args_init_sized(args, sizeof(mxattn_gemm_quantize_args));
}

MXATTN_API mxattn_status mxattn_gemm_quantize(const mxattn_context *context,
                                              const mxattn_gemm_quantize_args *args);
MXATTN_API mxattn_status mxattn_gemm_quantize_workspace(const mxattn_context *context,
                                                        const mxattn_gemm_quantize_args *args,
                                                        size_t *workspace_bytes);

/* ------------------------------------------------------------------------------------------------
 * 7  Partial results
 * --------------------------------------------------------------------------------------------- */

/* Merges two results over disjoint sets of keys: LSE = ln(e^LSE_a + e^LSE_b), O the weighted mean.
 * Exact for -inf on either or both sides; never overflows. Outputs may be inputs. */
typedef struct mxattn_states_merge_args {
    size_t struct_size;
    mxattn_backend backend;
    int32_t device;
    const mxattn_tensor *o_a, *lse_a; /* o: (B, S, H, Dv) or (T, H, Dv), F32, F16 or BF16 */
    const mxattn_tensor *o_b, *lse_b; /* lse: FP32 (B, H, S) or (H, T) */
    const mxattn_tensor *o, *lse;     /* outputs; lse may be NULL */
    void *stream;
} mxattn_states_merge_args;

MXATTN_API void mxattn_states_merge_args_init_sized(mxattn_states_merge_args *args,
                                                    size_t struct_size);
static inline void mxattn_states_merge_args_init(mxattn_states_merge_args *args)
{
    mxattn_states_merge_args_init_sized(args, sizeof(mxattn_states_merge_args));
}

MXATTN_API mxattn_status mxattn_states_merge(const mxattn_context *context,
                                             const mxattn_states_merge_args *args);

/* ------------------------------------------------------------------------------------------------
 * 8  The emulator
 *
 * On the backends EMU_SM90 and EMU_SM100 the GPU's kernels run on the CPU, in a schedule that a
 * seed chooses, and are watched for races, deadlocks and broken rules (docs/emulator.md). A launch
 * that shows one as an error fails with DEVICE. Settings and findings belong to the calling thread.
 * --------------------------------------------------------------------------------------------- */

typedef struct mxattn_emulator_options {
    size_t struct_size;
    uint64_t seed;  /* order of threads, moments of copies, picked lanes; default 1 */
    int32_t checks; /* 1 (default): races are looked for; 0: values, bounds and deadlocks only */
    int32_t strict; /* 1: order that hardware keeps and the ISA does not promise counts as none, and
                     * reads of memory never written are told; default 0 */
    int32_t exact;  /* 1: tensor cores add without rounding; default 0 */
    int32_t trace;  /* 1: keep events of the first CTA of each launch; default 0 */
} mxattn_emulator_options;

MXATTN_API void mxattn_emulator_options_init_sized(mxattn_emulator_options *options,
                                                   size_t struct_size);
static inline void mxattn_emulator_options_init(mxattn_emulator_options *options)
{
    mxattn_emulator_options_init_sized(options, sizeof(mxattn_emulator_options));
}

/* Sets how this thread's next launches run, and forgets what came of earlier ones. Errors:
 * ARGUMENT, VERSION_MISMATCH, NO_BACKEND (a build without the emulator). */
MXATTN_API mxattn_status mxattn_emulator_begin(const mxattn_emulator_options *options);

typedef struct mxattn_emulator_result {
    size_t struct_size;
    int64_t launches, errors, warnings, deadlocks;
    uint32_t hazards;   /* bit h: hazard Hh as an error, bit 0 a broken rule of an instruction */
    uint32_t warned;    /* the same for warnings */
    const char *report; /* of the first launch that had one, "" otherwise; until the next begin */
    double seconds, longest_seconds; /* of this thread's CPU time: all launches, the longest one */
} mxattn_emulator_result;

MXATTN_API void mxattn_emulator_result_init_sized(mxattn_emulator_result *result,
                                                  size_t struct_size);
static inline void mxattn_emulator_result_init(mxattn_emulator_result *result)
{
    mxattn_emulator_result_init_sized(result, sizeof(mxattn_emulator_result));
}

/* What came of this thread's launches since begin. Errors: ARGUMENT, VERSION_MISMATCH. */
MXATTN_API mxattn_status mxattn_emulator_query(mxattn_emulator_result *result);

/* Name and count of the i-th instruction that was counted; NULL beyond the last. */
MXATTN_API const char *mxattn_emulator_counted(int64_t i, int64_t *count);

typedef enum mxattn_emulator_event_kind {
    MXATTN_EVENT_WAIT = 0,  /* a thread waits at `name` */
    MXATTN_EVENT_ASYNC = 1, /* an operation from its issue to its completion */
    MXATTN_EVENT_TMEM = 2   /* the same, for columns of tensor memory */
} mxattn_emulator_event_kind;

/* Steps count the switches between threads and asynchronous operations. */
typedef struct mxattn_emulator_event {
    int64_t launch, first_step, last_step;
    int32_t kind;            /* mxattn_emulator_event_kind */
    int32_t warp;            /* of the thread that waits or issued */
    int32_t column, columns; /* TMEM */
    char role[16];           /* what the thread said it is; "" without */
    char name[24];           /* the barrier, or the operation */
} mxattn_emulator_event;

/* Events since begin, if it asked for them; until the next begin. */
MXATTN_API const mxattn_emulator_event *mxattn_emulator_events(int64_t *count);

#ifdef __cplusplus
}
#endif

#endif
