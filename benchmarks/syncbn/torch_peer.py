"""PyTorch's BatchNorm2d, for the command `syncbn` to time.

Each line of standard input says what to time: n c h w layout dtype seed warmup
iterations. The answer has the seconds of each forward and each backward pass,
by turns; or says why this PyTorch cannot do it, or that it did it wrong.
"""
import sys
import time


def answer(*words):
    print("lockstep:", *words, flush=True)


def why_not(error):
    return type(error).__name__ + ": " + str(error).split("\n")[0]


def sync_on_cpu(torch):
    try:
        torch.nn.SyncBatchNorm(2)(torch.randn(4, 2, 3, 3))
        return "runs"
    except Exception as error:
        return why_not(error)


def largest_error(x, y):
    """Of some channels, against float64, over the largest magnitude in y."""
    x, y = (t.detach()[:, :4].double() for t in (x, y))
    dims = (0, 2, 3)
    mean = x.mean(dims, keepdim=True)
    variance = ((x - mean) ** 2).mean(dims, keepdim=True)
    want = (x - mean) / (variance + 1e-5).sqrt()
    return ((y - want).abs().max() / want.abs().max()).item()


def measure(torch, line):
    n, c, h, w, layout, dtype, seed, warmup, iterations = line.split()
    torch.manual_seed(int(seed))
    memory = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    shape = tuple(map(int, (n, c, h, w)))
    dtype = getattr(torch, dtype)
    x = torch.randn(shape).to(dtype).to(memory_format=memory).requires_grad_()
    dy = torch.randn(shape).to(dtype).to(memory_format=memory)
    layer = torch.nn.BatchNorm2d(shape[1])
    seconds = []
    for i in range(int(warmup) + int(iterations)):
        x.grad = layer.weight.grad = layer.bias.grad = None
        start = time.perf_counter()
        y = layer(x)
        between = time.perf_counter()
        y.backward(dy)
        end = time.perf_counter()
        if i >= int(warmup):
            seconds += [between - start, end - between]
    if not largest_error(x, y) < (1e-3 if dtype == torch.float32 else 2e-2):
        raise ArithmeticError("its y is not what BatchNorm2d should give")
    return seconds


def main():
    try:
        import torch
    except Exception as error:  # Whatever a broken installation raises.
        answer("missing", str(error).split("\n")[0])
        return
    torch.set_num_threads(1)
    answer("ready", torch.__version__, sync_on_cpu(torch))
    for line in sys.stdin:
        try:
            answer("timed", *measure(torch, line))
        except Exception as error:
            answer("cannot", why_not(error))


main()
