"""PyTorch's BatchNorm2d and SyncBatchNorm, for the command `syncbn` to time.

Each line of standard input says what to time: n c h w layout dtype seed warmup
iterations; on a GPU then local|sync cuda device rank world_size sets file. The
answer has the seconds of each forward and each backward pass, by turns; or says
why this PyTorch cannot do it, or that it did it wrong.
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


def check(torch, x, y):
    if not largest_error(x, y) < (1e-3 if x.dtype == torch.float32 else 2e-2):
        raise ArithmeticError("its y is not what BatchNorm2d should give")


def time_on_cpu(torch, x, dy, warmup, iterations):
    x.requires_grad_()
    layer = torch.nn.BatchNorm2d(x.shape[1])
    seconds = []
    for i in range(warmup + iterations):
        x.grad = layer.weight.grad = layer.bias.grad = None
        start = time.perf_counter()
        y = layer(x)
        between = time.perf_counter()
        y.backward(dy)
        end = time.perf_counter()
        if i >= warmup:
            seconds += [between - start, end - between]
    check(torch, x, y)
    return seconds


def layer_on_gpu(torch, kind, channels, rank, world_size, file):
    if kind == "local":
        return torch.nn.BatchNorm2d(channels).cuda()
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(
            "nccl", "file://" + file, rank=rank, world_size=world_size)
    return torch.nn.SyncBatchNorm(channels).cuda()


def time_on_gpu(torch, x, dy, warmup, iterations, kind, device, rank,
                world_size, sets, file):
    """All calls are queued, an event between each two; they take turns on sets
    of tensors: forward on all, then backward on all. What a lap computes is
    kept to its end, so that its memory is not written again at once. On every
    rank x is the same, and so are the statistics of all ranks' batches."""
    if not torch.cuda.is_available():
        raise RuntimeError("this PyTorch finds no GPU")
    torch.cuda.set_device(device)
    layer = layer_on_gpu(torch, kind, x.shape[1], rank, world_size, file)
    xs = [x.cuda().requires_grad_() for _ in range(sets)]
    dys = [dy.cuda() for _ in range(sets)]
    events = []

    def mark():
        events.append(torch.cuda.Event(enable_timing=True))
        events[-1].record()

    skipped, laps = -(-warmup // sets), -(-iterations // sets)
    torch.cuda.synchronize()
    for _ in range(skipped + laps):
        ys, gradients = [], []
        for one in xs:
            mark()
            ys.append(layer(one))
        for one, y, g in zip(xs, ys, dys):
            mark()
            gradients.append(torch.autograd.grad(
                y, (one, layer.weight, layer.bias), g))
    mark()
    torch.cuda.synchronize()
    check(torch, xs[-1], ys[-1])
    times = [1e-3 * a.elapsed_time(b) for a, b in zip(events, events[1:])]
    seconds = []
    for lap in range(skipped, skipped + laps):
        at = 2 * sets * lap
        for i in range(sets):
            seconds += [times[at + i], times[at + sets + i]]
    return seconds


def measure(torch, line):
    n, c, h, w, layout, dtype, seed, warmup, iterations, *gpu = line.split(" ", 15)
    torch.manual_seed(int(seed))
    memory = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    shape = tuple(map(int, (n, c, h, w)))
    dtype = getattr(torch, dtype)
    x = torch.randn(shape).to(dtype).to(memory_format=memory)
    dy = torch.randn(shape).to(dtype).to(memory_format=memory)
    if not gpu:
        return time_on_cpu(torch, x, dy, int(warmup), int(iterations))
    kind, _, device, rank, world_size, sets, file = gpu
    return time_on_gpu(torch, x, dy, int(warmup), int(iterations), kind,
                       int(device), int(rank), int(world_size), int(sets), file)


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
            answer("timed", *measure(torch, line.rstrip("\n")))
        except Exception as error:
            answer("cannot", why_not(error))


main()
