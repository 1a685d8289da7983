"""test_train_lm_command.py: what examples/train_lm prints, writes and refuses.

Real trainings of a few steps on a few chapters; what the losses should reach is docs/training.md's.

SPDX-License-Identifier: Apache-2.0
"""
import csv
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("MXATTN_BUILD", ROOT / "build/release")) / "train_lm"
SMALL = ["--width", "64", "--layers", "2", "--batch-tokens", "512"]


@pytest.fixture(scope="module", name="text")
def small_text(tmp_path_factory):
    """The first 16 chapters, a few verses of each."""
    chapters = (ROOT / "examples/data/kjv.txt").read_text(encoding="ascii").split("\n\n")[:16]
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n\n".join("\n".join(chapter.splitlines()[:8]) for chapter in chapters) + "\n",
                    encoding="ascii")
    return path


def train(out, text, *options):
    return subprocess.run([PROGRAM, *SMALL, "--out", out, "--text", text, *options], cwd=ROOT,
                          capture_output=True, text=True, check=False)


def curve(path):
    with open(path, newline="", encoding="ascii") as lines:
        return list(csv.DictReader(lines))


def test_two_runs_are_compared(tmp_path, text):
    result = train(tmp_path, text, "--steps", "60", "--attention", "float32,mxfp8,none")
    assert result.returncode == 0, result.stderr
    line = re.search(r"^val_loss float32=(\S+) mxfp8=(\S+) ratio=(\S+)$", result.stdout, re.MULTILINE)
    float32, mxfp8, ratio = map(float, line.groups())
    assert ratio == pytest.approx(mxfp8 / float32, abs=1e-3)
    assert 0.95 < ratio < 1.05
    assert "bigram" in result.stdout and "left" in result.stdout and "\r" not in result.stdout
    for name, final in (("float32", float32), ("mxfp8", mxfp8)):
        rows = curve(tmp_path / f"loss_{name}.csv")
        assert [int(row["step"]) for row in rows] == list(range(1, 61))
        assert float(rows[-1]["train_loss"]) < 0.85 * float(rows[0]["train_loss"])
        assert float(rows[-1]["validation_loss"]) == pytest.approx(final, abs=1e-4)


def test_every_activation_in_mxfp8(tmp_path, text):
    result = train(tmp_path, text, "--steps", "40", "--attention", "float32,mxfp8,mxfp8-all")
    assert result.returncode == 0, result.stderr
    line = re.search(r"^val_loss_all float32=(\S+) mxfp8=(\S+) mxfp8_all=(\S+)$", result.stdout, re.MULTILINE)
    float32, _, mxfp8_all = map(float, line.groups())
    assert 0.95 < mxfp8_all / float32 < 1.05
    table = {row[:36].strip(): row[36:].split() for row in result.stdout.splitlines() if row[:1] not in "|"}
    assert [float(x) for x in table["quantized outside producers, a step"]] == [0, 4, 0]
    assert [float(x) for x in table["weights quantized, a step"]] == [0, 0, 8]
    assert table["gathered, padded or copied first"][2] == "0"
    assert float(table["against a BF16 run"][2].rstrip("x")) < 0.65
    assert float(table["those that cross between layers"][2].rstrip("x")) <= 0.54
    assert (tmp_path / "loss_mxfp8-all.csv").exists()


