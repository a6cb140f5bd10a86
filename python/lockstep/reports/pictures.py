"""Pictures of a run as inline SVG: losses, agreement by rank, and gradients by layer."""

import html
import math

CELL, LEFT, WIDTH = 14, 170, 900
MOST_ROWS = 60
COLORS = ("#36c", "#e80", "#2a7", "#a3c", "#c33", "#088", "#880", "#666")


def all_of(run):
    """Returns the pictures that the record has numbers for, each with its heading."""
    ranks = [rank for rank in run.ranks if rank.updates]
    found = []
    if ranks:
        found += figure("Loss by update", losses(ranks))
    if len(ranks) < 2:
        return found
    several = len(ranks[0].optimizers) > 1
    for number, optimizer in sorted(ranks[0].optimizers.items()):
        optimizers = [rank.optimizers.get(number) for rank in ranks]
        if all(optimizers):
            name = " (optimizer %d, %s)" % (number, optimizer.type) if several else ""
            title = "Do the ranks hold rank %d's parameters?" % ranks[0].rank
            found += figure(title + name, parameters(ranks, optimizers))
            found += figure("How far are the ranks' gradients apart?" + name, gradients(optimizers))
    return found


def figure(title, drawn):
    if not drawn:
        return []
    svg, caption = drawn
    return ["<h2>%s</h2>" % html.escape(title, quote=False), svg, "<p class=mute>%s</p>" % caption]


def svg_of(width, height, parts):
    start = "<svg viewBox='0 0 %d %d' width='%d' role=img>" % (width, height, width)
    return start + "".join(parts) + "</svg>"


def text(x, y, said, anchor="start"):
    shown = said if len(said) <= 26 else said[:12] + "…" + said[-13:]
    place = "<text x='%d' y='%d' text-anchor='%s'>" % (x, y, anchor)
    return place + "%s<title>%s</title></text>" % (html.escape(shown), html.escape(said))


def rectangle(x, y, size, color, said=""):
    place = "<rect x='%d' y='%d' width='%d' height='%d' fill='%s'>" % (x, y, size, size, color)
    return place + "<title>%s</title></rect>" % html.escape(said)


def losses(ranks):
    """Draws a line of the losses of each rank, by update."""
    lines = {}
    for rank in ranks:
        points = [(e["update"], e["loss"][0]) for e in rank.of("backward") if e["loss"]]
        lines[rank.rank] = [(x, y) for x, y in points if math.isfinite(y)]
    values = [y for points in lines.values() for _, y in points]
    if not values:
        return None
    low, high = min(values), max(values)
    last = max(x for points in lines.values() for x, _ in points) or 1
    height = 180

    def place(x, y):
        return "%.1f,%.1f" % (
            LEFT + x / last * (WIDTH - LEFT - 60),
            10 + (high - y) / ((high - low) or 1) * (height - 40),
        )

    parts = [text(LEFT - 8, 16, "%.4g" % high, "end")]
    parts.append(text(LEFT - 8, height - 28, "%.4g" % low, "end"))
    parts += [text(LEFT, height - 8, "update 0"), text(WIDTH - 60, height - 8, str(last), "end")]
    for i, (rank, points) in enumerate(sorted(lines.items())):
        color = COLORS[i % len(COLORS)]
        line = " ".join(place(x, y) for x, y in points)
        parts.append(
            "<polyline fill='none' stroke='%s' stroke-width='1.5' points='%s'/>" % (color, line)
        )
        if i < len(COLORS):
            parts.append(rectangle(WIDTH - 52, 8 + 16 * i, 10, color))
            parts.append(text(WIDTH - 38, 17 + 16 * i, "rank %d" % rank))
    return svg_of(WIDTH, height, parts), "each rank's own loss, of its own samples"


