/* thresholds.h: every limit of mxattn check, and of bench before it times, each with its reason.
 *
 * rms: root of the mean squared difference over that of the right answer.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXC_THRESHOLDS_H
#define MXC_THRESHOLDS_H

/* --- Against unquantized float64, Gaussian data, ordinary shapes (see below): what MXFP8 costs.
 * Float64 models of S = 1k-4k, D = 128 give O 4.7-5.0e-2 with bf16 intermediates, 5.2-5.6e-2 with
 * e4m3, dV 4.5-5.4e-2, dQ and dK 6.0-6.8e-2; causal less, for its early rows see few keys. About 5%
 * are left above that. */
#define MXC_LIMIT_O_BF16       5.3e-2
#define MXC_LIMIT_O_E4M3       5.8e-2
#define MXC_LIMIT_O_COSINE     0.998
#define MXC_LIMIT_DV           5.8e-2
#define MXC_LIMIT_DV_COSINE    0.998
#define MXC_LIMIT_DQ_DK        7.5e-2
#define MXC_LIMIT_DQ_DK_COSINE 0.997

/* LSE is near ln(keys) + 1/2, and the error of a row averages over its keys: the model's is below
 * 2e-3 of it for 256 keys and more. */
#define MXC_LIMIT_LSE        5.0e-3
#define MXC_LIMIT_LSE_COSINE 0.9999

/* Ordinary: rceil, blocks not folded, no window, no sequence shorter than this, no head narrower
 * than that. Elsewhere few keys average the error of each row, or the scale fits worse, by design:
 * then MXC_MODEL_FACTOR judges. */
#define MXC_ORDINARY_SEQLEN   256
#define MXC_ORDINARY_HEAD_DIM 64

/* --- Against unquantized float64 elsewhere: this much of the error of the float64 model that
 * quantizes at the same points. A kernel that rounds there and nowhere else has the model's error;
 * 5% are for elements whose FP32 value falls to the other side of a rounding. */
#define MXC_MODEL_FACTOR 1.05

/* --- Against that model: a tenth of what is allowed against float64 (of the model's own error on
 * other data). What is left are those same elements. */
#define MXC_MODEL_SHARE 0.1

/* Backends on devices: a kernel there holds P under a headroom that depends on its tiles and folds
 * scales along whole rows, so it and the model are two roundings of the same numbers, about as far
 * from each other as from the truth; its scores may be FP16. Against the truth 10% are left for
 * that. */
#define MXC_DEVICE_FACTOR      1.10
#define MXC_DEVICE_SHARE       1.0
#define MXC_DEVICE_LIMIT_MODEL 1.0e-3 /* LSE */

/* bench compares outputs that leave as BF16: half a step, 2^-9, at worst; its mean square is a
 * third. */
#define MXC_BF16_OUTPUT 2.0e-3

/* LSE against the model, any data: it comes from unrounded P, so that FP32 sums of up to 65,536
 * terms and one logarithm are all that rounds. */
#define MXC_LIMIT_LSE_MODEL 2.0e-6

/* Differences of fewer FP32 units than this, of the terms that were added up, are never past a
 * limit: answers may be zero but for rounding, as dQ of a row with one key, where relative error
 * says nothing. In units of 2^-24. */
#define MXC_NOISE_UNITS 8

#endif
