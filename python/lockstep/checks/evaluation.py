"""Evaluation: all ranks evaluate one model, and means are weighted by the numbers of samples."""

from ..verdict import LIKELY, Claim, Finding, compares_ranks, few

BUFFERS = "the ranks evaluate with the same buffers"
METRICS = "metrics are weighted by the ranks' numbers of samples"


@compares_ranks(BUFFERS)
def check_buffers(run):
    by_update = [{e["update"]: e for e in rank.of("evaluate")} for rank in run.ranks]
    shared = sorted(set.intersection(*(set(events) for events in by_update)))
    for update in shared:
        events = [of_rank[update] for of_rank in by_update]
        buffers = [event["buffers"] for event in events]
        wrong = [i for i, values in enumerate(zip(*buffers)) if len(set(values)) > 1]
        if wrong and len({len(values) for values in buffers}) == 1:
            models = run.ranks[0].optimizers[events[0]["optimizer"]].models
            names = [name for model in models for name in model["buffers"]]
            finding = Finding(
                BUFFERS,
                "buffers_differ",
                ["%d of %d buffers differ when the model is evaluated" % (len(wrong), len(names))],
                update=update,
                tensors=[names[i] for i in wrong],
                ranks=[rank.rank for rank in run.ranks],
                line=events[0]["line"],
            )
            return Claim(BUFFERS, len(shared), "evaluations"), [finding], []
    return Claim(BUFFERS, len(shared), "evaluations", "no evaluation on all ranks"), [], []


def evaluations(rank):
    """Returns [(samples, [all_reduce events])]: each run of batches that no training follows."""
    found, samples, calls = [], 0, []
    for event in rank.events:
        kind = event["event"]
        if kind == "batch" and event["loader"] not in rank.training_loaders:
            if calls:
                found.append((samples, calls))
                samples, calls = 0, []
            samples += len(event["samples"])
        elif kind == "call" and event["kind"] == "all_reduce" and samples:
            calls.append(event)
        elif kind in ("backward", "step") or kind == "batch":
            if calls:
                found.append((samples, calls))
            samples, calls = 0, []
    return found + ([(samples, calls)] if calls else [])


@compares_ranks(METRICS)
def check_metrics(run):
    """Fails if ranks with different numbers of samples add up means, and no count beside them.

    A value is a mean of hits if value times the rank's number of samples is whole, on every rank.
    """
    count = 0
    for parts in zip(*(evaluations(rank) for rank in run.ranks)):
        sizes = [samples for samples, _ in parts]
        calls = [events for _, events in parts]
        if len(set(sizes)) == 1 or len({len(events) for events in calls}) != 1:
            continue
        count += 1
        values = [[v for e in events for v in e.get("values") or []] for events in calls]
        counted = all(size in of_rank for size, of_rank in zip(sizes, values))
        if counted or not all(values):
            continue
        place = mean_of_hits(values, sizes)
        if place is None:
            continue
        shown = ["%.6g of %d samples" % (v[place], s) for v, s in zip(values, sizes)]
        finding = Finding(
            METRICS,
            "metric_unweighted",
            ["by rank: " + few(shown, 8), "no number of samples is reduced beside the metric"],
            LIKELY,
            update=calls[0][0]["update"],
            ranks=[rank.rank for rank in run.ranks],
            line=calls[0][0]["line"],
        )
        return Claim(METRICS, count, "metrics"), [finding], []
    why_not = "no metric of ranks that evaluate different numbers of samples"
    return Claim(METRICS, count, "metrics", why_not), [], []


def mean_of_hits(values, sizes):
    """Returns the position of a value that is hits over samples on every rank, or None."""
    for place in range(min(len(of_rank) for of_rank in values)):
        column = [of_rank[place] for of_rank in values]
        hits = [value * size for value, size in zip(column, sizes)]
        whole = all(abs(hit - round(hit)) <= 2.0**-22 * size for hit, size in zip(hits, sizes))
        if whole and all(0 <= value <= 1 for value in column) and any(0 < v < 1 for v in column):
            return place
    return None
