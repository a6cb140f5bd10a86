"""The build setting that the CUDA rules read."""

ArchitecturesInfo = provider(
    doc = "GPU architectures to compile for.",
    fields = {"values": "Compute capabilities without the dot, such as 80 or 90a, lowest first."},
)

def _order(architecture):
    return (int(architecture.rstrip("af")), architecture)

def _architectures_impl(ctx):
    values = []
    for value in ctx.build_setting_value.split(","):
        number = value[:-1] if value.endswith("a") or value.endswith("f") else value
        if not number.isdigit() or len(number) < 2:
            fail("%s=%s: %r is not a compute capability such as 80, 90 or 90a" % (
                ctx.label,
                ctx.build_setting_value,
                value,
            ))
        if value not in values:
            values.append(value)
    return [ArchitecturesInfo(values = sorted(values, key = _order))]

architectures_flag = rule(
    implementation = _architectures_impl,
    build_setting = config.string(flag = True),
    doc = "Comma-separated compute capabilities, such as 80,90.",
)
