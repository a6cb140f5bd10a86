"""Judges a record: runs all checks and orders their findings."""

from . import verdict, waits
from .checks import accumulation, calls, clipping, counts, earlier_run, ends, evaluation
from .checks import one_rank, parameters, reduction, resuming, samples, settings

CHECKS = (
    ends.check_ends,
    calls.check,
    ends.check_finite,
    parameters.check,
    settings.check_rates,
    settings.check_held,
    settings.check_schedules,
    clipping.check,
    reduction.check,
    accumulation.check,
    counts.check,
    samples.check_once,
    samples.check_order,
    resuming.check,
    evaluation.check_buffers,
    evaluation.check_metrics,
    ends.check_updates,
)
WAITS_NOTED = 3
# Findings that follow from another cause, which then stands alone.
FOLLOWS = {
    "not_finite": ("crashes", "ends_early", "unknown"),
    "calls_differ": ("crashes", "ends_early", "hangs", "uneven_updates"),
    "uneven_updates": ("hangs", "ends_early"),
    "clipped_before_reduction": ("unknown",),
    "schedule_steps_by_rank": ("schedule_depends_on_ranks",),
}


def judge(run, references=(), why_no_reference="", earlier=None):
    """Returns the verdict on a run.

    references: runs of one rank; why_no_reference: or why there are none; earlier: None, or an
    earlier_run.Earlier.
    """
    findings, claims, notes = [], [], []
    checks = list(CHECKS)
    if references or why_no_reference:
        checks.append(lambda run: compare(run, references, why_no_reference))
    if earlier:
        checks.append(lambda run: earlier_run.check(run, earlier))
    for check in checks:
        try:
            claim, found, said = check(run)
        except Exception as error:
            # A record that a check cannot read is our fault: it must not look like the script's.
            name = "%s.%s" % (check.__module__.rpartition(".")[2], check.__name__)
            run.failures.append("check %s: %s: %s" % (name, type(error).__name__, error))
            continue
        findings += found
        claims.append(claim)
        notes += said
        run.comparison = claim if claim.name == earlier_run.NAME else None
    for rank in run.ranks:
        if rank.bounded:
            notes.append("the record of rank %d reached its limit: see --limit_mb" % rank.rank)
    for event in [event for rank in run.ranks for event in rank.of("capture")][:1]:
        where = verdict.short_line(event["line"])
        notes.append("CUDA graphs are not recorded: the script captures one at " + where)
    if run.world_size > len(run.ranks) > 0:
        notes.append("%d of %d ranks left a record" % (len(run.ranks), run.world_size))
    if run.hung_seconds is None and not run.stopped:
        notes += ["in between, " + waits.words(event)[0] for event in run.waits[:WAITS_NOTED]]
    elif run.waits:
        notes.append("at the end, " + "; ".join(waits.words(run.waits[-1])))
    if run.stopped:
        notes.append("--fail_fast ended the run before its regular end")
        if not findings:
            findings.append(run.stopped)
    if not findings and run.status and not verdict.why_not_judged(run):
        findings.append(ends.bad_status(run))
    failed = {finding.claim for finding in findings}
    findings = without_followers(findings)
    notes += compare_tensors(findings, run, earlier)
    return verdict.Verdict(run, findings, claims, notes, failed)


def compare_tensors(findings, run, earlier):
    """Compares tensors that --keep has kept; returns notes."""
    if not run.folder or not any(finding.tensors for finding in findings):
        return []
    # This module needs numpy, which judging a record does not.
    from . import tensors

    return tensors.add_evidence(findings, run, earlier)


def compare(run, references, why_no_reference):
    """Compares with one rank, if there is one and if the ranks agree among themselves."""
    if why_no_reference:
        return verdict.Claim(one_rank.NAME, why_not=why_no_reference), [], []
    claim, found, _ = parameters.check(run)
    why_not = parameters.not_comparable(run)
    if found or why_not:
        why_not = why_not or "the ranks differ among themselves"
        return verdict.Claim(one_rank.NAME, why_not=why_not), [], []
    return one_rank.check(run, references)


def without_followers(findings):
    """Returns the findings in order, without those that another one explains."""
    kept = []
    causes = [finding.cause for finding in findings]
    for finding in findings:
        explained = any(finding.cause in FOLLOWS.get(cause, ()) for cause in causes)
        if finding.claim == earlier_run.NAME:
            explained = any(is_before(other, finding) for other in findings)
        if not explained and not any(finding.cause == other.cause for other in kept):
            kept.append(finding)
    return sorted(kept, key=lambda f: (f.update is None, f.update or 0))


def is_before(other, finding):
    """Whether another claim's finding may be why a run differs from an earlier one."""
    early = other.update is None or other.update <= finding.update
    return early and other.claim != finding.claim
