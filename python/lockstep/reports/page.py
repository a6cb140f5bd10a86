"""A verdict as one HTML page: findings, the script's lines, and pictures of ranks and layers."""

import html

from . import pictures

STYLE = """
:root { color-scheme: light dark; --line: #8884; --bad: #d33; --good: #2a7; --mute: #888; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.wrong { color: var(--bad); } .right { color: var(--good); } .mute { color: var(--mute); }
article { border-left: 4px solid var(--bad); padding: .1rem 1rem; margin: 1rem 0; }
pre { border: 1px solid var(--line); padding: .5rem; overflow-x: auto; font-size: 13px; }
mark { background: #d333; color: inherit; display: block; }
table { border-collapse: collapse; }
td { border-bottom: 1px solid var(--line); padding: .2rem .6rem; vertical-align: top; }
td:first-child { white-space: nowrap; }
svg { max-width: 100%; height: auto; }
svg text { font: 11px system-ui, sans-serif; fill: currentColor; }
"""


def text_of(found, record):
    """Returns the page. found: a Verdict. record: the folder of the run's record."""
    outcome = found.outcome + (": " + found.why_not if found.why_not else "")
    parts = ["<!doctype html><html lang=en><meta charset=utf-8>", "<title>lockstep</title>"]
    parts.append("<meta name=viewport content='width=device-width'><style>%s</style>" % STYLE)
    parts.append("<h1>lockstep: <span class=%s>%s</span></h1>" % (mark_of(found), escaped(outcome)))
    parts.append("<p class=mute>%d ranks; record: %s</p>" % (len(found.run.ranks), escaped(record)))
    parts += [finding_html(finding) for finding in found.findings]
    parts += pictures.all_of(found.run)
    parts.append("<h2>Claims</h2><table>%s</table>" % "".join(claim_rows(found)))
    parts += ["<p>note: %s</p>" % escaped(note) for note in found.notes]
    parts += ["<p>our own error: %s</p>" % escaped(error) for error in found.run.errors]
    return "\n".join(parts) + "\n"


def escaped(text):
    return html.escape(str(text))


def mark_of(found):
    return found.outcome if found.outcome in ("right", "wrong") else "mute"


def finding_html(finding):
    name = ", ".join(part for part in (finding.cause, finding.sure) if part)
    lines = ["<article><p><b>%s</b> <span class=mute>%s</span></p>" % (escaped(finding.text), name)]
    place = [] if finding.update is None else ["update %d" % finding.update]
    place += [str(tensor) for tensor in finding.tensors[:8]]
    place += ["rank %s" % rank for rank in finding.ranks[:8]]
    if place:
        lines.append("<p>first: %s</p>" % escaped(", ".join(place)))
    lines += ["<p>because: %s</p>" % escaped(text) for text in finding.evidence]
    if finding.fix:
        lines.append("<p><b>fix:</b> %s</p>" % escaped(finding.fix))
    return "\n".join(lines + source_html(finding.line) + ["</article>"])


def source_html(line, around=3):
    """Returns the lines of the script around FILE:LINE; only the place if it cannot be read."""
    path, _, number = line.rpartition(":")
    if not path or not number.isdigit():
        return []
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            source = file.read().splitlines()
    except OSError:
        source = []
    shown, at = [], int(number)
    for i in range(max(1, at - around), min(len(source), at + around) + 1):
        text = escaped("%5d  %s" % (i, source[i - 1]))
        shown.append("<mark>%s</mark>" % text if i == at else text + "\n")
    place = ["<p>%s</p>" % escaped(line)]
    return place + (["<pre>%s</pre>" % "".join(shown)] if shown else [])


def claim_rows(found):
    failed = {finding.claim for finding in found.findings}
    for claim in found.claims:
        state, said = "holds", "%d %s" % (claim.count, claim.unit)
        if claim.name in failed:
            state = "fails"
        elif not claim.count:
            state, said = "not checked", claim.why_not
        kind = {"fails": "wrong", "holds": "right"}.get(state, "mute")
        yield "<tr><td class=%s>%s<td>%s<td class=mute>%s" % (
            kind, state, escaped(claim.name), escaped(said)
        )
