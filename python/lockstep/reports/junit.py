"""A verdict as JUnit XML: one test case for each claim."""

from xml.etree import ElementTree

from .. import verdict


def text_of(found, record):
    """Returns the XML. found: a Verdict. record: the folder of the run's record."""
    wrong = {}
    for finding in found.findings:
        wrong.setdefault(finding.claim, []).append(finding)
    suite = ElementTree.Element("testsuite", name="lockstep")
    skipped = 0
    for claim in found.claims:
        case = ElementTree.SubElement(suite, "testcase", classname="lockstep", name=claim.name)
        if claim.name in wrong:
            add_failure(case, wrong[claim.name])
        elif not claim.count or found.outcome == "not judged":
            ElementTree.SubElement(case, "skipped", message=claim.why_not or found.why_not)
            skipped += 1
    for error in found.run.errors:
        case = ElementTree.SubElement(suite, "testcase", classname="lockstep", name="recorder")
        ElementTree.SubElement(case, "error", message=error)
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(wrong)))
    suite.set("errors", str(len(found.run.errors)))
    suite.set("skipped", str(skipped))
    ElementTree.SubElement(suite, "system-out").text = "record: " + record
    return ElementTree.tostring(suite, encoding="unicode") + "\n"


def add_failure(case, findings):
    first = findings[0]
    failure = ElementTree.SubElement(case, "failure", type=first.cause, message=first.text)
    lines = [line for finding in findings for line in verdict.describe(finding)]
    failure.text = "\n".join(line.strip() for line in lines)
