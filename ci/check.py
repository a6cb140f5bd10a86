#!/usr/bin/python3
"""Checks workflows, GitLab's jobs and Dockerfiles without their services.

usage: ci/check.py [--root=DIR]

Of the workflows in .github/workflows it asks the rules of ci/README.md (actions
by hash, least permissions, no GPU for forks, JUnit always kept, ...), and of
every command that they, ci/gitlab-ci.yml and the Dockerfiles run that it exists:
scripts of the project and their syntax, stages of .ci/run; and wherever they, ci/
and .ci/run name a target or a configuration of Bazel, that there is one.
Prints one line for each problem; exit status 1 if there is one. Needs PyYAML.
"""

import argparse
import glob
import os
import re
import shlex
import shutil
import subprocess
import sys

import yaml

FORK_GUARD = ("(github.event_name != 'pull_request' || github.event.pull_request"
              ".head.repo.full_name == github.repository)")
HOSTED = re.compile(r"ubuntu-\d\d\.\d\d$")
SHELL_WORDS = set("read if then fi for do done { } [ [[ echo export set trap".split())
BUNDLE = "gpu_bundle/run.sh"  # No file of the project's tree.
BUNDLE_FLAGS = {"--suite", "--budget", "--out"}
SUITES = {"correct", "kernels", "train", "all"}
# What a runner or an image brings, whether or not this machine has it.
ELSEWHERE = {"apt-get"}


def as_list(value):
    return value if isinstance(value, list) else [] if value is None else [value]


def check_step(step, text):
    """Yields the problems of one step of a job."""
    uses, run = step.get("uses", ""), str(step.get("run", ""))
    options = step.get("with") or {}
    if uses and not uses.startswith("./"):
        if not re.search(r"uses: %s # v\d+\.\d+\.\d+$" % re.escape(uses), text, re.M) or (
                not re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}", uses)):
            yield "%s is not pinned by commit hash with its version behind it" % uses
    if "${{" in run:
        yield "an expression inside a script: %s" % run.strip().splitlines()[0]
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
    """Returns the problems of a workflow, of which `text` is the file."""
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
    """Returns the problems of GitLab's jobs: forks on GPUs, and lost JUnit."""
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
        if "timeout" not in job and "timeout" not in base:
            problems.append("job %s: has no timeout" % job_name)
    return ["%s: %s" % (name, problem) for problem in problems]


def scripts_of(path, text):
    """Yields each script that a workflow, GitLab's jobs or a Dockerfile runs."""
    if "Dockerfile" in os.path.basename(path):
        for line in text.splitlines():
            if line.startswith("RUN "):
                yield line[4:]
            elif line.startswith("COPY "):  # The context is tools/.
                yield "\n".join("tools/" + name for name in line.split()[1:-1]
                                if name.endswith(".sh"))
        return
    document = yaml.safe_load(text)
    for job in document.get("jobs", document).values():
        if not isinstance(job, dict):
            continue
        for entry in (job.get("strategy") or {}).get("matrix", {}).get("include", []):
            if "stages" in entry:
                yield ".ci/run " + entry["stages"]
        for entry in (job.get("parallel") or {}).get("matrix", []):
            yield ".ci/run " + " ".join(entry["STAGE"])
        for step in job.get("steps", []):
            if "run" in step:
                yield step["run"]
        lines = job.get("before_script", []) + job.get("script", [])
        if lines:
            yield "\n".join(lines)


def commands_of(script):
    """Yields the words of each simple command of a script."""
    for line in script.replace("\\\n", " ").replace("|\n", "| ").splitlines():
        for inner in re.findall(r"\$\(([^()]*)\)", line):
            yield from commands_of(inner)
        words = []
        # Redirections are no commands; their spaces would make them look so.
        line = re.sub(r"\d?>+&?\s*(\"[^\"]*\"|\S+)", "", line)
        lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
        lexer.whitespace_split = True
        for word in list(lexer) + [";"]:
            if set(word) & set(";|&()") and set(word) <= set("();<>|&"):
                while words and (words[0] in SHELL_WORDS - {"echo"} or "=" in words[0]):
                    words = [] if words[0] in ("read", "trap") else words[1:]
                if words:
                    yield words
                words = []
            else:
                words.append(word)


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as opened:
        return opened.read()


