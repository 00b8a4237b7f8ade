"""Host time of one call, beside PyTorch's own: python host_time.py [BLOCKS]

Medians over blocks of calls, in turns; a call on a card is what the host does until it may go on, so the
queue is emptied between the blocks. `launch` is a kernel that does nothing, the least a call can take; without
rows there is none. `torch.ops.aten.alias` is the way through Python and back, `torch.ops.aten.add` an operator
of PyTorch's own on it, `torch.empty_like` a result."""

import statistics
import sys
import time

import torch
import torch.nn.functional as F

import superop  # noqa: F401

BLOCK, BLOCKS = 500, 41


def block(f, device):
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(BLOCK):
        f()
    return (time.perf_counter() - start) / BLOCK * 1e6


def main():
    ops = torch.ops.superop
    torch.set_num_threads(1)
    for device in ["cpu"] + (["cuda"] if torch.cuda.is_available() else []):
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        x = torch.randn(1, 64, device=device).to(dtype)
        w, plain = torch.randn(64, device=device), torch.randn(64, device=device).to(dtype)
        up, b = torch.randn(64, 64, device=device).to(dtype), torch.randn(64, device=device)
        q = torch.randn(1, 2, 64, device=device).to(dtype)
        kv = torch.randn(1, 64, 2, 64, device=device).to(dtype)
        i32 = lambda *v: torch.tensor(v, dtype=torch.int32, device=device)  # noqa: E731
        table, start, lens = i32([0]), i32(0, 1), i32(64)
        calls = {
            "superop.rms_norm": lambda op=ops.rms_norm.default: op(x, w),
            "the same, no rows": lambda op=ops.rms_norm.default, x=x[:0]: op(x, w),
            "superop.rms_norm.out": lambda op=ops.rms_norm.out, y=torch.empty_like(x): op(x, w, y=y),
            "the same .out, no rows": lambda op=ops.rms_norm.out, x=x[:0]: op(x, w, y=x),
            "F.rms_norm": lambda: F.rms_norm(x, (64,), plain, 1e-6),
            "superop.linear": lambda op=ops.linear.default: op(x, up),
            "F.linear": lambda: F.linear(x, up),
            "superop.bias_act": lambda op=ops.bias_act.default: op(x, b),
            "F.gelu(x + b)": lambda: F.gelu(x + plain, approximate="tanh"),
            "superop.attention": lambda op=ops.attention.default: op(q, kv, kv, table, start, lens),
            "x + x": lambda: x + x,
            "torch.ops.aten.add": lambda op=torch.ops.aten.add.Tensor: op(x, x),
            "torch.ops.aten.alias": lambda op=torch.ops.aten.alias.default: op(x),
            "torch.empty_like": lambda: torch.empty_like(x),
        }
        if device == "cuda":
            calls["launch"] = lambda: torch.cuda._sleep(0)
        times = {name: [] for name in calls}
        with torch.no_grad():
            for f in calls.values():
                block(f, device)
            for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else BLOCKS):
                for name, f in calls.items():
                    times[name].append(block(f, device))
        for name, t in times.items():
            low, high = statistics.quantiles(t, n=20)[0], statistics.quantiles(t, n=20)[-1]
            print(f"{device:4} {name:24} {statistics.median(t):6.2f} us   {low:.2f} to {high:.2f}")


if __name__ == "__main__":
    main()
