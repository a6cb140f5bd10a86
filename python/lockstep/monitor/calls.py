"""Compares the calls of torch.distributed while the ranks issue them."""

import collections

from ..checks import calls


class CallOrder:
    """Matches the ranks' calls, group by group. Calls that all members have issued are dropped."""

    def __init__(self):
        self.waiting = collections.defaultdict(lambda: collections.defaultdict(collections.deque))

    def add(self, rank, event):
        if event["kind"] not in calls.POINT_TO_POINT:
            self.waiting[str(event["group"])][rank].append(event)

    def difference(self, world_size):
        """Returns [(rank, event)] of the first call that differs between members, or None."""
        for group, of_group in self.waiting.items():
            members = calls.members_of(group, world_size)
            while len(members) > 1 and all(of_group[rank] for rank in members):
                here = [(rank, of_group[rank][0]) for rank in members]
                if len({calls.signature(event) for _, event in here}) > 1:
                    return here
                for rank in members:
                    of_group[rank].popleft()
        return None
