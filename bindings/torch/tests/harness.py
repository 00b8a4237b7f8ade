"""What the tests of this folder share: a check against float64, and a runner that counts.

    python -m harness test_ops [WORD,WORD]      from this folder; the last line is the count
    DEVICES=cuda                                only there"""

import importlib
import os
import sys
import time
import traceback

import torch

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
DEVICES = os.environ["DEVICES"].split() if "DEVICES" in os.environ else DEVICES
UNIT = {torch.float32: 2**-24, torch.float16: 2**-11, torch.bfloat16: 2**-8}


class Skip(Exception):
    pass


def close(got, want, terms=1, scale=None, why=""):
    """got is within rounding of want, which is float64: terms is how many roundings of float32 one
    element may gather, scale the size of what was summed."""
    want = want.double().to(got.device)
    assert got.shape == want.shape, f"{why} shape {tuple(got.shape)}, not {tuple(want.shape)}"
    if got.numel() == 0:
        return
    size = want.abs() if scale is None else scale.double().to(got.device).abs()
    unit = UNIT.get(got.dtype, 0)
    bound = 1.01 * unit * want.abs() + 8 * terms * 2**-24 * (size + 1e-3) + 2**-24
    if got.dtype is torch.float16:
        bound = bound + 2**-24
    error = (got.double() - want).abs()
    bad = ~(error <= bound)
    assert not bad.any(), (
        f"{why} {int(bad.sum())} of {got.numel()} wrong, worst {float((error / bound).nan_to_num(9e9).max()):.3g} times the bound"
    )


def run(name, word=""):
    module = importlib.import_module(name)
    passed = failed = skipped = 0
    for key, test in list(vars(module).items()):
        if not key.startswith("test_") or not any(w in key for w in word.split(",")):
            continue
        start = time.time()
        try:
            test()
            passed += 1
        except Skip as why:
            skipped += 1
            print(f"skipped {key}: {why}")
        except Exception:
            failed += 1
            print(f"FAILED {key}")
            traceback.print_exc(file=sys.stdout)
        if time.time() - start > 10:
            print(f"{key} took {time.time() - start:.0f} s")
    return passed, failed, skipped


def main():
    import superop  # noqa: F401

    total = [0, 0, 0]
    for name in sys.argv[1].split(","):
        for i, n in enumerate(run(name, sys.argv[2] if len(sys.argv) > 2 else "")):
            total[i] += n
    print("{} passed, {} failed, {} skipped".format(*total))
    sys.exit(total[1] > 0)


if __name__ == "__main__":
    import harness  # so that Skip is one class

    harness.main()
