"""Other forms of a verdict: JUnit, SARIF, and one HTML page."""

import os

from . import junit, page, sarif

FORMS = {
    "html": "one page with pictures",
    "junit": "JUnit XML, a test case for each claim",
    "sarif": "SARIF, which code hosts show beside the script's lines",
}


def write(found, folder, paths):
    """Writes the verdict in each form that `paths` (by form) names, and returns the files."""
    written = []
    for form in FORMS:
        path = paths.get(form)
        if not path:
            continue
        if form == "html":
            text = page.text_of(found, folder)
        elif form == "junit":
            text = junit.text_of(found, folder)
        else:
            text = sarif.text_of(found, os.getcwd())
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        written.append(path)
    return written
