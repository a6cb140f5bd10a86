"""The ranks of a group issue the same calls of torch.distributed, in one order."""

import collections
import re

from ..verdict import Claim, Finding, compares_ranks, short_line

NAME = "the ranks issue the same calls in the same order"
# The sizes that a rank passes to these depend on its part in the call, or on its objects.
ONE_SIDED = {"gather", "scatter", "reduce_scatter", "all_gather_object", "gather_object"}
ONE_SIDED |= {"broadcast_object_list", "scatter_object_list", "all_to_all", "all_to_all_single"}
POINT_TO_POINT = {"send", "recv", "isend", "irecv", "batch_isend_irecv"}


def members_of(group, world_size):
    """Returns the ranks of a recorded group: "all", or a text that begins with a list of ranks."""
    ranks = re.match(r"\[(.*?)\]", group)
    return [int(rank) for rank in ranks[1].split(",")] if ranks else list(range(world_size))


def calls_by_group(rank):
    found = collections.defaultdict(list)
    for event in rank.of("call"):
        if event["kind"] not in POINT_TO_POINT:
            found[str(event["group"])].append(event)
    return found


def signature(event):
    """Returns the part of a call in which all ranks must agree."""
    if event["kind"] in ONE_SIDED:
        return event["kind"], event["peer"]
    return event["kind"], event["peer"], str(event["sizes"]), event["dtype"], event["op"]


def words(event):
    """Returns the call as a user would say it, with its line."""
    sizes = "x".join(str(s) for s in event["sizes"][0]) if event["sizes"] else ""
    parts = [event["kind"], event["op"], sizes and "of [%s]" % sizes, event["dtype"]]
    return "%s (%s)" % (" ".join(p for p in parts if p), short_line(event["line"]))


@compares_ranks(NAME)
def check(run):
    groups = [calls_by_group(rank) for rank in run.ranks]
    count = 0
    for group in sorted(set().union(*groups)):
        members = [
            (rank, of_rank[group])
            for rank, of_rank in zip(run.ranks, groups)
            if rank.rank in members_of(group, run.world_size)
        ]
        if len(members) < 2 or any(rank.bounded for rank, _ in members):
            continue
        count += min(len(calls) for _, calls in members)
        finding = first_difference(members, run.stopped or run.hung_seconds is None)
        if finding:
            return Claim(NAME, count, "calls"), [finding], []
    why_not = "the script calls no collective of torch.distributed by itself"
    return Claim(NAME, count, "calls", why_not), [], []


def first_difference(members, cut):
    """Returns the finding for the first position at which the ranks' calls differ, or None.

    cut: whether a rank without a regular end may have had a call still to issue. If the ranks hang,
    it has not.
    """
    longest = max(len(calls) for _, calls in members)
    for position in range(longest):
        here = [(rank, (calls[position:] or [None])[0]) for rank, calls in members]
        said = [event and signature(event) for _, event in here]
        if all(other == said[0] for other in said):
            continue
        if cut and any(event is None and not rank.ended for rank, event in here):
            return None
        absent = {rank.rank: missing(rank, position) for rank, event in here if event is None}
        return finding_of([(rank.rank, event) for rank, event in here], absent)
    return None


def finding_of(here, absent=()):
    """Returns the finding on calls that differ.

    here: [(rank, event or None)]. absent: {rank: how it ends}, for the ranks without an event.
    """
    present = [event for _, event in here if event]
    evidence = ["rank %d: %s" % (rank, words(e) if e else absent[rank]) for rank, e in here]
    return Finding(
        NAME,
        "calls_differ",
        evidence,
        update=present[0]["update"],
        ranks=[rank for rank, _ in here],
        line=present[0]["line"],
    )


def missing(rank, position):
    where = "ends" if rank.ended or rank.of("exception") else "stops"
    return "%s after %d calls" % (where, position)
