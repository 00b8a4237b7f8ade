#!/usr/bin/env python3
"""Makes tests/data/goldens/NAME.gold: what the float32 model says on every prompt of goldens/prompts.jsonl.

usage: make_goldens.py MODEL.gguf OUT.gold     (numpy, torch, gguf, tokenizers, jinja2)
       make_goldens.py --check OUT.gold...     reads the files back and prints what they hold

Each prompt runs freely for 64 tokens, greedy, one token a step; then the same tokens go through the model once more
from the start, teacher-forced in one batch, and those logits are kept. The two runs sum in different orders, so where
they disagree the model itself is undecided: printed, and an error when its two best are 0.001 nat apart or more.
"""
import json
import os
import sys

import numpy as np
import torch

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "goldens"))
import golden_file
from oracle import Oracle
from vocabulary import Vocabulary

N_OUT = 64
UNDECIDED = 0.001  # nat; the two float32 runs differ by less


def run(oracle, ids):
    """The greedy output after ids, and its teacher-forced logits [N_OUT, vocab]."""
    oracle.reset()
    out = [int(oracle.logits(ids, last=1)[0].argmax())]
    while len(out) < N_OUT:
        out.append(int(oracle.logits(out[-1:])[0].argmax()))
    oracle.reset()
    rows = oracle.logits(ids + out[:-1], last=N_OUT)
    for i, row in enumerate(rows):
        short = float(row.max() - row[out[i]])
        if short >= UNDECIDED:
            raise SystemExit(f"position {i}: the two runs differ by {short:.4f} nat")
        if short > 0:
            print(f"  position {i}: undecided, {short:.6f} nat")
    return out, rows.numpy()


def check(path):
    vocab, prompts = golden_file.read(path)
    for name, ids, out, rows in prompts:
        gap = rows["logprob"][:, 0] - rows["logprob"][:, 1]
        forced = sum(int(o != r) for o, r in zip(out, rows["id"][:, 0]))
        print(f"{name:26} {len(ids):5} + {len(out)} ids, not the best {forced}, two best under 0.01 nat {int((gap < 0.01).sum())}, "
              f"log of the rest {rows['rest'].mean():.1f}")
    print(f"{path}: {len(prompts)} prompts, {sum(len(p[2]) for p in prompts)} positions, vocabulary {vocab}")


def main():
    if sys.argv[1:2] == ["--check"]:
        for path in sys.argv[2:]:
            check(path)
        return
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    torch.set_num_threads(1)
    vocabulary, oracle = Vocabulary(sys.argv[1]), Oracle(sys.argv[1])
    done = []
    with open(os.path.join(here, "goldens", "prompts.jsonl"), encoding="utf-8") as f:
        for line in f:
            prompt = json.loads(line)
            ids = vocabulary.prompt(prompt["text"], prompt["chat"])
            out, rows = run(oracle, ids)
            done.append((prompt["name"], ids, out, rows.astype(np.float32)))
            print(f"{prompt['name']}: {len(ids)} ids -> {vocabulary.decode(out)!r}", flush=True)
    golden_file.write(sys.argv[2], rows.shape[1], done)
    check(sys.argv[2])


if __name__ == "__main__":
    main()
