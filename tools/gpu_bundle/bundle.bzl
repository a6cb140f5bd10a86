"""A .tar.xz of programs that runs on a host without Bazel, a compiler or packages."""

def _gpu_bundle_impl(ctx):
    output = ctx.actions.declare_file(ctx.label.name + ".tar.xz")
    programs = [target[DefaultInfo].files_to_run.executable for target in ctx.attr.programs]
    inputs = programs + [
        ctx.executable._start,
        ctx.file.stages,
        ctx.file._python,
        ctx.file._run_sh,
    ]
    args = ctx.actions.args()
    args.add(output, format = "--out=%s")
    args.add(str(ctx.attr.most_mib), format = "--most_mib=%s")
    args.add(ctx.file.stages, format = "--stages=%s")
    args.add(ctx.file._run_sh, format = "--run_sh=%s")
    args.add(ctx.file._python, format = "--python=%s")
    args.add(ctx.executable._start, format = "--start=%s")
    args.add(ctx.attr.data, format = "--data=%s")
    args.add_all(programs)
    ctx.actions.run(
        executable = ctx.executable._assemble,
        arguments = [args],
        # The bundle contains the commit and libraries of this machine.
        execution_requirements = {"no-cache": "1", "no-remote": "1"},
        inputs = inputs,
        mnemonic = "GpuBundle",
        outputs = [output],
        progress_message = "Packing %s" % output.short_path,
        use_default_shell_env = True,
    )
    return [DefaultInfo(files = depset([output]), runfiles = ctx.runfiles([output]))]

gpu_bundle = rule(
    implementation = _gpu_bundle_impl,
    attrs = {
        "data": attr.string(
            default = "/usr/share/datasets/fashion-mnist",
            doc = "Where this machine may have Fashion-MNIST.",
        ),
        "most_mib": attr.int(default = 60, doc = "A larger bundle is an error."),
        "programs": attr.label_list(
            doc = "Each under the last part of its name; run_stages among them.",
            mandatory = True,
        ),
        "stages": attr.label(allow_single_file = True, mandatory = True),
        "_assemble": attr.label(
            cfg = "exec",
            default = "//tools/gpu_bundle:assemble",
            executable = True,
        ),
        "_python": attr.label(allow_single_file = True, default = "//tools/gpu_bundle:python3.sh"),
        "_run_sh": attr.label(allow_single_file = True, default = "//tools/gpu_bundle:run.sh"),
        "_start": attr.label(
            cfg = "target",
            default = "//tools/gpu_bundle:start",
            executable = True,
        ),
    },
    doc = "Stripped programs, what they need beyond the C library and NVIDIA's, and run.sh.",
)
