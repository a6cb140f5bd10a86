"""Rules that compile .cu files, for GPUs with nvcc and for the host, and test them."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")
load("@local_cuda//:defs.bzl", "CUDA_COMPATIBLE_WITH", "NVCC", "NVCC_CCBIN", "NVCC_VERSION")
load("//tools/testing:defs.bzl", "lockstep_cc_test")
load(":settings.bzl", "ArchitecturesInfo")

# The toolkits with which CI compiles this project. With them nvcc's warnings are
# errors. A later toolkit may have more warnings, which do not break the build.
_TOOLKITS_WITHOUT_WARNINGS = ["13.0"]

# The name of the action for which a C++ toolchain names its compiler.
_CPP_COMPILE = "c++-compile"

def _gencode(architectures):
    """SASS for each architecture, and PTX of the highest for later ones."""
    targets = [(value, "sm_" + value) for value in architectures]
    targets.append((architectures[-1], "compute_" + architectures[-1]))
    return ["-gencode=arch=compute_%s,code=%s" % target for target in targets]

# Runs nvcc, which mixes its errors with its report of each kernel's registers. The
# report goes to the file of the first argument, the errors to standard error. nvcc
# names temporary files after its process number, which another sandbox may use too. So
# each run gets its own temporary folder.
_KEEP_USAGE = """
usage=$1; shift
export TMPDIR=$(mktemp -d)
"$@" 2> "$usage"; status=$?
rm -rf "$TMPDIR"
grep -Ev '^(ptxas info |    [0-9]+ bytes stack|$)' "$usage" >&2
exit $status
"""

def _compile(ctx, source, headers, compilation_context, host_compiler):
    """Compiles one .cu into a position-independent object file.

    Returns it, and what nvcc says of the registers that each kernel takes.
    """
    stem = source.basename[:-len(".cu")]
    output = ctx.actions.declare_file("_cuda/%s/%s.pic.o" % (ctx.label.name, stem))
    usage = ctx.actions.declare_file("_cuda/%s/%s.usage" % (ctx.label.name, stem))

    args = ctx.actions.args()
    args.add(usage)
    args.add(NVCC)
    args.add("--resource-usage")
    args.add("-std=c++20")
    args.add("-O3")
    args.add("-lineinfo")
    if int(NVCC_VERSION.partition(".")[0]) >= 13:
        # This compression gives a third of the size, which keeps the GPU bundle small.
        args.add("-compress-mode=size")
    args.add("-ccbin", host_compiler)

    # clang treats the toolkit's headers as the project's own, because nvcc has already
    # preprocessed them. So their warnings about unused names are switched off.
    args.add("-Xcompiler", "-fPIC,-Wall,-Wextra,-Wno-unused-function,-Wno-unused-parameter")
    args.add_all(_gencode(ctx.attr._architectures[ArchitecturesInfo].values))
    if NVCC_VERSION.rpartition(".")[0] in _TOOLKITS_WITHOUT_WARNINGS:
        args.add("--Werror", "all-warnings")
    args.add("-I.")
    args.add("-I" + ctx.bin_dir.path)
    args.add_all(compilation_context.quote_includes, before_each = "-I")
    args.add_all(compilation_context.includes, before_each = "-I")
    args.add_all(compilation_context.system_includes, before_each = "-isystem")
    if hasattr(compilation_context, "external_includes"):  # Since Bazel 5.
        args.add_all(compilation_context.external_includes, before_each = "-isystem")
    args.add_all(compilation_context.defines, format_each = "-D%s")
    args.add_all(compilation_context.local_defines, format_each = "-D%s")
    args.add("-c", source)
    args.add("-o", output)

    ctx.actions.run_shell(
        command = _KEEP_USAGE,
        arguments = [args],
        # The host compiler needs PATH; nvcc finds its own parts by itself. The version
        # is listed so that an upgrade in place recompiles.
        env = {"LOCKSTEP_NVCC_VERSION": NVCC_VERSION, "PATH": "/usr/local/bin:/usr/bin:/bin"},
        inputs = depset([source] + headers, transitive = [compilation_context.headers]),
        mnemonic = "CudaCompile",
        outputs = [output, usage],
        progress_message = "Compiling %s with nvcc" % source.short_path,
    )
    return struct(object = output, usage = usage)

def _cuda_library_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    host_compiler = NVCC_CCBIN or cc_common.get_tool_for_action(
        feature_configuration = features,
        action_name = _CPP_COMPILE,
    )
    deps = cc_common.merge_cc_infos(
        cc_infos = [dep[CcInfo] for dep in ctx.attr.deps + [ctx.attr._cudart]],
    )
    sources = [file for file in ctx.files.srcs if file.extension == "cu"]
    headers = [file for file in ctx.files.srcs if file.extension != "cu"] + ctx.files.hdrs
    compiled = [
        _compile(ctx, source, headers, deps.compilation_context, host_compiler)
        for source in sources
    ]
    objects = [made.object for made in compiled]

    linking_context, linking_outputs = cc_common.create_linking_context_from_compilation_outputs(
        actions = ctx.actions,
        cc_toolchain = toolchain,
        compilation_outputs = cc_common.create_compilation_outputs(
            objects = depset(objects),
            pic_objects = depset(objects),
        ),
        feature_configuration = features,
        linking_contexts = [deps.linking_context],
        name = ctx.label.name,
    )
    own = CcInfo(
        compilation_context = cc_common.create_compilation_context(headers = depset(ctx.files.hdrs)),
        linking_context = linking_context,
    )
    built = [linking_outputs.library_to_link.static_library, linking_outputs.library_to_link.pic_static_library]
    return [
        DefaultInfo(files = depset([file for file in built if file])),
        OutputGroupInfo(budgets = depset(objects + [made.usage for made in compiled])),
        cc_common.merge_cc_infos(
            direct_cc_infos = [own],
            cc_infos = [CcInfo(compilation_context = deps.compilation_context)],
        ),
    ]

_cuda_library = rule(
    implementation = _cuda_library_impl,
    attrs = {
        "deps": attr.label_list(providers = [CcInfo]),
        "hdrs": attr.label_list(allow_files = [".h", ".cuh"]),
        "srcs": attr.label_list(allow_files = [".cu", ".h", ".cuh"], mandatory = True),
        "_architectures": attr.label(default = "//tools/cuda:architectures"),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
        "_cudart": attr.label(default = "@local_cuda//:cudart"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def cuda_objects(name, **kwargs):
    """A library of .cu files as nvcc compiles it, and nothing else.

    Args:
      name: The target's name.
      **kwargs: srcs, hdrs, deps, testonly, visibility.
    """
    _cuda_library(
        name = name,
        target_compatible_with = CUDA_COMPATIBLE_WITH,
        **kwargs
    )

def _standin_sources_impl(ctx):
    outputs = []
    for source in ctx.files.srcs:
        output = ctx.actions.declare_file("_standin/%s/%s.cc" % (ctx.label.name, source.basename))
        ctx.actions.write(output, "#include \"%s\"\n" % source.short_path)
        outputs.append(output)
    return [DefaultInfo(files = depset(outputs))]

_standin_sources = rule(
    implementation = _standin_sources_impl,
    attrs = {"srcs": attr.label_list(allow_files = [".cu"], mandatory = True)},
)

def _twins(cuda_deps):
    return [dep + "_standin" for dep in cuda_deps]

def kernel_budgets_test(name, kernels, args = [], **kwargs):
    """Holds the kernels of a library to tools/cuda/kernel_budgets.txt.

    Args:
      name: The target's name.
      kernels: What cuda_kernels made, as nvcc compiled it.
      args: Further ones of kernel_budgets.py.
      **kwargs: Further attributes of the test.
    """
    native.filegroup(
        name = name + "_files",
        testonly = True,
        srcs = [kernels],
        output_group = "budgets",
        visibility = ["//visibility:private"],
    )
    native.sh_test(
        name = name,
        size = "medium",
        srcs = ["//tools/cuda:kernel_budgets.py"],
        args = args + [
            "--table=$(location //tools/cuda:kernel_budgets.txt)",
            "--toolkit=" + (NVCC_VERSION or "none"),
            "$(locations :%s_files)" % name,
        ],
        data = [
            ":%s_files" % name,
            "//tools/cuda:kernel_budgets.txt",
        ],
        target_compatible_with = CUDA_COMPATIBLE_WITH,
        **kwargs
    )

def cuda_kernels(name, srcs, hdrs = [], deps = [], cuda_deps = [], nccl = False, testonly = False, **kwargs):
    """A library of .cu files in its two builds, and `name`_budgets_test.

    `name` is compiled by nvcc, and skipped without a toolkit; the C++ --copt
    flags, sanitizers among them, are not passed to it. `name`_standin, which is
    test only, is compiled for the host, on the stand-in runtime, and needs
    neither a toolkit nor a GPU. They are never in one binary: both runtimes
    define the same functions. The test holds every kernel to its budget of
    registers and instructions (kernel_budgets.py).

    Args:
      name: The target's name.
      srcs: .cu files, and headers that only they include.
      hdrs: Headers that dependents may include.
      deps: C++ libraries that both builds have.
      cuda_deps: Libraries that have a _standin twin too, without the suffix.
      nccl: Whether the code calls NCCL, or uses its device API.
      testonly: Of the first; the second always is.
      **kwargs: Further attributes of both, such as visibility.
    """
    _cuda_library(
        name = name,
        testonly = testonly,
        srcs = srcs,
        hdrs = hdrs,
        target_compatible_with = CUDA_COMPATIBLE_WITH,
        deps = deps + cuda_deps + (["@local_cuda//:nccl"] if nccl else []),
        **kwargs
    )

    kernel_budgets_test(
        name = name + "_budgets_test",
        kernels = ":" + name,
    )

    # A generated .cc includes each .cu, so that messages name the .cu and its lines.
    sources = [src for src in srcs if src.endswith(".cu")]
    _standin_sources(
        name = name + "_standin_sources",
        testonly = True,
        srcs = sources,
        visibility = ["//visibility:private"],
    )
    native.cc_library(
        name = name + "_standin",
        testonly = True,
        srcs = [":" + name + "_standin_sources"],
        hdrs = hdrs,
        # The host compiler does not know nvcc's pragmas, such as unroll.
        copts = ["-Wno-unknown-pragmas"],
        textual_hdrs = srcs,
        deps = deps + _twins(cuda_deps) + ["//standin:cuda_runtime"],
        **kwargs
    )

def cuda_cc_library(name, deps = [], cuda_deps = [], nccl = False, testonly = False, **kwargs):
    """C++ code that calls the CUDA runtime, in its two builds.

    `name` is linked with the toolkit, and skipped without one;
    `name`_standin, which is test only, with the stand-in.

    Args:
      name: The target's name.
      deps: C++ libraries that both builds have.
      cuda_deps: Libraries that have a _standin twin too, without the suffix.
      nccl: Whether the code calls NCCL as well.
      testonly: Of the first; the second always is.
      **kwargs: Further attributes of both cc_library targets.
    """
    native.cc_library(
        name = name,
        testonly = testonly,
        deps = deps + cuda_deps + ["@local_cuda//:cudart"] +
               (["@local_cuda//:nccl"] if nccl else []),
        **kwargs
    )
    native.cc_library(
        name = name + "_standin",
        testonly = True,
        deps = deps + _twins(cuda_deps) + ["//standin:cuda_runtime"],
        **kwargs
    )

def cuda_test(name, deps = [], cuda_deps = [], tags = [], gpu_tags = ["gpu"], **kwargs):
    """A GoogleTest in its two builds: of foo_test, foo_standin_test and foo_gpu_test.

    The first runs on the stand-in runtime, with neither toolkit nor GPU; the
    second, from the same source, on a GPU.

    Args:
      name: Ends in _test.
      deps: C++ libraries that both builds have, but for GoogleTest and
        //base:status_matchers.
      cuda_deps: Libraries that have a _standin twin too, without the suffix.
      tags: Of the first: the sanitizers that it runs under too.
      gpu_tags: Of the second.
      **kwargs: Further attributes of both tests: size, srcs, ...
    """
    if not name.endswith("_test"):
        fail("%s: the name of a test ends in _test" % name)
    stem = name[:-len("_test")]
    lockstep_cc_test(
        name = stem + "_standin_test",
        tags = tags,
        deps = deps + _twins(cuda_deps) + ["//standin:cuda_runtime"],
        **kwargs
    )
    lockstep_cc_test(
        name = stem + "_gpu_test",
        tags = gpu_tags,
        deps = deps + cuda_deps + ["@local_cuda//:cudart"],
        **kwargs
    )
