#!/usr/bin/env python3
"""Counts global memory accesses by width in the machine code of the kernels.

Usage: count_bytes.py OBJECT_OR_ARCHIVE...

Disassembles with cuobjdump (named by $CUOBJDUMP, or on PATH, or beside nvcc),
which needs nvdisasm in the same folder. For each kernel that moves vectors it
prints the 16-byte loads and stores of each innermost loop over them, and what
narrower ones stand in that loop: numbers of channels, and the elements of
vectors that reach over the tensor's end. With partition_test, which shows that
every vector is dealt out once, it shows that each element is moved once.

Exits with 1 if a loop holds another number of 16-byte accesses than it should,
if a kernel that should have them has none, or if one that keeps vectors in
registers spills them.
"""

import os
import re
import shutil
import subprocess
import sys

# Loads and stores of 16 bytes that a loop may hold: without and with the
# optional tensors (residual; y with ReLU; dresidual, whose store stands behind a
# branch).
ELEMENTWISE = {
    "NormalizeOperation": {(1, 1), (2, 1)},
    "BackwardInputOperation": {(2, 2), (3, 2)},
}

# Loads of a loop of a reduction, which takes several vectors of each tensor at
# once, by vector size. Ten are two vectors of x and dy beside two of x, dy and
# y: one of the two runs.
REDUCTIONS = {
    ("PlanesKernel", "MomentsReduction", 4): {4},
    ("PlanesKernel", "MomentsReduction", 8): {2},
    ("RowsKernel", "MomentsReduction", 4): {4},
    ("RowsKernel", "MomentsReduction", 8): {4},
    ("PlanesKernel", "SumsReduction", 4): {4, 6, 10},
    ("PlanesKernel", "SumsReduction", 8): {4, 6, 10},
    ("RowsKernel", "SumsReduction", 4): {4, 6, 10},
    ("RowsKernel", "SumsReduction", 8): {4, 6, 10},
}

KERNEL = re.compile(r"(\w+Kernel)<(?:\(?\w*\)?)(\d+), .*?(\w+(?:Operation|Reduction))<(\w+)>")
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*)(.*?);")
ACCESS = re.compile(r"(LDG|STG|LDL|STL)\b")


def find_cuobjdump():
    nvcc = shutil.which("nvcc") or os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvcc")
    beside = os.path.join(os.path.dirname(os.path.realpath(nvcc)), "cuobjdump")
    for path in [os.environ.get("CUOBJDUMP"), shutil.which("cuobjdump"), beside]:
        if path and os.access(path, os.X_OK):
            return path
    sys.exit("count_bytes: no cuobjdump: set CUOBJDUMP, or put it on PATH or beside nvcc")


def disassemble(cuobjdump, path):
    environment = dict(os.environ, PATH=os.path.dirname(cuobjdump) + os.pathsep + os.environ.get("PATH", ""))
    run = subprocess.run([cuobjdump, "--dump-sass", path], capture_output=True, text=True, env=environment)
    if run.returncode != 0:
        sys.exit("count_bytes: cuobjdump %s: %s" % (path, run.stderr.strip().splitlines()[-1:]))
    return run.stdout


def functions(text):
    """Yields architecture, mangled name, [(address, opcode, operands)]."""
    architecture, name, code = "", None, []
    for line in text.splitlines():
        match = re.search(r"arch = (sm_\w+)", line)
        if match:
            if name:
                yield architecture, name, code
            architecture, name, code = match.group(1), None, []
        match = re.search(r"Function : (\S+)", line)
        if match:
            if name:
                yield architecture, name, code
            name, code = match.group(1), []
            continue
        match = INSTRUCTION.search(line)
        if match and name:
            code.append((int(match.group(1), 16), match.group(2), match.group(3)))
    if name:
        yield architecture, name, code


def width(opcode):
    match = re.search(r"\.(128|64|U16|S16|U8|S8)\b", opcode)
    return {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}[match.group(1)] if match else 4


def count(code):
    """Accesses by (LDG or STG or LDL or STL, bytes)."""
    counts = {}
    for _, opcode, _ in code:
        match = ACCESS.match(opcode)
        if match:
            key = (match.group(1), width(opcode))
            counts[key] = counts.get(key, 0) + 1
    return counts


def vector_loops(code):
    """Accesses of each innermost loop that has any of 16 bytes."""
    ends = {}
    for address, opcode, operands in code:
        match = re.search(r"0x([0-9a-f]+)", operands) if opcode.startswith("BRA") else None
        if match and int(match.group(1), 16) < address:
            begin = int(match.group(1), 16)
            ends[begin] = max(address, ends.get(begin, 0))
    bodies = []
    for begin, end in ends.items():
        body = count([entry for entry in code if begin <= entry[0] <= end])
        if body.get(("LDG", 16), 0) > 0:
            bodies.append((begin, end, body))
    return [
        body
        for begin, end, body in bodies
        if not any(begin <= b and e <= end and (b, e) != (begin, end) for b, e, _ in bodies)
    ]


def expected(kernel, size, operation):
    """What a loop may hold: a set of (loads, stores)."""
    if operation in ELEMENTWISE:
        return ELEMENTWISE[operation]
    return {(loads, 0) for loads in REDUCTIONS[(kernel, operation, size)]}


def narrow(counts):
    text = ", ".join("%d %s of %d" % (n, op, b) for (op, b), n in sorted(counts.items()) if b != 16)
    return text or "none"


def check(label, size, counts, loops, allowed):
    """Prints a kernel's loops; returns whether they are as they should be."""
    wide = counts.get(("LDG", 16), 0) + counts.get(("STG", 16), 0)
    if size == 1:
        print("%s: single elements; 16-byte accesses: %d" % (label, wide))
        return wide == 0
    spills = any(op in ("LDL", "STL") for op, _ in counts)
    ok = len(loops) > 0 and not spills
    for body in loops:
        found = (body.get(("LDG", 16), 0), body.get(("STG", 16), 0))
        right = found in allowed
        ok = ok and right
        print(
            "%s: a loop of %d loads and %d stores of 16 bytes; narrower: %s%s"
            % (label, found[0], found[1], narrow(body), "" if right else "  <-- WRONG")
        )
    if not loops:
        print("%s: no loop with 16-byte accesses  <-- WRONG" % label)
    if spills:
        print("%s: spills registers  <-- WRONG" % label)
    return ok


def main(paths):
    if not paths:
        sys.exit(__doc__.strip().splitlines()[2])
    cuobjdump = find_cuobjdump()
    seen, ok = set(), True
    for path in paths:
        for architecture, mangled, code in functions(disassemble(cuobjdump, path)):
            name = subprocess.run(["c++filt", mangled], capture_output=True, text=True).stdout
            match = KERNEL.search(name.replace("lockstep::", "").replace("(anonymous namespace)::", ""))
            if not match or (architecture, mangled) in seen:
                continue
            seen.add((architecture, mangled))
            kernel, size, operation, element = match.group(1), int(match.group(2)), match.group(3), match.group(4)
            label = "%s %s<%d> %s<%s>" % (architecture, kernel, size, operation, element)
            allowed = expected(kernel, size, operation) if size > 1 else None
            ok = check(label, size, count(code), vector_loops(code), allowed) and ok
    if not seen:
        sys.exit("count_bytes: no kernels in %s" % " ".join(paths))
    print("%d kernels: %s" % (len(seen), "as they should be" if ok else "WRONG"))
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main(sys.argv[1:])
