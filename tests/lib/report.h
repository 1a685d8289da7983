/* report.h: cases, checks and the closing line of a test program.
 *
 *     int main(void)
 *     {
 *         for (uint64_t seed = 1; seed <= 3; seed++) {
 *             mxt_case("row sums, seed %llu, S %d", (unsigned long long)seed, 65);
 *             CHECK(sum == 1.0f, "row %d: got %g, want 1", row, (double)sum);
 *         }
 *         return mxt_finish();
 *     }
 *
 * A case is one input; name it so that its failure can be repeated from the printed line: seed,
 * shape, ISA, backend. It passes when none of its checks failed. Not thread-safe.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXT_REPORT_H
#define MXT_REPORT_H

#include "mxattn/mxattn.h"

#define MXT_PRINTF(f, a) __attribute__((format(printf, f, a)))

enum { MXT_EXIT_SKIPPED = 77 };

/* Ends the case before, starts the next. */
void mxt_case(const char *format, ...) MXT_PRINTF(1, 2);

/* The current case is not run here; the reason is printed and counted. */
void mxt_skip(const char *format, ...) MXT_PRINTF(1, 2);

/* Records a check; on failure prints one line: place, case, message. Returns ok. The first
 * MXT_SHOWN failures of a case are printed, the others counted. */
int mxt_check(int ok, const char *file, int line, const char *format, ...) MXT_PRINTF(4, 5);

#define CHECK(condition, ...) mxt_check((condition) ? 1 : 0, __FILE__, __LINE__, __VA_ARGS__)

/* The call must return `wanted`, and on a fault the library must have a sentence for it. */
#define CHECK_STATUS(wanted, call) mxt_check_status((wanted), (call), __FILE__, __LINE__, #call)
int mxt_check_status(mxattn_status wanted, mxattn_status status, const char *file, int line,
                     const char *call);

/* Failed checks so far in this case. */
int mxt_failures(void);

/* Forgets everything counted: for a forked child that reports on its own. */
void mxt_reset(void);

/* Prints "N passed, N failed[, N skipped]" and returns the exit status for main. */
int mxt_finish(void);

#endif
