"""Judges a record: runs all checks and orders their findings."""

from . import evidence, verdict
from .checks import calls, clipping, ends, evaluation, parameters, samples, settings

CHECKS = (
    ends.check_ends,
    calls.check,
    ends.check_finite,
    parameters.check,
    settings.check_rates,
    settings.check_held,
    settings.check_schedules,
    clipping.check,
    samples.check_once,
    samples.check_order,
    evaluation.check_buffers,
    evaluation.check_metrics,
    ends.check_updates,
)
# Findings that follow from another cause, which then stands alone.
FOLLOWS = {
    "not_finite": ("crashes", "ends_early", "unknown"),
    "calls_differ": ("crashes", "ends_early", "hangs", "uneven_updates"),
    "uneven_updates": ("hangs", "ends_early"),
}


def judge(run):
    """Returns the verdict on a run."""
    findings, claims, notes = [], [], []
    for check in CHECKS:
        try:
            claim, found, said = check(run)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            # A record that a check cannot read is our fault: it must not look like the script's.
            name = "%s.%s" % (check.__module__.rpartition(".")[2], check.__name__)
            run.failures.append("check %s: %s: %s" % (name, type(error).__name__, error))
            continue
        findings += found
        claims.append(claim)
        notes += said
    for rank in run.ranks:
        if rank.bounded:
            notes.append("the record of rank %d reached its limit: see --limit_mb" % rank.rank)
    if run.world_size > len(run.ranks) > 0:
        notes.append("%d of %d ranks left a record" % (len(run.ranks), run.world_size))
    return verdict.Verdict(run, without_followers(findings), claims, notes)


def without_followers(findings):
    """Returns the findings in order, without those that another one explains."""
    kept = []
    causes = [finding.cause for finding in findings]
    for finding in findings:
        explained = any(finding.cause in FOLLOWS.get(cause, ()) for cause in causes)
        if not explained and not any(finding.cause == other.cause for other in kept):
            kept.append(finding)
    return sorted(kept, key=lambda f: (f.update is None, f.update or 0))


def judge_folder(folder, status=0, hung_seconds=None):
    return judge(evidence.read_run(folder, status, hung_seconds))
