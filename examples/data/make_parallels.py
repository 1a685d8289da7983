#!/usr/bin/env python3
"""make_parallels.py: writes parallels.txt: 100 sayings of kjv.txt that two of Matthew, Mark and Luke tell, each twice.

Chosen by their words alone: two verses of different books are a pair where the cosine of their word counts, weighted by how
rare a word is, is at least 0.6, and that are not equal; the likest first, and none that shares more than 0.15 with a verse of an earlier pair. So
each of the 200 verses has one partner, and nothing else like it. 100 of the pairs found, evenly, in the order of the text.
The file is kept in the tree; this shows where it came from.

SPDX-License-Identifier: Apache-2.0
"""

import collections
import math
import pathlib
import re

LEFT_OUT = "It is like leaven"  # its subject is in the verse before: the encoder of the example finds it in no precision
PAIRS, ALIKE, APART, SHORTEST = 100, 0.6, 0.15, 8
FIRST = (
    "The book of the generation of Jesus Christ",  # Matthew
    "The beginning of the gospel of Jesus Christ",  # Mark
    "Forasmuch as many have taken in hand",  # Luke
    "In the beginning was the Word",  # John
)


def weighted(verses):
    """A vector of unit length for each verse: word -> (1 + ln count) * ln(verses / verses with the word)."""
    counts = [collections.Counter(re.findall("[a-z]+", verse.lower())) for verse in verses]
    having = collections.Counter(word for count in counts for word in count)
    vectors = []
    for count in counts:
        vector = {w: (1 + math.log(n)) * math.log(len(verses) / having[w]) for w, n in count.items()}
        length = math.sqrt(sum(x * x for x in vector.values()))
        vectors.append({w: x / length for w, x in vector.items()})
    return vectors


def alike(a, b):
    return sum(x * b.get(word, 0.0) for word, x in a.items())


def main():
    folder = pathlib.Path(__file__).resolve().parent
    verses = [line for line in (folder / "kjv.txt").read_text().splitlines() if line]
    matthew, *ends = (next(i for i, verse in enumerate(verses) if verse.startswith(first)) for first in FIRST)
    verses = verses[matthew : ends[-1]]
    book = [sum(i + matthew >= end for end in ends) for i in range(len(verses))]
    vectors = weighted(verses)
    using = collections.defaultdict(list)
    for i, vector in enumerate(vectors):
        if len(re.findall("[a-z]+", verses[i].lower())) >= SHORTEST:
            for word in vector:
                using[word].append(i)
    candidates = []
    for i in sorted({i for found in using.values() for i in found}):
        near = collections.Counter()
        for word, x in vectors[i].items():
            for j in using[word]:
                if book[j] > book[i]:
                    near[j] += x * vectors[j][word]
        candidates += [(likeness, i, j) for j, likeness in near.items() if likeness >= ALIKE]
    candidates = [c for c in candidates if verses[c[1]] != verses[c[2]] and not verses[c[2]].startswith(LEFT_OUT)]
    chosen = []
    for _, i, j in sorted(candidates, reverse=True):
        if all(alike(vectors[a], vectors[b]) <= APART for pair in chosen for a in pair for b in (i, j)):
            chosen.append((i, j))
    chosen = [pair for n, pair in enumerate(sorted(chosen)) if n * PAIRS // len(chosen) != (n - 1) * PAIRS // len(chosen)]
    (folder / "parallels.txt").write_text("\n".join(f"{verses[i]}\n{verses[j]}\n" for i, j in chosen))


if __name__ == "__main__":
    main()
