"""Names the ranks for which others wait longer than usual, with their calls and stacks.

A rank's usual time in a call is the longest that it has been in this call, or between two calls.
PATIENCE_SECONDS after that, the other members of the call's group are looked at. A rank is late if
it has not issued the call, and has ended, computes, or is outside of all calls that wait.

An idle rank may go on, so a run in which others wait for it ends only if none of its ranks uses the
processor for `idle_seconds`.
"""

import time

from .. import waits
from ..checks import calls
from . import joining, place, stacks

PATIENCE_SECONDS = 0.4
OBSERVED_SECONDS = 0.2  # A rank that uses the processor for a twentieth of this time computes.
IDLE_SECONDS = 60.0  # A file or a server may let a rank wait for so long.
SURE_SECONDS = 1.0
ENDED, WAITS, COMPUTES, IDLE = "has ended", "waits", "computes", "is idle"
ABSENT = "has no process on this host"  # Or none that has imported PyTorch.


class Observation:
    """What the ranks' processes had used of the processor at some time."""

    def __init__(self, places):
        self.time = time.monotonic()
        self.used = {rank: stacks.processor_seconds(p.pid) for rank, p in places.items()}

    def seconds(self):
        return time.monotonic() - self.time

    def state(self, other):
        if other.pid is None:
            return ABSENT
        if other.state == place.ENDED or not stacks.alive(other.pid):
            return ENDED
        if stacks.processor_seconds(other.pid) - self.used[other.rank] >= self.seconds() / 20:
            return COMPUTES
        return WAITS if other.inside else IDLE


class Waiting:
    """Looks at all ranks' places. say(text) prints a line for the user."""

    def __init__(self, folder, say, idle_seconds=IDLE_SECONDS):
        """idle_seconds: after which no rank is expected to go on; 0 for never."""
        self.folder = folder
        self.say = say
        self.idle_seconds = idle_seconds
        self.observation = None
        self.reported = None  # The event that was reported last, while it lasts.
        self.since_reported = None  # An Observation, renewed when a rank has computed since.

    def poll(self, world_size, ended=()):
        """Returns the event of a wait if no rank can go on, else None.

        ended: the ranks that `run` has started and that have ended, so far as it knows. Nobody
        waits for these as long as for a rank that may be slow.
        """
        places = {rank: place.read(self.folder, rank) for rank in range(world_size)}
        if not all(places.values()):
            places = joining.complete(self.folder, places)
        if world_size < 2 or not places:
            return None
        self.see_progress(places)
        long = [p for p in places.values() if excess(p, ended) >= PATIENCE_SECONDS]
        if not long:
            self.observation = None
            return None
        if self.observation is None:
            self.observation = Observation(places)
        if self.observation.seconds() < OBSERVED_SECONDS:
            return None
        states = {rank: self.observation.state(other) for rank, other in places.items()}
        states.update({rank: ENDED for rank in ended if rank in states})
        self.observation = None
        long.sort(key=lambda p: excess(p, ended), reverse=True)
        waiting = [p for p in long if states[p.rank] == WAITS]
        if waiting and not self.reported:
            self.report(waiting[0], places, states)
        if not self.reported:
            return None
        return self.reported if nobody_goes_on(places, states) or self.is_idle(places) else None

    def is_idle(self, places):
        """Whether no rank has computed for idle_seconds in which the reported wait has lasted."""
        seen = self.since_reported
        if not self.idle_seconds or seen.seconds() < self.idle_seconds:
            return False
        if any(seen.state(other) == COMPUTES for other in places.values()):
            self.since_reported = Observation(places)
            return False
        self.reported["idle"] = seen.seconds()
        return True

    def see_progress(self, places):
        """Says that a rank has left the call that was reported."""
        event = self.reported
        if event and places[event["rank"]].since != event["since"]:
            self.reported = None
            if places[event["rank"]].state != place.ENDED:
                self.say("rank %d goes on" % event["rank"])

    def report(self, first, places, states):
        """Names the ranks that `first` waits for, if there are any."""
        others = [
            places[rank]
            for rank in calls.members_of(first.group, len(places))
            if rank != first.rank
        ]
        late = [o for o in others if states[o.rank] != WAITS and not has_issued(first, o)]
        apart = [o for o in others if states[o.rank] == WAITS and not o.same_call(first)]
        if not late and not apart:
            return
        self.reported = {
            "event": waits.WAIT,
            "rank": first.rank,
            "since": first.since,
            "call": first.kind,
            "line": first.line,
            "seconds": first.seconds,
            "usual": first.usual,
            "late": [self.describe(other, states[other.rank]) for other in late or apart],
        }
        self.since_reported = Observation(places)
        if first.kind == joining.CALL:
            self.reported["stack"] = self.stack_of(first)
        waits.write(self.folder, self.reported)
        for text in waits.words(self.reported):
            self.say(text)

    def describe(self, other, state):
        joined = state == ABSENT or not isinstance(other, joining.Unjoined)
        return {
            "rank": other.rank,
            "state": state if joined else state + joining.HAS_NOT_JOINED,
            "call": other.kind if other.inside else "",
            "line": other.line if other.inside else "",
            "stack": [] if state in (ENDED, ABSENT) else self.stack_of(other),
        }

    def stack_of(self, other):
        found = stacks.stack_of(self.folder, other)
        return [["%s:%d" % (path, number), name] for path, number, name in found]


def excess(other, ended=()):
    """Returns for how long a rank has been in a call beyond its usual time.

    If another rank has ended, the time in which ranks usually join says nothing.
    """
    usual = 0.0 if ended and other.kind == joining.CALL else other.usual
    return other.seconds - usual if other.inside else 0.0


def has_issued(first, other):
    """Whether the other rank has already issued the call in which the first one waits."""
    return other.issued.get(first.group, 0) >= first.issued.get(first.group, 0)


def nobody_goes_on(places, states):
    """Whether each rank has ended, or waits for long, and not all of them in one call."""
    waiting = [places[rank] for rank, state in states.items() if state == WAITS]
    ended = [rank for rank, state in states.items() if state == ENDED]
    ended += [rank for rank, state in states.items() if state == ABSENT and places[rank].never]
    if len(waiting) + len(ended) < len(places) or not waiting:
        return False
    if any(other.seconds < SURE_SECONDS for other in waiting):
        return False
    return bool(ended) or not all(other.same_call(waiting[0]) for other in waiting)
