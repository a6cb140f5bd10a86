#!/usr/bin/env python3
"""Packs programs, and the libraries that a bare host lacks, into one .tar.xz.

  assemble.py --out=X.tar.xz --most_mib=60 --stages=F --run_sh=F --python=F
      --start=F [--data=FOLDER] PROGRAM...

Refuses a bundle that is larger than --most_mib. Refuses one in which a program of
a stage is missing, a program has no stage, or a file needs a library that is not
in lib/ and that hosts do not have (the C library's and NVIDIA's). One line then
says what is wrong, and the exit status is 1.
"""
import argparse
import collections
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

# Libraries that every host has.
GLIBC = re.compile(
    r"(ld-linux.*|linux-vdso|libc|libm|libmvec|libdl|libpthread|librt|libutil"
    r"|libresolv|libanl)\.so\.\d+$")

# Libraries of a host with a driver, and with the toolkit or PyTorch.
NVIDIA = re.compile(
    r"(libcuda|libcudart|libnccl|libcudnn\w*|libcublas|libcublasLt|libnvrtc"
    r"|libnvJitLink|libnvidia-ml)\.so\.\d+$")

# Fashion-MNIST's test images, which the stages of `train` train on and test with.
DATA = [
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
]


# Many programs contain the same kernels. A dictionary that is larger than the
# archive finds them again, even at the fastest setting.
COMPRESSION = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 160 << 20}]


class Wrong(Exception):
    pass


def output(*command):
    return subprocess.run(command, check=True, capture_output=True,
                          text=True).stdout


def needed(file):
    """Returns the names of the libraries that the file was linked with."""
    return re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-dW", file))


def functions(file, library):
    """Returns the functions of an NVIDIA library that the file calls. Their
    names begin with the library's."""
    stem = re.match("lib(cuda|[a-zA-Z]+)", library).group(1)
    return re.findall(rf"^ +U ((?:__)?{stem}[A-Z]\w*)",
                      output("nm", "-D", file), re.M)


def is_elf(file):
    with open(file, "rb") as opened:
        return opened.read(4) == b"\x7fELF"


def resolved(file):
    """Returns {name: path} of the libraries that the file needs on this host,
    directly or not; the path is None for a library that is not found."""
    libraries = {}
    for line in output("ldd", file).splitlines():
        match = re.match(r"\s*(\S+) => (not found|\S+)", line)
        if match:
            name, path = match.groups()
            libraries[name] = None if path == "not found" else path
    return libraries


def copy_libraries(root):
    """Copies the libraries that the programs need, and hosts lack, to lib/."""
    libraries = {}
    for name in os.listdir(f"{root}/bin"):
        wanted = needed(f"{root}/bin/{name}")
        paths = resolved(f"{root}/bin/{name}")
        while wanted:
            library = wanted.pop()
            if (library in libraries or GLIBC.match(library)
                    or NVIDIA.match(library)):
                continue
            path = paths.get(library)
            if path is None:
                raise Wrong(f"bin/{name} needs {library}, which is not found")
            shutil.copyfile(path, f"{root}/lib/{library}")
            libraries[library] = os.path.basename(os.path.realpath(path))
            wanted += needed(path)
    return libraries


# The C library's parts, which a library of the host may need too.
C_LIBRARY = ["ld-linux-x86-64.so.2"] + [f"lib{name}.so.{number}" for name, number in (
    ("c", 6), ("m", 6), ("dl", 2), ("pthread", 0), ("rt", 1), ("util", 1), ("resolv", 2))]


def add_c_library(root, start):
    """Makes glibc/, by which the programs run on a host with an older C library.
    start.cc names the loader of x86-64, so another machine's bundle has none."""
    programs = os.listdir(f"{root}/bin")
    of_c = resolved(f"{root}/bin/{programs[0]}")["libc.so.6"]
    folder = os.path.dirname(os.path.realpath(of_c))
    if not os.path.exists(f"{folder}/{C_LIBRARY[0]}"):
        return
    os.makedirs(f"{root}/glibc/bin")
    os.makedirs(f"{root}/glibc/c_library")
    used = {library for program in programs
            for library in needed(f"{root}/bin/{program}") if GLIBC.match(library)}
    for library in sorted(used.union(C_LIBRARY)):
        target = f"{root}/glibc/c_library/{library}"
        shutil.copyfile(f"{folder}/{library}", target)
        os.chmod(target, 0o755)
    subprocess.run(["strip", "-o", f"{root}/glibc/start", start], check=True)
    os.chmod(f"{root}/glibc/start", 0o755)
    for program in programs:
        os.symlink("../start", f"{root}/glibc/bin/{program}")
    for name in ("lib", "peers", "data", "stages.txt", "manifest.json", "run.sh"):
        os.symlink(f"../{name}", f"{root}/glibc/{name}")


def called_of_nvidia(root):
    """Returns {library: functions} of NVIDIA's that the programs call."""
    called = collections.defaultdict(set)
    for name in os.listdir(f"{root}/bin"):
        for library in filter(NVIDIA.match, needed(f"{root}/bin/{name}")):
            called[library].update(functions(f"{root}/bin/{name}", library))
    return called


