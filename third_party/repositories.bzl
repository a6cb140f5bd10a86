"""What Lockstep needs from the machine, for the WORKSPACE of Bazel 4.2."""

load("//third_party:chart_js.bzl", "chart_js")
load("//third_party:gloo.bzl", "gloo")
load("//third_party:oneccl.bzl", "oneccl")
load("//third_party:openmpi.bzl", "openmpi")
load("//third_party:openssl.bzl", "openssl")
load("//tools/cuda:configure.bzl", "cuda_configure")

_BAZEL = "/usr/share/bazel"  # From the package bazel-bootstrap.

def lockstep_repositories(root = "."):
    """Declares every repository that Lockstep's targets name.

    All are folders of this machine: nothing is downloaded. A repository that
    the workspace has declared before stays as it is.

    Args:
      root: Lockstep's folder, absolute or relative to the workspace.
    """
    folders = {
        "bazel_skylib": _BAZEL + "/tools/skylib",
        "com_google_absl": root + "/third_party/system/abseil-cpp",
        "com_google_benchmark": root + "/third_party/system/google_benchmark",
        "com_google_googletest": root + "/third_party/system/googletest",
        "platforms": _BAZEL + "/tools/platforms",
        "remote_coverage_tools": root + "/third_party/system/remote_coverage_tools",
        "rules_cc": root + "/third_party/system/rules_cc",
        "rules_java": _BAZEL + "/rules/java",
        "rules_proto": _BAZEL + "/rules/proto",
    }
    for name, path in folders.items():
        if not native.existing_rule(name):
            native.local_repository(name = name, path = path)
    for rule, name in [
        (chart_js, "chart_js"),
        (cuda_configure, "local_cuda"),
        (gloo, "gloo"),
        (oneccl, "oneccl"),
        (openmpi, "openmpi"),
        (openssl, "openssl"),
    ]:
        if not native.existing_rule(name):
            rule(name = name)
