#!/usr/bin/env python3
"""Tests run.sh and run_stages on a host with fake GPUs, and assemble.py's refusals.

Arguments: the folder of this package's files, and run_stages and the fake driver
that Bazel has built.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
import xml.etree.ElementTree

PACKAGE, RUN_STAGES, FAKE_CUDA = map(os.path.abspath, sys.argv[1:4])
del sys.argv[1:]
sys.dont_write_bytecode = True
sys.path.insert(0, PACKAGE)

import assemble  # pylint: disable=wrong-import-position

# The programs that stages run, without spaces in their arguments, as in the
# table.
TESTS = """#!/bin/sh
# tests NAME=RESULT...: what a GoogleTest would leave.
{
  echo '<?xml version="1.0" encoding="UTF-8"?>'
  echo '<testsuites tests="9" name="AllTests">'
  echo '  <testsuite name="Suite" tests="9">'
  for test in "$@"; do
    echo "    <testcase name=\\"${test%=*}\\" classname=\\"Suite\\">"
    case $test in
      *=failed) echo '<skipped message="after it failed"/>'
                echo '<failure message="a &lt; b"><![CDATA[<testcase/>]]></failure>' ;;
      *=skipped) echo '<skipped message="no GPU"/>' ;;
    esac
    echo '    </testcase>'
  done
  echo '  </testsuite>'
  echo '</testsuites>'
} > "${GTEST_OUTPUT#xml:}"
case "$*" in *=failed*) exit 1 ;; esac
"""
SCRIPTS = {
    "tests": TESTS,
    "good": "#!/bin/sh\necho fine\n",
    "bad": "#!/bin/sh\necho it is broken\nexit 4\n",
    "numbers": "#!/bin/sh\nprintf '{\"seconds\": [1.5, %s]}' $1 > $2\n",
    # This program leaves a process that must be killed too.
    "slow": "#!/bin/sh\necho '[ RUN ] It.Hangs'\nsleep 600 & echo $! > $1\nsleep 600\n",
    "show": "#!/bin/sh\nenv\n",
    "links": "#!/bin/sh\n"
             "for file in ${LD_LIBRARY_PATH%%:*}/*; do readlink $file; done\n"
             "exit 0\n",
    "gpus": "#!/bin/sh\necho $LOCKSTEP_GPUS $LOCKSTEP_REQUIRE_GPU "
            "\"$CUDA_VISIBLE_DEVICES\"\necho $TEST_TMPDIR\n",
    "torch": "#!/bin/sh\npython3 -c show\n",
    "copy": "#!/bin/sh\nwhile read -r line; do echo \"$line\"; done < $1 > $2\n",
    "copy_and_fail": "#!/bin/sh\n"
                     "while read -r line; do echo \"$line\"; done < $1 > $2\n"
                     "exit 1\n",
}
# A python3 with PyTorch, which runs with the host's libraries.
PYTHON = """#!/bin/sh
case "$2" in
  *torch*) [ -n "$FAKE_TORCH" ] || { echo 'No module named torch' >&2; exit 1; }
           echo 2.9.0 ;;
  *site*) echo "$FAKE_SITE" ;;
  *) echo "python has $LD_LIBRARY_PATH" ;;
