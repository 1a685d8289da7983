/* thresholds.h: every tolerance of the tests, in one place, each with its reason. Nothing elsewhere
 * in tests/ writes a tolerance of its own. Formats, quantizers, layouts and index maps have none:
 * they are compared byte for byte.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXT_THRESHOLDS_H
#define MXT_THRESHOLDS_H

/* --- MXFP8 against unquantized float64, Gaussian data, relative RMS: what the format costs.
 * Float64 models of S = 1k-4k, D = 128 give O 4.7-5.0e-2 with bf16 intermediates, 5.2-5.6e-2 with
 * e4m3, dV 4.5-5.4e-2, dQ and dK 6.0-6.8e-2; the limits leave about 5% above. */
#define MXT_O_RMS_BF16   5.3e-2
#define MXT_O_RMS_E4M3   5.8e-2
#define MXT_O_COSINE     0.998
#define MXT_DV_RMS       5.8e-2
#define MXT_DQ_DK_RMS    7.5e-2
#define MXT_DQ_DK_COSINE 0.997

/* One far below computes in something better than MXFP8: also wrong. Half of the model's least. */
#define MXT_O_RMS_LEAST 2.0e-2

/* --- A kernel against the float64 model that quantizes at the same points: a tenth of the above.
 * What is left are P and dS elements whose FP32 value falls on the other side of a rounding. */
#define MXT_O_MODEL_BF16 5.3e-3
#define MXT_O_MODEL_E4M3 5.8e-3
#define MXT_DV_MODEL     5.8e-3
#define MXT_DQ_DK_MODEL  7.5e-3

/* --- O against the same model in small shapes. Wide O: a few P on the other side of a rounding
 * leave at most 4.7e-4 (outlier data, S = 45), where another grid of roundings would leave 2e-3.
 * FP8 O: each element on the other side of its rounding is off by up to 2^-3 (E4M3) or 2^-2 (E5M2).
 */
#define MXT_O_MODEL_SMALL 1.0e-3
#define MXT_O_MODEL_FP8   2.5e-2

/* --- Model-relative: error of truth at most this much of the model's, plus a floor for tiny shapes
 * where the model's own error may vanish (2^-8 is BF16's half step: outputs are BF16). */
#define MXT_MODEL_FACTOR 1.05
#define MXT_MODEL_FLOOR  4.0e-3

/* --- LSE: FP32 sums of up to 65,536 terms, log2 and exp2 within a few ulp; |LSE| < 100. */
#define MXT_LSE_ABSOLUTE 2.0e-5
#define MXT_LSE_RELATIVE 1.0e-6

/* --- Inputs that E4M3 holds exactly and equal logits: P is exactly 1 before the division, so only
 * FP32 sums and one division round (contract, edge cases). */
#define MXT_EXACT_INPUT 1.0e-6

/* --- dQ, dK and dV of grouped heads against (the sums of) repeated ones. On Hopper the heads of a
 * group share the largest exponent of their dO^T, so a head a binade below holds P a binade lower:
 * exp2's FP16 argument and E4M3's subnormals round a few P and dS the other way: 2.6e-3 here,
 * 5.8e-3 with dO of one head doubled; 2.2e-4, the cut of the accumulators, where exponents are
 * equal. On an H200 and on the emulator alike. */
#define MXT_GROUP_SUMS 8.0e-3

/* --- dQ and dK of a dO whose squares FP32 loses against those of one a power of two larger: dS
 * lies a binade or two lower beside its bound, nearer to E4M3's subnormals. 4.6e-3 at head_dim 64
 * and 6.5e-3 at 128, of 40 queries and 64 keys, on the emulator. */
#define MXT_CUDA_TINY 1.0e-2

/* --- What rounding P and dS costs, relative, where the operands are exact. A row may hang on one
 * P: then O shows the whole half step (2^-9 for BF16, 2^-4 for E4M3), and dP - delta shows it of
 * each of two terms that may nearly cancel, before dS adds its own. */
#define MXT_P_BF16  0x1p-8
#define MXT_P_E4M3  0x1p-3
#define MXT_DS_BF16 0x1p-6
#define MXT_DS_E4M3 0x1p-2

/* --- One row by decode and by prefill: same P, other order of FP32 sums (contract). */
#define MXT_DECODE_BF16 1.0e-5
#define MXT_DECODE_E4M3 1.0e-4

/* --- exp2 on every ISA, in FP32 ulp, for arguments in [-126, 0]: polynomial of degree 5 to 6. */
#define MXT_EXP2_ULP 2

/* --- One ISA against another, O in FP32 units of last place of the row's largest element is not
 * useful after P's rounding; relative RMS instead. BF16 P flips where FP32 sums differ in order. */
#define MXT_ISA_RMS 1.0e-3

/* --- Finite differences of the exact reference: central, step 1e-4, truncation and cancellation in
 * float64 both near 1e-8. */
#define MXT_FINITE_DIFFERENCE 1.0e-6

/* --- examples/train_lm, all in FP32. Finite differences with a step of 1e-2, relative to the
 * largest gradient: truncation near 1e-4, rounding of the loss near 1e-3. Products relative to the
 * sum of |terms|; O of attention with values of deviation 1. */
