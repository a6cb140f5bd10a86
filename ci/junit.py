#!/usr/bin/env python3
"""Collects the JUnit files of one `bazel test`, and summarises them.

usage: ci/junit.py [--title=TITLE] [--output_dir=DIR] FILE

FILE is the output of `bazel test --build_event_json_file=FILE`. It names the JUnit
files of exactly the tests of that run, including cached ones; bazel-testlogs also
has files of earlier runs. With --output_dir the files are copied there, as
package/test.xml.

Prints in Markdown how many test cases passed, failed and were skipped, which ones
failed, and the reasons of those that were skipped. A GitHub job's summary gets the
text too ($GITHUB_STEP_SUMMARY). Exit status: 0, also if a test failed; 2 for a
wrong flag.
"""

import argparse
import collections
import json
import os
import shutil
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree


def files_of_events(path):
    """Yields (name, JUnit file) of each shard and run of each test."""
    with open(path, encoding="utf-8") as events:
        for line in events:
            if not line.strip():
                continue
            event = json.loads(line)
            test = event.get("id", {}).get("testResult")
            for output in event.get("testResult", {}).get("testActionOutput", []):
                if not test or output.get("name") != "test.xml":
                    continue
                package, _, target = test["label"].lstrip("@/").partition(":")
                name = os.path.join(package, target)
                for key in ("run", "shard", "attempt"):
                    if test.get(key, 1) != 1:
                        name += ".%s%d" % (key, test[key])
                url = urllib.parse.urlparse(output.get("uri", ""))
                yield name, urllib.parse.unquote(url.path)


def read_cases(path):
    """Returns [(case, outcome, reason)] of one JUnit file."""
    cases = []
    for case in ElementTree.parse(path).iter("testcase"):
        name = "%s.%s" % (case.get("classname", ""), case.get("name", ""))
        outcome, reason = "passed", ""
        for child in case:
            if child.tag in ("failure", "error"):
                outcome = "failed"
            elif child.tag == "skipped" and outcome == "passed":
                outcome, reason = "skipped", child.get("message") or child.text or ""
        if case.get("status") == "notrun":
            continue
        # GoogleTest's reason begins with the place in the source.
        lines = [line for line in reason.strip().splitlines() if line]
        cases.append((name.lstrip("."), outcome, lines[-1] if lines else ""))
    return cases


def summary(title, results):
    """Returns Markdown of {test: cases or None}; None: the file cannot be read."""
    count = collections.Counter(outcome for cases in results.values()
                                for _, outcome, _ in cases or [])
    lines = ["**%s**: %d test cases passed, %d failed, %d skipped in %d files" % (
        title, count["passed"], count["failed"], count["skipped"], len(results))]
    for test, cases in sorted(results.items()):
        if cases is None:
            lines.append("- failed: `%s` left no JUnit file that can be read" % test)
        for name, outcome, _ in cases or []:
            if outcome == "failed":
                lines.append("- failed: `%s` %s" % (test, name))
    reasons = collections.Counter(
        reason or "no reason given" for cases in results.values()
        for _, outcome, reason in cases or [] if outcome == "skipped")
    for reason, times in reasons.most_common():
        lines.append("- skipped, %d: %s" % (times, reason))
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(usage=__doc__, add_help=True)
    parser.add_argument("--title", default="tests")
    parser.add_argument("--output_dir", default="")
    parser.add_argument("events")
    flags = parser.parse_args()
    results = {}
    for name, xml in files_of_events(flags.events):
        try:
            results[name] = read_cases(xml)
        except (OSError, ElementTree.ParseError):
            results[name] = None
            continue
        if flags.output_dir:
            copy = os.path.join(flags.output_dir, name + ".xml")
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            shutil.copyfile(xml, copy)
    text = summary(flags.title, results)
    sys.stdout.write(text)
    if os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(os.environ["GITHUB_STEP_SUMMARY"], "a", encoding="utf-8") as out:
            out.write(text + "\n")


if __name__ == "__main__":
    main()
