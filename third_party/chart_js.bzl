"""Finds Chart.js, which draws the charts of HTML reports, on this machine."""

# The file of Debian's and Ubuntu's package libjs-chart.js, by its names in
# releases 3 and 4.
_CANDIDATES = [
    "/usr/share/javascript/chart.js/chart.min.js",
    "/usr/share/javascript/chart.js/chart.umd.js",
]

_FOUND = """
filegroup(
    name = "chart_js",
    srcs = ["chart.min.js"],
    visibility = ["//visibility:public"],
)
"""

_MISSING = """
genrule(
    name = "chart_js",
    outs = ["chart.min.js"],
    cmd = "echo 'Chart.js is not installed: run tools/setup.sh, or apt-get " +
          "install libjs-chart.js, and then bazel shutdown' >&2; exit 1",
    visibility = ["//visibility:public"],
)
"""

def _chart_js_impl(repository_ctx):
    for candidate in _CANDIDATES:
        path = repository_ctx.path(candidate)
        if path.exists:
            repository_ctx.symlink(path, "chart.min.js")
            repository_ctx.file("BUILD.bazel", _FOUND)
            return
    repository_ctx.file("BUILD.bazel", _MISSING)

# @chart_js//:chart_js is Chart.js as one minified file. If Chart.js is not
# installed, the repository still loads, and building the target says what to
# do.
chart_js = repository_rule(
    implementation = _chart_js_impl,
    configure = True,
    local = True,
)