def test_bytes_kept_at_the_demos_size(tmp_path, text):
    result = subprocess.run([PROGRAM, "--steps", "1", "--attention", "float32,mxfp8-all", "--out", tmp_path, "--text", text],
                            cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    table = {row[:36].strip(): row[36:].split() for row in result.stdout.splitlines() if row[:1] not in "|"}
    assert float(table["against a BF16 run"][1].rstrip("x")) <= 0.62
    assert float(table["those that cross between layers"][1].rstrip("x")) <= 0.54
    assert float(table["quantized outside producers, a step"][1]) == 0


def test_recommender_sees_both_ways(tmp_path, text):
    result = train(tmp_path, text, "--steps", "2", "--learning-rate", "0.003", "--task", "recommend", "--attention", "float32,mxfp8,mxfp8-all")
    assert result.returncode == 0, result.stderr
    line = re.search(r"^val_loss_all float32=(\S+) mxfp8=(\S+) mxfp8_all=(\S+)$", result.stdout, re.MULTILINE)
    float32, mxfp8, mxfp8_all = map(float, line.groups())
    assert float32 < 3.91 and abs(mxfp8 / float32 - 1) < 0.03 and abs(mxfp8_all / float32 - 1) < 0.03
    least = float(re.search(r"cross entropy (\S+) nats, the least possible", result.stdout).group(1))
    assert 0.5 < least < float32
    assert "histories: " in result.stdout and "_causal" not in result.stdout


def test_variants_differ(tmp_path, text):
    curves = set()
    for variant, quantizations in (("none", 4), ("floor", 4), ("fp16-dq", 4), ("pairs", 6)):
        result = train(tmp_path, text, "--steps", "16", "--attention", "mxfp8", "--variant", variant)
        assert result.returncode == 0, result.stderr
        table = {row[:36].strip(): row[36:].split() for row in result.stdout.splitlines()}
        assert float(table["quantized outside producers, a step"][0]) == quantizations
        curves.add((tmp_path / "loss_mxfp8.csv").read_text())
    assert len(curves) == 4


def test_same_seed_same_curve_for_any_number_of_threads(tmp_path, text):
    curves = []
    for threads, seed in ((1, 5), (3, 5), (3, 6)):
        out = tmp_path / f"{threads}-{seed}"
        result = train(out, text, "--steps", "6", "--threads", str(threads), "--seed", str(seed))
        assert result.returncode == 0, result.stderr
        curves.append([(out / f"loss_{name}.csv").read_text() for name in ("float32", "mxfp8")])
    assert curves[0] == curves[1]
    assert curves[1][0] != curves[2][0]


def test_seeds_are_compared(tmp_path, text):
    """Every seed gets its line; losses that lie too far apart are an error."""
    seeds = {**os.environ, "AT_ONCE": "3", "THREADS": "1", "OUT": str(tmp_path)}
    command = [ROOT / "examples/train_lm/seeds.sh", PROGRAM.parent, *SMALL, "--text", text, "--steps", "2"]
    for options, chosen, status in (([], "2", 0), (["--learning-rate", "1"], "2 3", 1)):
        result = subprocess.run([*command, *options], env={**seeds, "SEEDS": chosen}, capture_output=True, text=True, check=False)
        assert result.returncode == status, result.stdout + result.stderr
        lines = re.findall(r"^val_loss_seed seed=(\d) float32=(\S+) .*mxfp8_all=(\S+) .*ratio_all=(\S+)$", result.stdout, re.MULTILINE)
        assert [line[0] for line in lines] == chosen.split()
        for seed, float32, mxfp8_all, ratio in lines:
            assert float(ratio) == pytest.approx(float(mxfp8_all) / float(float32), abs=1e-3)
            assert float(float32) == pytest.approx(float(curve(tmp_path / seed / "loss_float32.csv")[-1]["validation_loss"]), abs=1e-4)


@pytest.mark.parametrize("options, named", [
    (["--attention", "fp8"], "fp8"),
    (["--attention", "mxfp8,mxfp8"], "mxfp8,mxfp8"),
    (["--steps", "0"], "--steps is '0'"),
    (["--steps", "many"], "many"),
    (["--width", "100"], "multiple of 64"),
    (["--learning-rate", "nan"], "nan"),
    (["--backend", "zip"], "zip"),
    (["--variant", "zip"], "zip"),
    (["--variant", "pairs", "--attention", "mxfp8-all"], "one payload"),
    (["--text", "/nonexistent"], "/nonexistent"),
    (["stray"], "stray"),
    (["--bogus"], "bogus"),
])
def test_bad_options(tmp_path, text, options, named):
    result = train(tmp_path, text, *options)
    assert result.returncode == 2
    assert named in result.stderr and result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
