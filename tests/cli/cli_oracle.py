"""cli_oracle.py: what the command must compute, in NumPy and ml_dtypes alone.

SPDX-License-Identifier: Apache-2.0
"""

import ml_dtypes
import numpy as np

BLOCK = 32
FORMATS = {  # dtype: (NumPy's type, offset of the scale's exponent, largest value)
    "e4m3": (ml_dtypes.float8_e4m3fn, 8, 448.0),
    "e5m2": (ml_dtypes.float8_e5m2, 15, 57344.0),
}


def ceil_div(a, b):
    return -(-a // b)


def scale_byte(block, rounding, dtype):
    """E8M0 byte of a finite block."""
    offset = FORMATS[dtype][1]
    bits = int(np.abs(block).max(initial=np.float32(0)).astype(np.float32).view(np.uint32))
    exponent, mantissa = bits >> 23, bits & 0x7FFFFF
    up = rounding == "rceil" and mantissa > 0x600000
    return min(max(exponent - offset + up, 0), 254)


def quantize_sequence(x, block, rounding, dtype):
    """x: (S, H, D) float32. Payload bytes, and the scale of every element (S, H, D)."""
    kind, _, largest = FORMATS[dtype]
    rows = {"row": 1}.get(block, BLOCK)
    columns = {"column": 1, "folded": x.shape[2]}.get(block, BLOCK)
    payload = np.zeros(x.shape, np.uint8)
    scales = np.zeros(x.shape, np.uint8)
    for h in range(x.shape[1]):
        for s in range(0, x.shape[0], rows):
            for d in range(0, x.shape[2], columns):
                part = np.s_[s : s + rows, h, d : d + columns]
                byte = scale_byte(x[part], rounding, dtype)
                scaled = x[part].astype(np.float64) * 2.0 ** (127 - byte)
                payload[part] = np.clip(scaled, -largest, largest).astype(kind).view(np.uint8)
                scales[part] = byte
    return payload, scales


def dequantize(payload, scales, dtype):
    values = payload.view(FORMATS[dtype][0]).astype(np.float64)
    return values * 2.0 ** (scales.astype(np.float64) - 127)


def tiled(array):
    """Parts of (r, k) bytes of one head as 512-byte units; parts start at multiples of 128 rows."""
    rows = sum(ceil_div(len(part), 128) * 128 for part in array)
    blocks = ceil_div(array[0].shape[1], 4) * 4
    out = np.zeros((rows // 128, blocks // 4, 512), np.uint8)
    at = 0
    for part in array:
        for r in range(part.shape[0]):
            for k in range(part.shape[1]):
                row = at + r
                out[row // 128, k // 4, row % 32 * 16 + row % 128 // 32 * 4 + k % 4] = part[r, k]
        at += ceil_div(len(part), 128) * 128
    return out


def visible(sq, sk, causal=False, top_left=False, window=(-1, -1)):
    i, j = np.arange(sq)[:, None], np.arange(sk)[None, :]
    distance = j - i - (0 if top_left else sk - sq)
    mask = np.ones((sq, sk), bool)
    if causal or top_left:
        mask &= distance <= 0
    if window[0] >= 0:
        mask &= distance >= -window[0]
    if window[1] >= 0:
        mask &= distance <= window[1]
    return mask


def attention(q, k, v, do=None, dlse=None, scale=None, softcap=0.0, sink=None, **mask):
    """One sequence: q (Sq, Hq, D), k (Sk, Hkv, D), v (Sk, Hkv, Dv); float64.

    Returns o, lse (Hq, Sq), and with do also dq, dk, dv, dsink.
    """
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    sq, hq, d = q.shape
    ratio = hq // k.shape[1]
    scale = d**-0.5 if scale is None else scale
    o = np.zeros((sq, hq, v.shape[2]))
    lse = np.full((hq, sq), -np.inf)
    dq, dk, dv, dsink = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v), np.zeros(hq)
    seen = visible(sq, k.shape[0], **mask)
    for h in range(hq):
        g = h // ratio
        raw = scale * q[:, h] @ k[:, g].T
        x = softcap * np.tanh(raw / softcap) if softcap else raw
        x = np.where(seen, x, -np.inf)
        top = x.max(1, initial=-np.inf)
        if sink is not None:
            top = np.maximum(top, sink[h])
        safe = np.where(np.isfinite(top), top, 0)
        p = np.exp(x - safe[:, None])
        total = p.sum(1) + (np.exp(sink[h] - safe) if sink is not None else 0)
        with np.errstate(divide="ignore"):
            lse[h] = safe + np.log(total)
        p = np.divide(p, total[:, None], out=np.zeros_like(p), where=total[:, None] > 0)
        o[:, h] = p @ v[:, g]
        if do is None:
            continue
        delta = (do[:, h] * o[:, h]).sum(1) - (0 if dlse is None else dlse[h])
        ds = p * (do[:, h] @ v[:, g].T - delta[:, None])
        if softcap:
            ds = ds * (1 - np.tanh(raw / softcap) ** 2)
        dq[:, h] = scale * ds @ k[:, g]
        dk[:, g] += scale * ds.T @ q[:, h]
        dv[:, g] += p.T @ do[:, h]
        if sink is not None:
            dsink[h] = -(np.exp(sink[h] - lse[h]) * delta).sum()
    return (o, lse) if do is None else (o, lse, dq, dk, dv, dsink)


def relative_rms(got, right):
    got, right = np.asarray(got, np.float64), np.asarray(right, np.float64)
    same = np.isinf(right) & (got == right)
    difference = np.where(same, 0, got - np.where(same, 0, right))
    return np.sqrt((difference**2).sum() / max((np.where(same, 0, right) ** 2).sum(), 1e-30))
