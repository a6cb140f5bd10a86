"""The run computes what an earlier run computed: weights, settings, gradients, parameters.

Digests tell whether two runs have the same bits. From the first update on in which bits differ,
gradients are compared within what rounding can do (rounding.py), as repeats of this run show it.
Without repeats, nothing says what rounding can do: other bits are told and not judged. Updates from
other samples are not judged either, and whatever repeats of this run do not repeat.
"""

import math

from ..verdict import Claim, Finding, few
from . import conditions, rounding, samples

NAME = "the run computes what the earlier run computed"
WEIGHTS, BEFORE, GRADIENTS, AFTER = (
    "the first weights",
    "the parameters before the step",
    "the gradients",
    "the parameters after the step",
)
# Settings that choose an implementation, and the one that only a scheduler keeps.
IMPLEMENTATION = ("foreach", "fused", "capturable", "differentiable", "initial_lr")
FEW_UNITS = 8  # Versions of PyTorch that draw the same first weights may round each differently.
NOT_JUDGED = "not judged: "


class Earlier:
    """An earlier run, and repeats of this run, or why there are none."""

    def __init__(self, run, repeats=()):
        self.run = run
        self.why_not = ""  # Why there is no earlier run.
        self.repeats = list(repeats)
        self.why_no_repeats = "no repeat of this run shows what rounding does"


def check(run, earlier):
    """Returns a Claim, findings and notes."""
    why_not = earlier.why_not or why_not_comparable(run, earlier.run)
    if why_not:
        return Claim(NAME, why_not=why_not), [], []
    compared = [Comparison(run, earlier, number) for number in sorted(run.ranks[0].optimizers)]
    for comparison in compared:
        comparison.compare()
    count = sum(comparison.count for comparison in compared)
    notes = list(dict.fromkeys(note for comparison in compared for note in comparison.notes))
    findings = [comparison.finding for comparison in compared if comparison.finding]
    findings.sort(key=lambda finding: finding.update)
    if count and all(comparison.first is None for comparison in compared):
        notes.insert(0, "the same bits as the earlier run, in %d updates" % count)
    return Claim(NAME, count, "updates", "; ".join(notes)), findings[:1], notes


def needs_repeats(run, earlier):
    """Whether bits differ from the earlier run's, so that repeats must show what rounding does."""
    return any(note.startswith(NOT_JUDGED) for note in check(run, Earlier(earlier))[2])


def why_not_comparable(run, then):
    if not run.ranks or not then.ranks:
        return "a run left no record of a rank"
    now = run.ranks[0].optimizers
    if not now or set(now) != set(then.ranks[0].optimizers):
        return "the runs make different optimizers"
    if any(conditions.restores(r) for r in (run, then)) and (
        conditions.restores(run) != conditions.restores(then)
    ):
        return "one of the runs starts from a checkpoint"
    if conditions.types(run) != conditions.types(then):
        shown = few(conditions.types(run)), few(conditions.types(then))
        return "the parameters' types differ: %s now, %s then" % shown
    pairs = [(optimizer, then.ranks[0].optimizers[number]) for number, optimizer in now.items()]
    if any((any(o.parts) or any(b.parts)) and o.parts != b.parts for o, b in pairs):
        return "the runs shard the parameters in other ways"
    other_ranks = run.world_size != then.world_size
    if other_ranks and any(optimizer.sharded for optimizer in now.values()):
        return "the parameters are sharded over another number of ranks"
    if other_ranks and any(m["batch_norms"]["local"] for o in now.values() for m in o.models):
        return "batch norm normalises each rank's own samples, and the ranks' shares differ"
    others = conditions.arithmetic(run, then)
    if rounding.draws_in_layers(run) and (other_ranks or others):
        return "the model draws random numbers, and the runs may draw others (%s)" % (
            "other numbers of ranks" if other_ranks else "; ".join(others)
        )
    return ""


