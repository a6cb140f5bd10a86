"""Records the calls of torch.distributed, in order."""

import functools
import math
import time

import torch
import torch.distributed as dist

from . import lines, tensors

# How long destroy_process_group lets the group's threads release the last call's tensors, for which
# they need the interpreter's lock. DDP's destructor waits for these threads while it holds the lock,
# so PyTorch 1.13 hangs now and then.
RELEASE_SECONDS = 0.05

CALLS = """
    all_reduce broadcast reduce all_gather all_gather_into_tensor _all_gather_base gather scatter
    reduce_scatter reduce_scatter_tensor _reduce_scatter_base all_to_all all_to_all_single barrier
    monitored_barrier all_gather_object gather_object broadcast_object_list scatter_object_list
    all_reduce_coalesced all_gather_coalesced send recv isend irecv
    batch_isend_irecv new_group
""".split()
PAIRS = ("send", "recv", "isend", "irecv")
WITHOUT_DATA = ("barrier", "monitored_barrier", "new_group")
FEW = 8
OPERATIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")


class Collectives:
    """Counts and writes the calls. A call that another one makes belongs to that one."""

    def __init__(self, recorder):
        self.recorder = recorder
        self.count = 0
        self.depth = 0
        self.numbers = {}  # By id of a group: which of the groups with the same ranks it is.

    def before(self, kind, args, kwargs):
        self.depth += 1
        if self.depth > 1:
            return
        recorder = self.recorder
        recorder.open()
        values = [*args, *kwargs.values()]
        parts = [value for value in values if is_tensors(value)]
        recorder.optimizers.see_call(numbers_in(kind, parts))
        first = parts[0] if parts else None
        first = first[0] if isinstance(first, (list, tuple)) else first
        line, group, peer = lines.user_line(), self.group_of(values), peer_of(kind, args, kwargs)
        recorder.event(
            "call",
            call=self.count,
            update=recorder.update,
            kind=kind.strip("_"),
            sizes=[sizes_of(value) for value in parts],
            dtype="" if first is None else str(first.dtype)[6:],
            op=operation(kind, values),
            group=group,
            peer=peer,
            line=line,
            **({} if first is None else {"values": few_values(first)}),
        )
        self.count += 1
        if kind in PAIRS:
            ranks = sorted((recorder.rank, peer if peer is not None else recorder.rank))
            recorder.enter_call("send or recv", line, "%s between two" % ranks)
        else:
            recorder.enter_call(kind.strip("_"), line, group)

    def leave(self):
        self.depth -= 1
        if not self.depth:
            self.recorder.leave_call()

    def wait(self, args, kwargs):
        """Before Work.wait() of an asynchronous call."""
        del args, kwargs
        self.recorder.enter_call("wait", lines.user_line(), None)

    def made_group(self, token, result, args, kwargs):
        """Numbers the groups that have the same ranks. All ranks make groups in one order."""
        del token, args, kwargs
        if isinstance(result, dist.ProcessGroup):
            ranks = ranks_of(result)
            same = [number for known, number in self.numbers.values() if known == ranks]
            self.numbers[id(result)] = ranks, len(same) + 1

    def group_of(self, values):
        """Returns the group's ranks, "all", or for a further group of the same ranks its name."""
        for value in values:
            if isinstance(value, dist.ProcessGroup) and value is not dist.group.WORLD:
                ranks, number = self.numbers.get(id(value), (ranks_of(value), 1))
                return ranks if number == 1 else "%s group %d" % (ranks, number)
        return "all"


def is_tensors(value):
    if isinstance(value, (list, tuple)):
        return bool(value) and all(isinstance(item, torch.Tensor) for item in value)
    return isinstance(value, torch.Tensor)


def numbers_in(kind, parts):
    """Returns how many numbers a call moves at most. Objects may hold any number."""
    if not parts and kind not in WITHOUT_DATA:
        return math.inf
    return sum(leaf.numel() for leaf in tensors.leaves_of(parts))


def sizes_of(value):
    if isinstance(value, torch.Tensor):
        return list(value.shape)
    return [list(item.shape) for item in value]


def few_values(tensor):
    """Returns the numbers of a small tensor, which may be a metric; else None."""
    if tensor.numel() > FEW or tensor.is_complex():
        return None
    return [float(value) for value in tensors.plain(tensor).reshape(-1).tolist()]


def operation(kind, values):
    """Returns the reduction's name; SUM, which PyTorch takes by default, if there is none."""
    if "reduce" not in kind:
        return ""
    for value in values:
        if type(value).__name__ in ("ReduceOp", "RedOpType", "_ReduceOp"):
            for name in OPERATIONS:
                if value == getattr(dist.ReduceOp, name, None):
                    return name.lower()
    return "sum"


def ranks_of(group):
    if hasattr(dist, "get_process_group_ranks"):
        return list(dist.get_process_group_ranks(group))
    return sorted(dist.distributed_c10d._pg_group_ranks[group])


def peer_of(kind, args, kwargs):
    """Returns the rank that a call names: its source, destination or partner."""
    for name in ("src", "dst"):
        if name in kwargs:
            return kwargs[name]
    second = kind in ("broadcast", "reduce", "send", "recv", "isend", "irecv")
    if second and len(args) > 1 and isinstance(args[1], int):
        return args[1]
    return None


def install(recorder):
    hooks = Collectives(recorder)
    if not dist.is_available():
        return
    for kind in CALLS:
        before = functools.partial(hooks.before, kind)
        after = hooks.made_group if kind == "new_group" else None
        recorder.wrap(dist.distributed_c10d, kind, before, after, hooks.leave)
        if hasattr(dist, kind) and hasattr(dist.distributed_c10d, kind):
            setattr(dist, kind, getattr(dist.distributed_c10d, kind))

    def joins(args, kwargs):
        given = [kwargs.get(n, (*args, *[-1] * 5)[i]) for n, i in (("rank", 4), ("world_size", 3))]
        recorder.join(*(-1 if value is None else int(value) for value in given))

    def joined(token, result, args, kwargs):
        del token, result, args, kwargs
        recorder.joined()

    def leaves(args, kwargs):
        del args, kwargs
        recorder.by_hand.settle()

    def left(token, result, args, kwargs):
        del token, result, args, kwargs
        time.sleep(RELEASE_SECONDS)

    recorder.wrap(
        dist.distributed_c10d, "init_process_group", joins, joined, recorder.leave_call
    )
    dist.init_process_group = dist.distributed_c10d.init_process_group
    recorder.wrap(dist.distributed_c10d, "destroy_process_group", leaves, left)
    dist.destroy_process_group = dist.distributed_c10d.destroy_process_group
    if hasattr(dist, "Work"):
        recorder.wrap(dist.Work, "wait", hooks.wait, last=recorder.leave_call)