def columns_of(count):
    """Returns the updates that are drawn: all, or as many as fit, evenly spaced."""
    most = (WIDTH - LEFT) // CELL
    if count <= most:
        return list(range(count))
    return [i * (count - 1) // (most - 1) for i in range(most)]


def grid(rows, updates):
    """Draws a grid of cells. rows: [(name, [(color, words)])], as many cells as `updates`."""
    hidden = max(0, len(rows) - MOST_ROWS)
    rows = rows[:MOST_ROWS]
    parts = []
    for y, (name, cells) in enumerate(rows):
        parts.append(text(LEFT - 8, 11 + y * CELL, name, "end"))
        for x, (color, words) in enumerate(cells):
            said = "%s, update %d: %s" % (name, updates[x], words)
            parts.append(rectangle(LEFT + x * CELL, y * CELL, CELL - 1, color, said))
    bottom = len(rows) * CELL + 14
    parts.append(text(LEFT, bottom, "update %d" % updates[0]))
    right = LEFT + len(updates) * CELL
    parts.append(text(right, bottom, str(updates[-1]), "end"))
    more = "; %d more tensors are not drawn" % hidden if hidden else ""
    return svg_of(max(WIDTH, right), bottom + 4, parts), more


def parameters(ranks, optimizers):
    """Draws a row for each rank: green where it ends an update with the first rank's parameters."""
    steps = [optimizer.steps for optimizer in optimizers]
    drawn = columns_of(min(len(of) for of in steps))
    shared = held_by_all(optimizers)
    if not drawn or not shared:
        return None
    rows = []
    for rank, mine in zip(ranks, steps):
        cells = []
        for i in drawn:
            differ = sum(mine[i].after[k] != steps[0][i].after[k] for k in shared)
            words = "%d tensors differ" % differ if differ else "the same parameters"
            cells.append(("#d33" if differ else "#2a7", words))
        rows.append(("rank %d" % rank.rank, cells))
    svg, _ = grid(rows, [steps[0][i].update for i in drawn])
    return svg, "green: bit for bit the same after the update; red: different"


def held_by_all(optimizers):
    """Returns the indices of the parameters of which all ranks hold the same part."""
    parts = zip(*(optimizer.parts for optimizer in optimizers))
    return [i for i, of_ranks in enumerate(parts) if all(part == of_ranks[0] for part in of_ranks)]


def distance(gradients):
    """Returns how far the ranks' gradients of one tensor are apart, relative to its norm.

    gradients: by rank, [digest, sum, sum of squares, projection] or None. The difference of two
    gradients' projections on one random direction estimates the norm of their difference.
    """
    known = [g for g in gradients if g]
    if len(known) < len(gradients):
        return None if not known else math.inf
    if all(g[0] == known[0][0] for g in known):
        return 0.0
    numbers = [number for g in known for number in g[2:4]]
    norm = math.sqrt(max(g[2] for g in known)) if all(map(math.isfinite, numbers)) else 0
    apart = max(abs(g[3] - known[0][3]) for g in known)
    return apart / norm if norm else math.inf


def shade(value):
    """Returns the color and the words of a relative distance."""
    if value is None:
        return "#8883", "no gradient"
    if value == 0:
        return "#2a7", "the same bits"
    if value == math.inf:
        return "#000", "missing on some ranks, or not finite"
    strength = min(1.0, max(0.0, (math.log10(max(value, 1e-9)) + 8) / 8))
    return "hsl(%d 80%% 50%%)" % round(60 * (1 - strength)), "relative %.1e apart" % value


def gradients(optimizers):
    """Draws a row for each parameter: how far apart the ranks' gradients are at the update."""
    count = min(len(optimizer.steps) for optimizer in optimizers)
    names = optimizers[0].names
    if any(optimizer.names != names for optimizer in optimizers):
        return None
    shared = held_by_all(optimizers)
    detailed = [u for u in range(count) if all(o.steps[u].gradients for o in optimizers)]
    drawn = [detailed[i] for i in columns_of(len(detailed))]
    if not drawn or not shared:
        return None
    rows = [
        (names[i], [shade(distance([o.steps[u].gradients[i] for o in optimizers])) for u in drawn])
        for i in shared
    ]
    svg, more = grid(rows, [optimizers[0].steps[u].update for u in drawn])
    return svg, (
        "green: the same bits on all ranks; yellow to red: from rounding (1e-8) to entirely"
        " different (1); updates whose gradients were recorded" + more
    )
