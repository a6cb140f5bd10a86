"""What the tests of the checks share: a broken record gets its cause and no other."""

import os
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

COVERED = set()  # The causes that tests have seen.
WAIT = {"event": "wait", "rank": 0, "call": "barrier", "line": "/s/train.py:50"}
WAIT |= {"seconds": 0.6, "usual": 0.1}
WAIT["late"] = [{"rank": 1, "state": "is idle", "call": "", "line": ""}]
WAIT["late"][0]["stack"] = [["/s/train.py:51", "load"], ["/s/train.py:60", "main"]]


class JudgeTest(unittest.TestCase):
    def expect(self, record, cause, update=None, line=None, tensors=None):
        found = record.judge()
        self.assertEqual(found.run.errors, [])
        self.assertEqual([f.cause for f in found.findings], [cause], found.to_text())
        self.assertEqual(found.exit_status(), 1)
        COVERED.add(cause)
        (finding,) = found.findings
        if update is not None:
            self.assertEqual(finding.update, update)
        if line is not None:
            self.assertEqual(finding.line, "/s/train.py:%d" % line)
        if tensors is not None:
            self.assertEqual(finding.tensors, tensors)
        self.assertTrue(finding.evidence)
        return finding

    def expect_right(self, record, notes=()):
        found = record.judge()
        self.assertEqual(found.run.errors, [])
        self.assertEqual((found.outcome, found.exit_status()), ("right", 0), found.to_text())
        self.assertEqual(len(found.notes), len(notes), found.notes)
        for note, expected in zip(found.notes, notes):
            self.assertIn(expected, note)
        return found