#define MXT_TRAIN_LM_GRADIENT 1.0e-2
#define MXT_TRAIN_LM_GEMM     1.0e-6
#define MXT_TRAIN_LM_O        1.0e-5

/* --- The CUDA forward against float64: the model holds exponents per 32x32 block where the kernel
 * folds them over the head dimension, adds scores in 14-bit accumulators and takes exp2 in FP16. */
#define MXT_CUDA_FACTOR 1.10
#define MXT_CUDA_FLOOR  4.0e-3

/* --- The same at 8,192 keys against the model of the same MXFP8 operands: P whose FP16 value falls
 * on the other side of a rounding. 9.5e-3 seen at head_dim 256, where eight steps of FP16 scores
 * round; with P rounded as if exp2 were to nearest it would be 1.02e-2. */
#define MXT_CUDA_MODEL_8K   1.0e-2
#define MXT_CUDA_MODEL_BF16 5.0e-3

/* --- The same against float64 of the unquantized operands, beside the CPU backend's error with P
 * in E4M3: the fold over the head dimension and FP16 scores are all that may show. */
#define MXT_CUDA_BESIDE_CPU 1.03

/* --- V of mean 1 and deviation 1, 8,192 and 65,536 keys, where one running FP8 accumulator is off
 * by 10% and more. Wide operands are centred; an MXFP8 V is rounded again, or P held in BF16. */
#define MXT_CUDA_MEAN_1        5.0e-3
#define MXT_CUDA_MEAN_1_SIGNED 1.0e-3
#define MXT_CUDA_MEAN_1_PUBLIC 1.0e-2

/* --- V whose columns all lean as far as they may without being centred: signed error, and what is
 * added to the model's. 8.7e-3 at 640 keys of one sign, 7.7e-3 at 8,192 keys, 7.3e-3 at 65,536. */
#define MXT_CUDA_LEAN_SIGNED 1.0e-2
#define MXT_CUDA_LEAN_FLOOR  7.0e-3

/* --- dV of a column in which one row of dO is an outlier: what N(0, 1) costs (contract: 4.5 to
 * 5.4e-2), of 68 sums. Less a mean that the outlier has it was 1.0e-1. */
#define MXT_CUDA_OUTLIER 8.0e-2

/* --- Its LSE, natural units: FP16 scores of |x| < 2^7 are off by at most 2^-5 in log2 units, a
 * row's sum by far less; wider logits carry the accumulator's 13 fraction bits. Beside an outlier
 * 2^10 larger (MXT_LONG_TAIL) the fold drops bits of q and k: 4.1e-2 seen. */
#define MXT_CUDA_LSE_ABSOLUTE  1.0e-2
#define MXT_CUDA_LSE_RELATIVE  1.0e-2
#define MXT_CUDA_LSE_LONG_TAIL 6.0e-2

/* --- What the fold costs an element of q or k at most, of the largest of its 32 tokens: half of
 * E4M3's least step, 2^-10, of 15, and twice that for an exponent just above: 2 / 15 * 2^-10. */
#define MXT_CUDA_FOLD 1.302084e-4

/* --- Numbers that cases of the contract expect exactly, on a device: a score of up to 2^7 (log2
 * units) is rounded to FP16 or by a 14-bit accumulator, 2^-11 of itself, and so is a sum of P. */
#define MXT_CUDA_EXPECT 0x1p-9

/* --- The CUDA backward's dsink: sums over all rows of exp(sink - LSE) * delta, whose terms have
 * either sign; each is off by what O and dO cost (5e-2), and the sum may be a fraction of the
 * terms' root. */
#define MXT_CUDA_DSINK 3.0e-1

/* --- RMSNorm backward against float64: FP32 products and sums along a row, FP32 sums of dweight
 * over a range of tokens; and dx rounded to BF16 (2^-9). */
#define MXT_NORM_BACKWARD 1.0e-6
#define MXT_NORM_NARROW   2.0e-3

/* --- A GEMM against float64, Gaussian operands, K up to 1,500: FP32 sums in order. */
#define MXT_GEMM_RMS    2.0e-6
#define MXT_GEMM_NARROW 3.0e-3

/* --- The Blackwell forward's arithmetic against ref's float64 model of the same points. A quarter
 * of exp2 is a polynomial (7.5e-5), the row maximum has a headroom of 3 binades, and P on the other
 * side of an E4M3 rounding is off by 2^-4 of itself. */
#define MXT_SM100_O            5.8e-3
#define MXT_SM100_LSE_ABSOLUTE 1.0e-4
#define MXT_SM100_LSE_RELATIVE 2.0e-6

/* --- The same against its model to the bit, ex2 and lg2 off by up to 2 ulp as the ISA allows: P
 * rounds to its other neighbour where it lay within 2^-22 of the middle, once in 2^18 elements.
 * tanh off by 2^-11 moves a logit by 2^-11 of the softcap, and P likewise. */
#define MXT_SM100_APPROXIMATE      2.0e-5
#define MXT_SM100_APPROXIMATE_TANH 8.0e-3
#define MXT_SM100_LSE_TANH         2.0e-4

/* --- examples/train_lm with every activation in MXFP8 against float32, random weights: operands
 * carry 2^-4 half steps through two layers. */
#define MXT_TRAIN_LM_MXFP8_LOSS   2.0e-2
#define MXT_TRAIN_LM_MXFP8_COSINE 0.97

#endif
