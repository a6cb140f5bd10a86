"""What `run` saw of the ranks: who waited for whom, and whose process was gone first."""

import json
import os
import signal

from .verdict import short_line

FRAMES_SHOWN = 4
FILE = "waits.jsonl"
WAIT, GONE = "wait", "gone"


def write(folder, event):
    with open(os.path.join(folder, FILE), "a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")


def read(folder, kind=WAIT):
    """Returns the events of a kind, in order."""
    try:
        with open(os.path.join(folder, FILE), encoding="utf-8") as file:
            events = [json.loads(line) for line in file]
    except FileNotFoundError:
        return []
    return [event for event in events if event["event"] == kind]


def words_of_gone(each):
    """Says how a rank's process ended, as far as `run` knows its exit status."""
    rank, status = each["rank"], each["status"]
    if not status:
        return "the process of rank %d is gone, without Python's regular exit" % rank
    if status >= 0:
        return "the process of rank %d ended with status %d" % (rank, status)
    try:
        name = " (%s)" % signal.Signals(-status).name
    except ValueError:
        name = ""
    return "the process of rank %d was ended by signal %d%s" % (rank, -status, name)


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
