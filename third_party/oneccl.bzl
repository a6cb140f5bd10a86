"""Finds Intel oneCCL, which the all-reduce benchmark compares with."""

# The folder of Intel's installers.
_DEFAULT_ROOT = "/opt/intel/oneapi/ccl/latest"

_FOUND = """
cc_library(
    name = "oneccl",
    hdrs = glob(["include/oneapi/**"]),
    includes = ["include"],
    linkopts = {linkopts},
    visibility = ["//visibility:public"],
)
"""

_MISSING = """
cc_library(
    name = "oneccl",
    target_compatible_with = ["@platforms//:incompatible"],
    visibility = ["//visibility:public"],
)
"""

def _linkopts(root):
    """Links libccl.so, and has its folder searched for what it needs.

    DT_RPATH, unlike DT_RUNPATH, also applies to the libraries that libccl.so
    names and to those that it opens. What Intel's installers put into other
    folders is found by LD_LIBRARY_PATH when the program runs, so the linker
    does not look for it.
    """
    folder = root + "/lib"
    return [
        "-L" + folder,
        "-lccl",
        "-Wl,--disable-new-dtags",
        "-Wl,-rpath," + folder,
        "-Wl,-rpath-link," + folder,
        "-Wl,--allow-shlib-undefined",
    ]

def _oneccl_impl(repository_ctx):
    root = repository_ctx.os.environ.get("CCL_ROOT", "") or _DEFAULT_ROOT
    header = repository_ctx.path(root + "/include/oneapi/ccl.hpp")
    library = repository_ctx.path(root + "/lib/libccl.so")
    found = header.exists and library.exists
    repository_ctx.file("found.bzl", "FOUND = %s\n" % found)
    if found:
        repository_ctx.symlink(root + "/include/oneapi", "include/oneapi")
        build = _FOUND.format(linkopts = _linkopts(root))
        repository_ctx.file("BUILD.bazel", build)
    else:
        repository_ctx.file("BUILD.bazel", _MISSING)

# @oneccl//:oneccl is the oneCCL in the folder CCL_ROOT (an environment
# variable; the folder may be a Python environment), or in the folder of Intel's
# installers. If oneCCL is not there, the target and all its dependents are
# incompatible. @oneccl//:found.bzl has FOUND for targets that can do without
# oneCCL. Only SYCL compilers see SYCL in its headers.
oneccl = repository_rule(
    implementation = _oneccl_impl,
    configure = True,
    environ = ["CCL_ROOT"],
    local = True,
)
