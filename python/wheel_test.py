"""Tests that the wheel is valid and reproducible, and that pip installs a command that runs."""

import base64
import csv
import hashlib
import io
import os
import re
import subprocess
import sys
import tempfile
import unittest
import venv
import zipfile

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import build_wheel

NAME = "lockstep-0.1.0-py3-none-any.whl"
WHEEL = os.path.join(HERE, NAME)


def sources():
    """Returns the wheel's sources, which lie beside this file."""
    with zipfile.ZipFile(WHEEL) as wheel:
        names = [name for name in wheel.namelist() if ".dist-info/" not in name]
    return [os.path.join(HERE, name) for name in [*names, "README.md"]]


class WheelTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def test_record_lists_every_file_with_its_digest_and_size(self):
        with zipfile.ZipFile(WHEEL) as wheel:
            names = wheel.namelist()
            rows = list(csv.reader(io.StringIO(wheel.read(names[-1]).decode())))
            self.assertEqual([row[0] for row in rows], names)
            for name, digest, size in rows[:-1]:
                content = wheel.read(name)
                want = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
                self.assertEqual((digest, int(size)), ("sha256=" + want.decode(), len(content)))
        self.assertEqual(rows[-1][1:], ["", ""])

    def test_holds_every_module_that_the_package_imports(self):
        with zipfile.ZipFile(WHEEL) as wheel:
            names = set(wheel.namelist())
            self.assertFalse([name for name in names if name.endswith("_test.py")])
            for name in names:
                text = wheel.read(name).decode()
                for module in re.findall(r"^ *from \.+(?:checks)? import (.+)$", text, re.M):
                    for part in module.split(", "):
                        ends = ("/%s.py" % part, "/%s/__init__.py" % part)
                        found = {n for n in names if n.endswith(ends)}
                        self.assertTrue(found or part == "__version__", (name, part))
            imports = wheel.read("lockstep/hooks/imports.py").decode()
            families = re.findall(r'^    "(\w+)",$', imports, re.M)
            self.assertIn("optimizers", families)
            self.assertLessEqual({"lockstep/hooks/%s.py" % name for name in families}, names)

    def test_does_not_depend_on_when_and_where_it_is_built(self):
        again = os.path.join(self.folder, NAME)
        build_wheel.write_wheel(again, reversed(sources()))
        with open(again, "rb") as one, open(WHEEL, "rb") as other:
            self.assertEqual(one.read(), other.read())

    def test_pip_installs_a_command_that_records(self):
        venv.create(self.folder, system_site_packages=True, symlinks=True)
        python = os.path.join(self.folder, "bin", "python")
        install = [python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", WHEEL]
        self.run_well(install)
        command = os.path.join(self.folder, "bin", "lockstep")
        self.assertEqual(self.run_well([command, "--version"]), "lockstep 0.1.0\n")
        flags = ["run", "--output_dir=" + os.path.join(self.folder, "record"), "--", python, "-c"]
        script = "import sys; print(sys.modules['_lockstep'].__file__)"
        said = self.run_well([python, "-m", "lockstep", *flags, script])
        installed = os.path.realpath(said[: said.index("/lib/")])
        self.assertEqual(installed, os.path.realpath(self.folder))

    def run_well(self, command):
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LOCKSTEP_RECORD")}
        done = subprocess.run(
            command, env=kept, cwd=self.folder, capture_output=True, text=True, timeout=120
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout


if __name__ == "__main__":
    unittest.main()
