#!/usr/bin/python3
"""Checks workflows, GitLab's jobs, Dockerfiles, and that folders have no circles.

usage: ci/check.py

The workflows in .github/workflows must follow the rules of ci/README.md (actions
by hash, least permissions, no GPU for forks, JUnit always kept, ...). Every script
of the project, stage of .ci/run, flag of run.sh, and target or configuration of
Bazel that they, ci/ or .ci/run name must exist. Folders of C++ and CUDA sources,
tests included, must not include each other's files in a circle. Prints one line
for each problem; the exit status is then 1. Needs PyYAML.
"""

import glob
import os
import re
import subprocess
import sys

import yaml

FORK_GUARD = ("(github.event_name != 'pull_request' || github.event.pull_request"
              ".head.repo.full_name == github.repository)")
HOSTED = re.compile(r"ubuntu-\d\d\.\d\d$")
BUNDLE_FLAGS = {"--suite", "--only", "--budget", "--out"}
SUITES = {"correct", "kernels", "train", "first", "all"}


def as_list(value):
    return value if isinstance(value, list) else [] if value is None else [value]


def run(*command, **options):
    return subprocess.run(command, text=True, capture_output=True, check=False, **options)


def check_step(step, text):
    """Yields the problems of one step of a job."""
    uses, script = step.get("uses", ""), str(step.get("run", ""))
    options = step.get("with") or {}
    if uses and not uses.startswith("./"):
        if not re.search(r"uses: %s # v\d+\.\d+\.\d+$" % re.escape(uses), text, re.M) or (
                not re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}", uses)):
            yield "%s is not pinned by commit hash with its version behind it" % uses
    if "${{" in script:
        yield "an expression inside a script: %s" % script.strip().splitlines()[0]
    if script:
        yield from run("bash", "-n", input=script).stderr.splitlines()
    if uses.startswith("actions/checkout@") and options.get("persist-credentials") is not False:
        yield "checkout leaves its credentials behind"
    if uses.startswith("actions/cache@") and "hashFiles(" not in options.get("key", ""):
        yield "a cache whose key has no lock file in it"
    if uses.startswith("actions/upload-artifact@") and (
            "junit" in options.get("name", "") and step.get("if") != "always()"):
        yield "JUnit is uploaded only if all went well"


def check_job(job, text):
    """Yields the problems of one job of a workflow."""
    permissions = job.get("permissions")
    if permissions not in ({}, {"contents": "read"}):
        yield "permissions are %r, not none or to read contents" % (permissions,)
    if "uses" in job:
        if not job["uses"].startswith("./"):
            yield "calls a workflow of another repository: %s" % job["uses"]
        suite = job.get("with", {}).get("suite")
        if suite not in SUITES:
            yield "calls for a suite %s" % suite
        return
    if "timeout-minutes" not in job:
        yield "has no timeout-minutes"
    if (job.get("defaults") or {}).get("run", {}).get("shell") != "bash":
        yield "has not `shell: bash`, without which a pipe hides what failed"
    runners = as_list(job.get("runs-on"))
    if not all(HOSTED.match(str(runner)) for runner in runners):
        if FORK_GUARD not in str(job.get("if", "")):
            yield "runs on a machine of one's own, for pull requests from forks too"
        if "||" in str(job.get("if", "")).replace(FORK_GUARD, ""):
            yield "has a condition that goes around the one on forks"
    steps = job.get("steps") or []
    for step in steps:
        yield from check_step(step, text)
    tests = any(re.search(r"\.ci/run|run\.sh", str(step.get("run", ""))) for step in steps)
    if tests and not any("junit" in (step.get("with") or {}).get("name", "")
                         for step in steps):
        yield "runs tests and uploads no JUnit"


def check_rules(name, text):
    """Returns the problems of a workflow; `text` is the text of its file."""
    workflow = yaml.safe_load(text)
    triggers = workflow.get(True) or workflow.get("on")  # YAML 1.1 reads `on` so.
    triggers = triggers if isinstance(triggers, dict) else {
        trigger: None for trigger in as_list(triggers)}
    problems = []
    if workflow.get("permissions") != {}:
        problems.append("permissions at the top are not {}")
    if "pull_request_target" in triggers or "workflow_run" in triggers:
        problems.append("a trigger that gives foreign code the rights of the project")
    if set(triggers) != {"workflow_call"} and not workflow.get("concurrency"):
        problems.append("no concurrency group")
    if re.search(r"\bsecrets\b", text):
        problems.append("uses a secret")
    for job_name, job in workflow["jobs"].items():
        problems += ["job %s: %s" % (job_name, problem) for problem in check_job(job, text)]
    return ["%s: %s" % (name, problem) for problem in problems]


