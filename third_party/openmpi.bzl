"""Finds Open MPI's headers and libraries, which no compiler looks for."""

# The folder of libopenmpi-dev's headers on Debian and Ubuntu. Every linker
# finds the libraries.
_DEBIAN_INCLUDE = "/usr/lib/%s-linux-gnu/openmpi/include"

# OMPI_SKIP_MPICXX leaves the C++ bindings, which MPI-3 removed, out of mpi.h.
_FOUND = """
cc_library(
    name = "openmpi",
    hdrs = glob(["include/mpi*.h"]),
    defines = ["OMPI_SKIP_MPICXX=1"],
    includes = ["include"],
    linkopts = {linkopts},
    visibility = ["//visibility:public"],
)
"""

_MISSING = """
cc_library(
    name = "openmpi",
    target_compatible_with = ["@platforms//:incompatible"],
    visibility = ["//visibility:public"],
)
"""

def _show(repository_ctx, mpicc, what):
    """What Open MPI's mpicc says of `what`; [] from another MPI's."""
    result = repository_ctx.execute([mpicc, "--showme:" + what])
    return result.stdout.strip().split(" ") if result.return_code == 0 else []

def _find(repository_ctx):
    """(folder of mpi.h, linkopts), or None."""
    mpicc = repository_ctx.which("mpicc")
    for include in _show(repository_ctx, mpicc, "incdirs") if mpicc else []:
        if repository_ctx.path(include + "/mpi.h").exists:
            linkopts = []
            for folder in _show(repository_ctx, mpicc, "libdirs"):
                linkopts += ["-L" + folder, "-Wl,-rpath," + folder]
            libraries = _show(repository_ctx, mpicc, "libs")  # From 6 on, two.
            return include, linkopts + ["-l" + library for library in libraries]
    machine = repository_ctx.execute(["uname", "-m"]).stdout.strip()
    include = _DEBIAN_INCLUDE % machine
    if repository_ctx.path(include + "/mpi.h").exists:
        return include, ["-lmpi"]
    return None

def _openmpi_impl(repository_ctx):
    found = _find(repository_ctx)
    repository_ctx.file("found.bzl", "FOUND = %s\n" % bool(found))
    if found:
        include, linkopts = found
        repository_ctx.symlink(include, "include")
        repository_ctx.file("BUILD.bazel", _FOUND.format(linkopts = linkopts))
    else:
        repository_ctx.file("BUILD.bazel", _MISSING)

# @openmpi//:openmpi is Open MPI's C library. If Open MPI is not installed, the
# target and all its dependents are incompatible, so `bazel build //...` leaves
# them out. @openmpi//:found.bzl has FOUND for targets that can do without Open
# MPI. After installing Open MPI: `bazel sync --configure`, or `bazel shutdown`.
openmpi = repository_rule(
    implementation = _openmpi_impl,
    configure = True,
    environ = ["PATH"],
    local = True,
)
