"""Watches a run: calls that differ, late ranks, and with --fail_fast all that is sure."""

import time

from .. import waits
from ..checks import calls, ends
from .calls import CallOrder
from .fail_fast import FailFast
from .follow import Follower
from .gone import Gone
from .waiting import IDLE_SECONDS, Waiting

READ_SECONDS = 0.25  # Reading shares the ranks' processors.


class Watch:
    """say(text) prints a line for the user. idle_seconds: see Waiting."""

    def __init__(self, folder, fails_fast, say, idle_seconds=IDLE_SECONDS):
        self.follower = Follower(folder)
        self.waiting = Waiting(folder, say, idle_seconds)
        self.gone = Gone(folder, say)
        self.fail_fast = FailFast() if fails_fast else None
        self.say = say
        self.world_size = 0
        self.order = None
        self.differs = False
        self.next_read = 0.0

    def poll(self, statuses=None):
        """Returns the finding that ends the run, or None. Without --fail_fast, nothing ends it.

        statuses: {rank: exit status} of the ranks that have ended, or None if a launcher starts them.
        """
        now = time.monotonic()
        found = None
        if now >= self.next_read:
            self.next_read = now + READ_SECONDS
            found = self.read()
        if self.follower.restarted:
            return None
        self.gone.poll(self.world_size, statuses)
        event = self.waiting.poll(self.world_size, set(statuses or ()))
        if not self.fail_fast:
            return None
        if self.gone.is_ending(self.world_size, statuses):
            return found  # Its status will say how it has ended.
        if self.gone.event:  # It explains why others wait.
            return self.gone.finding(bool(event)) or found
        return found or (event and ends.waits_in_vain(event))

    def read(self):
        events = self.follower.read()
        for of_rank in events.values():
            for event in of_rank:
                if event["event"] == "rank":
                    self.world_size = event["world_size"]
        found = None if self.differs else self.compare_calls(events)
        return found or (self.fail_fast and self.fail_fast.see(events, self.world_size))

    def compare_calls(self, events):
        """Names the first call in which ranks differ, once."""
        self.order = self.order or CallOrder()
        for rank, of_rank in events.items():
            for event in of_rank:
                if event["event"] == "call":
                    self.order.add(rank, event)
        here = self.order.difference(self.world_size)
        if here is None:
            return None
        self.differs = True
        self.order = None
        finding = calls.finding_of(here)
        self.say(finding.text)
        for evidence in finding.evidence:
            self.say("  " + evidence)
        return finding