esac
"""


def step_report(times, model="lenet", type="float32", image_size=28,
                device="cuda"):
    """A report of `step` in which ours takes one second, and PyTorch's modes
    take these times."""
    subjects = [{"subject": "ours", "step": {"median": 1.0}, "ratio": None}] + [
        {"subject": f"PyTorch 2.9.0 {mode} nhwc", "step": {"median": seconds},
         "ratio": {"median": seconds}} for mode, seconds in times.items()]
    return {"report": "lockstep.step", "results": [
        {"model": model, "type": type, "image_size": image_size,
         "device": device, "subjects": subjects}]}


def scaling_report(ranks, shared_gpu=False, model="resnet50", device="cuda"):
    """A report of `scaling` in which a step takes one second, and these numbers
    of ranks wait for sums for these seconds of it."""
    return {"report": "lockstep.scaling",
            "settings": {"model": model, "device": device},
            "modes": [{"configurations": [
                {"world_size": count, "shared_gpu": shared_gpu,
                 "step_seconds": {"mean": 1.0},
                 "parts_seconds": {"exposed_communication": seconds}}
                for count, seconds in ranks]}]}


def write(path, text, mode=0o755):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w" if isinstance(text, str) else "wb") as file:
        file.write(text)
    os.chmod(path, mode)


class Host(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.bundle = self.folder + "/bundle"
        self.out = self.folder + "/out"
        for name, text in SCRIPTS.items():
            write(f"{self.bundle}/bin/{name}", text)
        shutil.copy(RUN_STAGES, self.bundle + "/bin/run_stages")
        os.makedirs(self.bundle + "/lib")
        shutil.copy(PACKAGE + "/run.sh", self.bundle)
        os.makedirs(self.bundle + "/peers")
        shutil.copy(PACKAGE + "/python3.sh", self.bundle + "/peers/python3")
        write(self.folder + "/path/python3", PYTHON)
        for tool in ("env", "readlink", "sh", "sleep"):
            os.symlink(shutil.which(tool), f"{self.folder}/path/{tool}")
        self.driver = self.library("driver", "libcuda.so.1")
        self.environment = {
            "PATH": self.folder + "/path",
            "LD_LIBRARY_PATH": self.driver,
            "FAKE_GPUS": "1",
        }

    def library(self, folder, *names):
        """Makes a folder with these libraries and returns its path."""
        folder = f"{self.folder}/{folder}"
        os.makedirs(folder, exist_ok=True)
        for name in names:
            shutil.copy(FAKE_CUDA, f"{folder}/{name}")
        return folder

    def run_sh(self, stages, *flags, nvidia={}, **environment):
        write(self.bundle + "/stages.txt", stages)
        write(self.bundle + "/manifest.json", json.dumps({"nvidia": nvidia}))
        result = subprocess.run(
            [self.bundle + "/run.sh", "--out=" + self.out, *flags],
            env={**self.environment, **environment}, cwd=self.folder,
            capture_output=True, text=True, timeout=60)
        self.status, self.said = result.returncode, result.stdout
        self.errors = result.stderr.splitlines()
        self.results = {}
        if os.path.exists(self.out + "/results.json"):
            with open(self.out + "/results.json") as file:
                self.document = json.load(file)
            self.results = {each["name"]: each
                            for each in self.document["stages"]}
            self.junit = xml.etree.ElementTree.parse(
                self.out + "/junit.xml").getroot()
        return self.status

    def outcomes(self):
        return {name: each["outcome"] for name, each in self.results.items()}

    def log(self, stage):
        with open(f"{self.out}/{stage}.log") as file:
            return file.read()


class OutcomeTest(Host):
    def test_passes(self):
        status = self.run_sh(
            "# A comment.\n"
            "a correct 1-9 - bin/tests One=passed Two=skipped\n"
            "b kernels 1-9 - bin/numbers {gpus} {json}\n"
            "c every   1-9 - bin/good\n")
        self.assertEqual(status, 0, self.said)
        self.assertEqual(set(self.outcomes().values()), {"passed"})
        self.assertEqual(self.results["a"]["text"], "passed, 1 skipped")
        self.assertEqual(self.results["b"]["numbers"], {"seconds": [1.5, 1]})
        self.assertEqual(self.log("c"), "fine\n")
        self.assertEqual(self.document["gpus"], ["Fake 9000"])
        # The table is last.
        self.assertRegex(self.said.splitlines()[-1], r"^ *c .* passed$")
        self.assertEqual(self.junit.attrib["tests"], "4")
        self.assertEqual(self.junit.attrib["skipped"], "1")
        self.assertEqual(
            [case.get("classname") + "." + case.get("name")
             for case in self.junit.iter("testcase")],
            ["a.Suite.One", "a.Suite.Two", "b.stage", "c.stage"])

    def test_suites(self):
        stages = ("a correct 1-9 - bin/good\n"
                  "b kernels,train 1-9 - bin/good\n"
                  "c every 1-9 - bin/good\n")
        for suite, names in [("correct", "ac"), ("kernels", "bc"),
                             ("train", "bc"), ("all", "abc")]:
            self.assertEqual(self.run_sh(stages, "--suite=" + suite), 0)
            self.assertEqual("".join(self.results), names)
        for only, names in [("a", "a"), ("c,b", "bc")]:
            self.assertEqual(
                self.run_sh(stages, "--suite=train", "--only=" + only), 0)
            self.assertEqual("".join(self.results), names)

    def test_the_first_suite_fits_its_time(self):
        """Every stage of the first suite has its least in 45 minutes."""
        with open(PACKAGE + "/stages.txt") as file:
            stages = [line.split() for line in file if line[0] not in "#\n"]
        first = [words for words in stages
                 if {"first", "every"} & set(words[1].split(","))]
        self.assertGreater(len(first), 10)
        self.assertLess(sum(int(words[2].split("-")[0]) for words in first), 2700)

    def bars(self, *stages):
        """Runs stages that write these reports; returns the values of the bars
        by what they are of, and whether they are met."""
        for number, report in enumerate(stages):
            write(f"{self.folder}/{number}.json", json.dumps(report) + "\n", 0o644)
        table = "".join(f"s{i} train 1-9 - bin/copy {self.folder}/{i}.json {{json}}\n"
                        for i in range(len(stages)))
        self.run_sh(table + "z every 1-9 - bin/good\n")
        return {bar["what"]: (bar["value"], bar["met"])
                for bar in self.document["bars"]}

    def test_bars_of_steps(self):
        lenet = "step of lenet, float32, 28x28"
        times = {"eager": 4.0, "compile": 3.0, "graph": 1.4}
        for wrong, value, met in [
                ({}, 1.4, True), ({"graph": 1.2}, 1.2, False),
                ({"graph": 1.3}, 1.3, True), ({"compile": 0.9}, 0.9, False)]:
            bars = self.bars(step_report({**times, **wrong}))
            self.assertEqual(bars.pop(lenet), (value, met))
            self.assertEqual(len(bars), 6)
            self.assertEqual(set(bars.values()), {(None, None)})
        self.assertIn("0.90: NOT met", self.said)
        self.assertIn("not measured", self.said)
        # The best of fewer modes, another case or a CPU does not decide.
        for mode in times:
            fewer = {key: times[key] for key in times if key != mode}
            self.assertEqual(self.bars(step_report(fewer))[lenet], (None, None))
        for wrong in ({"type": "bfloat16"}, {"image_size": 32},
                      {"device": "cpu"}, {"model": "lenet_bn"}):
            bars = self.bars(step_report(times, **wrong))
            self.assertEqual(set(bars.values()), {(None, None)}, wrong)
        bars = self.bars(step_report(times, type="tf32", model="resnet18_d2l"))
        self.assertEqual(bars["step of resnet18_d2l, tf32, 28x28"], (1.4, True))
        # The numbers of a failed stage do not count.
        self.run_sh("a train 1-9 - bin/copy_and_fail "
                    f"{self.folder}/0.json {{json}}\n")
        self.assertEqual({bar["met"] for bar in self.document["bars"]}, {None})
        # A run without training has no such bars.
        self.run_sh("a correct 1-9 - bin/good\n")
        self.assertNotIn("bars", self.document)

    def test_bar_of_exposed_communication(self):
        what = "exposed communication of a resnet50 step"
        for ranks, wrong, value, met in [
                ([(1, 0.0), (2, 0.01)], {}, 1, True),
                ([(8, 0.04), (1, 0.0), (2, 0.01)], {}, 4, False),
                ([(1, 0.0)], {}, None, None),
                ([(2, 0.01)], {"shared_gpu": True}, None, None),
                ([(2, 0.01)], {"model": "lenet"}, None, None),
                ([(2, 0.01)], {"device": "cpu"}, None, None)]:
            bars = self.bars(scaling_report(ranks, **wrong))
            self.assertEqual(bars[what], (value, met))

    def test_failures(self):
        for command, outcome, text in [
            ("bin/bad", "failed",
             "FAILED: it ended with exit status 4: it is broken"),
            ("bin/tests One=passed Two=failed Three=failed", "failed",
             "FAILED: 2 tests, Suite.Two first"),
            ("bin/tests One=skipped Two=skipped", "skipped",
             "every test was skipped"),
            ("bin/absent", "failed", "FAILED: it ended with exit status 127"),
        ]:
            status = self.run_sh(f"good every 1-9 - bin/good\n"
                                 f"a every 1-9 - {command}\n")
            self.assertEqual(status, 1, command)
            self.assertEqual(self.results["a"]["outcome"], outcome)
            self.assertIn(text, self.results["a"]["text"])
        self.run_sh("a every 1-9 - bin/tests One=failed Two=passed\n")
        self.assertEqual(self.junit.attrib["failures"], "1")
        failure = self.junit.find(".//testcase[@name='One']/failure")
        self.assertEqual(failure.get("message"), "a < b")

    def test_time_limit(self):
        pid = self.folder + "/pid"
        start = time.monotonic()
        status = self.run_sh(f"a every 1-1 - bin/slow {pid}\n"
                             f"b every 1-9 - bin/good\n")
        self.assertEqual(status, 1)
        self.assertLess(time.monotonic() - start, 30)
        self.assertEqual(self.outcomes(), {"a": "timed_out", "b": "passed"})
        self.assertEqual(self.results["a"]["text"],
                         "TIMED OUT: after 1 s, at [ RUN ] It.Hangs")
        self.assertIsNotNone(self.junit.find(".//testcase[@classname='a']/failure"))
        with open(pid) as file:
            child = int(file.read())
        for _ in range(200):  # Until init has noticed.
            try:
                with open(f"/proc/{child}/stat") as file:
                    if file.read().split(") ")[1][0] == "Z":
                        return
            except OSError:
                return
            time.sleep(0.05)
        self.fail("a process of the stage was left")

    def test_budget(self):
        pid = self.folder + "/pid"
        status = self.run_sh(f"a every 1-30 - bin/slow {pid}\n"
                             f"b every 2-9 - bin/good\n", "--budget=2")
        self.assertEqual(status, 1)
        self.assertEqual(self.outcomes(), {"a": "timed_out", "b": "no_budget"})
        self.assertEqual(self.results["b"]["text"], "not run: budget")
        self.assertLess(self.results["a"]["seconds"], 4)
        # The first stage leaves the others' least, but not that of a stage which
        # this host cannot run.
        self.run_sh(f"a every 1-30 - bin/slow {pid}\n"
                    f"b every 3-9 - bin/good\n"
                    f"c every 90-99 gpus>=2 bin/good\n", "--budget=5")
        self.assertEqual(self.outcomes(),
                         {"a": "timed_out", "b": "passed", "c": "lacks"})
        self.assertIn("after 1 s", self.results["a"]["text"])

    def test_needs(self):
        stages = ("a correct 1-9 - bin/good\n"
                  "b every 1-9 gpus>=2 bin/good\n"
                  "c every 1-9 torch bin/torch\n"
                  "d every 1-9 compute-sanitizer compute-sanitizer bin/good\n"
                  "e every 1-9 no-such-program bin/good\n")
        self.assertEqual(self.run_sh(stages), 0)
        self.assertEqual(self.results["b"]["text"], "not run: needs 2 GPUs")
        self.assertEqual(list(self.outcomes().values()),
                         ["passed"] + ["lacks"] * 4)
        write(self.folder + "/path/compute-sanitizer",
              "#!/bin/sh\necho checked $*\n")
        write(self.folder + "/path/no-such-program", "")
        status = self.run_sh(stages, FAKE_GPUS="2", FAKE_TORCH="1")
        self.assertEqual(status, 0)
        self.assertEqual(set(self.outcomes().values()), {"passed"})
        self.assertEqual(self.log("d"), f"checked {self.bundle}/bin/good\n")
        # A run passes only if a stage ran that is not of `every` suite.
        self.assertEqual(self.run_sh("a train 1-9 gpus>=2 bin/good\n"
                                     "b every 1-9 - bin/good\n"), 1)

    def test_environment(self):
        stages = "a correct 1-9 - bin/gpus\nb correct 1-9 gpus>=2 bin/gpus\n"
        for visible, one, all_of_them in [
                ({}, "1 1 0", "all 2 "),
                ({"CUDA_VISIBLE_DEVICES": "3,5"}, "1 1 3", "all 2 3,5")]:
            self.assertEqual(self.run_sh(stages, FAKE_GPUS="2", **visible), 0)
            self.assertEqual(self.log("a").splitlines()[0], one)
            self.assertEqual(self.log("b").splitlines()[0], all_of_them)
            self.assertNotIn("one process", self.said)
        own = self.log("a").splitlines()[1]
        self.assertRegex(own, "/lockstep-stage-")
        self.assertFalse(os.path.exists(own))

    def test_a_gpu_for_one_process(self):
        stages = "a correct 1-9 - bin/good\nb correct 1-9 shared bin/bad\n"
        self.assertEqual(self.run_sh(stages), 1)
        self.assertEqual(self.run_sh(stages, FAKE_EXCLUSIVE="1"), 0)
        self.assertEqual(self.outcomes(), {"a": "passed", "b": "lacks"})
        self.assertEqual(self.results["b"]["text"],
                         "not run: needs a GPU that several processes may use")
        self.assertIn("GPU: Fake 9000, for one process alone, by its compute "
                      "mode\n", self.said)

    def test_an_earlier_runs_results_go(self):
        self.assertEqual(self.run_sh("a correct 1-9 - bin/good\n"), 0)
        self.run_sh("a correct 1-9 - bin/good\n", nvidia={"libfake.so.1": []})
        self.assertEqual(self.outcomes(), {})


    def test_packs_its_results(self):
        for out in ("", "/"):
            self.assertEqual(self.run_sh("a correct 1-9 - bin/numbers 2 {json}\n"
                                         "b correct 1-9 - bin/good\n",
                                         "--out=" + self.out + out), 0)
            with tarfile.open(self.out + ".tar") as tar:
                self.assertEqual(tar.getnames(), [
                    "out/" + name for name in (
                        "a.json", "a.log", "b.log", "junit.xml", "results.json")])
                for name in ("a.json", "results.json"):
                    with open(f"{self.out}/{name}", "rb") as file:
                        self.assertEqual(tar.extractfile("out/" + name).read(),
                                         file.read())


class HostTest(Host):
    def test_an_old_c_library(self):
        """The loader's lines become one, which names the newest version."""
        with open(RUN_STAGES, "rb") as file:
            program = file.read()
        for prefix, name in [(b"GLIBC_2.", "glibc 2."),
                             (b"GLIBCXX_3.4.", "libstdc++ GLIBCXX_3.4.")]:
            versions = {int(each) for each in
                        re.findall(prefix + rb"(\d\d)\0", program)}
            newest = max(versions)
            self.assertGreater(len(versions), 1)
            later = program
            for version in versions:  # Versions that no host has, 60 later.
                later = later.replace(b"%s%d\0" % (prefix, version),
                                      b"%s%d\0" % (prefix, version + 60))
            write(self.bundle + "/bin/run_stages", later)
            self.assertEqual(self.run_sh("a every 1-9 - bin/good\n"), 1)
            self.assertEqual(self.errors, [
                f"run.sh: the programs need {name}{newest + 60}, and this host's "
                "is older"])

    def test_the_bundles_c_library(self):
        """If the host's is too old, all programs start through glibc/bin/."""
        shutil.copytree(self.bundle + "/bin", self.bundle + "/glibc/bin",
                        symlinks=True)
        for name in ("lib", "stages.txt", "manifest.json"):
            os.symlink("../" + name, f"{self.bundle}/glibc/{name}")
        os.remove(self.bundle + "/bin/good")
        stages = "a correct 1-9 - bin/good\n"
        self.assertEqual(self.run_sh(stages), 1)
        with open(RUN_STAGES, "rb") as file:
            later = re.sub(rb"GLIBC_2\.\d\d\0", b"GLIBC_2.99\0", file.read())
        os.remove(self.bundle + "/bin/run_stages")
        write(self.bundle + "/bin/run_stages", later)
        self.assertEqual(
            self.run_sh(stages, LOCKSTEP_PROGRAM="glibc/bin/run_stages"), 0)
        self.assertRegex(self.said, r"libc.so.6: the bundle's, version 2\.\d+; "
                                    "this host's is older")

    def test_the_newer_cxx_library(self):
        used = subprocess.run(["ldd", RUN_STAGES], capture_output=True,
                              text=True, check=True).stdout
        newer = self.library("newer")
        for name in ("libstdc++.so.6", "libgcc_s.so.1"):
            path = re.search(re.escape(name) + r" => (\S+)", used).group(1)
            shutil.copy(path, newer + "/" + name)
        shutil.copy(newer + "/libstdc++.so.6", self.bundle + "/lib")
        stages = "a correct 1-9 - bin/links\n"
        host = newer + ":" + self.driver
        self.assertEqual(self.run_sh(stages, LD_LIBRARY_PATH=host), 0)
        self.assertEqual(self.log("a"), "")  # It has the same versions.
        with open(newer + "/libstdc++.so.6", "ab") as file:
            file.write(b"GLIBCXX_3.4.99")
        self.assertEqual(self.run_sh(stages, LD_LIBRARY_PATH=host), 0)
        self.assertEqual(self.log("a").split(), [newer + "/libgcc_s.so.1",
                                                 newer + "/libstdc++.so.6"])
        self.assertIn(f"libstdc++.so.6: {newer}/libstdc++.so.6, which is newer",
                      self.said)
        with open(self.bundle + "/lib/libstdc++.so.6", "ab") as file:
            file.write(b"GLIBCXX_3.4.100")
        self.assertEqual(self.run_sh(stages, LD_LIBRARY_PATH=host), 0)
        self.assertEqual(self.log("a"), "")

    def test_no_gpu(self):
        for gpus in ({"FAKE_GPUS": "0"}, {}):
            del self.environment["FAKE_GPUS"]
            self.assertEqual(self.run_sh("a every 1-9 - bin/good\n", **gpus), 3)
            self.assertRegex("\n".join(self.errors), "^run.sh: no GPU: .+$")
            self.assertEqual(self.said, "")
            self.environment["FAKE_GPUS"] = "1"
        self.assertEqual(
            self.run_sh("a every 1-9 - bin/good\n", FAKE_ERROR="803"), 1)
        self.assertEqual(self.errors, ["run.sh: the driver fails: error 803"])

    def test_usage(self):
        for flag, said in [("--suite=some", "--suite: 'some' is not one of"),
                           ("--only=a,b", "--only: 'b' is no stage of stages.txt"),
                           ("--budget=0", "--budget: 0 is not above 0"),
                           ("--frobnicate", "frobnicate"),
                           ("--out=/dev/null/x", "--out: cannot write to")]:
            self.assertEqual(self.run_sh("a every 1-9 - bin/good\n", flag), 2)
            self.assertEqual(len(self.errors), 1, self.errors)
            self.assertTrue(self.errors[0].startswith("run.sh: "))
            self.assertIn(said, self.errors[0])

    def test_bad_table(self):
        for line, said in [("a every 1-9 -", "not NAME SUITES"),
                           ("a every 9-1 - bin/good", "'9-1' is not"),
                           ("a every 9 - bin/good", "'9' is not")]:
            self.assertEqual(self.run_sh("# Comment.\n" + line + "\n"), 1)
            self.assertIn("stages.txt: line 2: " + said, self.errors[0])

    def test_libraries(self):
        nvidia = {"libnccl.so.0": ["ncclGetVersion"],
                  "libcudnn.so.0": ["cudnnGetVersion"], "libfake.so.1": []}
        stages = "a correct 1-9 - bin/show\n"
        self.assertEqual(self.run_sh(stages, nvidia=nvidia), 1)
        self.assertEqual(len(self.errors), 1)
        self.assertIn("libfake.so.1, libnccl.so.0 not found: set LOCKSTEP_",
                      self.errors[0])
        # An older library, and beside it a driver that the host does not use.
        old = self.library("old", "libnccl.so.0", "libfake.so.1", "libcuda.so.1")
        with open(FAKE_CUDA, "rb") as file:
            write(old + "/libcudnn.so.0", file.read().replace(
                b"cudnnGetVersion", b"cudnnGotVersion"))
        status = self.run_sh(stages, nvidia=nvidia, LOCKSTEP_CUDA_LIBS=old)
        self.assertEqual(status, 1)
        lacks = f"{old}/libcudnn.so.0:  has no cudnnGetVersion"
        self.assertIn("libcudnn.so.0 not found: ", self.errors[0])
        self.assertTrue(self.errors[0].endswith("; passed over " + lacks))
        broken = self.folder + "/broken"
        write(broken + "/libnccl.so.0", "no library")
        wheel = self.library("site/nvidia/cudnn/lib", "libcudnn.so.0",
                             "libcudnn_part.so.0", "libnccl.so.0")
        status = self.run_sh(
            "a correct 1-9 - bin/show\nb correct 1-9 - bin/links\n",
            nvidia=nvidia, LOCKSTEP_CUDA_LIBS=broken + ":" + old,
            FAKE_SITE=self.folder + "/site")
        self.assertEqual(status, 0, self.said)
        found = {each["name"]: each for each in self.document["libraries"]}
        self.assertEqual(found["libnccl.so.0"]["file"], old + "/libnccl.so.0")
        self.assertEqual(found["libnccl.so.0"]["version"], "2.28.9")
        self.assertIn(f"passed over: {lacks}\n", self.said)
        self.assertIn(f"passed over: {broken}/libnccl.so.0: ", self.said)
        self.assertIn(f"libcudnn.so.0: 9.19.0, {wheel}/libcudnn.so.0\n",
                      self.said)
        # The stage finds the libraries that were found and their parts first,
        # then the bundle's own, then the host's.
        self.assertRegex(self.log("a"), "LD_LIBRARY_PATH=[^:]+/lockstep-[^:]+:"
                         f"{self.bundle}/lib:{self.driver}\n")
        self.assertEqual(self.log("b").split(), [
            wheel + "/libcudnn.so.0", wheel + "/libcudnn_part.so.0",
            old + "/libfake.so.1", old + "/libnccl.so.0"])

    def test_old_nccl(self):
        nvidia = {"libnccl.so.0": ["ncclGetVersion"]}
        stages = "a correct 1-9 - bin/good\n"
        old = self.library("old", "libnccl.so.0")
        newer = self.library("newer", "libnccl.so.0")
        self.assertEqual(self.run_sh(stages, nvidia=nvidia, FAKE_NCCL="22707",
                                     LOCKSTEP_CUDA_LIBS=old), 0)
        self.assertIn(f"libnccl.so.0: 2.27.7, {old}/libnccl.so.0: "
                      "kDirect needs 2.28\n", self.said)
        self.assertNotIn("passed over", self.said)
        self.assertEqual(
            self.run_sh(stages, nvidia=nvidia, FAKE_NCCL="22707",
                        LOCKSTEP_CUDA_LIBS=old + ":" + newer), 0)
        self.assertIn(f"passed over: {old}/libnccl.so.0: 2.27.7, and kDirect "
                      "needs 2.28\n", self.said)
        self.assertIn(f"libnccl.so.0: 2.30.7, {newer}/libnccl.so.0\n",
                      self.said)

    def test_old_driver(self):
        cudart = self.library("cudart", "libcudart.so.13")
        for version, status, errors in [
                ("13000", 0, []), ("13020", 0, []),
                ("12080", 1, ["run.sh: the driver is for CUDA 12.8, and the "
                              "programs need one for CUDA 13.0 or later"])]:
            self.assertEqual(
                self.run_sh("a correct 1-9 - bin/good\n", FAKE_CUDA=version,
                            nvidia={"libcudart.so.13": ["cuInit"]},
                            LOCKSTEP_CUDA_LIBS=cudart), status)
            self.assertEqual(self.errors, errors)

    def test_python_has_the_hosts_libraries(self):
        self.assertEqual(
            self.run_sh("a correct 1-9 torch bin/torch\n", FAKE_TORCH="1"), 0)
        self.assertEqual(self.log("a"), f"python has {self.driver}\n")
        self.assertEqual(self.document["torch"], "2.9.0")
        # If no python3 has PyTorch, peers/python3 does not start another one.
        self.assertEqual(self.run_sh("a correct 1-9 - bin/torch\n"), 1)
        self.assertIn("no python3 has PyTorch", self.log("a"))


class AssembleTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def pack(self, stages, *programs, most_mib=60):
        write(self.folder + "/stages.txt", stages, 0o644)
        result = subprocess.run(
            [PACKAGE + "/assemble.py", f"--out={self.folder}/x.tar.xz",
             f"--stages={self.folder}/stages.txt", f"--run_sh={PACKAGE}/run.sh",
             f"--python={PACKAGE}/python3.sh", f"--most_mib={most_mib}",
             "--start=/bin/true",
             *programs], stderr=subprocess.PIPE, text=True, timeout=60)
        self.error = result.stderr
        return result.returncode

    def test_rejects_a_missing_library(self):
        self.assertEqual(
            self.pack("a every 1-9 - bin/run_stages\n", RUN_STAGES), 0)
        with tarfile.open(self.folder + "/x.tar.xz") as tar:
            tar.extractall(self.folder)
        root = self.folder + "/gpu_bundle"
        assemble.check(root)
        os.remove(root + "/lib/libexpat.so.1")
        with self.assertRaisesRegex(assemble.Wrong, "needs libexpat.*not in lib/"):
            assemble.check(root)

    def test_packs_nothing_that_is_wrong(self):
        stages = "a every 1-9 - bin/true\n"
        for programs, more, most_mib, error in [
                (["/bin/true"], "", 0.001, "MiB; at most 0.001 are allowed"),
                (["/bin/true", "/bin/false"], "", 60, "no stage of stages.txt runs"),
                (["/bin/true"], "b every 1-9 - bin/absent\n", 60,
                 "bin/absent is not in the bundle"),
                (["/bin/true", "/usr/bin/true"], "", 60, "2 programs are called")]:
            self.assertEqual(
                self.pack(stages + more, *programs, most_mib=most_mib), 1)
            self.assertIn(error, self.error)


unittest.main()
