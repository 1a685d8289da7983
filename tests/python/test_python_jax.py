"""test_python_jax.py: JAX on CPU: jit, grad, vmap, and arrays used as they lie.

SPDX-License-Identifier: Apache-2.0
"""

import functools

import mxattn
import numpy as np
import pytest
from python_data import limit, normal, qkv, rms, same_bits

jax = pytest.importorskip("jax", exc_type=ImportError)
import jax.numpy as jnp  # noqa: E402
from mxattn.jax import attention  # noqa: E402


def operands(**shape):
    arrays = qkv(**shape)
    return arrays, tuple(jnp.asarray(x) for x in arrays)


def test_numpy_and_jax_agree():
    """The same bits as through NumPy, eager and jitted, by either entry."""
    host, (q, k, v) = operands()
    o, lse = mxattn.attention(*host, causal=True, return_lse=True)
    for attend in (attention, mxattn.attention):
        step = functools.partial(attend, causal=True, return_lse=True)
        for call in (step, jax.jit(step)):
            got, got_lse = call(q, k, v)
            assert isinstance(got, jax.Array) and same_bits(got, o) and same_bits(got_lse, lse)


@pytest.mark.parametrize("jit", [False, True])
def test_gradients(jit):
    """Through O and through LSE: the library's, and near those of float64 in JAX."""
    host, (q, k, v) = operands(sq=60)
    do, dlse = normal(*host[0].shape, seed=5), normal(2, 4, 60, seed=6)

    def loss(q, k, v):
        o, lse = mxattn.attention(q, k, v, causal=True, return_lse=True)
        return (o * do).sum() + (lse * dlse).sum()

    grad = jax.grad(loss, (0, 1, 2))
    got = (jax.jit(grad) if jit else grad)(q, k, v)
    o, lse = mxattn.attention(*host, causal=True, return_lse=True)
    right = mxattn.attention_backward(do, *host, o, lse, dlse=dlse, causal=True)
    assert all(same_bits(x, y) for x, y in zip(got, right))

    def exact(q, k, v):
        k, v = jnp.repeat(k, 2, 2), jnp.repeat(v, 2, 2)
        x = jnp.einsum("bihd,bjhd->bhij", q, k) / 8
        x = jnp.where(jnp.tril(jnp.ones((60, 60), bool)), x, -jnp.inf)
        lse = jax.nn.logsumexp(x, -1)
        return (jnp.einsum("bhij,bjhd->bihd", jnp.exp(x - lse[..., None]), v) * do).sum() + (lse * dlse).sum()

    for x, y, most in zip(got, jax.grad(exact, (0, 1, 2))(q, k, v), ("DQ_DK_RMS", "DQ_DK_RMS", "DV_RMS")):
        assert rms(x, y) < limit(most) * limit("MODEL_FACTOR") + limit("MODEL_FLOOR")


def test_jagged_sink_and_bfloat16():
    host, (q, k, v) = operands(batch=1, sq=70)
    q, k, v = (x[0].astype(jnp.bfloat16) for x in (q, k, v))
    cu, sink = jnp.asarray([0, 30, 70], jnp.int32), jnp.asarray(normal(4, seed=9))

    @jax.jit
    def loss(q, k, v, sink, cu):
        return mxattn.attention(q, k, v, cu, cu, 40, 40, sink=sink).astype(jnp.float32).sum()

    dq, dsink = jax.grad(loss, (0, 3))(q, k, v, sink, cu)
    assert dq.dtype == jnp.bfloat16 and dsink.shape == (4,)
    arrays = [np.asarray(x) for x in (q, k, v)]
    ones = np.ones_like(arrays[0])
    o, lse = mxattn.attention(*arrays, np.asarray(cu), np.asarray(cu), sink=np.asarray(sink), return_lse=True)
    right = mxattn.attention_backward(ones, *arrays, o, lse, np.asarray(cu), np.asarray(cu), sink=np.asarray(sink),
                                      dlse=np.zeros_like(lse))  # fmt: skip
    assert same_bits(dq, right[0]) and same_bits(dsink, right[3])


def test_vmap():
    _, (q, k, v) = operands(batch=3, sq=40)
    got = jax.vmap(lambda q, k, v: attention(q[None], k[None], v[None], causal=True)[0])(q, k, v)
    assert same_bits(got, attention(q, k, v, causal=True))


def test_quantize():
    """Producers take JAX arrays and answer with JAX arrays."""
    host, (q, _, _) = operands()
    made = mxattn.quantize(q)
    assert isinstance(made.payload, jax.Array) and made.payload.dtype == jnp.float8_e4m3fn
    assert same_bits(np.asarray(made.dequantize()), mxattn.quantize(host[0]).dequantize())
    assert isinstance(made.dequantize(), jax.Array)


def test_refusals():
    _, (q, k, v) = operands()
    with pytest.raises(mxattn.DtypeError, match="q has dtype int32"):
        attention(q.astype(jnp.int32), k, v)
    with pytest.raises(mxattn.ShapeError, match="cu_seqlens"):
        jax.jit(attention)(q[0], k[0], v[0])
    with pytest.raises(mxattn.ArgumentError, match="max_seqlen_q is traced"):
        jax.jit(lambda q, n: attention(q[0], q[0], q[0], jnp.array([0, 70]), jnp.array([0, 70]), n, n))(q, 70)
    with pytest.raises(Exception, match="heads"):
        attention(q[:, :, :3], k, v)
    with pytest.raises(mxattn.ArgumentError, match="traced by JAX"):
        jax.jit(lambda x: mxattn.quantize(x).payload)(q)