def glibc_version(root):
    """Returns the oldest C library that suffices for all files, as "2.34"."""
    versions = [(0, 0)]
    for folder in ("bin", "lib"):
        for name in os.listdir(f"{root}/{folder}"):
            text = output("readelf", "-VW", f"{root}/{folder}/{name}")
            versions += [(int(a), int(b)) for a, b in re.findall(
                r"Name: GLIBC_(\d+)\.(\d+)", text)]
    return "%d.%d" % max(versions)


def commit():
    """Returns the commit that is checked out where this script lies, or null.

    Bazel runs this script only if one of its inputs has changed. A later commit
    with the same programs is therefore not named.
    """
    folder = os.path.dirname(os.path.realpath(__file__))
    try:
        return output("git", "-C", folder, "describe", "--always", "--dirty",
                      "--abbrev=40", "--exclude=*").strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def stage_words(text):
    """Returns the programs of the bundle that the table's stages name."""
    lines = [line.split() for line in text.splitlines()]
    return {word for line in lines if line and line[0][0] != "#"
            for word in line[4:] if word.startswith("bin/")}


def check(root):
    have = {f"{folder}/{name}" for folder in ("bin", "lib")
            for name in os.listdir(f"{root}/{folder}")}
    for file in sorted(have):
        if not is_elf(f"{root}/{file}"):
            continue
        for library in needed(f"{root}/{file}"):
            if (f"lib/{library}" not in have and not GLIBC.match(library)
                    and not NVIDIA.match(library)):
                raise Wrong(f"{file} needs {library}, which is not in lib/")
    with open(f"{root}/stages.txt") as table:
        words = stage_words(table.read())
    for missing in sorted(words - have):
        raise Wrong(f"stages.txt: {missing} is not in the bundle")
    programs = {file for file in have if file.startswith("bin/")}
    for idle in sorted(programs - words - {"bin/run_stages"}):
        # A program may start others, whose names begin with its name.
        if not any(idle.startswith(f"{word}_") for word in words & programs):
            raise Wrong(f"no stage of stages.txt runs {idle}")


def pack(root, file):
    """Writes the archive. The same files give the same bytes: names are in
    order, and there are no times and no owners."""
    def plain(info):
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
        return info

    with open(file, "wb") as raw, \
            lzma.open(raw, "wb", format=lzma.FORMAT_XZ, filters=COMPRESSION) as zipped, \
            tarfile.open(fileobj=zipped, mode="w") as tar:
        tar.add(root, "gpu_bundle", filter=plain)  # Sorts by itself.


def assemble(args, root):
    for folder in ("bin", "lib", "peers"):
        os.makedirs(f"{root}/{folder}")
    names = collections.Counter(map(os.path.basename, args.programs))
    for name, count in names.items():
        if count > 1:
            raise Wrong(f"{count} programs are called {name}")
    for program in args.programs:
        target = f"{root}/bin/{os.path.basename(program)}"
        subprocess.run(["strip", "-o", target, program], check=True)
        os.chmod(target, 0o755)
    libraries = copy_libraries(root)
    for library in libraries:
        subprocess.run(["strip", "--strip-unneeded", f"{root}/lib/{library}"],
                       check=True)
    for source, target in [(args.run_sh, "run.sh"), (args.stages, "stages.txt"),
                           (args.python, "peers/python3")]:
        shutil.copy(source, f"{root}/{target}")
        os.chmod(f"{root}/{target}", 0o644 if target.endswith("txt") else 0o755)
    if args.data and all(os.path.exists(f"{args.data}/{f}") for f in DATA):
        # The ten thousand test images serve for training and for testing.
        os.makedirs(f"{root}/data")
        for name in DATA:
            shutil.copy(f"{args.data}/{name}", f"{root}/data/{name}")
            os.symlink(name, f"{root}/data/" + name.replace("t10k", "train"))
    add_c_library(root, args.start)
    manifest = {
        "commit": commit(),
        "glibc": glibc_version(root),
        "nvidia": {library: sorted(called) for library, called
                   in sorted(called_of_nvidia(root).items())},
        "libraries": dict(sorted(libraries.items())),
        "programs": {name: os.path.getsize(f"{root}/bin/{name}")
                     for name in sorted(os.listdir(f"{root}/bin"))},
    }
    with open(f"{root}/manifest.json", "w") as file:
        json.dump(manifest, file, indent=1)
        file.write("\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--most_mib", type=float, required=True)
    parser.add_argument("--stages")
    parser.add_argument("--run_sh")
    parser.add_argument("--python")
    parser.add_argument("--start")
    parser.add_argument("--data")
    parser.add_argument("programs", nargs="*")
    args = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as folder:
            assemble(args, f"{folder}/gpu_bundle")
            check(f"{folder}/gpu_bundle")
            pack(f"{folder}/gpu_bundle", args.out)
        mib = os.path.getsize(args.out) / 2**20
        if mib > args.most_mib:
            raise Wrong(f"the bundle has {mib:.1f} MiB; at most {args.most_mib:g} are allowed")
        return 0
    except Wrong as wrong:
        print(f"{args.out}: {wrong}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
