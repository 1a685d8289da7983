"""test_cli_device.py: verbs of the command on devices, real and emulated: the bytes of the CPU.

SPDX-License-Identifier: Apache-2.0
"""

import json

import numpy as np
import pytest

from cli_command import gaussian

FILES = {"row": ["payload", "scales"], "square": ["payload", "scales", "scales_seq"]}


def there(mxattn, name):
    return next(b for b in json.loads(mxattn("info", "--json"))["backends"] if b["name"] == name)


@pytest.mark.parametrize("backend", ["cuda", "emu-sm90", "emu-sm100"])
@pytest.mark.parametrize("block", sorted(FILES))
def test_quantize_and_dequantize(mxattn, backend, block):
    if not there(mxattn, backend)["available"]:
        pytest.skip(there(mxattn, backend)["reason"])
    np.save(mxattn.folder / "x.npy", gaussian(150, 2, 64, seed=3))
    np.save(mxattn.folder / "cu.npy", np.array([0, 40, 40, 133], np.int32))
    np.save(mxattn.folder / "used.npy", np.array([39, 0, 93], np.int32))
    for name in ("cpu", backend):
        mxattn("quantize", "x.npy", "--block", block, "--scales", "tiled", "--cu-seqlens", "cu.npy", "--seqused",
               "used.npy", "--backend", name, "--out", f"q_{name}")
        mxattn("dequantize", f"q_{name}", "--backend", name, "--out", f"y_{name}.npy")
    for file in FILES[block]:
        assert np.array_equal(mxattn.load(f"q_cpu.{file}.npy"), mxattn.load(f"q_{backend}.{file}.npy")), file
    assert np.array_equal(mxattn.load("y_cpu.npy"), mxattn.load(f"y_{backend}.npy"))


def test_info_lists_devices(mxattn):
    for backend in json.loads(mxattn("info", "--json"))["backends"]:
        assert len(backend["device_list"]) == (backend["devices"] if backend["available"] else 0)
        for device in backend["device_list"]:
            assert device["name"] and device["memory_bytes"] > 0 and device["multiprocessors"] > 0
    assert "devices   0: emulated sm_90a, sm_90" in mxattn("info") or not there(mxattn, "emu-sm90")["available"]


FORWARDS = {"e4m3": [], "causal": ["--causal"], "top left": ["--causal-top-left"], "window": ["--window", "40,9"],
            "strict": ["--causal", "--causal-strict"], "centred": ["--centre"], "bf16": ["--intermediates", "bf16"]}


@pytest.mark.parametrize("backend", ["cuda", "emu-sm90", "emu-sm100"])
@pytest.mark.parametrize("case", sorted(FORWARDS))
def test_forward_is_the_model(mxattn, backend, case):
    """Files through a device's kernels: a jagged batch with GQA, near the float64 that rounds where kernels round."""
    if not there(mxattn, backend)["available"]:
        pytest.skip(there(mxattn, backend)["reason"])
    saved = mxattn.save(q=gaussian(300, 4, 64, seed=1), k=gaussian(300, 2, 64, seed=2), v=gaussian(300, 2, 64, seed=3),
                        cu_seqlens_q=np.array([0, 33, 33, 161, 162, 290], np.int32))
    held = [] if case in ("strict", "bf16") else ["--intermediates", "e4m3"]
    for name, precision in (("model", ["--precision", "model"]), ("device", ["--backend", backend])):
        mxattn("forward", *saved, *FORWARDS[case], *held, *precision, "--out", f"o_{name}.npy", "--lse", f"l_{name}.npy")
    model, device = (mxattn.load(f"o_{name}.npy").astype(np.float64) for name in ("model", "device"))
    folded = 0.06 if backend != "emu-sm100" else 0.02  # Hopper brings 32 tokens to one scale
    assert np.linalg.norm(device - model) < folded * np.linalg.norm(model) and np.all(device[290:] == 0)
    seen = np.isfinite(mxattn.load("l_model.npy"))
    assert np.array_equal(seen, np.isfinite(mxattn.load("l_device.npy")))
    assert np.abs(mxattn.load("l_device.npy")[seen] - mxattn.load("l_model.npy")[seen]).max() < 0.01


@pytest.mark.parametrize("backend", ["cuda", "emu-sm90"])
def test_backward(mxattn, backend):
    """Gradients, dsink too, come back from the device: as near the CPU's as two roundings are."""
    if not there(mxattn, backend)["available"]:
        pytest.skip(there(mxattn, backend)["reason"])
    x = {name: gaussian(1, 100, heads, 64, seed=seed) for name, heads, seed in
         (("q", 4, 1), ("k", 2, 2), ("v", 2, 3), ("dout", 4, 4))}
    saved = mxattn.save(**x, sink=np.float32([0.5, -1, 3, 0]))
    found = {}
    for name in ("cpu", backend):
        mxattn("backward", *saved, "--causal", "--backend", name, "--dq", "dq.npy", "--dk", "dk.npy", "--dv", "dv.npy",
               "--dsink", "dsink.npy")
        found[name] = [mxattn.load(f"{file}.npy").astype(np.float64) for file in ("dq", "dk", "dv", "dsink")]
    for cpu, device in zip(found["cpu"], found[backend]):
        assert np.linalg.norm(device - cpu) < 0.1 * np.linalg.norm(cpu)


@pytest.mark.parametrize("backend", ["cuda", "emu-sm90"])
def test_check(mxattn, backend):
    if not there(mxattn, backend)["available"]:
        pytest.skip(there(mxattn, backend)["reason"])
    assert "all 15 errors are within their limits" in mxattn(
        "check", "--backend", backend, "--seqlen", "256", "--heads", "2", "--kv-heads", "1", "--causal")
