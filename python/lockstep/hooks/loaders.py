"""Records loaders: the sampler, the samples of each batch, and which loader training uses."""

import collections
import weakref

import torch
from torch.utils.data import DataLoader, dataloader, get_worker_info

from . import lines, tensors

SAMPLER_FIELDS = ("num_replicas", "rank", "shuffle", "seed", "epoch", "drop_last", "replacement")


class Loader:
    """One DataLoader of the script."""

    def __init__(self, number):
        self.number = number
        self.passes = 0
        self.trains = False


class Pass:
    """One pass over a loader, and the indices that it has drawn for batches to come."""

    def __init__(self, loader):
        self.loader = loader
        self.number = loader.passes
        self.batches = 0
        self.indices = collections.deque()
        loader.passes += 1


class Loaders:
    """All loaders of the process, in the order of their first pass."""

    def __init__(self, recorder):
        self.recorder = recorder
        self.known = weakref.WeakKeyDictionary()
        self.made = 0
        self.passes = weakref.WeakKeyDictionary()  # By iterator.
        self.beginning = None
        self.last = None

    def begin(self, args, kwargs):
        """Runs before DataLoader.__iter__, which draws indices at once if there are workers."""
        del kwargs
        self.beginning = None
        if get_worker_info() is not None:
            return
        self.recorder.draws.before_sampler()
        self.recorder.by_hand.settle()
        loader = args[0]
        state = self.known.get(loader)
        if state is None:
            # A number is never given twice: a script may make a loader for each epoch.
            state = self.known[loader] = Loader(self.made)
            self.made += 1
        self.beginning = Pass(state)
        if getattr(loader, "_iterator", None) is not None:  # Persistent workers.
            self.passes[loader._iterator] = self.beginning
        sized = not isinstance(loader.dataset, torch.utils.data.IterableDataset)
        self.recorder.event(
            "pass",
            loader=state.number,
            number=self.beginning.number,
            update=self.recorder.update,
            line=lines.user_line(),
            dataset=type(loader.dataset).__name__,
            samples=length_of(loader.dataset) if sized else None,
            batches=length_of(loader) if sized else None,
            batch_size=loader.batch_size,
            drop_last=loader.drop_last,
            workers=loader.num_workers,
            sampler=describe_sampler(loader),
        )

    def make_iterator(self, args, kwargs):
        del kwargs
        if self.beginning is not None:
            self.passes[args[0]] = self.beginning

    def has_begun(self, token, result, args, kwargs):
        del token, result, args, kwargs
        if get_worker_info() is None:
            self.recorder.draws.after_sampler()

    def before_draw(self, args, kwargs):
        del args, kwargs
        self.recorder.draws.before_sampler()

    def draw(self, token, result, args, kwargs):
        """Keeps the indices of a batch until the loader gives the batch."""
        del token, kwargs
        self.recorder.draws.after_sampler()
        if args[0] in self.passes:
            self.passes[args[0]].indices.append(result)

    def before_give(self, args, kwargs):
        del kwargs
        if args[0] in self.passes:
            self.recorder.by_hand.settle()

    def give(self, token, result, args, kwargs):
        del token, kwargs
        current = self.passes.get(args[0])
        if current is None:
            return
        indices = current.indices.popleft() if current.indices else None
        self.recorder.event(
            "batch",
            loader=current.loader.number,
            number=current.number,
            batch=current.batches,
            update=self.recorder.update,
            indices=integers(indices),
            samples=tensors.sample_digests(result),
            shapes=[list(leaf.shape[1:]) for leaf in tensors.leaves_of(result)],
        )
        current.batches += 1
        self.last = current.loader

    def mark_training(self):
        """Says that the loader that gave the last batch is one that training uses."""
        if self.last is not None and not self.last.trains:
            self.last.trains = True
            self.recorder.event("trains", loader=self.last.number)

    def see_input(self, leaves):
        """Records the model's input if no loader has given a batch: the script makes its own."""
        if self.last is None and leaves and torch.is_grad_enabled():
            self.recorder.event(
                "input", update=self.recorder.update, samples=tensors.sample_digests(leaves)
            )

    def set_epoch(self, args, kwargs):
        epoch = kwargs.get("epoch", args[1] if len(args) > 1 else None)
        self.recorder.event("set_epoch", epoch=epoch, line=lines.user_line())


def length_of(value):
    try:
        return len(value)
    except (TypeError, NotImplementedError):
        return None


def integers(indices):
    """Returns a list of indices, or None if the loader draws no numbers."""
    if isinstance(indices, int):
        indices = [indices]
    if isinstance(indices, torch.Tensor):
        indices = indices.tolist()
    if not isinstance(indices, (list, tuple)):
        return None
    found = [int(i) for i in indices if hasattr(i, "__index__")]
    return found if len(found) == len(indices) else None


def describe_sampler(loader):
    """Returns the class and the settings of the sampler that decides the order."""
    sampler = loader.sampler
    if type(sampler).__name__ in ("SequentialSampler", "_InfiniteConstantSampler"):
        batches = getattr(loader, "batch_sampler", None)
        if batches is not None and type(batches).__name__ != "BatchSampler":
            sampler = batches
    fields = {"type": type(sampler).__name__}
    if fields["type"] != "_InfiniteConstantSampler":
        fields["length"] = length_of(sampler)
    for name in SAMPLER_FIELDS:
        value = getattr(sampler, name, None)
        if isinstance(value, (bool, int)):
            fields[name] = value
    if hasattr(sampler, "num_processes") and hasattr(sampler, "process_index"):  # Accelerate's.
        return {**fields, **describe_share(sampler)}
    fields["distributed"] = isinstance(sampler, torch.utils.data.DistributedSampler)
    fields["generator"] = getattr(sampler, "generator", None) is not None
    return fields


def describe_share(sampler):
    """Returns the settings of Accelerate's BatchSamplerShard in the words of DistributedSampler."""
    padding = (sampler.batch_size or 0) * sampler.num_processes if sampler.even_batches else 0
    return {
        "num_replicas": sampler.num_processes,
        "rank": sampler.process_index,
        "distributed": True,
        "padding": padding,
        "generator": False,
    }


def install(recorder):
    hooks = recorder.loaders = Loaders(recorder)
    iterator = dataloader._BaseDataLoaderIter
    recorder.wrap(DataLoader, "__iter__", hooks.begin, hooks.has_begun)
    recorder.wrap(iterator, "__init__", hooks.make_iterator)
    recorder.wrap(iterator, "_next_index", hooks.before_draw, hooks.draw)
    recorder.wrap(iterator, "__next__", hooks.before_give, hooks.give)
    recorder.wrap(torch.utils.data.DistributedSampler, "set_epoch", hooks.set_epoch)
