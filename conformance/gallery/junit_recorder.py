"""Counts a unittest's cases, those that are skipped too, in the JUnit file that Bazel asks for."""

import os
import sys
import unittest
import xml.etree.ElementTree as ElementTree


class Recorder(unittest.TextTestResult):
    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.passed = []

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed.append(test)

    def stopTestRun(self):
        super().stopTestRun()
        suite = ElementTree.Element("testsuite", name=os.path.basename(sys.argv[0]))
        for test in self.passed:
            ElementTree.SubElement(suite, "testcase", name=test.id())
        failed = self.failures + self.errors
        for tag, tests in (("failure", failed), ("skipped", self.skipped)):
            for test, why in tests:
                case = ElementTree.SubElement(suite, "testcase", name=test.id())
                ElementTree.SubElement(case, tag, message=why)
        if os.environ.get("XML_OUTPUT_FILE"):
            ElementTree.ElementTree(suite).write(os.environ["XML_OUTPUT_FILE"])


def main():
    unittest.main(testRunner=unittest.TextTestRunner(resultclass=Recorder, verbosity=2))
