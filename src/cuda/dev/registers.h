/* registers.h: operand lists of inline assembly: N registers of an array, and their placeholders.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef MXA_CUDA_DEV_REGISTERS_H
#define MXA_CUDA_DEV_REGISTERS_H

/* Operand lists: C is a constraint, d an array. */
#define MXA_REG4(C, d, i) C((d)[(i)]), C((d)[(i) + 1]), C((d)[(i) + 2]), C((d)[(i) + 3])
#define MXA_REG16(C, d, i)                                                                         \
    MXA_REG4(C, d, i), MXA_REG4(C, d, (i) + 4), MXA_REG4(C, d, (i) + 8), MXA_REG4(C, d, (i) + 12)
#define MXA_REG32(C, d) MXA_REG16(C, d, 0), MXA_REG16(C, d, 16)
#define MXA_REG64(C, d) MXA_REG32(C, d), MXA_REG16(C, d, 32), MXA_REG16(C, d, 48)
#define MXA_REG128(C, d)                                                                           \
    MXA_REG64(C, d), MXA_REG16(C, d, 64), MXA_REG16(C, d, 80), MXA_REG16(C, d, 96),                \
        MXA_REG16(C, d, 112)

/* The same from the array's start, one name for each length. */
#define MXA_LIST1(C, d)   C((d)[0])
#define MXA_LIST2(C, d)   C((d)[0]), C((d)[1])
#define MXA_LIST4(C, d)   MXA_REG4(C, d, 0)
#define MXA_LIST8(C, d)   MXA_REG4(C, d, 0), MXA_REG4(C, d, 4)
#define MXA_LIST16(C, d)  MXA_REG16(C, d, 0)
#define MXA_LIST32(C, d)  MXA_REG32(C, d)
#define MXA_LIST64(C, d)  MXA_REG64(C, d)
#define MXA_LIST128(C, d) MXA_REG128(C, d)

/* Their placeholders. */
#define MXA_NAMES1  "%0"
#define MXA_NAMES2  "%0, %1"
#define MXA_NAMES4  "%0, %1, %2, %3"
#define MXA_NAMES8  "%0, %1, %2, %3, %4, %5, %6, %7"
#define MXA_NAMES16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define MXA_NAMES32                                                                                \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MXA_NAMES64                                                                                \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MXA_NAMES128                                                                               \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "             \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "   \
    "%127"

#endif
