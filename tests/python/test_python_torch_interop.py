"""test_python_torch_interop.py: scale layouts of torchao and TransformerEngine, without a copy.

torchao's own MXTensor where torchao is installed. TransformerEngine needs a GPU to install: its tensors are stand-ins with the
attributes and layouts it documents, and torch's own arithmetic says what they mean.

SPDX-License-Identifier: Apache-2.0
"""

import types

import mxattn
import pytest
from python_data import normal

torch = pytest.importorskip("torch", exc_type=ImportError)
from mxattn import torch as mxt  # noqa: E402


def payload_and_scales(rows, hidden):
    """A matrix in MXFP8 rows by torch alone: payload, linear scales, values."""
    x = torch.from_numpy(normal(rows, hidden))
    blocks = x.unflatten(-1, (-1, 32))
    exponent = torch.floor(torch.log2(blocks.abs().amax(-1))) - 8 + 1
    data = (blocks / torch.exp2(exponent)[..., None]).to(torch.float8_e4m3fn)
    values = (data.float() * torch.exp2(exponent)[..., None]).flatten(-2)
    return data.flatten(-2), (exponent + 127).to(torch.uint8), values


def swizzled(scales):
    """512-byte units, row of units after row of units, from linear scales whose sizes are multiples of (128, 4)."""
    r, k = scales.shape
    return scales.view(r // 128, 4, 32, k // 4, 4).permute(0, 3, 2, 1, 4).contiguous().flatten()


@pytest.mark.parametrize("heads, rows, hidden", [(None, 50, 96), (2, 50, 128), (2, 256, 512)])
def test_linear(heads, rows, hidden):
    data, scales, values = payload_and_scales(rows, hidden)
    ao = types.SimpleNamespace(qdata=data, scale=scales.view(torch.float8_e8m0fnu), block_size=32, is_swizzled_scales=False)
    x = mxt.from_torchao(ao, heads)
    assert x.payload.data_ptr() == data.data_ptr() and x.scale_hdim.data_ptr() == scales.data_ptr()
    assert torch.equal(x.dequantize().reshape(rows, hidden), values)


@pytest.mark.parametrize("heads", [None, 1, 2, 4])
def test_swizzled(heads):
    data, scales, values = payload_and_scales(256, 512)
    units = swizzled(scales).view(torch.float8_e8m0fnu)
    ao = types.SimpleNamespace(qdata=data, scale=units, block_size=32, is_swizzled_scales=True)
    x = mxt.from_torchao(ao, heads)
    assert x.scale_hdim.data_ptr() == units.data_ptr()
    assert torch.equal(x.dequantize().reshape(256, 512), values)
    if heads == 2:
        with pytest.raises(mxattn.ShapeError, match="multiple of 128"):
            mxt.from_torchao(ao, 8)


def test_transformer_engine_rowwise():
    data, scales, values = payload_and_scales(50, 128)
    padded = torch.full((128, 4), 0xFF, dtype=torch.uint8)
    padded[:50] = scales
    te = types.SimpleNamespace(_rowwise_data=data.view(torch.uint8), _rowwise_scale_inv=padded, _fp8_dtype="kFloat8E4M3")
    x = mxt.from_transformer_engine(te, 4)
    assert x.scale_hdim.data_ptr() == padded.data_ptr()
    assert torch.equal(x.dequantize().reshape(50, 128), values)
    back = mxt.to_transformer_engine(x)
    assert back["rowwise_data"].data_ptr() == data.data_ptr() and back["rowwise_scale_inv"].data_ptr() == padded.data_ptr()
    with pytest.raises(mxattn.LayoutError, match="padded to"):
        mxt.to_transformer_engine(mxattn.quantize(torch.zeros(50, 4, 32), "row"))


def test_transformer_engine_columnwise():
    x = torch.from_numpy(normal(64, 128))
    made = mxattn.quantize(x.view(64, 2, 64), "column")
    padded = torch.full((4, 128), 0xFF, dtype=torch.uint8)
    padded[:2] = made.scale_seq.view(torch.uint8).reshape(2, 128)
    te = types.SimpleNamespace(_columnwise_data=made.payload.view(64, 128).view(torch.uint8), _columnwise_scale_inv=padded)
    again = mxt.from_transformer_engine(te, 2, columnwise=True)
    assert again.scale_seq.data_ptr() == padded.data_ptr() and torch.equal(again.dequantize(), made.dequantize())


def test_attention_from_a_gemm():
    """q, k, v as units of one matrix over hidden: the O of tensors of their own."""
    wide = [torch.from_numpy(normal(128, 2, 128, seed=i)) for i in range(3)]
    cu = torch.tensor([0, 128], dtype=torch.int32)
    right = mxattn.attention(*(mxattn.quantize(x, "row") for x in wide), cu, cu)
    gemm = [mxattn.quantize(x, "row", layout="tiled", scale_order="gemm") for x in wide]
    assert torch.equal(mxattn.attention(*gemm, cu, cu), right)
    with pytest.raises(mxattn.LayoutError, match="multiple of 128"):
        mxattn.quantize(wide[0][..., :64], "row", layout="tiled", scale_order="gemm")


def test_torchao_itself():
    """torchao's MXTensor: its dequantization of our bytes, and ours of its."""
    pytest.importorskip("torchao", exc_type=ImportError)
    try:
        from torchao.prototype.mx_formats.mx_tensor import MXTensor
    except ImportError as error:
        pytest.skip(f"torchao has no MXTensor here: {error}")
    x = torch.from_numpy(normal(128, 2, 128)).bfloat16()
    for options in ({}, {"layout": "tiled", "scale_order": "gemm"}):
        made = mxattn.quantize(x, "row", **options)
        theirs = mxt.to_torchao(made)
        assert theirs.qdata.data_ptr() == made.payload.data_ptr() and theirs.scale.data_ptr() == made.scale_hdim.data_ptr()
        if not options:
            assert torch.equal(theirs.dequantize(torch.float32), made.dequantize().reshape(128, 256))
        assert torch.equal(mxt.from_torchao(theirs, 2).dequantize(), made.dequantize())
    with pytest.raises(mxattn.LayoutError, match="scale_order"):
        mxt.to_torchao(mxattn.quantize(x, "row", layout="tiled"))
    own = MXTensor.to_mx(x.reshape(128, 256), torch.float8_e4m3fn, 32)
    assert torch.equal(mxt.from_torchao(own, 2).dequantize().reshape(128, 256), own.dequantize(torch.float32))
