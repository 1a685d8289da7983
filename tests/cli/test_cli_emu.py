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


def test_refusals(mxattn):
    mxattn.refuses("emu", "--backend", "cpu", naming=["--backend", "emu-sm90"])
    mxattn.refuses("emu", "--seeds", 0, naming=["--seeds"])
