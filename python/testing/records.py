"""Records of a right run of two ranks, for tests of the checks to break."""

import copy
import hashlib
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from lockstep import evidence, judge
from lockstep.checks import earlier_run

NAMES = ("body.weight", "head.weight")
UPDATES = 8
PER_EPOCH = 4
BATCH = 4
SIZE = 12  # Of each tensor.


def digest(*parts):
    """Returns 16 hex digits that differ for different parts."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def vector(*parts):
    """Returns SIZE numbers in [-1, 1) that differ for different parts."""
    return [int(digest(i, *parts), 16) / 2**63 - 1 for i in range(SIZE)]


def mean_vector(update, index, weights=(0.5, 0.5)):
    """Returns the mean of both ranks' own gradients."""
    own = [vector(update, index, rank) for rank in (0, 1)]
    return [sum(w * x for w, x in zip(weights, pair)) for pair in zip(*own)]


def recorded(values, first=0):
    """Returns [digest, sum, sum of squares, projection], as the hooks record a gradient.

    first: the place of the values in the whole gradient, if these are a rank's part of it.
    """
    projection = sum(x * ((7 * i) % 11 - 5) / 5 for i, x in enumerate(values, first))
    return [digest("gradient", values), sum(values), sum(x * x for x in values), projection]


def gradient(*parts):
    return recorded(vector(*parts))


def batch_events(rank, update):
    epoch, batch = divmod(update, PER_EPOCH)
    first = batch * BATCH
    indices = [(7 * i + 11 * epoch) % 32 * 2 + rank for i in range(first, first + BATCH)]
    events = []
    if batch == 0:
        sampler = {"type": "DistributedSampler", "length": 16, "num_replicas": 2, "rank": rank}
        sampler.update(shuffle=True, seed=0, epoch=epoch, distributed=True, generator=False)
        events.append({"event": "pass", "loader": 0, "number": epoch, "update": update})
        events[-1].update(line="/s/train.py:20", samples=32, sampler=sampler)
    events.append({"event": "batch", "loader": 0, "number": epoch, "batch": batch})
    events[-1].update(update=update, indices=indices, samples=[digest("x", i) for i in indices])
    if update == 0:
        events.append({"event": "trains", "loader": 0})
    return events


def update_events(rank, update):
    parameters = range(len(NAMES))
    line = "/s/train.py:%d"
    loss = {"event": "backward", "update": update, "loss": [1.5 - rank], "line": line % 30}
    call = {"event": "call", "call": update, "update": update, "kind": "all_reduce"}
    call.update(sizes=[[12]], dtype="float32", op="sum", group="all", peer=None, line=line % 31)
    clip = {"event": "clip", "update": update, "norm": 2.0 + update, "largest": 1.0}
    clip["line"] = line % 32
    step = {"event": "step", "update": update, "optimizer": 0, "step": update, "line": line % 33}
    step["gradients"] = [recorded(mean_vector(update, i)) for i in parameters]
    own = [gradient(update, i, rank) for i in parameters]
    step["local"] = [[1, total, projection] for _, total, _, projection in own]
    step["left_out"] = []
    if update == 0:
        step["before"] = [digest("p", -1, i) for i in parameters]
        step["groups"] = [{"lr": 0.1, "momentum": 0.9}]
        step["first"] = [recorded(vector("first", i)) for i in parameters]
    step["after"] = [digest("p", update, i) for i in parameters]
    step["buffers"] = [digest("b", update, rank)]
    schedule = {"event": "schedule", "schedule": 0, "type": "StepLR", "update": update + 1}
    schedule["line"] = line % 34
    ddp = {"ddp": [0, 1]}
    return [*batch_events(rank, update), {**loss, **ddp}, call, clip, step, schedule]


def evaluation_events(rank, update):
    samples = [10, 6][rank]
    return [
        {"event": "evaluate", "update": update, "optimizer": 0, "line": "/s/train.py:40"}
        | {"buffers": [digest("b", "average", update)]},
        {"event": "batch", "loader": 1, "number": 0, "batch": 0, "update": update}
        | {"indices": list(range(samples)), "samples": [digest("e", i) for i in range(samples)]},
        {"event": "call", "call": 100 + update, "update": update, "kind": "all_reduce"}
        | {"sizes": [[2]], "dtype": "float32", "op": "sum", "group": "all", "peer": None}
        | {"line": "/s/train.py:41", "values": [samples - 2.0, float(samples)]},
    ]


def events_of(rank):
    model = {"type": "Net", "ddp": True, "buffers": ["norm.running_mean"], "trains": 2}
    model["batch_norms"] = {"sync": ["norm"], "local": []}
    events = [
        {"event": "process", "pid": 100 + rank, "argv": ["train.py"], "torch": "2", "python": "3"},
        {"event": "rank", "rank": rank, "world_size": 2, "source": "RANK"},
        {"event": "ddp", "ddp": 0, "update": 0, "line": "/s/train.py:10"},
        {"event": "optimizer", "optimizer": 0, "type": "SGD", "line": "/s/train.py:11"}
        | {"parameters": [[name, [3, 4], "float32"] for name in NAMES], "models": [model]},
    ]
    for update in range(UPDATES):
        events += update_events(rank, update)
    events += evaluation_events(rank, UPDATES)
    return events + [{"event": "end", "update": UPDATES, "errors": 0}]


