"""Finds the CUDA toolkit, NCCL, cuDNN and cuBLASLt of this machine.

`cuda_configure` makes a repository whose targets and constants exist with and
without a toolkit; README.md in this folder lists them and the variables that
steer the search.
"""

_ENVIRON = [
    "CC",
    "CUBLAS_HOME",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUDNN_HOME",
    "LOCKSTEP_CUDA",
    "NCCL_HOME",
    "NVCC_CCBIN",
    "PATH",
]

def _env(repository_ctx, name):
    return repository_ctx.os.environ.get(name, "").strip()

def _library_folders(repository_ctx, home):
    """The folders of `home` that may hold shared libraries, best first."""
    machine = repository_ctx.execute(["uname", "-m"]).stdout.strip()
    target = {"aarch64": "sbsa"}.get(machine, machine)
    return [
        "%s/%s" % (home, folder)
        for folder in [
            "lib64",
            "lib",
            "targets/%s-linux/lib" % target,
            "lib/%s-linux-gnu" % machine,
        ]
    ]

def _find_library(repository_ctx, home, name):
    """(folder, file) of the shared library `name` under `home`, or None.

    The file is the one named like its soname (libx.so.2): it is the shortest
    that has a version, and the only one that pip wheels ship.
    """
    for folder in _library_folders(repository_ctx, home):
        path = repository_ctx.path(folder)
        if not path.exists:
            continue
        stem = "lib%s.so" % name
        files = sorted([
            (len(entry.basename), entry.basename)
            for entry in path.readdir()
            if entry.basename.startswith(stem + ".")
        ])
        if files:
            return struct(folder = folder, file = files[0][1])
        if repository_ctx.path("%s/%s" % (folder, stem)).exists:
            return struct(folder = folder, file = stem)
    return None

def _find_nvcc(repository_ctx):
    """(toolkit or None, what was looked for and where, one clause each)."""
    homes = []
    looked = []
    for variable in ["CUDA_HOME", "CUDA_PATH"]:
        value = _env(repository_ctx, variable)
        looked.append("%s (%s)" % (variable, value or "unset"))
        if value:
            homes.append(value)
    on_path = repository_ctx.which("nvcc")
    looked.append("PATH (%s)" % (on_path or "no nvcc"))
    if on_path:
        homes.append(str(on_path.realpath.dirname.dirname))
        homes.append(str(on_path.dirname.dirname))
    homes += ["/usr/local/cuda", "/usr"]
    looked += ["/usr/local/cuda", "/usr"]

    rejected = []
    seen = []
    for home in homes:
        nvcc = home + "/bin/nvcc"
        if nvcc in seen or not repository_ctx.path(nvcc).exists:
            continue
        seen.append(nvcc)
        toolkit, why = _inspect(repository_ctx, home, nvcc)
        if toolkit:
            return toolkit, looked, []
        rejected.append("%s: %s" % (nvcc, why))
    return None, looked, rejected

def _inspect(repository_ctx, home, nvcc):
    """(toolkit or None, why not) for the toolkit in `home`."""
    if not repository_ctx.path(home + "/include/cuda_runtime.h").exists:
        return None, "no include/cuda_runtime.h beside it"
    result = repository_ctx.execute([nvcc, "--version"])
    marker = ", V"
    if result.return_code != 0 or marker not in result.stdout:
        return None, "nvcc --version fails"
    version = result.stdout.split(marker)[1].split("\n")[0].strip()

    # Rejects an nvcc without C++20 (before 12.0), and a host compiler that is too new
    # for nvcc.
    compiler = _env(repository_ctx, "NVCC_CCBIN") or _env(repository_ctx, "CC") or "gcc"
    repository_ctx.file("probe.cu", "")
    result = repository_ctx.execute([nvcc, "-std=c++20", "-ccbin", compiler, "-E", "probe.cu"])
    if result.return_code != 0:
        lines = [line for line in result.stderr.split("\n") if "error" in line]
        return None, "version %s cannot compile C++20 with %s: %s" % (
            version,
            compiler,
            (lines + [result.stderr])[0].strip(),
        )
    cudart = _find_library(repository_ctx, home, "cudart")
    if not cudart:
        return None, "no libcudart.so beside it"
    return struct(home = home, nvcc = nvcc, version = version, cudart = cudart), ""