def syntax_problem(root, path):
    """Says what is wrong with a script of the project, or returns None."""
    full = os.path.join(root, path)
    if not os.access(full, os.X_OK):
        return "no script %s that can be run" % path
    first = read(full).splitlines()[0]
    if "python" in first:
        command = [sys.executable, "-c", "import ast,sys;ast.parse(open(sys.argv[1]).read())"]
    else:
        command = [first.split("/")[-1].split()[-1], "-n"]
    outcome = subprocess.run(command + [full], capture_output=True, text=True, check=False)
    return None if outcome.returncode == 0 else "%s: %s" % (path, outcome.stderr.strip())


def check_command(words, root):
    """Returns what is wrong with one command, or None."""
    name = words[0].replace("/opt/lockstep/", "")  # In a Dockerfile.
    if name.endswith(BUNDLE):
        flags = {word.partition("=")[0] for word in words[1:]}
        return None if flags == BUNDLE_FLAGS else "%s has flags %s" % (
            BUNDLE, " ".join(sorted(BUNDLE_FLAGS)))
    if "/" in name:
        problem = syntax_problem(root, name)
        if problem or name != ".ci/run":
            return problem
        outcome = subprocess.run([os.path.join(root, name), "--list"], text=True,
                                 capture_output=True, check=False)
        stages = [word for word in words[1:] if "$" not in word]
        unknown = set(stages) - set(outcome.stdout.split())
        return ".ci/run has no stage %s" % ", ".join(unknown) if unknown else None
    if name in SHELL_WORDS or name in ELSEWHERE or shutil.which(name):
        return None
    return "no command %s" % name


def check_commands(name, text, root):
    """Returns the problems of all commands that a file runs."""
    problems = []
    for script in scripts_of(name, text):
        outcome = subprocess.run(["bash", "-n"], input=script, text=True,
                                 capture_output=True, check=False)
        if outcome.returncode != 0:
            problems.append(outcome.stderr.strip())
            continue
        found = [check_command(words, root) for words in commands_of(script)]
        problems += [problem for problem in found if problem]
    if re.search(r"^\s*(FROM|image:|container:)\s+[\w-]+\.[\w.-]*/", text, re.M):
        problems.append("names the host of a registry")
    return ["%s: %s" % (name, problem) for problem in problems]


def check_names(name, text, root):
    """Returns the targets and configurations of Bazel that do not exist."""
    problems = []
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
        # No Bazel within a test; and no macro makes the targets named here.
        if not os.path.exists(path) or 'name = "%s",' % target not in read(path):
            problems.append("no target %s:%s" % (package, target))
    return ["%s: %s" % (name, problem) for problem in problems]


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--root", default=os.path.join(os.path.dirname(__file__), ".."))
    flags = parser.parse_args()
    problems = []
    workflows = sorted(glob.glob(os.path.join(flags.root, ".github/workflows/*.yml")))
    jobs = [os.path.join(flags.root, "ci", name)
            for name in ("Dockerfile.cpu", "Dockerfile.cuda", "gitlab-ci.yml")]
    texts = [os.path.join(flags.root, name) for name in (
        ".ci/run", "ci/README.md", "ci/compare.py", "ci/slurm.sh")]
    for path in workflows + jobs + texts:
        name, text = os.path.relpath(path, flags.root), read(path)
        if path in workflows:
            problems += check_rules(name, text)
        elif path.endswith(".yml"):
            problems += check_gitlab_rules(name, text)
        if path not in texts:
            problems += check_commands(name, text, flags.root)
        problems += check_names(name, text, flags.root)
    if not workflows:
        problems.append("no workflow in %s" % flags.root)
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