def one_rank_events(shift=0.0):
    """Returns the events of one rank with the global batch; its gradients are moved by `shift`."""
    ranks = [events_of(rank) for rank in (0, 1)]
    events = []
    for mine, other in zip(*ranks):
        kind = mine["event"]
        if kind == "rank":
            mine["world_size"] = 1
        if kind == "batch":
            mine["indices"] = other["indices"] + mine["indices"]
            mine["samples"] = other["samples"] + mine["samples"]
        if kind == "step":
            means = [mean_vector(mine["update"], i) for i in range(len(NAMES))]
            mine["gradients"] = [recorded([x * (1 + shift) for x in mean]) for mean in means]
        if kind == "backward":
            mine["loss"] = [(mine["loss"][0] + other["loss"][0]) / 2]
        events.append(mine)
    return events


class Record:
    """The events of both ranks, which a test changes before it judges them."""

    def __init__(self):
        self.events = [copy.deepcopy(events_of(rank)) for rank in (0, 1)]
        self.status = 0
        self.hung_seconds = None
        self.waits = []
        self.gone = []  # The ranks whose processes were gone first: {"rank", "status"}.
        self.references = []
        self.earlier = None  # Or the events of an earlier run's ranks.
        self.repeats = []  # The events of each repeat's ranks.

    def of(self, rank, kind):
        return [event for event in self.events[rank] if event["event"] == kind]

    def remove(self, rank, *kinds):
        self.events[rank] = [e for e in self.events[rank] if e["event"] not in kinds]

    def shard(self):
        """Gives each rank its half of all parameters, as FSDP2 does, and of their gradients."""
        for rank in (0, 1):
            part = [rank * SIZE // 2, SIZE // 2]
            (optimizer,) = self.of(rank, "optimizer")
            optimizer["parts"] = [part] * len(NAMES)
            for step in self.of(rank, "step"):
                means = [mean_vector(step["update"], i) for i in range(len(NAMES))]
                halves = [mean[part[0] : sum(part)] for mean in means]
                step["gradients"] = [recorded(half, part[0]) for half in halves]
                step["reduced"] = [recorded(half, part[0]) for half in halves]
                for name in {"before", "after"} & set(step):
                    step[name] = [digest(text, rank) for text in step[name]]
            self.of(rank, "step")[0]["first"] = [
                recorded(vector("first", i)[part[0] : sum(part)], part[0])
                for i in range(len(NAMES))
            ]
            self.remove(rank, "clip")

    def accumulate(self):
        """Makes two backward passes of each one, each with half of the loss."""
        for rank in (0, 1):
            for event in self.of(rank, "backward"):
                event["scale"] = 0.5
                self.events[rank].insert(self.events[rank].index(event), dict(event))

    def resume(self, epoch=1, called=1):
        """Restores all from a checkpoint with an epoch; set_epoch(called) comes before training."""
        for rank in (0, 1):
            self.events[rank][4:4] = [
                {"event": "load", "update": 0, "path": "c.pt", "epochs": {"epoch": epoch}},
                {"event": "restore", "update": 0, "what": "optimizer", "line": "/s/train.py:12"},
                {"event": "set_epoch", "epoch": called, "line": "/s/train.py:19"},
            ]

    def add_references(self, shifts=(0.0, 1e-7, -1e-7)):
        self.references = [one_rank_events(shift) for shift in shifts]

    def add_earlier(self, shifts=(1e-7, -1e-7)):
        """Adds an earlier run with the same bits, and repeats whose gradients are moved."""
        self.earlier = copy.deepcopy(self.events)
        self.repeats = [[moved(events, shift) for events in self.events] for shift in shifts]

    def judge(self):
        run = run_of(self.events)
        run.status, run.hung_seconds, run.waits = self.status, self.hung_seconds, self.waits
        run.gone = self.gone
        references = [run_of([events]) for events in self.references]
        earlier = None
        if self.earlier is not None:
            repeats = [run_of(events) for events in self.repeats]
            earlier = earlier_run.Earlier(run_of(self.earlier), repeats)
        return judge.judge(run, references, earlier=earlier)


def run_of(events):
    return evidence.Run([evidence.Rank(rank, of_rank) for rank, of_rank in enumerate(events)])


def moved(events, shift):
    """Returns a rank's events with other bits: gradients and first weights are moved by `shift`."""
    events = copy.deepcopy(events)
    for event in events:
        if event["event"] == "step":
            step = event["step"]
            means = [mean_vector(step, i) for i in range(len(NAMES))]
            event["gradients"] = [recorded([x * (1 + shift) for x in mean]) for mean in means]
            event["after"] = [digest("p", step, i, shift) for i in range(len(NAMES))]
            if step == 0:
                event["before"] = [digest("p", -1, i, shift) for i in range(len(NAMES))]
                first = [vector("first", i) for i in range(len(NAMES))]
                event["first"] = [recorded([x * (1 + shift) for x in values]) for values in first]
    return events
