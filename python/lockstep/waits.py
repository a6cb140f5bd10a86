"""The waits that `run` saw: which rank waited for which others, and where these were."""

import json
import os

from .verdict import short_line

FRAMES_SHOWN = 4
FILE = "waits.jsonl"


def write(folder, event):
    with open(os.path.join(folder, FILE), "a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")


def read(folder):
    """Returns the events, in order."""
    try:
        with open(os.path.join(folder, FILE), encoding="utf-8") as file:
            return [json.loads(line) for line in file]
    except FileNotFoundError:
        return []


def words(event):
    """Returns lines: who waits for whom, and where each of these is."""
    ranks = ", ".join("rank %d" % other["rank"] for other in event["late"])
    usual = "at most %.2g s before" % event["usual"] if event["usual"] else "its first call"
    if "stack" in event:
        usual = "ranks usually join within %.2g s" % event["usual"]
    call = "%s at %s" % (event["call"], short_line(event["line"]))
    first = "rank %d waits for %s in %s, for %.2g s (%s)"
    found = [first % (event["rank"], ranks, call, event["seconds"], usual)]
    found[0] += stack_words(event.get("stack", ()))
    return found + ["rank %d %s" % (other["rank"], state(other)) for other in event["late"]]


def state(other):
    text = other["state"]
    if other["call"]:
        text += " in %s at %s" % (other["call"], short_line(other["line"]))
    return text + stack_words(other["stack"])


def stack_words(stack):
    shown = ["%s (%s)" % (short_line(line), name) for line, name in stack[:FRAMES_SHOWN]]
    return "; its stack: " + " < ".join(shown) if shown else ""
