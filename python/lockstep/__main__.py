"""The command `lockstep`, or `python -m lockstep`."""

import argparse
import sys

from . import __version__, causes, evidence, judge, launch, reference, reports, verdict

DESCRIPTION = """\
Records and judges PyTorch data-parallel training scripts as they are.

  lockstep run -- torchrun --nproc_per_node=2 train.py --epochs=1

runs the command with hooks in every Python process that it starts. Nothing in the script changes,
and neither does a bit of its results. Each rank's record is a file of JSON lines in --output_dir.
Then the record is judged: the verdict names the first update, tensor and rank that are wrong, the
cause from a closed list, the line of the script, the evidence and the fix; so does verdict.json.
While the ranks run, a rank for which others wait longer than usual is named with its stack.
`lockstep judge D` judges the record in D again; `lockstep causes` lists the causes. Both `run` and
`judge` write the verdict for people (--html) and for CI (--junit, --sarif).
"""
EPILOGUE = """\
exit status: 0 if the run is right, 1 if it is wrong, 2 if the flags are wrong; the command's own if
nothing was judged, because there is one rank or no optimizer takes a step
"""
RUN_FLAGS = (
    ("output_dir", str, "lockstep-run", "D", "the folder of the record"),
    ("nproc", int, 0, "N", "start COMMAND as N ranks, with the variables that torchrun sets"),
    ("first", int, 10, "N", "updates at the start whose gradients are all recorded"),
    ("every", int, 10, "N", "after these, record the gradients of each N-th update"),
    ("limit_mb", float, 256, "MB", "the size at which the record of a rank ends"),
    ("reference", str, "", "WHAT", "one_rank: compare with one rank and the same global batch"),
    ("batch_flag", str, "", "FLAG", "the script's flag for its batch (--reference)"),
    ("world_size_flag", str, "", "FLAG", "the script's flag for its ranks (--reference)"),
    ("reference_updates", int, 50, "N", "updates after which a reference run ends"),
    ("hang_seconds", float, 0, "S", "end a command whose ranks record nothing for S seconds"),
)


class Parser(argparse.ArgumentParser):
    """Reports a wrong flag in one line."""

    def error(self, message):
        self.exit(2, "lockstep: %s (see lockstep --help)\n" % message)


def make_parser():
    parser = Parser(
        prog="lockstep",
        description=DESCRIPTION,
        epilog=EPILOGUE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version="lockstep " + __version__)
    commands = parser.add_subparsers(dest="action", metavar="ACTION", parser_class=Parser)
    run = commands.add_parser(
        "run",
        help="run a command and record its ranks",
        description=DESCRIPTION,
        epilog=EPILOGUE,
        usage="lockstep run [FLAG...] -- COMMAND [ARGUMENT...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    again = commands.add_parser("judge", help="judge a record again")
    again.add_argument("folder", metavar="D", help="the --output_dir of a run")
    commands.add_parser("causes", help="list the causes that a verdict can name")
    for command in (run, again):
        for name, text in reports.FORMS.items():
            command.add_argument("--" + name, metavar="FILE", help="write the verdict as " + text)
    for name, kind, default, metavar, text in RUN_FLAGS:
        text += "" if default in (0, None, "") else " (default: %(default)s)"
        run.add_argument("--" + name, type=kind, default=default, metavar=metavar, help=text)
    run.add_argument(
        "--fail_fast",
        action="store_true",
        help="end the run as soon as it is wrong and nothing later can mend it",
    )
    return parser


def parse(arguments):
    """Splits the flags from the command behind `--`."""
    parser = make_parser()
    command = []
    if "--" in arguments:
        split = arguments.index("--")
        arguments, command = arguments[:split], arguments[split + 1 :]
    flags = parser.parse_args(arguments)
    if flags.action is None:
        parser.error("an action is missing: run, judge or causes")
    if flags.action == "run":
        if not command:
            parser.error("run: a command is missing behind --")
        if flags.reference not in ("", "one_rank"):
            parser.error("--reference=%s is unknown: one_rank" % flags.reference)
        for name, kind, *_ in RUN_FLAGS:
            if kind is not str and getattr(flags, name) < (1 if name == "every" else 0):
                parser.error("--%s=%g is too small" % (name, getattr(flags, name)))
    return flags, command


def run(flags, command):
    options = {name: getattr(flags, name) for name in ("first", "every", "limit_mb")}
    try:
        outcome = launch.run(
            command, flags.output_dir, options, flags.nproc, flags.hang_seconds, flags.fail_fast
        )
    except OSError as error:
        print("lockstep: %s: %s" % (error.filename or command[0], error.strerror), file=sys.stderr)
        return 2
    recorded = evidence.read_run(
        flags.output_dir, outcome.status, outcome.hung_seconds, outcome.stopped
    )
    if not flags.reference:
        return report(judge.judge(recorded), flags.output_dir, flags)
    return report(compare(recorded, command, options, flags), flags.output_dir, flags)


def compare(recorded, command, options, flags):
    """Returns the verdict with the claims that need a reference."""
    if recorded.status or len(recorded.ranks) < 2:
        return judge.judge(recorded, why_no_reference="the run has no two ranks that end well")
    print("lockstep: runs the script three times with one rank", file=sys.stderr)
    try:
        references, words = reference.make(recorded, command, flags.output_dir, options, flags)
    except reference.Impossible as reason:
        return judge.judge(recorded, why_no_reference=str(reason))
    found = judge.judge(recorded, references)
    found.notes.append("the reference is " + words)
    return found


def report(found, folder, flags):
    """Prints the verdict, writes verdict.json and the asked reports; returns the exit status."""
    sys.stdout.flush()
    sys.stdout.write(found.to_text())
    print("  record: %s" % verdict.write(found, folder))
    try:
        for path in reports.write(found, folder, vars(flags)):
            print("  report: %s" % path)
    except OSError as error:
        print("lockstep: %s: %s" % (error.filename, error.strerror), file=sys.stderr)
        return 2
    return found.exit_status()


def judge_again(flags):
    try:
        found = judge.judge(evidence.read_run(flags.folder))
    except OSError as error:
        print("lockstep: %s: %s" % (flags.folder, error.strerror), file=sys.stderr)
        return 2
    if not found.run.ranks:
        print("lockstep: %s: holds no record of a rank" % flags.folder, file=sys.stderr)
        return 2
    return report(found, flags.folder, flags)


def list_causes():
    for name, (text, fix) in causes.CAUSES.items():
        print("%s\n    %s\n    fix: %s" % (name, text, fix) if text else name)
    return 0


def main(arguments=None):
    flags, command = parse(sys.argv[1:] if arguments is None else arguments)
    if flags.action == "judge":
        return judge_again(flags)
    if flags.action == "causes":
        return list_causes()
    return run(flags, command)


if __name__ == "__main__":
    sys.exit(main())