def _wheel_homes(repository_ctx, folder):
    """Where pip would have put nvidia/`folder`, for the python3 on PATH."""
    python = repository_ctx.which("python3")
    if not python:
        return []
    result = repository_ctx.execute([
        python,
        "-c",
        "import site, sys; print('\\n'.join(dict.fromkeys(sys.path + [site.getusersitepackages()])))",
    ])
    if result.return_code != 0:
        return []
    return [
        "%s/nvidia/%s" % (path, folder)
        for path in result.stdout.split("\n")
        if path.startswith("/")
    ]

def _find_package(repository_ctx, toolkit, variable, header, library, wheel):
    """(home, library) of a package that has `header` and `library`, or None."""
    explicit = _env(repository_ctx, variable)
    homes = [explicit] if explicit else []
    homes += [toolkit.home, "/usr/local", "/usr"]
    homes += _wheel_homes(repository_ctx, wheel)
    for home in homes:
        if not repository_ctx.path("%s/include/%s" % (home, header)).exists:
            continue
        found = _find_library(repository_ctx, home, library)
        if found:
            return struct(home = home, library = found)
    return None

# The headers of cuDNN have its operation of attention since this version.
_LEAST_CUDNN = (9, 13, 1)

def _cudnn_version(repository_ctx, home):
    """The version in cuDNN's headers, as three numbers; zeros if it is not found."""
    header = repository_ctx.path(home + "/include/cudnn_version.h")
    numbers = {}
    for line in repository_ctx.read(header).split("\n") if header.exists else []:
        words = line.split(" ")
        if len(words) == 3 and words[0] == "#define" and words[2].isdigit():
            numbers[words[1]] = int(words[2])
    return tuple([
        numbers.get(name, 0)
        for name in ["CUDNN_MAJOR", "CUDNN_MINOR", "CUDNN_PATCHLEVEL"]
    ])

def _find_cudnn(repository_ctx, toolkit, required):
    """(home, library) of a cuDNN that is new enough, or None."""
    found = _find_package(repository_ctx, toolkit, "CUDNN_HOME", "cudnn.h", "cudnn", "cudnn")
    if not found:
        return None
    version = _cudnn_version(repository_ctx, found.home)
    if version >= _LEAST_CUDNN:
        return found
    message = "cuDNN in %s is %d.%d.%d, older than %d.%d.%d" % ((found.home,) + version + _LEAST_CUDNN)
    if required:
        fail(message)

    # buildifier: disable=print
    print(message + "; targets that need it are skipped")
    return None

_TARGET = """
cc_library(
    name = "{name}",
    hdrs = {headers},
    includes = {includes},
    linkopts = {linkopts},
    deps = {deps},
)
"""

_ABSENT_TARGET = """
cc_library(
    name = "{name}",
    target_compatible_with = ["@platforms//:incompatible"],
)
"""

def _linkopts(library):
    # The library is linked in place and not copied, because cuDNN looks for its parts
    # beside itself. A binary that is moved elsewhere also finds the same toolkit.
    return [
        "-L" + library.folder,
        "-l:" + library.file,
        "-Wl,-rpath," + library.folder,
    ]

def _target(repository_ctx, name, home = None, headers = [], include_folders = [], library = None, deps = []):
    """BUILD text of one target, with its headers linked into the repository."""
    patterns = []
    includes = []

    # The compiler searches /usr/include by itself. If it were listed, it would come
    # before the compiler's own headers.
    if headers and home != "/usr":
        repository_ctx.symlink(home + "/include", name + "/include")
        patterns = ["%s/include/%s" % (name, header) for header in headers]
        includes = ["%s/%s" % (name, folder) for folder in include_folders]
    return _TARGET.format(
        name = name,
        headers = "glob(%s)" % patterns if patterns else [],
        includes = includes,
        linkopts = _linkopts(library) if library else [],
        deps = deps,
    )

