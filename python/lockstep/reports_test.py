"""Tests of the reports: of a right record, of a broken one, and of names that need escaping."""

import html.parser
import json
import math
import os
import sys
import tempfile
import unittest
from xml.etree import ElementTree

sys.dont_write_bytecode = True
PYTHON = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(PYTHON, "testing"))

from records import Record, digest

from lockstep import reports
from lockstep.reports import junit, page, pictures, sarif

HOSTILE = "<script>alert(1)</script>"


def broken(line="/s/train.py:11"):
    """Returns the verdict on ranks that begin with other values of one tensor."""
    record = Record()
    record.of(1, "step")[0]["before"][1] = digest("other")
    for step in record.of(1, "step"):
        step["after"][1] = digest("other", step["step"])
    for rank in (0, 1):
        (described,) = record.of(rank, "optimizer")
        described["line"] = line
        described["parameters"][1][0] = HOSTILE
    return record.judge()


class Fills(html.parser.HTMLParser):
    """Collects the colors of a page's rectangles."""

    def __init__(self, text):
        super().__init__()
        self.fills = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "rect":
            self.fills.append(dict(attrs)["fill"])


class JunitTest(unittest.TestCase):
    def test_a_right_record_has_no_failure(self):
        record = Record()
        record.accumulate()
        record.resume()
        found = record.judge()
        suite = ElementTree.fromstring(junit.text_of(found, "folder"))
        self.assertEqual(suite.get("tests"), str(len(found.claims)))
        # No loss is divided by a total of the ranks.
        self.assertEqual((suite.get("failures"), suite.get("skipped")), ("0", "1"))
        self.assertEqual(suite.findall(".//failure"), [])

    def test_a_wrong_claim_is_a_failure_with_cause_and_fix(self):
        suite = ElementTree.fromstring(junit.text_of(broken(), "folder"))
        (failure,) = suite.findall(".//failure")
        self.assertEqual(failure.get("type"), "first_weights_differ")
        self.assertIn("fix: ", failure.text)
        self.assertIn(HOSTILE, failure.text)
        self.assertEqual(suite.get("failures"), "1")

    def test_a_run_that_is_not_judged_passes_nothing(self):
        record = Record()
        record.events = record.events[:1]
        record.events[0][1]["world_size"] = 1
        found = record.judge()
        self.assertEqual(found.outcome, "not judged")
        suite = ElementTree.fromstring(junit.text_of(found, "folder"))
        self.assertEqual(suite.get("skipped"), suite.get("tests"))


class SarifTest(unittest.TestCase):
    def test_a_right_record_has_no_result(self):
        (run,) = json.loads(sarif.text_of(Record().judge(), "/s"))["runs"]
        self.assertEqual(run["results"], [])

    def test_a_finding_has_a_rule_a_level_and_a_place(self):
        document = json.loads(sarif.text_of(broken(), "/s"))
        self.assertEqual(document["version"], "2.1.0")
        (run,) = document["runs"]
        (result,) = run["results"]
        (rule,) = run["tool"]["driver"]["rules"]
        self.assertEqual(rule["id"], result["ruleId"])
        self.assertEqual((result["ruleId"], result["level"]), ("first_weights_differ", "error"))
        (location,) = result["locations"]
        place = location["physicalLocation"]
        self.assertEqual(place["artifactLocation"]["uri"], "train.py")
        self.assertEqual(place["region"]["startLine"], 11)

    def test_a_path_outside_the_root_is_a_file_uri(self):
        self.assertEqual(sarif.uri_of("/a b/c.py", "/s"), "file:///a%20b/c.py")
        self.assertEqual(sarif.uri_of("/s/d/c.py", "/s"), "d/c.py")


class PageTest(unittest.TestCase):
    def test_names_are_escaped(self):
        text = page.text_of(broken(), HOSTILE)
        self.assertNotIn("<script", text)
        self.assertIn("&lt;script&gt;", text)

    def test_the_line_of_the_script_is_marked(self):
        with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
            file.write("".join("line_%d()\n" % i for i in range(1, 30)))
            file.flush()
            text = page.text_of(broken(file.name + ":11"), "folder")
        self.assertIn("<mark>   11  line_11()</mark>", text)
        self.assertIn("line_8()", text)
        self.assertNotIn("line_7()", text)

    def test_ranks_that_differ_are_red(self):
        right = Fills(page.text_of(Record().judge(), "folder"))
        wrong = Fills(page.text_of(broken(), "folder"))
        self.assertEqual(right.fills.count("#d33"), 0)
        self.assertEqual(wrong.fills.count("#d33"), 8)  # One for each update of rank 1.

    def test_each_optimizer_has_its_pictures(self):
        record = Record()
        for rank in (0, 1):
            (described,) = record.of(rank, "optimizer")
            record.events[rank].insert(4, {**described, "optimizer": 1, "type": "Adam"})
            for step in record.of(rank, "step"):
                other = {**step, "optimizer": 1, "update": step["update"] + 100}
                other["after"] = [digest("drift", rank)] * 2 if step["step"] == 7 else step["after"]
                record.events[rank].insert(record.events[rank].index(step) + 1, other)
        drawn = pictures.all_of(record.judge().run)
        headings = [part for part in drawn if part.startswith("<h2>")]
        self.assertEqual(len(headings), 5)
        self.assertTrue(headings[1].endswith("parameters? (optimizer 0, SGD)</h2>"), headings)
        self.assertTrue(headings[3].endswith("parameters? (optimizer 1, Adam)</h2>"), headings)
        second = drawn[drawn.index(headings[3]) + 1]
        self.assertNotIn("#d33", drawn[drawn.index(headings[1]) + 1])
        self.assertIn("rank 1, update 107: 2 tensors differ", second)

    def test_a_record_without_updates_has_no_pictures(self):
        record = Record()
        for rank in (0, 1):
            record.remove(rank, "step", "optimizer", "backward", "clip", "schedule", "evaluate")
        self.assertEqual(pictures.all_of(record.judge().run), [])


class PicturesTest(unittest.TestCase):
    def test_distance_of_gradients(self):
        same = ["a", 1.0, 4.0, 1.0]
        self.assertEqual(pictures.distance([same, list(same)]), 0)
        self.assertEqual(pictures.distance([same, ["b", 1.0, 4.0, 2.0]]), 0.5)
        self.assertIsNone(pictures.distance([None, None]))
        self.assertEqual(pictures.distance([same, None]), math.inf)
        self.assertEqual(pictures.distance([same, ["b", 1.0, math.nan, 2.0]]), math.inf)

    def test_as_many_columns_as_fit(self):
        self.assertEqual(pictures.columns_of(3), [0, 1, 2])
        many = pictures.columns_of(100000)
        self.assertEqual((many[0], many[-1]), (0, 99999))
        self.assertLessEqual(len(many) * pictures.CELL, pictures.WIDTH)
        self.assertEqual(len(set(many)), len(many))


class WriteTest(unittest.TestCase):
    def test_writes_the_forms_that_are_asked_for(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = {"junit": os.path.join(folder, "a.xml"), "sarif": None, "html": None}
            self.assertEqual(reports.write(broken(), folder, paths), [paths["junit"]])
            self.assertEqual(os.listdir(folder), ["a.xml"])


if __name__ == "__main__":
    unittest.main()
