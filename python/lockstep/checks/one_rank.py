"""N ranks compute what one rank computes with the same global batch: gradients and losses.

The allowance comes from reference runs whose samples have another order and whose first parameters
are moved by half a unit in the last place. Such changes show what rounding can do. A tensor's
deviation is the largest of those of its norm, its projection and its sum (over the square root of
its size), relative to its norm, or to a thousandth of the largest tensor's norm if that is more.

    allowed = 8 * spread + 4 * ranks * 2^-24 * sqrt(size)

The spread is the largest deviation of the perturbed runs, over all tensors and all updates so far.
The factor 8 is that of //conformance:check (judge/compare.h): N ranks round once more for each
rank. The second part bounds the rounding of N partial sums, by Cauchy and Schwarz. If 8 * spread
exceeds 1%, nothing more is compared.
"""

import math

from ..verdict import Claim, Finding
from . import linear, parameters, shards

NAME = "the ranks compute what one rank computes"
LIMIT = 0.01
FACTOR = 8
UNIT = 2.0**-24
SAME_WEIGHTS = 1e-9  # Sums in float64 over other parts differ by less, and other weights by more.
RELATIVE_FLOOR = 1e-3
RANDOM_LAYERS = "Dropout"


class Step:
    """One update: the gradients of the ranks, of one rank, and what rounding allows."""

    def __init__(self, run, ranks, got, want, spread, sizes):
        """ranks: the ranks' steps. got, want: gradients of the ranks and of one rank."""
        self.run = run
        self.ranks = ranks
        self.got = got
        self.want = want
        self.sizes = sizes
        self.spread = spread

    def allowed(self, index):
        ranks = self.run.world_size
        return FACTOR * self.spread + 4 * ranks * UNIT * math.sqrt(self.sizes[index])

    def scales(self):
        return scales_of(self.want)

    def wrong(self, factor=1.0):
        """Returns the tensors that are not `factor` times those of one rank."""
        want = [scaled(gradient, factor) for gradient in self.want]
        scales = [factor * scale for scale in self.scales()]
        return [
            i
            for i, size in enumerate(self.sizes)
            if not deviation(self.got[i], want[i], size, scales[i]) <= self.allowed(i)
        ]


def scaled(gradient, factor):
    if gradient is None:
        return None
    text, total, squares, projection = gradient
    return [text, factor * total, factor**2 * squares, factor * projection]


def scales_of(gradients):
    norms = [0.0 if g is None else math.sqrt(g[2]) for g in gradients]
    floor = RELATIVE_FLOOR * max(norms, default=0.0)
    return [max(norm, floor) for norm in norms]


def deviation(got, want, size, scale):
    """Returns how far a gradient is from the wanted one, relative to `scale`."""
    if got is None or want is None:
        other = got or want
        return math.sqrt(other[2]) / scale if other and other[2] and scale else 0.0
    if scale == 0:
        return 0.0 if got[2] == 0 else math.inf
    parts = (
        abs(math.sqrt(got[2]) - math.sqrt(want[2])),
        abs(got[3] - want[3]),
        abs(got[1] - want[1]) / math.sqrt(max(size, 1)),
    )
    return max(parts) / scale


def check(run, references):
    """Returns a Claim, findings and notes. references: the plain run, then the perturbed ones."""
    ranks = [rank.optimizers for rank in run.ranks]
    ones = [reference.ranks[0].optimizers for reference in references]
    findings, notes, count = [], [], 0
    why_not = why_not_comparable(run, references)
    for number in sorted(ranks[0]) if not why_not else ():
        own = [of_rank[number] for of_rank in ranks]
        compared = Comparison(run, own, [of_one[number] for of_one in ones])
        compared.compare(references[0])
        count += compared.count
        findings += compared.findings
        notes += compared.notes
    return Claim(NAME, count, "updates", why_not or "; ".join(notes)), findings, notes


