"""Finds Gloo, which the all-reduce benchmark compares with."""

_FOUND = """
cc_library(
    name = "gloo",
    linkopts = ["-l:{library}"],
    visibility = ["//visibility:public"],
)
"""

_MISSING = """
cc_library(
    name = "gloo",
    target_compatible_with = ["@platforms//:incompatible"],
    visibility = ["//visibility:public"],
)
"""

def _find(repository_ctx):
    """The name of the shared library, or None.

    Debian's libgloo-dev has no libgloo.so, only the library with its version.
    """
    if not repository_ctx.path("/usr/include/gloo/context.h").exists:
        return None
    machine = repository_ctx.execute(["uname", "-m"]).stdout.strip()
    for folder in ["/usr/lib/%s-linux-gnu" % machine, "/usr/lib64", "/usr/lib"]:
        path = repository_ctx.path(folder)
        if not path.exists:
            continue
        names = [entry.basename for entry in path.readdir()]
        names = [name for name in names if name.startswith("libgloo.so")]
        if names:
            return sorted(names)[0]
    return None

def _gloo_impl(repository_ctx):
    library = _find(repository_ctx)
    repository_ctx.file("found.bzl", "FOUND = %s\n" % bool(library))
    if library:
        repository_ctx.file("BUILD.bazel", _FOUND.format(library = library))
    else:
        repository_ctx.file("BUILD.bazel", _MISSING)

# @gloo//:gloo is the distribution's Gloo, whose headers compilers find by
# default. If Gloo is not installed, the target and all its dependents are
# incompatible. @gloo//:found.bzl has FOUND for targets that can do without
# Gloo.
gloo = repository_rule(
    implementation = _gloo_impl,
    configure = True,
    local = True,
)