def _cuda_headers(repository_ctx, toolkit):
    folders = ["include"]
    if repository_ctx.path(toolkit.home + "/include/cccl").exists:
        folders.append("include/cccl")  # nv/target moved there in CUDA 13.
    return _target(
        repository_ctx,
        "cuda_headers",
        toolkit.home,
        ["*.h", "*.hpp", "crt/**", "cooperative_groups/**", "nv/**", "cccl/nv/**"],
        folders,
    )

def _write(repository_ctx, targets, toolkit, nccl, cudnn, cublaslt):
    repository_ctx.file(
        "BUILD.bazel",
        "package(default_visibility = [\"//visibility:public\"])\n" + "".join(targets),
    )
    values = [
        ("CUBLASLT_AVAILABLE", bool(cublaslt)),
        ("CUDA_AVAILABLE", bool(toolkit)),
        ("CUDNN_AVAILABLE", bool(cudnn)),
        ("NCCL_AVAILABLE", bool(nccl)),
        ("NVCC", toolkit.nvcc if toolkit else ""),
        ("NVCC_CCBIN", _env(repository_ctx, "NVCC_CCBIN")),
        ("NVCC_VERSION", toolkit.version if toolkit else ""),
    ]
    for prefix, found in [
        ("CUBLASLT", cublaslt),
        ("CUDA", toolkit),
        ("CUDNN", cudnn),
        ("NCCL", nccl),
    ]:
        values.append((
            prefix + "_COMPATIBLE_WITH",
            [] if found else ["@platforms//:incompatible"],
        ))
    repository_ctx.file(
        "defs.bzl",
        "\"\"\"What cuda_configure found.\"\"\"\n\n" +
        "".join(["%s = %r\n" % value for value in sorted(values)]),
    )

def _cuda_configure_impl(repository_ctx):
    mode = _env(repository_ctx, "LOCKSTEP_CUDA") or "auto"
    if mode not in ["auto", "off", "required"]:
        fail("LOCKSTEP_CUDA=%s: want auto, off or required" % mode)

    toolkit = None
    if mode != "off":
        toolkit, looked, rejected = _find_nvcc(repository_ctx)
        if not toolkit:
            message = "no CUDA toolkit: looked for bin/nvcc in %s%s" % (
                ", ".join(looked),
                "".join(["; " + reason for reason in rejected]),
            )
            if mode == "required":
                fail(message)
            if rejected:
                # buildifier: disable=print
                print(message + "; GPU targets are skipped")

    if not toolkit:
        _write(
            repository_ctx,
            [
                _ABSENT_TARGET.format(name = name)
                for name in ["cuda_headers", "cudart", "nccl", "cudnn", "cublaslt"]
            ],
            None,
            None,
            None,
            None,
        )
        return

    nccl = _find_package(repository_ctx, toolkit, "NCCL_HOME", "nccl.h", "nccl", "nccl")
    cudnn = _find_cudnn(repository_ctx, toolkit, mode == "required")
    cublaslt = _find_package(repository_ctx, toolkit, "CUBLAS_HOME", "cublasLt.h", "cublasLt", "cublas")
    targets = [
        _cuda_headers(repository_ctx, toolkit),
        _target(
            repository_ctx,
            "cudart",
            library = toolkit.cudart,
            deps = [":cuda_headers"],
        ),
    ]
    for name, headers, found in [
        ("nccl", "nccl", nccl),
        ("cudnn", "cudnn", cudnn),
        ("cublaslt", "cublas", cublaslt),
    ]:
        if not found:
            targets.append(_ABSENT_TARGET.format(name = name))
            continue
        targets.append(_target(
            repository_ctx,
            name,
            found.home,
            [headers + "*.h", headers + "*/**"],
            ["include"],
            found.library,
            [":cuda_headers"],
        ))
    _write(repository_ctx, targets, toolkit, nccl, cudnn, cublaslt)

cuda_configure = repository_rule(
    implementation = _cuda_configure_impl,
    configure = True,
    doc = "Makes the repository that describes this machine's CUDA toolkit.",
    environ = _ENVIRON,
    local = True,
)
