"""Tests that a run ends when nothing can mend it, at that event, and that right runs go on."""

import json
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
PYTHON = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(PYTHON, "testing"))

import records
from records import digest, gradient

from lockstep.monitor import fail_fast, watch

UPDATES = 50


class Stream:
    """Two ranks that write their events update by update, as a test has changed them."""

    def __init__(self):
        self.starts = [records.events_of(rank)[:4] for rank in (0, 1)]
        self.updates = [[records.update_events(r, u) for u in range(UPDATES)] for r in (0, 1)]

    def of(self, rank, kind):
        return [e for events in self.updates[rank] for e in events if e["event"] == kind]

    def own_gradients(self, updates):
        """Makes ranks use their own gradients in these updates, and no DDP."""
        for rank in (0, 1):
            for step in self.of(rank, "step")[updates.start : updates.stop]:
                for i in range(len(records.NAMES)):
                    own = step["gradients"][i] = gradient("own", step["step"], i, rank)
                    step["local"][i] = [1, own[1], own[3]]
                    step["after"][i] = digest("drift", step["step"], i, rank)

    def follow(self):
        """Returns (update, finding) of the first poll that finds something, or None."""
        with tempfile.TemporaryDirectory() as folder:
            monitor = watcher(folder)
            files = [open(os.path.join(folder, "rank%d.jsonl" % r), "ab", 0) for r in (0, 1)]
            for rank in (0, 1):
                write(files[rank], self.starts[rank])
            try:
                for update in range(UPDATES):
                    for rank in (0, 1):
                        for event in self.updates[rank][update]:
                            write(files[rank], [event])
                            found = monitor.poll()
                            if found:
                                return update, found
                self.kept = max(len(window.events) for window in monitor.fail_fast.windows.values())
                return None
            finally:
                monitor.follower.close()
                for file in files:
                    file.close()


def watcher(folder):
    """Returns a Watch that reads at each poll."""
    found = watch.Watch(folder, True, lambda text: None)
    watch.READ_SECONDS = 0.0
    return found


def write(file, events):
    """Writes each event in two parts, as a reader may see them."""
    for event in events:
        line = json.dumps(event).encode() + b"\n"
        file.write(line[:7])
        file.write(line[7:])


class FailFastTest(unittest.TestCase):
    def expect(self, stream, cause, update):
        found = stream.follow()
        self.assertIsNotNone(found)
        self.assertEqual((found[1].cause, found[0]), (cause, update))

    def test_a_right_run_goes_on_and_old_events_are_forgotten(self):
        stream = Stream()
        self.assertIsNone(stream.follow())
        self.assertLess(stream.kept, 40)

    def test_parameters_that_differ_although_gradients_are_reduced(self):
        stream = Stream()
        for step in stream.of(1, "step")[7:]:
            step["after"][0] = digest("drift", step["step"])
        self.expect(stream, "unknown", 8)

    def test_first_weights(self):
        stream = Stream()
        for step in stream.of(1, "step"):
            step["after"][1] = digest("other", step["step"])
        stream.of(1, "step")[0]["before"][1] = digest("other")
        self.expect(stream, "first_weights_differ", 1)

    def test_parameters_that_nobody_averages_end_the_run_later(self):
        stream = Stream()
        stream.own_gradients(range(5, UPDATES))
        self.expect(stream, "unknown", 5 + fail_fast.PATIENCE)

    def test_parameters_that_are_averaged_now_and_then_are_right(self):
        stream = Stream()
        for first in range(0, UPDATES, fail_fast.PATIENCE):
            stream.own_gradients(range(first, first + fail_fast.PATIENCE - 1))
        self.assertIsNone(stream.follow())

    def test_parameters_that_a_call_averages_after_each_update_are_right(self):
        stream = Stream()
        for rank in (0, 1):
            for step in stream.of(rank, "step"):
                step["before"] = [digest("p", step["step"] - 1, i) for i in (0, 1)]
                step["after"] = [digest("p", step["step"], i, rank) for i in (0, 1)]
        self.assertIsNone(stream.follow())

    def test_calls(self):
        stream = Stream()
        stream.of(0, "call")[9]["sizes"] = [[13]]
        self.expect(stream, "calls_differ", 9)

    def test_calls_of_a_group_are_matched_within_the_group(self):
        stream = Stream()
        other = {**stream.of(0, "call")[0], "sizes": [[99]]}
        stream.updates[0][3].append({**other, "group": [0]})
        for rank, updates in ((0, (4, 6)), (1, (6, 8))):
            for update in updates:
                stream.updates[rank][update].append({**other, "group": [0, 1]})
        self.assertIsNone(stream.follow())

    def test_a_loss_that_is_not_finite(self):
        stream = Stream()
        stream.of(1, "backward")[11]["loss"] = [float("nan")]
        self.expect(stream, "not_finite", 11)

    def test_learning_rates_although_the_change_is_long_ago(self):
        stream = Stream()
        for rank in (0, 1):
            stream.of(rank, "step")[2]["groups"] = [{"lr": 0.05}]
        stream.of(1, "step")[40]["groups"] = [{"lr": 0.05}]
        self.assertIsNone(stream.follow())
        stream.of(1, "step")[41]["groups"] = [{"lr": 0.04}]
        self.expect(stream, "learning_rate_differs", 41)

    def test_clipping(self):
        stream = Stream()
        stream.of(1, "clip")[4]["norm"] += 1
        self.expect(stream, "clipped_before_reduction", 4)

    def test_a_rank_that_starts_again_is_not_judged(self):
        stream = Stream()
        stream.of(0, "call")[9]["sizes"] = [[13]]
        with tempfile.TemporaryDirectory() as folder:
            monitor = watcher(folder)
            self.append(folder, stream, range(9), start=True)
            self.assertIsNone(monitor.poll())
            with open(os.path.join(folder, "rank1.1.jsonl"), "wb") as file:
                write(file, stream.starts[1])
            self.append(folder, stream, range(9, UPDATES))
            self.assertIsNone(monitor.poll())
            monitor.follower.close()

    def append(self, folder, stream, updates, start=False):
        for rank in (0, 1):
            with open(os.path.join(folder, "rank%d.jsonl" % rank), "ab") as file:
                write(file, stream.starts[rank] if start else [])
                for update in updates:
                    write(file, stream.updates[rank][update])


if __name__ == "__main__":
    unittest.main()
