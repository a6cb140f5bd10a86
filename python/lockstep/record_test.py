"""Tests of the record's files."""

import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from lockstep import record


class RecordFileTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def make(self, limit_bytes=1000):
        return record.RecordFile(self.folder, limit_bytes)

    def test_writes_nothing_before_it_is_open(self):
        file = self.make()
        file.write({"event": "a"})
        self.assertEqual(os.listdir(self.folder), [])
        file.open()
        file.write({"event": "b"})
        self.assertEqual([e["event"] for e in record.read_events(file.path)], ["a", "b"])

    def test_a_rank_that_starts_again_has_a_file_of_its_own(self):
        for number in (1, 2):
            file = self.make()
            file.write({"event": "start", "number": number})
            file.open()
            file.name_rank(3)
        paths, unnamed = record.rank_paths(self.folder)
        self.assertEqual(unnamed, [])
        self.assertEqual(sorted(os.listdir(self.folder)), ["rank3.1.jsonl", "rank3.jsonl"])
        self.assertEqual(record.read_events(paths[3])[0]["number"], 2)

    def test_a_bounded_record_says_so_and_keeps_its_end(self):
        file = self.make(limit_bytes=200)
        file.open()
        for number in range(100):
            file.write({"event": "step", "number": number})
        file.write({"event": "end"})
        kinds = [event["event"] for event in record.read_events(file.path)]
        self.assertEqual(kinds[-2:], ["bounded", "end"])
        self.assertEqual(kinds.count("bounded"), 1)
        self.assertIn("step", kinds)
        self.assertLess(os.path.getsize(file.path), 300)

    def test_a_last_line_that_is_cut_is_left_out(self):
        path = os.path.join(self.folder, "rank0.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            file.write('{"event":"a"}\n{"event":"b"')
        self.assertEqual(record.read_events(path), [{"event": "a"}])


if __name__ == "__main__":
    unittest.main()