def why_not_comparable(run, references):
    first, one = run.ranks[0], references[0].ranks[0]
    if set(first.optimizers) != set(one.optimizers):
        return "one rank makes other optimizers"
    for number, optimizer in first.optimizers.items():
        other = one.optimizers[number]
        why_not = parameters.not_comparable(run)
        if why_not or optimizer.shapes != other.shapes:
            return why_not or "one rank's parameters have other shapes"
        if any(model["batch_norms"]["local"] for model in optimizer.models):
            return "batch norm normalises each rank's own samples, and one rank computes others"
        if any(model.get("random") for model in optimizer.models):
            return "the model draws random numbers (%s)" % RANDOM_LAYERS
        if not optimizer.steps or not other.steps:
            return "an optimizer took no step"
        if not starts_alike([rank.optimizers[number] for rank in run.ranks], other):
            return "one rank starts from other weights"
    return ""


def starts_alike(optimizers, one):
    """Whether the ranks and one rank start from the same weights."""
    if not any(optimizers[0].parts):
        return optimizers[0].steps[0].before == one.steps[0].before
    got = shards.whole(optimizers, [optimizer.steps[0].first for optimizer in optimizers])
    want = one.steps[0].first
    if got is None or want is None:
        return False
    sizes = [math.prod(shape) for shape in one.shapes]
    apart = map(deviation, got, want, sizes, scales_of(want))
    return all(part <= SAME_WEIGHTS for part in apart)


class Comparison:
    """Compares one optimizer's updates with those of one rank, up to the first difference."""

    def __init__(self, run, ranks, ones):
        self.run = run
        self.ranks = ranks
        self.ones = ones
        self.sizes = [math.prod(shape) for shape in ranks[0].shapes]
        self.spread = 0.0
        self.count = 0
        self.findings = []
        self.notes = []

    def compare(self, reference):
        length = min(len(o.steps) for o in (*self.ranks, *self.ones))
        for index in range(length):
            ranks = [optimizer.steps[index] for optimizer in self.ranks]
            ones = [optimizer.steps[index] for optimizer in self.ones]
            if self.samples_differ(reference, ranks[0].update, ones[0].update):
                self.notes.append("one rank trains on other samples at update %d" % ranks[0].update)
                return
            if self.rates_differ(ranks[0], ones[0], index):
                return
            got = shards.whole_gradients(self.ranks, ranks)
            if got is None or any(one.gradients is None for one in ones):
                continue
            self.widen(ones)
            if not FACTOR * self.spread <= LIMIT:
                self.notes.append(
                    "rounding alone moves one rank's gradients by %.1g at update %d: later updates"
                    " are not compared" % (self.spread, ranks[0].update)
                )
                return
            self.count += 1
            step = Step(self.run, ranks, got, ones[0].gradients, self.spread, self.sizes)
            wrong = step.wrong()
            if wrong:
                self.findings.append(explain(step, self.ranks[0], wrong, reference))
                return

    def widen(self, ones):
        for other in ones[1:]:
            scales = scales_of(ones[0].gradients)
            for i, size in enumerate(self.sizes):
                apart = deviation(other.gradients[i], ones[0].gradients[i], size, scales[i])
                self.spread = max(self.spread, apart)

    def samples_differ(self, reference, update, one_update):
        """Whether the ranks' samples of an update, in any order, are not those of one rank.

        Equal indices are enough: a batch that is padded to its longest sample changes contents.
        """
        for key in ("indices", "samples"):
            got = [s for rank in self.run.ranks for s in samples_of(rank, update, key)]
            want = samples_of(reference.ranks[0], one_update, key)
            if sorted(got, key=str) == sorted(want, key=str):
                return False
        return True

    def rates_differ(self, step, one, index):
        got, want = ([group.get("lr") for group in s.groups or []] for s in (step, one))
        close = len(got) == len(want) and all(
            g == w or (g and w and abs(g - w) <= 1e-6 * abs(w)) for g, w in zip(got, want)
        )
        if close:
            return False
        words = "the learning rate is %s, and %s at one rank" % (got[0], want[0])
        if index == 0:
            self.notes.append(words + ": it seems scaled on purpose, and updates are not compared")
            return True
        if any(event.get("steps", 1) > 1 for event in self.run.ranks[0].of("schedule")):
            self.notes.append(
                words + ": Accelerate steps the schedule once per rank, unless split_batches is set,"
                " and update %d and later ones are not compared" % step.update
            )
            return True
        evidence = [words, "it is the same in the updates before"]
        self.findings.append(
            Finding(
                NAME, "schedule_depends_on_ranks", evidence, update=step.update, line=step.line
            )
        )
        return True