def check_gitlab_rules(name, text):
    """Returns the problems of GitLab's jobs: forks on GPUs, or JUnit that is lost."""
    jobs = {job_name: job for job_name, job in yaml.safe_load(text).items()
            if isinstance(job, dict) and "script" in job}
    problems = []
    for job_name, job in jobs.items():
        base = yaml.safe_load(text).get(job.get("extends"), {})
        artifacts = job.get("artifacts", base.get("artifacts", {}))
        if artifacts.get("when") != "always" or not artifacts.get("reports", {}).get("junit"):
            problems.append("job %s: JUnit is not always uploaded" % job_name)
        fork = {"if": "$CI_MERGE_REQUEST_SOURCE_PROJECT_ID != $CI_MERGE_REQUEST_PROJECT_ID",
                "when": "never"}
        before = []  # The rules up to the first that can let the job run.
        for rule in job.get("rules", []):
            before.append(rule)
            if rule.get("when") != "never":
                break
        if "tags" in job and fork not in before:
            problems.append("job %s: runs for merge requests from forks too" % job_name)
        script = "\n".join(job["script"] + base.get("before_script", []))
        problems += run("bash", "-n", input=script).stderr.splitlines()
        if "timeout" not in job and "timeout" not in base:
            problems.append("job %s: has no timeout" % job_name)
    return ["%s: %s" % (name, problem) for problem in problems]


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as opened:
        return opened.read()


def check_names(name, text, root):
    """Returns a problem for each name in the file that the project does not have."""
    paths = set(re.findall(r"(?<![\w./-])(?:/opt/lockstep/)?((?:\.ci|ci|tools)/\w[\w.-]*\b)",
                           text))
    for sources in re.findall(r"^COPY (.*) /opt/lockstep/tools/$", text, re.M):
        paths.update("tools/" + source for source in sources.split())
    problems = ["there is no %s" % path for path in sorted(paths)
                if not os.path.exists(os.path.join(root, path))]
    stages = " ".join(sum(re.findall(
        r"^ +stages: (.*)|STAGE: \[(.*)\]|\.ci/run((?: \w+)+)", text, re.M), ()))
    known = run(os.path.join(root, ".ci/run"), "--list").stdout.split()
    problems += ["no stage %s" % stage for stage in re.findall(r"\w+", stages)
                 if stage not in known]
    flags = set(re.findall(r"--\w+", " ".join(re.findall(r"run\.sh((?: --\w+=\S+)+)", text))))
    problems += ["run.sh has no %s" % flag for flag in sorted(flags - BUNDLE_FLAGS)]
    if re.search(r"^\s*(FROM|image:|container:)\s+[\w-]+\.[\w.-]*/", text, re.M):
        problems.append("names the host of a registry")
    configurations = set(re.findall(r"^\w+:(\w+) ", read(root, ".bazelrc"), re.M))
    for configuration in re.findall(r"--config=(\w+)", text):
        if configuration not in configurations:
            problems.append("no --config=%s in .bazelrc" % configuration)
    for label in re.findall(r"(?<![:\w/])//\w[\w/:.]*", text):
        if label.endswith("..."):
            continue
        package, _, target = label.rstrip(".:").partition(":")
        target = target or package.split("/")[-1]
        path = os.path.join(root, package[2:], "BUILD.bazel")
        # A test cannot run Bazel, so this reads BUILD files; no macro makes
        # these targets.
        if not os.path.exists(path) or 'name = "%s",' % target not in read(path):
            problems.append("no target %s:%s" % (package, target))
    return ["%s: %s" % (name, problem) for problem in problems]


def read_includes(root):
    """Returns, for each folder, the folders whose files it includes, with an example."""
    sources = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith((".", "bazel-"))]
        sources += [os.path.relpath(os.path.join(folder, name), root) for name in names
                    if name.endswith((".h", ".cc", ".cu"))]
    known = set(sources)
    includes = {}
    for source in sorted(sources):
        folder = os.path.dirname(source)
        for header in re.findall(r'^#include "(.+)"', read(root, source), re.M):
            other = os.path.dirname(header)
            if header in known and other != folder:
                includes.setdefault(folder, {}).setdefault(
                    other, "%s includes %s" % (source, header))
    return includes


def check_circles(root):
    """Yields each folder's shortest circle of includes that begins at the folder."""
    includes = read_includes(root)
    seen = set()
    for start in sorted(includes):
        paths = [[start]]
        reached = {start}
        while paths and not (paths[0][-1] == start and len(paths[0]) > 1):
            path = paths.pop(0)
            for folder in includes.get(path[-1], {}):
                if folder == start or folder not in reached:
                    reached.add(folder)
                    paths.append(path + [folder])
        if not paths or frozenset(paths[0]) in seen:
            continue
        seen.add(frozenset(paths[0]))
        yield "folders in a circle: " + "; ".join(
            includes[folder][other] for folder, other in zip(paths[0], paths[0][1:]))


def main():
    root = os.path.join(os.path.dirname(__file__), "..")
    problems = []
    workflows = sorted(glob.glob(os.path.join(root, ".github/workflows/*.yml")))
    others = [os.path.join(root, name) for name in (
        ".ci/run", "ci/Dockerfile.cpu", "ci/Dockerfile.cuda", "ci/README.md", "ci/compare.py",
        "ci/gitlab-ci.yml", "ci/slurm.sh")]
    for path in workflows + others:
        name, text = os.path.relpath(path, root), read(path)
        if path in workflows:
            problems += check_rules(name, text)
        elif path.endswith(".yml"):
            problems += check_gitlab_rules(name, text)
        problems += check_names(name, text, root)
    problems += check_circles(root)
    if not workflows:
        problems.append("no workflow in %s" % root)
    sys.exit("\n".join(problems) or 0)


if __name__ == "__main__":
    main()
