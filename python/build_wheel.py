#!/usr/bin/python3
"""Writes a wheel of pure Python from its sources: the same sources give the same bytes.

usage: build_wheel.py OUTPUT.whl SOURCE...

The wheel holds each source under its path from the last folder `python/` on. The version is the
one in lockstep/__init__.py. The file's name must be lockstep-VERSION-py3-none-any.whl.
"""

import base64
import hashlib
import os
import re
import sys
import zipfile

METADATA = """\
Metadata-Version: 2.1
Name: lockstep
Version: {version}
Summary: Records and judges PyTorch data-parallel training scripts as they are
License: Apache-2.0
Requires-Python: >=3.9
Requires-Dist: numpy
Description-Content-Type: text/markdown

{description}"""
WHEEL = """\
Wheel-Version: 1.0
Generator: lockstep build_wheel
Root-Is-Purelib: true
Tag: py3-none-any
"""
ENTRY_POINTS = """\
[console_scripts]
lockstep = lockstep.__main__:main
"""


def member_name(path):
    """Returns the name that a source has in the wheel: what is behind the last python/."""
    return path[path.rindex("python/") + len("python/") :]


def record_line(name, content):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return "%s,sha256=%s,%d\n" % (name, digest, len(content))


def members_of(paths):
    """Returns {name: content} of the wheel without its RECORD, and the name of its metadata."""
    sources = {}
    for path in paths:
        with open(path, "rb") as file:
            sources[member_name(path)] = file.read()
    description = sources.pop("README.md").decode()
    found = re.search(r'^__version__ = "(.+)"$', sources["lockstep/__init__.py"].decode(), re.M)
    folder = "lockstep-%s.dist-info/" % found[1]
    metadata = METADATA.format(version=found[1], description=description)
    for name, text in (
        ("METADATA", metadata),
        ("WHEEL", WHEEL),
        ("entry_points.txt", ENTRY_POINTS),
    ):
        sources[folder + name] = text.encode()
    return sources, folder, found[1]


def write_wheel(output, paths):
    members, folder, version = members_of(paths)
    expected = "lockstep-%s-py3-none-any.whl" % version
    if os.path.basename(output) != expected:
        sys.exit("build_wheel: %s must have the name %s" % (output, expected))
    lines = [record_line(name, content) for name, content in sorted(members.items())]
    members[folder + "RECORD"] = ("".join(lines) + folder + "RECORD,,\n").encode()
    with zipfile.ZipFile(output, "w") as wheel:
        # RECORD is last, as the format advises.
        for name, content in sorted(members.items(), key=lambda item: ("/RECORD" in item[0], item)):
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o100644 << 16
            wheel.writestr(info, content)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: build_wheel.py OUTPUT.whl SOURCE...")
    write_wheel(sys.argv[1], sys.argv[2:])
