/* validate_tags.c: which tags a tensor may carry.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "mx/element.h"
#include "status.h"
#include "validate.h"

const char *mxa_block_name(mxattn_block block)
{
    static const char *const names[] = {"none", "row", "column", "square"};
    return (unsigned)block <= MXATTN_BLOCK_SQUARE ? names[block] : "?";
}

mxattn_status mxa_check_tags(const char *name, const mxattn_tags *tags)
{
    const uint32_t known = MXATTN_FOLDED | MXATTN_FOLDED_TOKEN | MXATTN_CENTRED;
    if ((unsigned)tags->dtype > MXATTN_E5M2)
        return mxa_fail(MXATTN_DTYPE, "%s.dtype is %d; it must be a mxattn_dtype (0 to %d)", name,
                        (int)tags->dtype, MXATTN_E5M2);
    if ((unsigned)tags->block > MXATTN_BLOCK_SQUARE)
        return mxa_fail(MXATTN_LAYOUT, "%s.block is %d; it must be a mxattn_block (0 to %d)", name,
                        (int)tags->block, MXATTN_BLOCK_SQUARE);
    if ((unsigned)tags->rounding > MXATTN_FLOOR)
        return mxa_fail(MXATTN_LAYOUT, "%s.rounding is %d; it must be RCEIL (0) or FLOOR (1)", name,
                        (int)tags->rounding);
    if (tags->flags & ~known)
        return mxa_fail(MXATTN_LAYOUT, "%s.flags is 0x%x; version %s knows 0x%x", name,
                        (unsigned)tags->flags, mxattn_version_string(), (unsigned)known);
    if (mxa_dtype_is_fp8(tags->dtype) && tags->block == MXATTN_BLOCK_NONE)
        return mxa_fail(MXATTN_LAYOUT, "%s.block is none; %s needs row, column or square", name,
                        mxa_dtype_name(tags->dtype));
    if ((tags->flags & MXATTN_FOLDED) && tags->block != MXATTN_BLOCK_SQUARE)
        return mxa_fail(MXATTN_LAYOUT, "%s.block is %s; MXATTN_FOLDED needs square", name,
                        mxa_block_name(tags->block));
    if ((tags->flags & MXATTN_FOLDED_TOKEN) && tags->block != MXATTN_BLOCK_ROW)
        return mxa_fail(MXATTN_LAYOUT, "%s.block is %s; MXATTN_FOLDED_TOKEN needs row", name,
                        mxa_block_name(tags->block));
    if ((tags->flags & MXATTN_CENTRED) && tags->block == MXATTN_BLOCK_NONE)
        return mxa_fail(MXATTN_LAYOUT, "%s.block is none; MXATTN_CENTRED needs a block", name);
    return MXATTN_OK;
}

mxattn_status mxa_check_tags_equal(const char *name, const mxattn_tags *tags,
                                   const mxattn_tags *asked)
{
    mxattn_status status = mxa_check_tags(name, tags);
    if (status)
        return status;
    if (tags->dtype != asked->dtype)
        return mxa_fail(MXATTN_DTYPE, "%s.dtype is %s; the plan takes %s", name,
                        mxa_dtype_name(tags->dtype), mxa_dtype_name(asked->dtype));
    if (mxa_dtype_is_wide(tags->dtype) && tags->block == MXATTN_BLOCK_NONE)
        return MXATTN_OK;
    if (tags->block != asked->block)
        return mxa_fail(MXATTN_LAYOUT, "%s.block is %s; the plan takes %s", name,
                        mxa_block_name(tags->block), mxa_block_name(asked->block));
    if (tags->rounding != asked->rounding)
        return mxa_fail(MXATTN_LAYOUT, "%s.rounding is %d; the plan takes %d", name,
                        (int)tags->rounding, (int)asked->rounding);
    if (tags->flags != asked->flags)
        return mxa_fail(MXATTN_LAYOUT, "%s.flags is 0x%x; the plan takes 0x%x", name,
                        (unsigned)tags->flags, (unsigned)asked->flags);
    return MXATTN_OK;
}

mxattn_status mxa_check_wide(const char *name, const mxattn_tags *tags)
{
    mxattn_status status = mxa_check_tags(name, tags);
    if (status)
        return status;
    if (!mxa_dtype_is_wide(tags->dtype))
        return mxa_fail(MXATTN_DTYPE, "%s.dtype is %s; it must be f32, f16 or bf16", name,
                        mxa_dtype_name(tags->dtype));
    if (tags->block != MXATTN_BLOCK_NONE)
        return mxa_fail(MXATTN_LAYOUT, "%s.block is %s; a wide tensor has none here", name,
                        mxa_block_name(tags->block));
    return MXATTN_OK;
}
