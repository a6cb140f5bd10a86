"""A verdict as SARIF 2.1.0, which code hosts show beside the lines of a script."""

import json
import os
import pathlib

from .. import __version__, causes


def text_of(found, root):
    """Returns the JSON. found: a Verdict. root: the folder that paths are relative to."""
    results = [result_of(finding, root) for finding in found.findings]
    used = sorted({finding.cause for finding in found.findings})
    driver = {"name": "lockstep", "version": __version__, "rules": [rule_of(c) for c in used]}
    notices = [{"level": "error", "message": {"text": error}} for error in found.run.errors]
    invocation = {"executionSuccessful": True, "toolExecutionNotifications": notices}
    run = {"tool": {"driver": driver}, "invocations": [invocation], "results": results}
    return json.dumps({"version": "2.1.0", "runs": [run]}, indent=1) + "\n"


def rule_of(cause):
    text, fix = causes.CAUSES[cause]
    return {
        "id": cause,
        "shortDescription": {"text": text or "no known cause explains the record"},
        "help": {"text": fix or "compare the ranks' records at the first update that is wrong"},
    }


def result_of(finding, root):
    message = [finding.text] + ["because: " + text for text in finding.evidence]
    if finding.fix:
        message.append("fix: " + finding.fix)
    fields = ("claim", "sure", "update", "tensors", "ranks")
    result = {
        "ruleId": finding.cause,
        "level": "error" if finding.sure == "certain" else "warning",
        "message": {"text": "\n".join(message)},
        "properties": {name: getattr(finding, name) for name in fields},
    }
    path, _, number = finding.line.rpartition(":")
    if path and number.isdigit():
        where = {"artifactLocation": {"uri": uri_of(path, root)}}
        where["region"] = {"startLine": int(number)}
        result["locations"] = [{"physicalLocation": where}]
    return result


def uri_of(path, root):
    """Returns a path below `root` as a relative URI, and any other as a file URI."""
    path, root = os.path.abspath(path), os.path.abspath(root)
    if os.path.commonpath([path, root]) == root:
        return pathlib.PurePath(os.path.relpath(path, root)).as_posix()
    return pathlib.Path(path).as_uri()
