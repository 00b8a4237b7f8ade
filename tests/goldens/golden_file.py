"""The file of goldens that make_goldens.py writes and golden_read.h reads: little endian, every field 4-byte aligned.

    char  magic[8]       "SOPGOLD1"
    i32   vocab, top, n_prompts      top is 64
    n_prompts times:
        char  name[32]               padded with zeros
        i32   n_prompt, n_out
        i32   prompt[n_prompt]       the ids the model starts from, BOS included
        i32   out[n_out]             the oracle's greedy output; end-of-sequence tokens do not stop it
        n_out times, for the logits from which out[i] is chosen:
            i32   id[64]             the best first; equal logits by id
            f32   logprob[64]        natural
            f32   lse                log of the sum of exp of all logits
            f32   rest               log of the probability of all other tokens together
"""
import struct

import numpy as np

MAGIC, TOP, NAME_BYTES = b"SOPGOLD1", 64, 32
POSITION = np.dtype([("id", "<i4", TOP), ("logprob", "<f4", TOP), ("lse", "<f4"), ("rest", "<f4")])


def position(logits):
    """One row of logits as a POSITION; the sums are float64."""
    z = np.asarray(logits, np.float64)
    lse = z.max() + np.log(np.exp(z - z.max()).sum())
    order = np.lexsort((np.arange(len(z)), -z))
    rest = np.log(np.exp(z[order[:TOP - 1:-1]] - lse).sum())
    return order[:TOP], z[order[:TOP]] - lse, lse, rest


def write(path, vocab, prompts):
    """prompts: a list of (name, prompt ids, out ids, logits [n_out, vocab])."""
    with open(path, "wb") as f:
        f.write(MAGIC + struct.pack("<iii", vocab, TOP, len(prompts)))
        for name, ids, out, rows in prompts:
            f.write(struct.pack(f"<{NAME_BYTES}sii", name.encode(), len(ids), len(out)))
            f.write(np.array(ids + out, "<i4").tobytes())
            f.write(np.array([position(row) for row in rows], POSITION).tobytes())


def read(path):
    """vocab and a list of (name, prompt ids, out ids, positions); what a sound file cannot hold is an error."""
    data = open(path, "rb").read()
    if data[:8] != MAGIC:
        raise ValueError(f"{path}: not a file of goldens")
    vocab, top, n_prompts = struct.unpack_from("<iii", data, 8)
    if top != TOP:
        raise ValueError(f"{path}: top={top}, must be {TOP}")
    at, prompts = 20, []
    for _ in range(n_prompts):
        name, n_ids, n_out = struct.unpack_from(f"<{NAME_BYTES}sii", data, at)
        at += NAME_BYTES + 8
        ids = np.frombuffer(data, "<i4", n_ids + n_out, at)
        at += ids.nbytes
        rows = np.frombuffer(data, POSITION, n_out, at)
        at += rows.nbytes
        mass = np.exp(rows["logprob"].astype(np.float64)).sum(1) + np.exp(rows["rest"].astype(np.float64))
        sound = (
            (ids >= 0).all() and (ids < vocab).all()
            and (rows["id"] >= 0).all() and (rows["id"] < vocab).all()
            and (np.diff(rows["logprob"]) <= 0).all()
            and (np.abs(mass - 1) < 1e-4).all()
        )
        name = name.rstrip(b"\0").decode()
        if not sound:
            raise ValueError(f"{path}: prompt {name} is damaged")
        prompts.append((name, ids[:n_ids].tolist(), ids[n_ids:].tolist(), rows))
    if at != len(data):
        raise ValueError(f"{path}: {len(data) - at} bytes left over")
    return vocab, prompts
