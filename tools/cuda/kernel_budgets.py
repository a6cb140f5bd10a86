#!/usr/bin/env python3
"""Compares compiled kernels with their budgets: kernel_budgets.py [options] FILE...

FILE is the output of nvcc --resource-usage (*.usage), or an object file of nvcc.
--table names the file of budgets, whose first lines explain its form.

A kernel is rejected if it has no budget, spills registers, takes more registers
or more instructions for 16 bytes than its budget, or lacks a loop that the
budget names. A budget is rejected if it is more than 5% above the built kernels.
cuobjdump and nvdisasm, from PATH or from tools/setup.sh --ci, count instructions
in machine code. Without them this part is skipped, and the output says so.

  --table=FILE     the budgets
  --show           print the built kernels in the form of the table, and stop
  --expect=TEXT    a complaint that must be made on every architecture; several
                   may be given. Then any other complaint, or one that is
                   missing, is an error.
  --toolkit=V      the version of nvcc that made the files; the budgets are those
                   of 13.0
"""

import argparse
import collections
import fnmatch
import glob
import math
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from xml.sax.saxutils import quoteattr

SLACK = 1.05
TOOLKIT = "13.0"
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*)(.*?);")

# The measurements of one kernel on one architecture. `loops` is {(loads,
# stores): instructions per load}, with accesses of 16 bytes, or None if they
# were not counted.
Built = collections.namedtuple("Built", "registers spills loops")


def demangle(names):
    """Returns {name: short name}, without namespaces, parameters and types of constants."""
    run = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    short = {}
    for name, text in zip(names, run.stdout.splitlines()):
        text = re.sub(r"lockstep::|\(anonymous namespace\)::|^void ", "", text)
        text = re.sub(r"\(\w+\)(\d+)", r"\1", text)  # (ReduceOp)3
        text = re.sub(r"\(.*", "", text)
        short[name] = text.replace(" >", ">")
    return short


def read_usage(path):
    """Returns {(architecture, mangled name): (registers, bytes spilled)}."""
    usage, kernel, spills = {}, None, 0
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            match = re.search(r"Compiling entry function '(\w+)' for 'sm_(\w+)'", line)
            if match:
                kernel = (match.group(2), match.group(1))
            match = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line)
            if match:
                spills = int(match.group(1)) + int(match.group(2))
            match = re.search(r"Used (\d+) registers", line)
            if match and kernel:
                usage[kernel] = (int(match.group(1)), spills)
                kernel = None
    return usage


def find_disassembler():
    """Returns the path of a cuobjdump with an nvdisasm beside it, or None."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    for home in (os.environ.get("HOME", ""), pwd.getpwuid(os.getuid()).pw_dir):
        folders += glob.glob(home + "/.cache/lockstep/venv/lib/python3*/site-packages/nvidia/cu*/bin")
    for folder in folders:
        if all(shutil.which(tool, path=folder) for tool in ("cuobjdump", "nvdisasm")):
            return os.path.join(folder, "cuobjdump")
    return None


def read_code(cuobjdump, path):
    """Returns {(architecture, mangled name): [(address, opcode, operands)]}."""
    # cuobjdump names its temporary files after its process number, which
    # another sandbox may use too. So each run gets its own temporary folder.
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, TMPDIR=folder,
                           PATH=os.path.dirname(cuobjdump) + os.pathsep + os.environ["PATH"])
        run = subprocess.run([cuobjdump, "--dump-sass", path], capture_output=True, text=True, env=environment)
    if run.returncode != 0:
        sys.exit("kernel_budgets: cuobjdump %s: %s" % (path, run.stderr.strip()))
    functions, architecture, code = {}, "", []
    for line in run.stdout.splitlines():
        match = re.search(r"arch = sm_(\w+)", line)
        if match:
            architecture = match.group(1)
        match = re.search(r"Function : (\S+)", line)
        if match:
            code = functions.setdefault((architecture, match.group(1)), [])
        match = INSTRUCTION.search(line)
        if match:
            code.append((int(match.group(1), 16), match.group(2), match.group(3)))
    return functions


def count_loops(code):
    """Returns {(loads, stores): most instructions per load} of the innermost
    loops that load 16 bytes at a time."""
    ends = {}
    for address, opcode, operands in code:
        match = re.search(r"0x([0-9a-f]+)", operands) if opcode.startswith("BRA") else None
        if match and int(match.group(1), 16) < address:
            begin = int(match.group(1), 16)
            ends[begin] = max(address, ends.get(begin, 0))
    bodies = []
    for begin, end in ends.items():
        body = [opcode for address, opcode, _ in code if begin <= address <= end]
        # LDG and STG access global memory; LD and ST access memory of unknown
        # space, such as that of other ranks.
        loads, stores = (sum(op.split(".")[0] in kind and ".128" in op for op in body)
                         for kind in (("LDG", "LD"), ("STG", "ST")))
        if loads:
            bodies.append((begin, end, (loads, stores), math.ceil(len(body) / loads)))
    loops = {}
    for begin, end, accesses, each in bodies:
        if any(begin <= b and e <= end and (b, e) != (begin, end) for b, e, _, _ in bodies):
            continue
        loops[accesses] = max(each, loops.get(accesses, 0))
    return loops


def read_built(paths, cuobjdump):
    """Returns {architecture: {short name: Built}}."""
    usage, code = {}, {}
    for path in paths:
        if path.endswith(".usage"):
            usage.update(read_usage(path))
        elif cuobjdump:
            code.update(read_code(cuobjdump, path))
    if not usage:
        sys.exit("kernel_budgets: no kernels in " + " ".join(paths))
    short = demangle(sorted({name for _, name in usage}))
    built = {}
    for (architecture, name), (registers, spills) in usage.items():
        loops = count_loops(code[architecture, name]) if cuobjdump else None
        kernels = built.setdefault(architecture, {})
        kernels[short[name]] = Built(registers, spills, loops)
    return built


def read_table(path):
    """Returns the architectures, and [(pattern, what, [number of each])]."""
    architectures, rows = [], []
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            cells = [cell.strip() for cell in line.split("|")]
            if line.startswith("#") or len(cells) < 3:
                continue
            if not architectures:
                architectures = cells[2:]
                continue
            rows.append((cells[0] or rows[-1][0], cells[1], [int(cell) for cell in cells[2:]]))
            if len(cells) - 2 != len(architectures):
                sys.exit("kernel_budgets: %s: not one number for each architecture: %s" % (path, line.strip()))
    return architectures, rows


def measure(built, what):
    """Returns one kernel's number for a row of the table; None if it has none."""
    if what == "registers":
        return built.registers
    if what == "loop":
        return max(built.loops.values(), default=None)
    return built.loops.get(tuple(int(n) for n in what.split()[1].split("x")))


