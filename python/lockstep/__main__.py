"""The command `lockstep`, or `python -m lockstep`."""

import argparse
import os
import sys

from . import __version__, causes, evidence, judge, launch, record, reference, reports, verdict
from .checks import earlier_run
from .monitor import watch

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
    ("reference", str, "", "WHAT", "compare with one_rank, cpu, or the record in this folder"),
    ("reference_command", str, "", "C", "record this command, too, and compare with that"),
    ("batch_flag", str, "", "FLAG", "the script's flag for its batch (--reference)"),
    ("world_size_flag", str, "", "FLAG", "the script's flag for its ranks (--reference)"),
    ("reference_updates", int, 50, "N", "updates after which a reference run ends"),
    ("hang_seconds", float, 0, "S", "end a command whose ranks record nothing for S seconds"),
    ("idle_seconds", float, watch.IDLE_SECONDS, "S", "--fail_fast: end a run if no rank computes for S seconds"),
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
        "--reference_env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="record the command with this variable, too, and compare with that",
    )
    run.add_argument(
        "--keep",
        type=int,
        metavar="UPDATE",
        help="keep the tensors of this update whole, for the largest difference",
    )
    again.add_argument("--reference", default="", metavar="FOLDER", help="compare with this record")
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
        check_references(parser, flags)
        if flags.keep is not None and flags.keep < 0:
            parser.error("--keep=%d is too small" % flags.keep)
        for name, kind, *_ in RUN_FLAGS:
            if kind is not str and getattr(flags, name) < (1 if name == "every" else 0):
                parser.error("--%s=%g is too small" % (name, getattr(flags, name)))
    return flags, command


def check_references(parser, flags):
    changed = bool(flags.reference_command or flags.reference_env)
    if changed and flags.reference:
        parser.error("--reference and a reference that is run first exclude each other")
    for pair in flags.reference_env:
        if "=" not in pair.lstrip("="):
            parser.error("--reference_env=%s is not NAME=VALUE" % pair)
    if flags.reference in ("", *reference.KINDS):
        return
    check_record(parser, flags.reference)
    paths = [os.path.realpath(path) for path in (flags.reference, flags.output_dir)]
    if os.path.commonpath(paths) == paths[1]:
        parser.error("--reference=%s is in --output_dir, which is written anew" % flags.reference)


def check_record(parser, folder):
    try:
        if record.rank_paths(folder)[0]:
            return
        why_not = "holds no record of a rank, and is neither %s"
    except OSError as error:
        why_not = error.strerror + ", and it is neither %s"
    parser.error("--reference=%s: %s" % (folder, why_not % " nor ".join(reference.KINDS)))


def run(flags, command):
    options = {name: getattr(flags, name) for name in ("first", "every", "limit_mb", "keep")}
    fails_fast = flags.idle_seconds if flags.fail_fast else None
    try:
        outcome = launch.run(
            command, flags.output_dir, options, flags.nproc, flags.hang_seconds, fails_fast
        )
    except OSError as error:
        print("lockstep: %s: %s" % (error.filename or command[0], error.strerror), file=sys.stderr)
        return 2
    recorded = evidence.read_run(
        flags.output_dir, outcome.status, outcome.hung_seconds, outcome.stopped
    )
    if flags.reference == "one_rank":
        found = compare(recorded, command, options, flags)
    elif flags.reference or flags.reference_command or flags.reference_env:
        found = compare_with_earlier(recorded, command, options, flags)
    else:
        found = judge.judge(recorded)
    note_on_launcher(found, command)
    return report(found, flags.output_dir, flags)


def note_on_launcher(found, command):
    """Tells how to do without a launcher that fails by itself, as torchrun of Debian 12 does."""
    number = reference.find_flag(command, reference.NPROC_FLAGS)
    if number and found.run.status and not found.run.ranks:
        text = "the command failed before a rank trained; `lockstep run --nproc=%s -- python3 SCRIPT`"
        found.notes.append(text % number[1] + " starts the ranks without a launcher")


def compare_with_earlier(recorded, command, options, flags):
    """Returns the verdict with the claim that needs an earlier run."""
    earlier = earlier_run.Earlier(None)
    try:
        if flags.reference == "cpu":
            say("runs the reference on the CPU")
            earlier.run = reference.run_on_cpu(recorded, command, flags.output_dir, options, flags)
        elif flags.reference:
            earlier.run = evidence.read_run(flags.reference)
        else:
            say("runs the reference")
            earlier.run = reference.run_changed(command, flags.output_dir, options, flags)
    except reference.Impossible as reason:
        earlier.why_not = str(reason)
        return judge.judge(recorded, earlier=earlier)
    if earlier_run.needs_repeats(recorded, earlier.run):
        say("bits differ from the reference's: runs the command twice more, with other roundings")
        try:
            earlier.repeats = reference.repeat(recorded, command, flags.output_dir, options, flags)
        except reference.Impossible as reason:
            earlier.why_no_repeats = str(reason)
    return judge.judge(recorded, earlier=earlier)


def compare(recorded, command, options, flags):
    """Returns the verdict with the claims that need a reference."""
    if recorded.status or len(recorded.ranks) < 2:
        return judge.judge(recorded, why_no_reference="the run has no two ranks that end well")
    say("runs the script three times with one rank")
    try:
        references, words = reference.make(recorded, command, flags.output_dir, options, flags)
    except reference.Impossible as reason:
        return judge.judge(recorded, why_no_reference=str(reason))
    found = judge.judge(recorded, references)
    found.notes.append("the reference is " + words)
    return found


def say(text):
    print("lockstep: " + text, file=sys.stderr, flush=True)


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
        run = evidence.read_run(flags.folder)
        earlier = flags.reference and earlier_run.Earlier(evidence.read_run(flags.reference))
        found = judge.judge(run, earlier=earlier or None)
    except OSError as error:
        print("lockstep: %s: %s" % (error.filename, error.strerror), file=sys.stderr)
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
