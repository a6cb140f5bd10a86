"""N ranks compute what one rank computes with the same global batch: gradients and losses.

The allowance comes from reference runs of one rank (rounding.py).
"""

import math

from ..verdict import Claim, Finding
from . import by_hand, linear, parameters, rounding, samples, shards

NAME = "the ranks compute what one rank computes"
SAME_WEIGHTS = 1e-9  # Sums in float64 over other parts differ by less, and other weights by more.
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
        return rounding.allowed(self.spread, self.run.world_size, self.sizes[index])

    def scales(self):
        return rounding.scales_of(self.want)

    def wrong(self, factor=1.0):
        """Returns the tensors that are not `factor` times those of one rank."""
        want = [scaled(gradient, factor) for gradient in self.want]
        scales = [factor * scale for scale in self.scales()]
        return [
            i
            for i, size in enumerate(self.sizes)
            if not rounding.deviation(self.got[i], want[i], size, scales[i]) <= self.allowed(i)
        ]


    def is_multiple(self):
        """Whether all tensors are those of one rank times or through the number of ranks."""
        ranks = self.run.world_size
        return not self.wrong(ranks) or not self.wrong(1 / ranks)


def scaled(gradient, factor):
    if gradient is None:
        return None
    text, total, squares, projection = gradient
    return [text, factor * total, factor**2 * squares, factor * projection]


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
        if rounding.draws_in_layers(run):
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
    apart = map(rounding.deviation, got, want, sizes, rounding.scales_of(want))
    return all(part <= SAME_WEIGHTS for part in apart)


class Comparison:
    """Compares one optimizer's updates with those of one rank, up to the first difference."""

    def __init__(self, run, ranks, ones):
        self.run = run
        self.ranks = ranks
        self.ones = ones
        self.sizes = [math.prod(shape) for shape in ranks[0].shapes]
        self.first_draw = rounding.first_draw(run.ranks)
        self.spread = 0.0
        self.use = by_hand.Use()
        self.count = 0
        self.findings = []
        self.notes = []

    def compare(self, reference):
        length = min(len(o.steps) for o in (*self.ranks, *self.ones))
        for index in range(length):
            ranks = [optimizer.steps[index] for optimizer in self.ranks]
            ones = [optimizer.steps[index] for optimizer in self.ones]
            why_not = self.why_not_from_here(reference, ranks[0].update, ones[0].update)
            if why_not:
                self.notes.append("%s at update %d" % (why_not, ranks[0].update))
                return
            if self.rates_differ(ranks[0], ones[0], index):
                return
            got = shards.whole_gradients(self.ranks, ranks)
            if got is None or any(one.gradients is None for one in ones):
                continue
            self.widen(ones)
            if not rounding.FACTOR * self.spread <= rounding.LIMIT:
                self.notes.append(
                    "rounding alone moves one rank's gradients by %.1g at update %d: later updates"
                    " are not compared" % (self.spread, ranks[0].update)
                )
                return
            why_not = "" if index else self.use.learn(ranks[0], got, ones[0], self.run.world_size)
            if not why_not:
                why_not = self.judge(ranks, got, ones[0], reference)
            if why_not:
                self.notes.append(why_not)
            if why_not or self.findings:
                return

    def judge(self, ranks, got, one, reference):
        """Judges an update. Adds a finding if it is wrong; returns why it cannot be judged."""
        got = [scaled(gradient, self.use.factor or 1.0) for gradient in got]
        step = Step(self.run, ranks, got, one.gradients, self.spread, self.sizes)
        wrong = step.wrong()
        if wrong and self.use.factor is None and step.is_multiple():
            return (
                "the gradients of update %d are a multiple of one rank's by the number of ranks,"
                " which an update by hand may take back" % ranks[0].update
            )
        self.count += 1
        if wrong:
            self.findings.append(explain(step, self.ranks[0], wrong, reference))
        return ""

    def widen(self, ones):
        for other in ones[1:]:
            apart = rounding.deviations(other.gradients, ones[0].gradients, self.sizes)
            self.spread = max([self.spread, *apart])

    def why_not_from_here(self, reference, update, one_update):
        """Returns why this update and later ones cannot be compared, or ""."""
        kind = samples.compare(self.run.ranks, reference.ranks, update, one_update)
        if kind != samples.SAME:
            return "one rank trains on other samples"
        if self.first_draw is not None and self.first_draw <= update:
            return "the script draws random numbers, and one rank draws others"
        return ""

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
                "%s: Accelerate steps the schedule once per rank, unless split_batches is set, and"
                " update %d and later ones are not compared" % (words, step.update)
            )
            return True
        evidence = [words, "it is the same in the updates before"]
        self.findings.append(
            Finding(
                NAME, "schedule_depends_on_ranks", evidence, update=step.update, line=step.line
            )
        )
        return True


def explain(step, optimizer, wrong, reference):
    update = step.ranks[0].update
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
        update=update,
        tensors=names,
        ranks=[rank.rank for rank in step.run.ranks],
        line=step.run.ranks[0].loss_line(update) or step.ranks[0].line,
    )


def off_by(step, index):
    got, want = step.got[index], step.want[index]
    return rounding.deviation(got, want, step.sizes[index], step.scales()[index])


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
    return weights if weights and linear.rest(owns, weights, want) <= rounding.LIMIT else None


def is_even_mean(step):
    """Whether the ranks' gradient is the mean of their own."""
    owns = [linear.own(rank) for rank in step.ranks]
    got = linear.used(step.got)
    return got is not None and linear.rest([linear.mean(owns)], [1.0], got) <= rounding.LIMIT


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
