"""Scripts that do what trainers rarely do, for tests that each of them gets a verdict.

usage: odd.py KIND
"""

import os
import socket
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def batches(count=6):
    generator = torch.Generator().manual_seed(5 + int(os.environ["RANK"]))
    return torch.randn(count, 4, 6, generator=generator)


def train(model, after_step=None, scale=1.0, repeat=1):
    """Trains for six updates, `repeat` times; calls after_step(step) after each."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, x in enumerate(batches().repeat(repeat, 1, 1)):
        optimizer.zero_grad()
        (model(x).square().mean() * scale).backward()
        optimizer.step()
        if after_step:
            after_step(step)


def make_model():
    torch.manual_seed(0)
    return nn.Linear(6, 3)


def hang():
    """Rank 1 leaves a barrier out, and works on for ever."""

    def wait(step):
        if step == 2:
            if dist.get_rank() == 0:
                dist.barrier()
            else:
                time.sleep(1000)

    train(DistributedDataParallel(make_model()), wait)


def drift():
    """Rank 1 moves a parameter once, and trains on for minutes."""

    def move(step):
        if step == 3 and dist.get_rank() == 1:
            model.module.bias.data += 1e-3
        time.sleep(0.01)

    model = DistributedDataParallel(make_model())
    train(model, move, repeat=2000)


def exit_early():
    def leave(step):
        if step == 2:
            os._exit(5)

    train(DistributedDataParallel(make_model()), leave)


def fork():
    """A child process imports nothing and leaves by itself."""
    train(DistributedDataParallel(make_model()))
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def not_a_number():
    train(DistributedDataParallel(make_model()), scale=float("nan"))


def no_optimizer():
    model = DistributedDataParallel(make_model())
    for x in batches():
        model(x).square().mean().backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None


def two_models():
    """A GAN: two models with an optimizer each, which take turns."""
    torch.manual_seed(0)
    generator = DistributedDataParallel(nn.Linear(6, 6))
    critic = DistributedDataParallel(nn.Linear(6, 1))
    updates = [torch.optim.Adam(model.parameters(), lr=0.01) for model in (generator, critic)]
    for x in batches():
        updates[1].zero_grad()
        loss = critic(generator(x).detach()).mean() - critic(x).mean()
        loss.backward()
        updates[1].step()
        updates[0].zero_grad()
        (-critic(generator(x)).mean()).backward()
        updates[0].step()


def loader_per_epoch():
    """Makes a loader for each epoch, and the one of the epoch before is gone by then."""
    data = torch.randn(32, 6, generator=torch.Generator().manual_seed(1))
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        sampler = torch.utils.data.DistributedSampler(data)
        sampler.set_epoch(epoch)
        for x in torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()


def no_call():
    """Two processes that never talk to each other."""
    train(make_model())


def captures():
    """Captures an update in a CUDA graph. No tensor may be read meanwhile."""

    class Watched(nn.Parameter):
        def detach(self):
            assert not capturing, "a tensor is read while a graph is captured"
            return super().detach()

    def capture(step):
        capturing[:] = [True] * (step == 2)

    capturing = []
    torch.cuda.is_initialized = lambda: True
    torch.cuda.is_current_stream_capturing = lambda: bool(capturing)
    model = make_model()
    model.weight = Watched(model.weight.data)
    train(DistributedDataParallel(model), capture)


def two_losses():
    """One rank adds a second loss, whose head gets a gradient on that rank only."""
    model = make_model()
    model.head = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches():
        optimizer.zero_grad(set_to_none=True)
        hidden = model(x)
        loss = hidden.square().mean()
        if dist.get_rank() == 1:
            loss = loss + model.head(hidden).mean()
        loss.backward()
        for p in (model.weight, model.bias):
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
        optimizer.step()


class OwnOptimizer:
    """An optimizer that is no torch.optim.Optimizer."""

    def __init__(self, parameters):
        self.param_groups = [{"params": list(parameters), "lr": 0.1}]

    def step(self):
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                p -= self.param_groups[0]["lr"] * p.grad
                p.grad = None


def own_optimizer():
    import lockstep

    model = DistributedDataParallel(make_model())
    optimizer = OwnOptimizer(model.parameters())
    lockstep.watch(model, optimizer)
    for x in batches():
        model(x).square().mean().backward()
        optimizer.step()


def fail_in_child(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo")

    def fail(step):
        if step == 2 and rank == 1:
            raise ValueError("planted failure")

    train(DistributedDataParallel(make_model()), fail)


def spawn():
    """The script starts its ranks by itself; one of them raises."""
    with socket.socket() as held:  # Holds the port for rank 0, which may listen there.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("0.0.0.0", 0))
        torch.multiprocessing.spawn(fail_in_child, (held.getsockname()[1],), nprocs=2)


KINDS = (
    hang,
    drift,
    exit_early,
    fork,
    not_a_number,
    no_optimizer,
    two_models,
    loader_per_epoch,
    no_call,
    two_losses,
    captures,
    own_optimizer,
    spawn,
)

if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] not in ("no_call", "spawn"):
        dist.init_process_group("gloo")
    {kind.__name__: kind for kind in KINDS}[sys.argv[1]]()
