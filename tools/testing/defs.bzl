"""How this project declares its C++ tests."""

# Tests rarely spend their time in their own code, and compile faster without
# optimisation.
_UNOPTIMIZED = ["-O0", "-U_FORTIFY_SOURCE"]

_TEST_DEPS = [
    "//base:status_matchers",
    "@com_google_googletest//:gtest",
    "@com_google_googletest//:gtest_main",
]

def lockstep_cc_test(
        name,
        srcs,
        deps = [],
        copts = [],
        tags = [],
        optimized = False,
        exhaustive_shards = 0,
        **kwargs):
    """A GoogleTest, with GoogleTest, its main and the status matchers.

    Args:
      name: The target's name; ends in _test.
      srcs: One source or several.
      deps: What they include, but for GoogleTest and //base:status_matchers.
      copts: Further flags of the compiler.
      tags: `asan` and `tsan` are for tests that run under these sanitizers too;
        `gpu` for those that need one, which they then have to themselves, and
        `multigpu` for those that need all of the host's.
      optimized: Whether the sources are compiled as the libraries are: for
        tests that spend their time in their own loops.
      exhaustive_shards: If not 0, there is a second target, `name`_exhaustive,
        which links the same objects and runs with LOCKSTEP_EXHAUSTIVE=1 in
        this many shards, under the tag `exhaustive` (--config=exhaustive).
        `name` then runs a slice of its grid.
      **kwargs: Further attributes of cc_test.
    """
    # //tools/cuda:with_gpu (--run_under) reads this variable, because a test
    # does not see its tags.
    if "multigpu" in tags or "gpu" in tags:
        kwargs.setdefault("visibility", ["//tools/gpu_bundle:__pkg__"])
        gpus = "all" if "multigpu" in tags else "1"
        kwargs["env"] = dict(kwargs.get("env", {}), LOCKSTEP_GPUS = gpus)
    if not optimized:
        copts = _UNOPTIMIZED + copts
    if not exhaustive_shards:
        native.cc_test(
            name = name,
            srcs = srcs,
            copts = copts,
            tags = tags,
            deps = deps + _TEST_DEPS,
            **kwargs
        )
        return

    native.cc_library(
        name = name + "_cases",
        testonly = True,
        srcs = srcs,
        alwayslink = True,
        copts = copts,
        local_defines = kwargs.pop("local_defines", []),
        deps = deps + _TEST_DEPS,
    )
    native.cc_test(
        name = name,
        tags = tags,
        deps = [":" + name + "_cases"],
        **kwargs
    )
    kwargs.pop("shard_count", None)
    kwargs.pop("size", None)
    env = dict(kwargs.pop("env", {}), LOCKSTEP_EXHAUSTIVE = "1")
    native.cc_test(
        name = name + "_exhaustive",
        size = "enormous",
        env = env,
        shard_count = exhaustive_shards,
        tags = tags + ["exhaustive"],
        deps = [":" + name + "_cases"],
        **kwargs
    )