def check(built, table):
    """Yields a complaint for each kernel and each budget that is rejected."""
    architectures, rows = table
    patterns = list(dict.fromkeys(pattern for pattern, _, _ in rows))
    for architecture, kernels in sorted(built.items()):
        of_pattern = {}
        for name, kernel in sorted(kernels.items()):
            pattern = next((p for p in patterns if fnmatch.fnmatchcase(name, p)), None)
            if architecture not in architectures or pattern is None:
                yield "%s has no budget on sm_%s" % (name, architecture)
                continue
            of_pattern.setdefault(pattern, []).append((name, kernel))
            if kernel.spills:
                yield "%s spills %d bytes on sm_%s" % (name, kernel.spills, architecture)
            if kernel.loops and not any(p == pattern and what != "registers" for p, what, _ in rows):
                yield "%s has a loop over vectors and no budget for it on sm_%s" % (name, architecture)
        for pattern, what, numbers in rows:
            if pattern not in of_pattern:
                continue
            budget, most = numbers[architectures.index(architecture)], 0
            for name, kernel in of_pattern[pattern]:
                if what != "registers" and kernel.loops is None:
                    continue
                found = measure(kernel, what)
                if found is None and what != "loop":
                    yield "%s has no loop of %s accesses of 16 bytes (loads x stores) on sm_%s, but %s" % (
                        name, what.split()[1], architecture, ", ".join("%dx%d" % key for key in sorted(kernel.loops)) or "none")
                most = max(most, found or 0)
                if found and found > budget:
                    yield "%s: %s %d on sm_%s, budget %d" % (name, what, found, architecture, budget)
            if most and budget > math.ceil(most * SLACK):
                yield "%s: %s at most %d on sm_%s, so a budget of %d is too loose" % (
                    pattern, what, most, architecture, budget)


def show(built, table):
    """Prints the table's rows with the numbers of the built kernels."""
    architectures, rows = table
    patterns = list(dict.fromkeys(pattern for pattern, _, _ in rows))
    for pattern, what, _ in rows:
        cells = []
        for architecture in architectures:
            of_row = [kernel for name, kernel in built.get(architecture, {}).items()
                      if pattern == next((p for p in patterns if fnmatch.fnmatchcase(name, p)), None)]
            cells.append(max((measure(kernel, what) or 0 for kernel in of_row), default=0))
        if any(cells):
            print("%-56s | %-9s | %s" % (pattern, what, " | ".join("%3d" % cell for cell in cells)))


def write_report(skipped, complaints):
    """Writes the results in the form that Bazel keeps, which counts skipped parts."""
    path = os.environ.get("XML_OUTPUT_FILE")
    if not path:
        return
    failure = "<failure message=%s/>" % quoteattr("; ".join(complaints)) if complaints else ""
    skip = "<skipped message=%s/>" % quoteattr(skipped) if skipped else ""
    with open(path, "w", encoding="utf-8") as out:
        out.write('<testsuites><testsuite name="kernel_budgets" tests="2" failures="%d" skipped="%d">'
                  '<testcase name="registers">%s</testcase><testcase name="instructions">%s</testcase>'
                  "</testsuite></testsuites>\n" % (bool(complaints), bool(skipped), failure, skip))


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--table", required=True)
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--expect", action="append", default=[])
    parser.add_argument("--toolkit", default=TOOLKIT)
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    if not (options.toolkit + ".").startswith(TOOLKIT + "."):
        skipped = "SKIPPED: budgets are those of nvcc %s, not %s" % (TOOLKIT, options.toolkit)
        print(skipped)
        write_report(skipped, [])
        return 0
    cuobjdump = find_disassembler()
    built, table = read_built(options.files, cuobjdump), read_table(options.table)
    if options.show:
        show(built, table)
        return 0
    complaints = list(check(built, table))
    skipped = ""
    if not cuobjdump:
        skipped = "SKIPPED: instructions: no cuobjdump and nvdisasm in PATH or from tools/setup.sh --ci"
        print(skipped)
    if options.expect:
        missing = ["not complained of on sm_%s: %s" % (architecture, text)
                   for text in options.expect if cuobjdump or " loop " not in text
                   for architecture in sorted(built)
                   if not any(text in c and "sm_" + architecture in c for c in complaints)]
        complaints = missing + [c for c in complaints if not any(text in c for text in options.expect)]
    for complaint in complaints:
        print(complaint)
    print("%d kernels on %s: %s" % (len(set().union(*built.values())), ", ".join("sm_" + a for a in sorted(built)),
                                    "rejected" if complaints else "within their budgets"))
    write_report(skipped, complaints)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
