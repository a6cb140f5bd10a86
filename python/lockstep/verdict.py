"""The verdict on a run: findings with causes, claims that were checked, text and JSON."""

import functools
import json
import os
import textwrap

from . import causes

WIDTH = 100
CERTAIN, LIKELY = "certain", "likely"


class Finding:
    """One thing that is wrong: where it shows first, its cause, and the evidence for the cause."""

    def __init__(self, claim, cause, evidence, sure=CERTAIN, text="", **place):
        self.claim = claim
        self.cause = cause
        self.text = text or causes.CAUSES[cause][0]
        self.fix = causes.CAUSES[cause][1]
        self.evidence = list(evidence)
        self.sure = "" if cause == "unknown" else sure
        self.update = place.get("update")
        self.tensors = list(place.get("tensors", ()))
        self.ranks = list(place.get("ranks", ()))
        self.line = place.get("line", "")

    def to_json(self):
        return {
            "claim": self.claim,
            "cause": self.cause,
            "text": self.text,
            "fix": self.fix,
            "sure": self.sure,
            "update": self.update,
            "tensors": self.tensors,
            "ranks": self.ranks,
            "line": self.line,
            "evidence": self.evidence,
        }


class Claim:
    """A claim that was checked on `count` things, or the reason why it was not checked."""

    def __init__(self, name, count=0, unit="", why_not=""):
        self.name = name
        self.count = count
        self.unit = unit
        self.why_not = why_not


def compares_ranks(name):
    """Decorates the check of the claim `name`, which says nothing about fewer than two ranks."""

    def decorate(check):
        @functools.wraps(check)
        def checked(run):
            if len(run.ranks) < 2:
                return Claim(name, why_not="fewer than two ranks left a record"), [], []
            return check(run)

        return checked

    return decorate


class Verdict:
    """outcome: "right", "wrong" or "not judged"."""

    def __init__(self, run, findings, claims, notes, failed):
        """failed: the names of claims that fail, also those that another finding explains."""
        self.run = run
        self.findings = findings
        self.claims = claims
        self.notes = notes
        self.failed = failed
        self.why_not = ""
        self.outcome = "wrong" if findings else "right"
        if not findings:
            self.why_not = why_not_judged(run)
            self.outcome = "not judged" if self.why_not else "right"

    def exit_status(self):
        """Returns 0 or 1, or the command's own status if nothing was judged."""
        if self.outcome == "not judged":
            status = self.run.status
            return status if status >= 0 else 128 - status
        return int(self.outcome == "wrong")

    def to_json(self):
        return {
            "lockstep": 1,
            "outcome": self.outcome,
            "why_not_judged": self.why_not,
            "world_size": self.run.world_size,
            "ranks": [rank.rank for rank in self.run.ranks],
            "command_status": self.run.status,
            "findings": [finding.to_json() for finding in self.findings],
            "claims": [
                {
                    "claim": claim.name,
                    "checked": claim.count,
                    "unit": claim.unit,
                    "failed": claim.name in self.failed,
                    "why_not": "" if claim.count else claim.why_not,
                }
                for claim in self.claims
            ],
            "notes": self.notes,
            "errors_of_lockstep": self.run.errors,
        }

    def to_text(self):
        lines = ["lockstep: %s%s" % (self.outcome, self.why_not and ": " + self.why_not)]
        for finding in self.findings:
            lines += describe(finding)
        if self.run.ranks:  # Without any record, no claim says more than the first line.
            lines += describe_claims(self.claims, self.failed)
        for note in self.notes:
            lines += wrapped("note: " + note, "  ")
        for error in self.run.errors:
            lines += wrapped("our own error, not the script's: " + error, "  ")
        return "\n".join(lines) + "\n"


def why_not_judged(run):
    """Returns why a run without findings is not called right, or ""."""
    if not run.ranks:
        return "no process of the command trained with PyTorch"
    if run.world_size < 2 and not (run.comparison and run.comparison.count):
        why_not = run.comparison.why_not if run.comparison else ""
        return why_not or "there is one rank, and nothing to compare it with"
    if len(run.ranks) < min(run.world_size, 2):
        return "only rank %d of %d left a record" % (run.ranks[0].rank, run.world_size)
    if not all(rank.updates for rank in run.ranks):
        return "no optimizer took a step on every rank"
    return ""


def short_line(line):
    """Returns FILE:LINE with the path relative to the current folder if that is shorter."""
    path, _, number = line.rpartition(":")
    relative = os.path.relpath(path) if path else path
    return "%s:%s" % (relative if len(relative) < len(path) else path, number)


def few(names, limit=3):
    """Returns the first names, and the number of those left out."""
    shown = ", ".join(str(name) for name in names[:limit])
    return shown + (" and %d more" % (len(names) - limit) if len(names) > limit else "")


def wrapped(text, indent):
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_on_hyphens=False,
    )


def describe(finding):
    name = finding.cause if finding.cause == "unknown" else finding.cause + ", " + finding.sure
    lines = wrapped("%s [%s]" % (finding.text, name), "  ")
    place = []
    if finding.update is not None:
        place.append("update %d" % finding.update)
    if finding.tensors:
        place.append(few(finding.tensors))
    if finding.ranks:
        place.append("rank%s %s" % ("s" * (len(finding.ranks) > 1), few(finding.ranks, 8)))
    if place:
        lines += wrapped("first: " + "; ".join(place), "    ")
    if finding.line:
        lines += wrapped("line: " + short_line(finding.line), "    ")
    for evidence in finding.evidence:
        lines += wrapped("because: " + evidence, "    ")
    if finding.fix:
        lines += wrapped("fix: " + finding.fix, "    ")
    return lines


def describe_claims(claims, failed):
    lines = []
    for claim in claims:
        if claim.count or claim.name in failed:
            state = "fails" if claim.name in failed else "holds"
            counted = " (%d %s)" % (claim.count, claim.unit) if claim.count else ""
            lines += wrapped("%s: %s%s" % (state, claim.name, counted), "  ")
    unchecked = [
        "%s (%s)" % (claim.name, claim.why_not)
        for claim in claims
        if not claim.count and claim.name not in failed
    ]
    if unchecked:
        lines += wrapped("not checked: " + "; ".join(unchecked), "  ")
    return lines


def write(verdict, folder):
    """Writes verdict.json into the record's folder and returns its path."""
    path = os.path.join(folder, "verdict.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(verdict.to_json(), file, indent=1)
        file.write("\n")
    return path
