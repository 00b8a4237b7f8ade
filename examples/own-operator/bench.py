"""Each form beside PyTorch's and Triton's, as a share of a copy's bandwidth:

    python bench.py [TOKENS DIM [TIMES]]

All of a form's contenders and the copy take turns in one run, on data larger than the caches; medians.
The copy makes its result as they do. A form's bytes are those it cannot do without: x, y and a residual,
whatever a contender really moves."""

import statistics
import sys
import time

import torch

from own_operator import FORMS, ROWS

SETS = 4  # of operands, used in turn


def timer(f, sets, device):
    """A function that runs f on every set and says the seconds of one call."""
    if device == "cpu":

        def measure():
            start = time.perf_counter()
            for s in sets:
                f(*s)
            return (time.perf_counter() - start) / len(sets)

        return measure
    for s in sets:  # what is compiled or prepared at a first call must not be in a recording
        f(*s)
    torch.cuda.synchronize()
    graph, start, end = torch.cuda.CUDAGraph(), *(torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.graph(graph):
        for s in sets:
            f(*s)

    def measure():
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / len(sets)

    return measure


@torch.no_grad()
def bench(device, tokens, dim, times):
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    x = [torch.randn(tokens, dim, device=device).to(dtype) for _ in range(2 * SETS)]
    bias = torch.randn(dim, device=device)  # float32, as the library has it; PyTorch's in x's type
    plain = bias.to(dtype)
    bytes_of_one = tokens * dim * x[0].element_size()
    for name, (ours, theirs) in FORMS.items():
        adds = "residual" in name
        sets = [(x[2 * i], bias, x[2 * i + 1] if adds else None) for i in range(SETS)]
        contenders = {
            "copy": (lambda a, b, r: a.clone(), 2),
            ROWS[device]: (ours, 2 + adds),
            "PyTorch": (lambda a, b, r, f=theirs: f(a, plain, r), 2 + adds),
        }
        if device == "cuda":
            import bias_gelu_triton

            act = name.split()[-1]
            contenders["Triton"] = (lambda a, b, r: bias_gelu_triton.bias_act(a, b, r, act), 2 + adds)
        measure = {who: timer(f, sets, device) for who, (f, _) in contenders.items()}
        seconds = {who: [] for who in measure}
        for turn in range(times + 1):
            for who, m in measure.items():
                t = m()
                if turn:  # the first warms up
                    seconds[who].append(t)
        rate = {who: contenders[who][1] * bytes_of_one / statistics.median(t) for who, t in seconds.items()}
        print(f"{device} {name}, {tokens} x {dim} {str(dtype)[6:]}:")
        for who, bytes_a_second in rate.items():
            share = 100 * bytes_a_second / rate["copy"]
            print(f"  {who:20} {bytes_a_second / 1e9:8.1f} GB/s  {share:4.0f} % of the copy")


def main():
    tokens, dim, times = (int(a) for a in (sys.argv[1:] + ["4096", "4096", "21"][len(sys.argv) - 1 :]))
    for device in ROWS:
        bench(device, tokens, dim, times)
    if "cuda" not in ROWS:
        print("skipped cuda and Triton:", "bias_gelu_cuda.so is not built" if torch.cuda.is_available() else "no card")


if __name__ == "__main__":
    main()
