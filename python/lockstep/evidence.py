"""A run's record, as the checks read it."""

import collections
import functools
import os

from . import record, waits


class Step:
    """The update number `number` of one optimizer, on one rank."""

    def __init__(self, event, number):
        self.number = number
        self.update = event["update"]  # The number of the update among those of all optimizers.
        self.line = event.get("line", "")
        self.gradients = event.get("gradients")
        self.reduced = event.get("reduced")  # The same after the last backward pass, of shards.
        self.local = event.get("local")
        self.before = event.get("before")
        self.after = event["after"]
        self.buffers = event.get("buffers", [])
        self.left_out = event.get("left_out", [])
        self.strangers = event.get("strangers", 0)
        self.groups = event.get("groups")
        self.drew = event.get("drew", False)
        self.first = event.get("first")
        # By parameter: by how much an update by hand moves its sum and its projection.
        self.moved = event.get("moved")


class Optimizer:
    """One optimizer on one rank, with its steps."""

    def __init__(self, event):
        self.number = event["optimizer"]
        self.type = event["type"]
        self.by_hand = self.type == "ByHand"  # Then its line is that of a backward pass.
        self.line = event.get("line", "")
        self.names = [name for name, _, _ in event["parameters"]]
        self.shapes = [shape for _, shape, _ in event["parameters"]]
        self.dtypes = [dtype for _, _, dtype in event["parameters"]]
        self.models = event["models"]
        self.sharded = event.get("sharded", "")
        # By parameter: the rank's [first element, number], or None if the rank holds all of it.
        self.parts = event.get("parts") or [None] * len(self.names)
        self.steps = []


class Rank:
    """One rank's events, sorted by kind."""

    def __init__(self, rank, events):
        self.rank = rank
        self.events = events
        self.world_size = next((e["world_size"] for e in self.of("rank")[::-1]), 1)
        self.by_update = None  # By kind and update, once they are asked for.
        self.optimizers = {}
        for event in events:
            if event["event"] == "optimizer":
                known = self.optimizers.get(event["optimizer"])
                described = Optimizer(event)
                if known:
                    described.steps = known.steps
                self.optimizers[event["optimizer"]] = described
            elif event["event"] == "step":
                steps = self.optimizers[event["optimizer"]].steps
                step = Step(event, len(steps))
                if steps:  # A field that is left out has not changed.
                    step.groups = step.groups or steps[-1].groups
                    step.before = step.before or steps[-1].after
                steps.append(step)

    def of(self, *kinds):
        return [event for event in self.events if event["event"] in kinds]

    def before_training(self, kind):
        """Returns the events of a kind before the first update."""
        found = []
        for event in self.events:
            if event["event"] == "step":
                break
            found += [event] if event["event"] == kind else []
        return found

    def loss_line(self, update):
        """Returns the line of an update's last backward pass: the loss is made there or before."""
        passes = self.at("backward", update)
        return passes[-1]["line"] if passes else ""

    @property
    def updates(self):
        return sum(len(optimizer.steps) for optimizer in self.optimizers.values())

    @property
    def ended(self):
        return bool(self.of("end"))

    @property
    def bounded(self):
        return bool(self.of("bounded"))

    def at(self, kind, update):
        """Returns the events of a kind that belong to an update."""
        if self.by_update is None:
            self.by_update = collections.defaultdict(list)
            for event in self.events:
                self.by_update[event["event"], event.get("update")].append(event)
        return self.by_update.get((kind, update), [])

    @functools.cached_property
    def training_loaders(self):
        return {event["loader"] for event in self.of("trains")}

    def training_batches(self, update):
        """Returns the batches from which an update is computed."""
        return [e for e in self.at("batch", update) if e["loader"] in self.training_loaders]


class Run:
    """All ranks of a run, and how its command ended."""

    def __init__(self, ranks, status=0, hung_seconds=None, failures=(), stopped=None, waits=()):
        self.gone = []  # The ranks that `run` saw gone first: {"rank", "status"}.
        self.ranks = ranks
        self.folder = ""  # Where its record is, if it was read from one.
        self.comparison = None  # The claim that compares it with an earlier run.
        self.waits = list(waits)  # Those that `run` saw.
        self.stopped = stopped  # The finding for which --fail_fast ended the run, or None.
        self.status = status
        self.hung_seconds = hung_seconds
        self.failures = list(failures)  # Texts of recorders that did not start.
        self.world_size = max([rank.world_size for rank in ranks], default=0)

    @property
    def errors(self):
        """Returns the errors of our own hooks, in words."""
        found = list(self.failures)
        for rank in self.ranks:
            for event in rank.of("error"):
                last = event["traceback"].strip().splitlines()[-1]
                found.append("rank %d: hook %s: %s" % (rank.rank, event["hook"], last))
        return found


def read_run(folder, status=0, hung_seconds=None, stopped=None):
    """Reads the record in `folder`. Raises OSError if there is no such folder."""
    paths, _ = record.rank_paths(folder)
    ranks = [Rank(rank, record.read_events(path)) for rank, path in sorted(paths.items())]
    failures = []
    for name in sorted(os.listdir(folder)):
        if name.startswith("error-"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                failures.append(file.read().strip().splitlines()[-1])
    run = Run(ranks, status, hung_seconds, failures, stopped, waits.read(folder))
    run.folder = folder
    run.gone = [each for event in waits.read(folder, waits.GONE)[:1] for each in event["ranks"]]
    return run
