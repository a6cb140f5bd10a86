"""Samples: each is in one rank's share of an epoch, and epochs have different orders."""

import collections

from ..verdict import LIKELY, Claim, Finding, compares_ranks

ONCE = "no sample is trained on by two ranks in one epoch"
ORDER = "epochs have different orders"
SAME, CONTENTS, OTHER = range(3)


class Pass:
    """One rank's pass over a loader that training uses."""

    def __init__(self, rank, event, batches):
        self.rank = rank
        self.event = event
        self.sampler = event["sampler"]
        self.batches = batches
        self.indices = [i for batch in batches for i in batch["indices"] or []]
        self.samples = [s for batch in batches for s in batch["samples"]]
        self.indexed = bool(batches) and all(batch["indices"] is not None for batch in batches)


def passes_of(rank):
    """Returns {loader: [Pass]} of the loaders that training uses."""
    batches = collections.defaultdict(list)
    for event in rank.of("batch"):
        batches[event["loader"], event["number"]].append(event)
    found = collections.defaultdict(list)
    for event in rank.of("pass"):
        if event["loader"] in rank.training_loaders:
            key = (event["loader"], event["number"])
            found[event["loader"]].append(Pass(rank.rank, event, batches[key]))
    return found


def of_update(ranks, update, key):
    """Returns the "indices" or the "samples" (digests) that an update is computed from, sorted."""
    batches = [event for rank in ranks for event in rank.training_batches(update)]
    return sorted([sample for event in batches for sample in event[key] or []], key=str)


def compare(ranks, others, update, other_update):
    """Tells from which samples two runs compute an update: SAME, in whatever order, or not.

    A batch that is padded to its longest sample changes contents: equal indices are the same
    samples then. CONTENTS has equal indices too, and other contents of one shape.
    """
    if of_update(ranks, update, "samples") == of_update(others, other_update, "samples"):
        return SAME
    if of_update(ranks, update, "indices") != of_update(others, other_update, "indices"):
        return OTHER
    shapes = shapes_of(ranks, update) | shapes_of(others, other_update)
    return SAME if len(shapes) > 1 else CONTENTS


def shapes_of(ranks, update):
    return {str(e.get("shapes")) for rank in ranks for e in rank.training_batches(update)}


@compares_ranks(ONCE)
def check_once(run):
    loaders = [passes_of(rank) for rank in run.ranks]
    findings, notes, count = [], [], 0
    for loader in sorted(set.intersection(*(set(of_rank) for of_rank in loaders))):
        for passes in zip(*(of_rank[loader] for of_rank in loaders)):
            if any(of_rank.sampler.get("replacement") for of_rank in passes):
                continue
            if len({of_rank.event["update"] for of_rank in passes}) > 1:
                continue  # One rank has further loaders, and these are not the same pass.
            count += sum(len(of_rank.samples) for of_rank in passes)
            shared = shared_samples(passes)
            if not shared:
                continue
            if passes[0].sampler["distributed"] and len(shared) <= padding_of(run, passes[0]):
                notes.append(
                    "epoch %d pads the ranks' shares to one length with %d repeated samples"
                    % (passes[0].event["number"], len(shared))
                )
                continue
            findings.append(explain(run, passes, shared))
            break
    why_not = "" if count else "no loader's samples were recorded while a model trains"
    return Claim(ONCE, count, "samples", why_not), findings, notes


def padding_of(run, of_rank):
    """Returns how many samples a sampler may repeat to give all ranks as many."""
    return of_rank.sampler.get("padding", run.world_size - 1)


def shared_samples(passes):
    """Returns the samples that several ranks have, by the dataset's index and the content.

    Where datasets differ by rank, an index says nothing; where a dataset holds equal samples,
    equal content says nothing. With indices, both must be equal. Without them, at least half of
    each rank's samples must be another rank's, and fewer than a tenth repeated within a rank.
    """
    if all(of_rank.indexed and len(of_rank.indices) == len(of_rank.samples) for of_rank in passes):
        keys = [set(zip(of_rank.indices, of_rank.samples)) for of_rank in passes]
        return set().union(*(keys[a] & keys[b] for a in range(len(keys)) for b in range(a)))
    keys = [set(of_rank.samples) for of_rank in passes]
    if any(len(k) < 8 or len(k) < 0.9 * len(p.samples) for k, p in zip(keys, passes)):
        return set()
    for position, own in enumerate(keys):
        others = set().union(*(k for i, k in enumerate(keys) if i != position))
        if len(own & others) < 0.5 * len(own):
            return set()
    return set().union(*(keys[a] & keys[b] for a in range(len(keys)) for b in range(a)))


def explain(run, passes, shared):
    first = passes[0]
    total = len(set().union(*(set(of_rank.samples) for of_rank in passes)))
    evidence = ["%d of %d samples of the epoch are several ranks'" % (len(shared), total)]
    same = all(p.batches[0]["samples"] == first.batches[0]["samples"] for p in passes)
    if same:
        evidence.append("the first batch is the same on all ranks")
    cause, more = cause_of(run, passes)
    return Finding(
        ONCE,
        cause,
        evidence + more,
        update=first.batches[0]["update"],
        ranks=[of_rank.rank for of_rank in passes],
        line=first.event["line"],
    )


def cause_of(run, passes):
    samplers = [of_rank.sampler for of_rank in passes]
    kinds = sorted({sampler["type"] for sampler in samplers})
    evidence = ["the sampler is %s" % ", ".join(kinds)]
    if not any("num_replicas" in sampler for sampler in samplers):
        whole = all(
            sampler.get("length") == of_rank.event["samples"]
            for sampler, of_rank in zip(samplers, passes)
        )
        plain = set(kinds) <= {"RandomSampler", "SequentialSampler"}
        if whole and plain and all(of_rank.indexed for of_rank in passes):
            return "sampler_missing", evidence
        return "same_samples", evidence
    settings = ["%s of %s" % (s.get("rank"), s.get("num_replicas")) for s in samplers]
    if any(
        s.get("num_replicas") != run.world_size or s.get("rank") != p.rank
        for s, p in zip(samplers, passes)
    ):
        return "sampler_misconfigured", evidence + ["shares by rank: " + ", ".join(settings)]
    for name in ("seed", "epoch"):
        values = [sampler.get(name) for sampler in samplers]
        if len(set(values)) > 1:
            return "ranks_shuffle_apart", evidence + ["%s by rank: %s" % (name, values)]
    return "same_samples", evidence


def check_order(run):
    """Fails if a sampler that shuffles gives two whole epochs of one order."""
    count = 0
    for rank in run.ranks[:1]:
        for passes in passes_of(rank).values():
            for one, other in zip(passes, passes[1:]):
                if not one.sampler.get("shuffle") or len(one.indices) < 8:
                    continue
                count += 1
                if one.indices != other.indices:
                    continue
                evidence = ["%d samples have the same order" % len(one.indices)]
                epochs = [p.sampler.get("epoch") for p in (one, other)]
                sure = LIKELY
                if epochs[0] is not None and epochs[0] == epochs[1]:
                    evidence.append("the sampler's epoch is %d both times" % epochs[0])
                    sure = "certain"
                finding = Finding(
                    ORDER,
                    "same_order_every_epoch",
                    evidence,
                    sure,
                    update=other.batches[0]["update"] if other.batches else None,
                    ranks=[rank.rank],
                    line=other.event["line"],
                )
                return Claim(ORDER, count, "pairs of epochs"), [finding], []
    return Claim(ORDER, count, "pairs of epochs", "no two epochs that a sampler shuffles"), [], []
