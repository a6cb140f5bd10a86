#!/usr/bin/env python3
"""Benchmarks one commit against another on this machine, in turns.

usage: ci/compare.py [--base=REV] [--head=REV] [--rounds=N] [--output_dir=DIR]

Builds both commits, each in a work tree of its own. In every round, each
benchmark runs for both commits, in alternating order, so a drift of the machine
affects both alike. Prints, and writes to DIR/comparison.md and .json, the medians
over the rounds, head over base, and the spread of each: its largest value over
its smallest. A row is called faster or slower only if every round of one commit
was faster than every round of the other. By chance alone this happens to a row
once in C(2N, N) / 2 times. A GitHub job's summary gets the table.

  --base, --head  the commits; default: main and HEAD
  --rounds        default: 7
  --output_dir    default: comparison

Exit status: 0, whichever is faster; 1 if a commit does not build or a benchmark
fails, or finds a wrong result; 2 for a wrong flag.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile

BENCHMARKS = {
    "//benchmarks:allreduce": [
        "--peers=", "--min_bytes=4K", "--max_bytes=16M", "--factor=16", "--rounds=3"],
    "//benchmarks:scaling": ["--seconds=10", "--rounds=1"],
}


class Error(Exception):
    """An error that ends the command with status 1."""


def read_times(report):
    """Returns {row: seconds} of a benchmark's JSON."""
    times = {}
    if report["report"] == "lockstep.allreduce":
        for row in report["results"]:
            name = "all-reduce, %s, %d bytes" % (row["subject"], row["size"])
            times[name] = row["p50"] * 1e-6
    elif report["report"] == "lockstep.scaling":
        for mode in report["modes"]:
            for row in mode["configurations"]:
                name = "training step, %s, ranks: %d" % (mode["mode"], row["world_size"])
                times[name] = row["step_seconds"]["p50"]
    else:
        raise Error("the times in a report '%s' are not known" % report["report"])
    return times


def duration(seconds):
    for unit, scale in (("s", 1), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            break
    return "%.4g %s" % (seconds / scale, unit)


def compare(base, head):
    """Compares two lists of times of the same row, one of each per round."""
    verdict = "within the spread"
    if min(head) > max(base):
        verdict = "slower"
    elif max(head) < min(base):
        verdict = "faster"
    return {
        "base": statistics.median(base), "head": statistics.median(head),
        "ratio": statistics.median(head) / statistics.median(base),
        "base_spread": max(base) / min(base), "head_spread": max(head) / min(head),
        "verdict": verdict, "base_rounds": base, "head_rounds": head,
    }


def table(commits, rounds, rows, alone):
    """Returns the comparison as Markdown."""
    changed = [row for row in rows.values() if row["verdict"] != "within the spread"]
    lines = [
        "Base %s, head %s, %d rounds in turns; medians. %d of %d rows differ beyond "
        "the spread; by chance alone a row does once in %d." % (
            commits["base"], commits["head"], rounds, len(changed), len(rows),
            math.comb(2 * rounds, rounds) // 2),
        "", "| | base | head | head/base | spread of base, head | |",
        "| --- | --- | --- | --- | --- | --- |"]
    for name, row in rows.items():
        lines.append("| %s | %s | %s | %.3f | %.2fx, %.2fx | %s |" % (
            name, duration(row["base"]), duration(row["head"]), row["ratio"],
            row["base_spread"], row["head_spread"], row["verdict"]))
    for name, side in alone.items():
        lines.append("| %s | only in %s | | | | |" % (name, side))
    return "\n".join(lines) + "\n"


def run(command, what, **keywords):
    outcome = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True, errors="replace", check=False, **keywords)
    if outcome.returncode != 0:
        sys.stderr.write(outcome.stdout[-4000:])
        raise Error("%s: exit status %d of: %s" % (what, outcome.returncode,
                                                   " ".join(command)))
    return outcome.stdout.strip()


class Side:
    """A commit that is built in a work tree of its own."""

    def __init__(self, name, revision, folder):
        self.name = name
        self.commit = run(["git", "rev-parse", "--verify", "--quiet",
                           revision + "^{commit}"], "--%s=%s" % (name, revision))
        self.tree = os.path.join(folder, name)
        self.bazel = ["bazel", "--output_base=" + os.path.join(folder, name + ".out")]
        self.scripts = {}

    def build(self):
        run(["git", "worktree", "add", "--detach", self.tree, self.commit], self.name)
        run(self.bazel + ["build", "--curses=no"] + list(BENCHMARKS), self.name,
            cwd=self.tree)
        for target in BENCHMARKS:
            script = self.tree + "." + target.rpartition(":")[2]
            run(self.bazel + ["run", "--curses=no", "--script_path=" + script, target],
                self.name, cwd=self.tree)
            self.scripts[target] = script

    def measure(self, target, path):
        run([self.scripts[target], "--json=" + path] + BENCHMARKS[target], self.name)
        with open(path, encoding="utf-8") as report:
            return read_times(json.load(report))

    def remove(self):
        if os.path.isdir(self.tree):
            subprocess.run(self.bazel + ["clean", "--expunge"], cwd=self.tree,
                           capture_output=True, check=False)
            subprocess.run(["git", "worktree", "remove", "--force", self.tree],
                           capture_output=True, check=False)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--base", default="main")
    parser.add_argument("--head", default="HEAD")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output_dir", default="comparison")
    flags = parser.parse_args()
    if flags.rounds < 1:
        parser.exit(2, "compare: --rounds=%d: needs at least 1\n" % flags.rounds)
    output = os.path.abspath(flags.output_dir)
    os.makedirs(output, exist_ok=True)
    times = {"base": {}, "head": {}}
    with tempfile.TemporaryDirectory(prefix="lockstep-compare-") as folder:
        sides = []
        try:
            for name, revision in (("base", flags.base), ("head", flags.head)):
                sides.append(Side(name, revision, folder))
            for side in sides:
                side.build()
            for index in range(flags.rounds):
                for target in BENCHMARKS:
                    for side in sides if index % 2 == 0 else sides[::-1]:
                        path = os.path.join(output, "%s.%s.%d.json" % (
                            target.rpartition(":")[2], side.name, index))
                        for row, seconds in side.measure(target, path).items():
                            times[side.name].setdefault(row, []).append(seconds)
        finally:
            for side in sides:
                side.remove()
    both = [row for row in times["base"] if row in times["head"]]
    rows = {row: compare(times["base"][row], times["head"][row]) for row in both}
    alone = {row: name for name in times for row in times[name] if row not in both}
    commits = {side.name: side.commit[:12] for side in sides}
    text = table(commits, flags.rounds, rows, alone)
    with open(os.path.join(output, "comparison.json"), "w", encoding="utf-8") as out:
        json.dump({"commits": commits, "rounds": flags.rounds, "rows": rows}, out, indent=1)
    paths = [os.path.join(output, "comparison.md"), os.environ.get("GITHUB_STEP_SUMMARY")]
    for path in filter(None, paths):
        with open(path, "a", encoding="utf-8") as out:
            out.write(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    try:
        main()
    except Error as error:
        sys.exit("compare: %s" % error)
