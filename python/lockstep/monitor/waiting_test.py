"""Tests that late ranks are named within a second, with their calls and stacks, and no others."""

import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
PYTHON = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(PYTHON, "testing"))

from situations import LateTest

from lockstep import waits
from lockstep.monitor import place, stacks, waiting


class SituationsTest(LateTest):
    """The situations in which PyTorch's test_pg_wrapper wants an error, and slow ranks."""

    def test_different_calls(self):
        done, found, _ = self.run_kind("different_calls", "--fail_fast")
        self.expect_wrong(done, found, "calls_differ")
        self.assertIn("lockstep:   rank 0: all_reduce sum of [4] float32", done.stderr)
        self.assertIn("lockstep:   rank 1: broadcast of [4] float32", done.stderr)

    def test_different_sizes(self):
        done, found, _ = self.run_kind("different_sizes", "--fail_fast")
        self.expect_wrong(done, found, "calls_differ")
        evidence = found["findings"][0]["evidence"]
        self.assertIn("rank 0: all_reduce sum of [4]", evidence[0])
        self.assertIn("rank 1: all_reduce sum of [8]", evidence[1])

    def test_a_rank_that_does_not_call(self):
        done, found, seen = self.run_kind("missing_call", "--hang_seconds=3")
        self.expect_wrong(done, found, "calls_differ")
        line = self.expect_late(seen[0], 0, 1, "all_reduce", "is idle", "missing_call")
        self.assertEqual(line, "time.sleep(1000)")

    def test_a_rank_that_computes_in_place_of_a_call(self):
        done, found, seen = self.run_kind("computes", "--hang_seconds=3")
        self.expect_wrong(done, found, "calls_differ")
        self.expect_late(seen[0], 0, 1, "all_reduce", "computes", "computes")

    def test_a_run_whose_late_rank_is_idle_ends_and_one_whose_late_rank_computes_goes_on(self):
        done, found, seen = self.run_kind("missing_call", "--fail_fast", "--idle_seconds=2")
        self.expect_wrong(done, found, "hangs")
        self.expect_late(seen[0], 0, 1, "all_reduce", "is idle", "missing_call")
        (finding,) = found["findings"]
        self.assertEqual((finding["ranks"], finding["sure"]), ([1], "likely"))
        self.assertRegex(finding["text"], r"ranks wait, and for \d+ s none has computed")
        flags = "--fail_fast", "--idle_seconds=1", "--hang_seconds=4"
        done, found, _ = self.run_kind("computes", *flags)
        self.expect_wrong(done, found, "calls_differ")

    def test_two_groups_in_different_orders(self):
        """The groups have the same ranks. Nobody goes on, so --fail_fast ends the run."""
        done, found, seen = self.run_kind("order_of_groups", "--fail_fast", "--hang_seconds=20")
        self.expect_wrong(done, found, "hangs")
        waiting = seen[0]["rank"]
        self.expect_late(seen[0], waiting, 1 - waiting, "all_reduce", "waits", "order_of_groups")

    def test_a_rank_that_exits_early(self):
        done, found, _ = self.run_kind("exits_early", "--fail_fast")
        self.expect_wrong(done, found, "calls_differ")
        self.assertIn("rank 0: barrier", found["findings"][0]["evidence"][0])
        self.assertIn("rank 1: ends after 0 calls", found["findings"][0]["evidence"][1])

    def test_a_rank_that_sleeps_once(self):
        done, found, seen = self.run_kind("sleeps", "--fail_fast")
        self.assertEqual((done.returncode, found["findings"], len(seen)), (0, [], 1), self.said)
        line = self.expect_late(seen[0], 0, 1, "all_reduce", "is idle", "steps")
        self.assertIn("time.sleep(", line)
        self.assertIn("lockstep: rank 0 goes on", done.stderr)

    def test_a_rank_that_sleeps_before_the_backward_pass_of_ddp(self):
        done, found, seen = self.run_kind("backward", "--fail_fast")
        self.assertEqual((done.returncode, found["outcome"], len(seen)), (0, "right", 1), self.said)
        line = self.expect_late(seen[0], 0, 1, "backward", "is idle", "backward")
        self.assertEqual(line, "time.sleep(2.5)")

    def test_uneven_steps_name_nobody(self):
        done, found, seen = self.run_kind("uneven", "--fail_fast")
        self.assertEqual((done.returncode, found["findings"], seen), (0, [], []), self.said)

    def test_a_rank_that_is_always_slow_is_named_once(self):
        done, found, seen = self.run_kind("slow", "--fail_fast")
        self.assertEqual((done.returncode, found["findings"], len(seen)), (0, [], 1), self.said)


class PlaceTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.writer = place.Writer(place.path_of(self.folder, 3), 0)

    def read(self):
        return place.read(self.folder, 3)

    def test_shows_the_outermost_call_and_counts_calls_by_group(self):
        self.assertEqual((self.read().state, self.read().seconds), (place.OUTSIDE, 0.0))
        self.writer.enter("all_reduce", "a.py:1", "all")
        self.writer.enter("broadcast", "b.py:2", "[0, 1]")
        found = self.read()
        self.assertEqual((found.inside, found.kind, found.line), (True, "all_reduce", "a.py:1"))
        self.writer.leave()
        self.assertTrue(self.read().inside)
        self.writer.leave()
        self.assertEqual((self.read().state, self.read().issued), (place.OUTSIDE, {"all": 1}))
        self.writer.enter("wait", "a.py:9", None)
        found = self.read()
        self.assertEqual((found.kind, found.line), ("all_reduce", "a.py:9"))
        self.assertEqual(found.issued, {"all": 1})
        self.writer.end()
        self.assertEqual(self.read().state, place.ENDED)

    def test_the_usual_time_is_the_longest_in_the_call_or_between_calls(self):
        times = iter([10, 15, 22, 23, 30, 90, 91, 92])
        original, place.time.monotonic_ns = place.time.monotonic_ns, lambda: next(times) * 10**9
        self.addCleanup(setattr, place.time, "monotonic_ns", original)
        usual = []
        for line in ("a.py:1", "b.py:2", "a.py:1"):
            self.writer.enter("all_reduce", line, "all")
            usual.append(self.usual())
            self.writer.leave()
        self.writer.enter("all_reduce", "a.py:1", "all")
        # In a.py:1 5 s, then 60 s; between calls 7 s. The time before the first call is left out.
        self.assertEqual(usual + [self.usual()], [0, 7, 7, 60])

    def usual(self):
        return place.HEADER.unpack_from(self.writer.memory)[4] / 1e9

    def test_a_text_that_is_too_long_is_left_out(self):
        for size in (place.SIZE - place.HEADER.size - 50, place.SIZE):
            self.writer.enter("all_reduce", "a" * size, "all")
            self.assertEqual((self.read().inside, self.read().kind), (True, ""))
            self.writer.leave()

    def test_no_file_and_a_file_that_is_being_written_have_no_place(self):
        self.assertIsNone(place.read(self.folder, 4))
        fields = list(place.HEADER.unpack_from(self.writer.memory))
        place.HEADER.pack_into(self.writer.memory, 0, fields[0] + 1, *fields[1:])
        self.assertIsNone(self.read())


