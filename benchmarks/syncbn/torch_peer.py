"""Runs PyTorch's BatchNorm2d and SyncBatchNorm, for `syncbn` to time.

Each line of standard input is one measurement: n c h w layout dtype seed warmup
iterations, and on a GPU also local|sync cuda device rank world_size sets file.
The answer has the seconds of each forward and each backward pass, alternating;
on a GPU, they are the mean over the sets. If this PyTorch cannot do it, or gives
a wrong result, the answer says so.
"""
import sys
import time


def answer(*words):
    print("lockstep:", *words, flush=True)


def why_not(error):
    return type(error).__name__ + ": " + str(error).split("\n")[0]


def sync_on_cpu(torch):
    """Returns "runs", or the error of SyncBatchNorm on the CPU.

    It runs in a group, since newer versions are a BatchNorm without a group.
    """
    try:
        if torch.distributed.is_available():
            torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        torch.nn.SyncBatchNorm(2)(torch.randn(4, 2, 3, 3))
        return "runs"
    except Exception as error:
        return why_not(error)
    finally:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def largest_error(torch, x, y, of_all_ranks):
    """Returns the largest error of some channels, compared with float64, over
    the largest magnitude in y."""
    x, y = (t.detach()[:, :4].double() for t in (x, y))

    def mean_of(values):
        mean = values.mean((0, 2, 3), keepdim=True)
        if of_all_ranks:
            torch.distributed.all_reduce(mean)
            mean /= torch.distributed.get_world_size()
        return mean

    mean = mean_of(x)
    want = (x - mean) / (mean_of((x - mean) ** 2) + 1e-5).sqrt()
    return ((y - want).abs().max() / want.abs().max()).item()


def check(torch, x, y, of_all_ranks=False):
    allowed = 1e-3 if x.dtype == torch.float32 else 2e-2
    if not largest_error(torch, x, y, of_all_ranks) < allowed:
        raise ArithmeticError("its y is wrong")


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


def sync_of_one_rank(torch):
    """Returns a layer that calls SyncBatchNorm's kernels without its messages.

    With one rank, the class itself is BatchNorm2d.
    """
    class Calls(torch.autograd.Function):
        @staticmethod
        def forward(context, x, weight, bias, layer):
            mean, scale = torch.batch_norm_stats(x, layer.eps)
            count = torch.full((1,), x.numel() // x.shape[1], dtype=mean.dtype,
                               device=x.device)
            mean, scale = torch.batch_norm_gather_stats_with_counts(
                x, mean[None], scale[None], layer.running_mean,
                layer.running_var, layer.momentum, layer.eps, count)
            context.save_for_backward(x, weight, mean, scale, count.int())
            return torch.batch_norm_elemt(x, weight, bias, mean, scale, layer.eps)

        @staticmethod
        def backward(context, dy):
            x, weight, mean, scale, count = context.saved_tensors
            sums, products, dweight, dbias = torch.batch_norm_backward_reduce(
                dy, x, mean, scale, weight, True, True, True)
            dx = torch.batch_norm_backward_elemt(
                dy, x, mean, scale, weight, sums, products, count)
            return dx, dweight, dbias, None

    class OfOneRank(torch.nn.BatchNorm2d):
        def forward(self, x):
            return Calls.apply(x, self.weight, self.bias, self)

    return OfOneRank


def layer_on_gpu(torch, kind, channels, rank, world_size, file):
    if kind == "local":
        return torch.nn.BatchNorm2d(channels).cuda()
    if world_size == 1:
        return sync_of_one_rank(torch)(channels).cuda()
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(
            "nccl", "file://" + file, rank=rank, world_size=world_size)
    return torch.nn.SyncBatchNorm(channels).cuda()


def time_on_gpu(torch, x, dy, warmup, iterations, kind, device, rank,
                world_size, sets, file):
    """Returns the seconds of each forward and backward pass on a GPU.

    All calls are queued, and take turns on the sets of tensors: forward on all
    sets, then backward on all, with an event before and after each. The results
    of a lap are kept until its end, so that their memory is not written again at
    once. The ranks' x have different means, so the check finds statistics of
    one rank's batch in place of all ranks'.
    """
    if not torch.cuda.is_available():
        raise RuntimeError("this PyTorch finds no GPU")
    torch.cuda.set_device(device)
    layer = layer_on_gpu(torch, kind, x.shape[1], rank, world_size, file)
    x += rank
    xs = [x.cuda().requires_grad_() for _ in range(sets)]
    dys = [dy.cuda() for _ in range(sets)]
    skipped, laps = -(-warmup // sets), -(-iterations // sets)
    events = [torch.cuda.Event(enable_timing=True)
              for _ in range(2 * (skipped + laps) + 1)]
    for event in events:
        event.record()  # The event is created when it is first recorded.
    marks = iter(events)
    of_all_ranks = kind == "sync" and world_size > 1
    if of_all_ranks:
        torch.distributed.barrier()
    torch.cuda.synchronize()
    for _ in range(skipped + laps):
        ys = gradients = None
        next(marks).record()
        ys = [layer(one) for one in xs]
        next(marks).record()
        gradients = [
            torch.autograd.grad(y, (one, layer.weight, layer.bias), g)
            for one, y, g in zip(xs, ys, dys)]
    next(marks).record()
    torch.cuda.synchronize()
    check(torch, xs[-1], ys[-1], of_all_ranks)
    return [1e-3 * a.elapsed_time(b) / sets
            for a, b in zip(events, events[1:])][2 * skipped:]


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
    except Exception as error:  # A broken installation may raise anything.
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