def samples_of(rank, update, key):
    """Returns the indices, or the digests, of the samples that an update is computed from."""
    return [
        sample
        for event in rank.of("batch")
        if event["update"] == update and event["loader"] in rank.training_loaders
        for sample in event[key] or []
    ]


def explain(step, optimizer, wrong, reference):
    names = [optimizer.names[i] for i in wrong]
    worst = max(wrong, key=lambda i: off_by(step, i))
    evidence = [
        "%s is off by %.2g of its size, and rounding allows %.1g"
        % (optimizer.names[worst], off_by(step, worst), step.allowed(worst))
    ]
    cause, more = cause_of(step)
    losses = losses_of(step, reference)
    return Finding(
        NAME,
        cause,
        evidence + more + losses,
        text="the gradients are not those of one rank" if cause == "unknown" else "",
        update=step.ranks[0].update,
        tensors=names,
        ranks=[rank.rank for rank in step.run.ranks],
        line=line_of(step),
    )


def off_by(step, index):
    return deviation(step.got[index], step.want[index], step.sizes[index], step.scales()[index])


def line_of(step):
    """Returns the line of the update's last backward pass: the loss is scaled there or before."""
    update = step.ranks[0].update
    passes = [e for e in step.run.ranks[0].of("backward") if e["update"] == update]
    return passes[-1]["line"] if passes else step.ranks[0].line


def cause_of(step):
    """Returns a cause that explains every tensor, and the evidence for it."""
    ranks = step.run.world_size
    for factor, cause in ((1 / ranks, "divided_by_ranks_again"), (ranks, "summed_not_averaged")):
        if not step.wrong(factor):
            return cause, ["every tensor is %g times that of one rank" % factor]
    weights = weights_of_ranks(step)
    if weights is not None:
        shown = ", ".join("%.4g" % weight for weight in weights)
        even = max(weights) - min(weights) < 0.01
        if not even and abs(sum(weights) - 1) < 0.01 and is_even_mean(step):
            return "mean_of_means", [
                "one rank's gradient is the ranks' with weights %s, and the ranks take 1/%d each"
                % (shown, ranks)
            ]
        return "unknown", ["one rank's gradient is that of the ranks with weights " + shown]
    return "unknown", []


def weights_of_ranks(step):
    """Returns weights with which the ranks' own gradients add up to one rank's, or None."""
    owns = [linear.own(rank) for rank in step.ranks]
    want = linear.used(step.want)
    if want is None or None in owns:
        return None
    weights = linear.fit(owns, want)
    return weights if weights and linear.rest(owns, weights, want) <= LIMIT else None


def is_even_mean(step):
    """Whether the ranks' gradient is the mean of their own."""
    owns = [linear.own(rank) for rank in step.ranks]
    got = linear.used(step.got)
    return got is not None and linear.rest([linear.mean(owns)], [1.0], got) <= LIMIT


def losses_of(step, reference):
    """Returns evidence from the losses of an update, if each rank has one."""
    update = step.ranks[0].update
    by_rank = []
    for rank in (*step.run.ranks, reference.ranks[0]):
        passes = [e for e in rank.of("backward") if e["update"] == update]
        if len(passes) != 1 or len(passes[0]["loss"]) != 1:
            return []
        by_rank.append(passes[0]["loss"][0])
    shown = ", ".join("%.6g" % loss for loss in by_rank[:-1])
    return ["losses by rank: %s; of one rank: %.6g" % (shown, by_rank[-1])]