class WaitingTest(unittest.TestCase):
    """Three ranks whose places and states a test sets."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.ranks = [place.Writer(place.path_of(self.folder, r), 0) for r in range(3)]
        self.states = [waiting.IDLE] * 3
        self.said = []
        self.waiting = waiting.Waiting(self.folder, self.said.append)
        self.seconds = 100.0
        for owner, name, value in (
            (place.time, "monotonic_ns", lambda: int(self.seconds * 1e9)),
            (waiting.Observation, "state", lambda _, other: self.states[other.rank]),
            (waiting.Observation, "seconds", lambda _: 1.0),
        ):
            self.addCleanup(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)

    def enter(self, rank, kind="all_reduce", group="all"):
        self.ranks[rank].enter(kind, "/s/train.py:%d" % rank, group)
        self.states[rank] = waiting.WAITS

    def leave(self, rank):
        self.ranks[rank].leave()
        self.states[rank] = waiting.IDLE

    def poll(self, seconds):
        """Returns the late ranks of each wait that is new after so many seconds, and the result."""
        self.seconds += seconds
        before = len(waits.read(self.folder))
        result = self.waiting.poll(3)
        new = waits.read(self.folder)[before:]
        return [[other["rank"] for other in event["late"]] for event in new], result

    def test_names_the_ranks_that_have_not_issued_the_call_once(self):
        self.enter(0)
        self.enter(1)
        self.assertEqual(self.poll(0.3), ([], None))
        self.assertEqual(self.poll(0.2), ([[2]], None))
        self.assertEqual(self.poll(9.0), ([], None))
        self.enter(2)
        for rank in range(3):
            self.leave(rank)
        self.assertEqual(self.poll(0.1), ([], None))
        self.assertEqual(self.said[-1], "rank 0 goes on")

    def test_a_rank_that_has_issued_the_call_and_computes_is_not_late(self):
        for rank in range(3):
            self.enter(rank)
        self.leave(1)
        self.leave(2)
        self.states[1:] = [waiting.COMPUTES, waiting.ENDED]
        self.assertEqual(self.poll(5.0), ([], None))

    def test_ranks_outside_of_the_group_are_not_late(self):
        self.enter(0, group="[0, 1]")
        self.enter(1, group="[0, 1]")
        self.assertEqual(self.poll(5.0), ([], None))
        self.enter(2, group="[1, 2] group 2")
        self.leave(1)
        self.enter(1)
        self.assertEqual(self.poll(5.0)[0], [[1]])

    def test_a_rank_that_computes_in_a_call_does_not_wait(self):
        self.enter(0)
        self.states[0] = waiting.COMPUTES
        self.assertEqual(self.poll(5.0), ([], None))
        self.states[0] = waiting.WAITS
        self.assertEqual(self.poll(0.0), ([[1, 2]], None))

    def test_nobody_goes_on_if_all_wait_in_different_calls_for_a_second(self):
        self.enter(0)
        self.enter(1)
        self.enter(2, "broadcast")
        self.assertEqual(self.poll(0.9), ([[2]], None))
        self.assertIsNotNone(self.poll(0.2)[1])

    def test_nobody_goes_on_if_one_has_ended_and_the_others_wait(self):
        self.enter(0)
        self.states[1:] = [waiting.ENDED, waiting.COMPUTES]
        self.assertEqual(self.poll(3.0), ([[1, 2]], None))
        self.enter(2)
        self.assertIsNone(self.poll(0.5)[1])
        self.assertIsNotNone(self.poll(0.6)[1])

    def test_a_long_call_of_all_ranks_is_no_reason_to_end_the_run(self):
        self.enter(0)
        self.enter(1)
        self.assertEqual(self.poll(9.0), ([[2]], None))
        self.enter(2)
        self.assertEqual(self.poll(9.0), ([], None))

    def test_idle_ranks_end_the_run_after_a_time(self):
        for number, (seconds, state, ends) in enumerate((
            (1.0, waiting.IDLE, True),
            (1.5, waiting.IDLE, False),  # An observation lasts 1 s in this test.
            (0.0, waiting.IDLE, False),
            (1.0, waiting.COMPUTES, False),
        )):
            with self.subTest(seconds=seconds, state=state):
                self.waiting = waiting.Waiting(self.folder, self.said.append, seconds)
                self.enter(0)
                self.states[1:] = [state, waiting.IDLE]
                self.assertEqual(self.poll(2.0**number)[1] is not None, ends)  # Longer than usual.
                self.assertEqual("idle" in self.waiting.reported, ends)
                self.leave(0)
                self.poll(0.1)


class StacksTest(unittest.TestCase):
    def test_frames_are_those_of_the_main_thread_without_our_own(self):
        own = os.path.join(PYTHON, "lockstep", "hooks", "recorder.py")
        dump = (
            "Thread 0x1 (most recent call first):\n"
            '  File "/s/other.py", line 1 in other\n\n'
            "Current thread 0x2 (most recent call first):\n"
            '  File "%s", line 9 in hooked\n'
            '  File "/s/a.py", line 7 in main\n' % own
        )
        self.assertEqual(stacks.frames(dump), [("/s/a.py", 7, "main")])

    def test_a_process_without_a_handler_gets_no_signal(self):
        class Other:
            rank, pid, signal = 0, os.getpid(), 60

        with tempfile.TemporaryDirectory() as folder:
            with open(place.stack_path_of(folder, 0), "w", encoding="utf-8"):
                pass
            self.assertFalse(stacks.catches(os.getpid(), 60))
            self.assertEqual(stacks.stack_of(folder, Other), [])


if __name__ == "__main__":
    unittest.main()
