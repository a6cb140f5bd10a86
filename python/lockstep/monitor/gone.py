"""Ranks whose processes are gone without a regular end: killed, left by os._exit, or failed."""

import time

from .. import evidence, waits
from ..checks import ends
from . import place, stacks

SETTLE_SECONDS = 1.0  # In which other ranks may still say why they fail.


class Gone:
    """Watches the processes of ranks, and keeps the first that are gone. They explain the rest."""

    def __init__(self, folder, say):
        self.folder = folder
        self.say = say
        self.event = None
        self.since = 0.0

    def poll(self, world_size, statuses):
        """statuses: {rank: exit status} of the ranks that have ended, or None if nobody knows."""
        if self.event:
            return
        if statuses is None:
            gone = [rank for rank in range(world_size) if self.is_cut(rank)]
        else:
            gone = [rank for rank, status in statuses.items() if status or self.is_cut(rank)]
        if not gone:
            return
        self.since = time.monotonic()
        ranks = [{"rank": rank, "status": (statuses or {}).get(rank)} for rank in sorted(gone)]
        self.event = {"event": waits.GONE, "ranks": ranks}
        waits.write(self.folder, self.event)
        for each in ranks:
            if each["status"]:
                self.say(waits.words_of_gone(each))

    def is_ending(self, world_size, statuses):
        """Whether a rank that `run` has started is gone, and its exit status is still to come.

        The main thread of a killed process may end some time before the others.
        """
        waited_for = range(world_size) if statuses is not None else ()
        return any(rank not in statuses and self.is_cut(rank) for rank in waited_for)

    def is_cut(self, rank):
        """Whether the rank's process is gone although it has not ended regularly."""
        known = place.read(self.folder, rank)
        return bool(known) and known.state != place.ENDED and not stacks.alive(known.pid)

    def finding(self, nobody_goes_on):
        """Returns the finding that ends the run with --fail_fast, or None if a rank may go on.

        A rank may leave by os._exit(0) when it has trained. What status it has is known if `run`
        has started it. Otherwise the run ends when another rank waits in vain.
        """
        if not self.event or time.monotonic() - self.since < SETTLE_SECONDS:
            return None
        if not nobody_goes_on and not any(each["status"] for each in self.event["ranks"]):
            return None
        run = evidence.read_run(self.folder, status=1)
        _, found, _ = ends.check_ends(run)
        return found[0] if found else ends.bad_status(run)