class Comparison:
    """Compares one optimizer's updates, up to the first that is wrong."""

    def __init__(self, run, earlier, number):
        self.run, self.then, self.repeats = run, earlier.run, earlier.repeats
        self.why_no_repeats = earlier.why_no_repeats
        count = len(run.ranks) if run.world_size == self.then.world_size else 1
        ranks = range(min(count, len(self.then.ranks)))
        self.now = [run.ranks[r].optimizers[number] for r in ranks]
        self.before = [self.then.ranks[r].optimizers[number] for r in ranks]
        self.again = [[r.ranks[rank].optimizers[number] for rank in ranks] for r in self.repeats]
        self.sizes = [math.prod(shape) for shape in self.now[0].shapes]
        self.first_draw = self.draw_that_differs()
        self.first = None  # Of the bits that differ: (update, stage, tensors, ranks).
        self.spread = 0.0
        self.widened = 0  # Updates that the spread is from.
        self.judged = 0  # Updates whose gradients are within it.
        self.used = 0.0  # The largest part of an allowance that a deviation takes.
        self.count = 0
        self.finding = None
        self.notes = []

    def draw_that_differs(self):
        """Returns the first update for which the two runs may draw different numbers, or None."""
        same_ranks = self.run.world_size == self.then.world_size
        if same_ranks and not conditions.arithmetic(self.run, self.then):
            return None
        return rounding.first_draw(self.run.ranks)

    def compare(self):
        if self.now[0].shapes != self.before[0].shapes:
            self.finding = self.other_parameters()
            return
        lengths = [min(len(o.steps) for o in side) for side in (self.now, self.before)]
        for index in range(min(lengths)):
            why_not = self.why_not_from_here(index) or self.judge(index)
            if why_not:
                self.notes.append(why_not)
            if why_not or self.finding:
                break
            self.count += 1
        cut = conditions.first_of(self.then, "process").get("options", {}).get("reference")
        if self.count == min(lengths) and lengths[0] != lengths[1] and not cut:
            self.notes.append("the run makes %d updates, and the earlier one %d" % tuple(lengths))
        if self.first and self.repeats and not self.finding:
            self.notes += self.explanation()

    def explanation(self):
        """Returns a note on other bits that no finding is about, if updates have judged them."""
        if self.judged:
            text = "; rounding explains it in %d updates: gradients are off by %.1g of what it"
            return [self.words_of_first() + (text + " allows") % (self.judged, self.used)]
        if self.count and self.first[0] < self.now[0].steps[self.count - 1].update:
            return [self.words_of_first() + "; later gradients have the same bits"]
        return []

    def steps(self, index):
        return [o.steps[index] for o in self.now], [o.steps[index] for o in self.before]

    def why_not_from_here(self, index):
        """Returns why this update and later ones cannot be compared, or ""."""
        now, then = (steps[0].update for steps in self.steps(index))
        kind = samples.compare(self.run.ranks, self.then.ranks, now, then)
        if kind == samples.OTHER:
            return "the runs train on different samples from update %d on" % now
        if kind == samples.CONTENTS:
            if not self.repeats:
                return self.not_judged("the samples of update %d have other contents" % now)
            if any(self.contents_differ(again, index) for again in self.repeats):
                return "the samples' contents are random: update %d is not compared" % now
        if self.first_draw is not None and self.first_draw <= now:
            return "the script draws random numbers before update %d: the runs draw others" % now
        return ""

    def contents_differ(self, again, index):
        update = self.now[0].steps[index].update
        return samples.compare(self.run.ranks, again.ranks, update, update) == samples.CONTENTS

    def not_judged(self, what):
        return "%s%s, and %s" % (NOT_JUDGED, what, self.why_no_repeats)

    def judge(self, index):
        """Judges an update. Sets the finding if it is wrong; returns why it cannot be judged."""
        now, then = self.steps(index)
        settings = settings_that_differ(self.now[0], self.before[0], index)
        if settings and not index and self.run.world_size != self.then.world_size:
            return settings[0] + ": it seems scaled on purpose, and updates are not compared"
        for stage, digests in (
            (BEFORE if index else WEIGHTS, lambda step: step.before),
            (GRADIENTS, digests_of),
            (AFTER, lambda step: step.after),
        ):
            wrong, ranks = differing(map(digests, now), map(digests, then))
            if not wrong or (stage == AFTER and settings):
                continue
            if self.first is None:
                self.first = now[0].update, stage, [self.now[0].names[i] for i in wrong], ranks
            why_not = self.judge_bits(stage, index, wrong)
            if why_not or self.finding:
                return why_not
        if settings:
            self.finding = self.other_settings(index, settings)
        return ""

    def judge_bits(self, stage, index, wrong):
        """Judges different bits by what the repeats of this run show."""
        if not self.repeats:
            return self.not_judged(self.words_of_first())
        if index >= min(len(o.steps) for side in self.again for o in side):
            return "the repeats of this run end before update %d" % self.now[0].steps[index].update
        if stage == WEIGHTS:
            return self.judge_weights(wrong)
        return self.judge_gradients(index) if stage == GRADIENTS else ""

    def judge_weights(self, wrong):
        now, then = self.steps(0)
        rows = [[s.first for s in side] for side in (now, then)]
        again = [[o.steps[0].first for o in side] for side in self.again]
        if not all(all(side) for side in (*rows, *again)):
            return "a record has no sums of the first weights"
        if any(self.far(rows[0], side, wrong) for side in again):
            return "each run of the script starts from other weights: nothing is compared"
        far = self.far(*rows, wrong)
        devices = [conditions.devices(side) for side in (self.run, self.then)]
        if far and devices[0] != devices[1]:
            # One seed gives other numbers on another device.
            return (
                "the first weights differ, and each device draws its own random numbers: nothing is"
                " compared, unless the script makes its model on the CPU and moves it then"
            )
        if far:
            self.finding = self.found("starts_from_other_weights", 0, far, self.now[0].line)
        return ""

    def far(self, got, want, indices):
        """Returns the tensors whose first values differ by more than a few roundings."""
        found = []
        for i in indices:
            bound = FEW_UNITS * rounding.UNIT * math.sqrt(self.sizes[i])
            for a, b in zip(got, want):
                scale = rounding.scales_of(b)[i]
                if not rounding.deviation(a[i], b[i], self.sizes[i], scale) <= bound:
                    found.append(i)
                    break
        return found

    def judge_gradients(self, index):
        self.widen(index)
        now, then = self.steps(index)
        if not rounding.FACTOR * self.spread <= rounding.LIMIT:
            text = "repeats of this run move its gradients by %.1g at update %d: later updates are"
            return (text + " not compared") % (self.spread, now[0].update)
        wrong = {}
        for got, want in zip(now, then):
            for i, far in enumerate(rounding.deviations(got.gradients, want.gradients, self.sizes)):
                allowed = rounding.allowed(self.spread, self.run.world_size, self.sizes[i])
                self.used = max(self.used, far / allowed)
                if not far <= allowed:
                    wrong[i] = max(wrong.get(i, (0.0,)), (far, allowed))
        self.judged += not wrong
        if wrong:
            worst = max(wrong, key=lambda i: wrong[i])
            text = "%s is off by %.2g of its size, and rounding allows %.1g"
            evidence = [text % (self.now[0].names[worst], *wrong[worst])]
            line = self.run.ranks[0].loss_line(now[0].update) or now[0].line
            evidence += self.losses(now[0].update, then[0].update)
            self.finding = self.found(
                "differs_from_earlier_run", index, sorted(wrong), line, evidence
            )
        return ""

    def widen(self, index):
        """Adds what the repeats show of the updates up to this one."""
        for j in range(self.widened, index + 1):
            for side in self.again:
                for again, now in zip(side, self.now):
                    pair = again.steps[j].gradients, now.steps[j].gradients
                    if all(pair):
                        far = rounding.deviations(*pair, self.sizes)
                        self.spread = max([self.spread, *far])
        self.widened = index + 1

    def losses(self, update, update_then):
        """Returns evidence from the losses of an update of rank 0, if it has one in both runs."""
        found = []
        for run, number in ((self.run, update), (self.then, update_then)):
            passes = [e for e in run.ranks[0].of("backward") if e["update"] == number]
            if len(passes) != 1 or len(passes[0]["loss"]) != 1:
                return []
            found.append(passes[0]["loss"][0])
        return ["the loss of rank %d: %.9g now, %.9g then" % (self.run.ranks[0].rank, *found)]

    def words_of_first(self):
        update, stage, names, ranks = self.first
        where = " on ranks %s" % few(ranks) if len(ranks) < len(self.now) else ""
        return "bits differ first in %s at update %d: %s%s" % (stage, update, few(names), where)

    def other_settings(self, index, words):
        now, then = ([s.after for s in side] for side in self.steps(index))
        return self.found(
            "trains_with_other_settings",
            index,
            differing(now, then)[0],
            self.now[0].steps[index].line,
            words,
        )

    def other_parameters(self):
        """Returns the finding for optimizers that hold tensors of other shapes."""
        sides = [dict(zip(o.names, o.shapes)) for o in (self.now[0], self.before[0])]
        names = [n for n in {**sides[0], **sides[1]} if sides[0].get(n) != sides[1].get(n)]
        evidence = ["%d tensors now, %d then" % tuple(len(side) for side in sides)]
        return Finding(
            NAME,
            "differs_from_earlier_run",
            evidence + conditions.differences(self.run, self.then),
            text="the run trains other parameters than the earlier one",
            update=0,
            tensors=names,
            ranks=[rank.rank for rank in self.run.ranks],
            line=self.now[0].line,
        )

    def found(self, cause, index, indices, line, evidence=()):
        update = self.now[0].steps[index].update
        earlier = [self.words_of_first()] if self.first and self.first[0] < update else []
        return Finding(
            NAME,
            cause,
            [*evidence, *earlier, *conditions.differences(self.run, self.then)],
            update=update,
            tensors=[self.now[0].names[i] for i in indices],
            ranks=[rank.rank for rank in self.run.ranks],
            line=line,
        )


def digests_of(step):
    return step.gradients and [gradient and gradient[0] for gradient in step.gradients]


def differing(now, then):
    """Returns the tensors and the ranks whose digests differ, among those that both runs have."""
    found = [
        (i, rank)
        for rank, (one, other) in enumerate(zip(now, then))
        for i, (a, b) in enumerate(zip(one or (), other or ()))
        if a != b
    ]
    return sorted({i for i, _ in found}), sorted({rank for _, rank in found})


def settings_that_differ(now, then, index):
    """Returns words for each setting that differs in an update."""
    if now.type != then.type:
        return ["the optimizer is %s now, and was %s" % (now.type, then.type)]
    groups = [optimizer.steps[index].groups or [] for optimizer in (now, then)]
    if len(groups[0]) != len(groups[1]):
        return ["%d groups of parameters now, %d then" % tuple(map(len, groups))]
    return [
        "%s: %s now, %s then" % (name, one[name], other[name])
        for one, other in zip(*groups)
        for name in sorted(set(one) & set(other) - set(IMPLEMENTATION))
        if not close(one[name], other[name])
    ]


def close(one, other):
    """Whether two settings are the same, up to the rounding of a schedule's formula."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6)
    return one == other
