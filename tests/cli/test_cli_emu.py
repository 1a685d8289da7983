"""test_cli_emu.py: mxattn emu: a clean kernel, its counts and pictures, and refusals.

SPDX-License-Identifier: Apache-2.0
"""

import json
import xml.etree.ElementTree

import pytest


def available(mxattn, name):
    backends = json.loads(mxattn("info", "--json"))["backends"]
    return any(b["name"] == name and b["available"] for b in backends)


def test_hopper_forward_is_clean(mxattn, tmp_path):
    if not available(mxattn, "emu-sm90"):
        pytest.skip("this build has no emulator")
    roles = tmp_path / "roles.svg"
    text = mxattn("emu", "--backend", "emu-sm90", "--seqlen", 128, "--heads", 1, "--kv-heads", 1, "--head-dim", 64,
                  "--seeds", 3, "--roles-svg", roles, "--tmem-svg", tmp_path / "tmem.svg")
    assert "3 seeds from" in text and ": 0 with a report, 0 with other bits" in text
    assert "wgmma.mma_async" in text and "TMA load" in text
    assert "no kernel used tensor memory" in text and not (tmp_path / "tmem.svg").exists()
    picture = xml.etree.ElementTree.parse(roles).getroot()
    assert len(picture.findall(".//{http://www.w3.org/2000/svg}title")) > 20


def test_blackwell_forward_is_clean(mxattn, tmp_path):
    if not available(mxattn, "emu-sm100"):
        pytest.skip("this build has no emulator")
    names = [tmp_path / "roles.svg", tmp_path / "tmem.svg"]
    text = mxattn("emu", "--backend", "emu-sm100", "--seqlen", 256, "--heads", 1, "--kv-heads", 1, "--head-dim", 64,
                  "--causal", "--seeds", 3, "--roles-svg", names[0], "--tmem-svg", names[1])
    assert "3 seeds from" in text and ": 0 with a report, 0 with other bits" in text
    counts = {line.split()[0]: int(line.split()[-1]) for line in text.splitlines() if line.startswith("  tcgen05")}
    # Tile 0 sees one block of 128 keys, tile 1 two: products of 32 dims of scores and 32 keys of values.
    assert counts["tcgen05.mma"] == 3 * (2 + 4) and counts["tcgen05.cp"] == 3 * 4
    roles, tmem = (xml.etree.ElementTree.parse(name).getroot() for name in names)
    texts = [[t.text for t in root.iter("{http://www.w3.org/2000/svg}text")] for root in (roles, tmem)]
    assert {"softmax 0", "softmax 1", "finish", "load", "scores", "TMA load", "tcgen05.mma"} <= set(texts[0])
    assert "scores → finish" in texts[1] and "softmax 1 → scores" in texts[1]
    titles = [t.text for t in tmem.iter("{http://www.w3.org/2000/svg}title") if t.text]
    assert any(t.startswith("columns 64..71: copied (scales), by scores, read by products, scores") for t in titles)
    assert not any("never read" in t for t in titles)


def test_refusals(mxattn):
    mxattn.refuses("emu", "--backend", "cpu", naming=["--backend", "emu-sm90"])
    mxattn.refuses("emu", "--seeds", 0, naming=["--seeds"])
    mxattn.refuses("emu", "--backend", "emu-sm100", "--head-dim", 96, naming=["head_dim is 96", "64 and 128"])
