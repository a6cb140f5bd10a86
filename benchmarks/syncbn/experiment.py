#!/usr/bin/python3
"""Trains ResNet-18 three times and draws the effect of synchronised batch norm.

The runs: one rank on the batch of one rank, two ranks that normalise with their
own batches, and two ranks with SyncBN. The two runs of two ranks see the same
samples in the same order. One rank sees half as many samples in a step, at half
the learning rate.
"""
import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import time

PROGRAM = "syncbn_experiment"

LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "OMPI_", "PMI_", "PMIX_", "SLURM_")

RUNS = (
    ("single", "1 rank", ("--nproc=1",)),
    ("local", "{ranks} ranks, local batch norm", ("--nproc={ranks}", "--sync_bn=false")),
    ("sync", "{ranks} ranks, SyncBN", ("--nproc={ranks}", "--sync_bn=true")),
)


def fail(message, status=1):
    print(f"{PROGRAM}: {message}", file=sys.stderr)
    sys.exit(status)


class Parser(argparse.ArgumentParser):
    def error(self, message):
        fail(message + "; see --help", status=2)


def at_least(least):
    def parse(text):
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value}: must be at least {least}")
        return value

    parse.__name__ = "number"
    return parse


def positive(text):
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: must be a positive number")
    return value


def parse_flags():
    parser = Parser(
        prog=PROGRAM,
        description="Trains ResNet-18 on Fashion-MNIST three times: with one rank, with several ranks and local "
        "batch norm, and with several ranks and SyncBN, each rank on small batches of the same size. Draws the three "
        "curves, and prints the cost of SyncBN. The ranks are processes of one thread. With the defaults it takes "
        "some minutes on two cores.",
        epilog="Writes experiment.json (each run's epochs, as in metrics.json of //models:train) and "
        "experiment.png to --output_dir. Exit status: 0 on success, 2 for a wrong flag, 1 for any other error.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--ranks", type=at_least(2), default=2, help="number of ranks of the two data-parallel runs (default: %(default)s)")
    add("--per_rank_batch", type=at_least(1), default=2, help="number of images on each rank in a step, also if "
        "there is one rank (default: %(default)s)")
    add("--epochs", type=at_least(1), default=6, help="number of passes over the training images (default: %(default)s)")
    add("--train_samples", type=at_least(1), default=600, help="train on the first N images (default: %(default)s)")
    add("--test_samples", type=at_least(1), default=1000, help="test on the first N images (default: %(default)s)")
    add("--lr", type=positive, default=0.0025, help="learning rate of one rank; N ranks, whose steps have N times "
        "as many images, have N times this rate (default: %(default)s)")
    add("--seed", type=at_least(0), default=0, help="seed of the weights and the sample order (default: %(default)s)")
    add("--data_dir", default="", help="folder of the data set's four .gz files (default: the distribution's)")
    add("--output_dir", default="lockstep-syncbn-experiment", help="write the files to this folder (default: %(default)s)")
    return parser.parse_args()


def user_path(path):
    """Returns the path relative to the user's folder; `bazel run` starts in another folder."""
    return os.path.join(os.environ.get("BUILD_WORKING_DIRECTORY", os.getcwd()), path)


def find_train():
    """Returns the path of the trainer that was built with this script."""
    roots = [os.getcwd(), os.environ.get("RUNFILES_DIR", ""), os.environ.get("TEST_SRCDIR", ""),
             os.path.abspath(sys.argv[0]) + ".runfiles"]
    for root in filter(None, roots):
        for part in ("", "lockstep", "_main"):
            path = os.path.join(root, part, "models", "train", "train")
            if os.access(path, os.X_OK):
                return path
    return fail("the trainer is missing; start this with bazel run //benchmarks:syncbn_experiment")


def find_pyplot():
    # matplotlib logs warnings about folders that it may not write to.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        fail(f"cannot draw: {error} (tools/setup.sh installs python3-matplotlib)")
    return pyplot


def train(binary, flags, name, ranks, run_flags):
    """Runs the trainer, which prints its progress to standard output. Returns its metrics."""
    folder = os.path.join(flags.output_dir, name)
    run_ranks = 1 if name == "single" else ranks
    command = [binary, "--model=resnet18_d2l", f"--epochs={flags.epochs}", f"--lr={flags.lr * run_ranks}",
               f"--seed={flags.seed}", f"--batch_size={flags.per_rank_batch * run_ranks}",
               f"--train_samples={flags.train_samples}", f"--test_samples={flags.test_samples}",
               f"--output_dir={folder}", "--threads_per_rank=1"]
    command += [flag.format(ranks=ranks) for flag in run_flags]
    if flags.data_dir:
        command.append(f"--data_dir={user_path(flags.data_dir)}")
    # The trainer must only be a rank of its own launcher.
    environment = {key: value for key, value in os.environ.items() if not key.startswith(LAUNCHER_VARIABLES)}
    status = subprocess.run(command, env=environment, check=False).returncode
    if status != 0:
        fail(f"the run '{name}' failed with exit status {status}")
    with open(os.path.join(folder, "metrics.json"), encoding="utf-8") as file:
        return json.load(file)


def print_table(runs):
    print("\nepoch" + "".join(f"{run['label']:>32}" for run in runs))
    print("     " + f"{'train loss':>20}{'test acc.':>12}" * len(runs))
    for row in zip(*(run["metrics"]["epochs"] for run in runs)):
        print(f"{row[0]['epoch']:>5}" + "".join(f"{e['train_loss']:>20.4f}{e['test_accuracy']:>12.4f}" for e in row))
    print()
    for run in runs:
        print(f"{run['label']}: {run['metrics']['epochs'][-1]['test_accuracy']:.3f} of the test images are right in the "
              f"end; {run['images_per_second']:.0f} images/s, an epoch {seconds_text(run)}")
    gaps = {run["name"]: gap(run, runs[0]) for run in runs[1:]}
    print(f"Mean distance of the train loss from 1 rank's: {gaps['local']:.4f} with local batch norm, "
          f"{gaps['sync']:.4f} with SyncBN.")
    local, sync = (statistics.median(epoch_seconds(run)) for run in runs[1:])
    print(f"The cost of SyncBN: an epoch takes {sync:.2f} s with it and {local:.2f} s with local batch norm, "
          f"{sync / local - 1:+.1%}.")


def epoch_seconds(run):
    """Returns the seconds of each epoch of training, without the tests."""
    return [epoch["train_seconds"] for epoch in run["metrics"]["epochs"]]


def seconds_text(run):
    times = epoch_seconds(run)
    return f"{statistics.median(times):.2f} s ({min(times):.2f} to {max(times):.2f})"


def gap(run, single):
    pairs = list(zip(run["metrics"]["epochs"], single["metrics"]["epochs"]))
    return sum(abs(a["train_loss"] - b["train_loss"]) for a, b in pairs) / len(pairs)


def draw(pyplot, runs, flags, path):
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), constrained_layout=True)
    styles = {"single": ("black", "-", 3), "local": ("tab:red", "-", 1.8), "sync": ("tab:cyan", "--", 1.8)}
    for axis, key, title in ((axes[0], "train_loss", "training loss"), (axes[1], "test_accuracy", "test accuracy")):
        for run in runs:
            epochs = run["metrics"]["epochs"]
            color, line, width = styles[run["name"]]
            label = f"{run['label']}, {statistics.median(epoch_seconds(run)):.1f} s an epoch"
            axis.plot([e["epoch"] for e in epochs], [e[key] for e in epochs], line, color=color, linewidth=width,
                      marker="o", markersize=3, label=label)
        axis.set_title(title)
        axis.set_xlabel("epoch")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.3)
    axes[0].legend()
    figure.suptitle(f"ResNet-18 on {flags.train_samples:,} images of Fashion-MNIST, {flags.per_rank_batch} images a "
                    f"rank and step, learning rate {flags.lr:g} a rank")
    figure.savefig(path, dpi=100)


def main():
    flags = parse_flags()
    flags.output_dir = user_path(flags.output_dir)
    try:
        os.makedirs(flags.output_dir, exist_ok=True)
    except OSError as error:
        fail(f"--output_dir={flags.output_dir}: {error.strerror}", status=2)
    pyplot = find_pyplot()
    binary = find_train()
    runs = []
    for name, label, run_flags in RUNS:
        label = label.format(ranks=flags.ranks)
        print(f"\n== {label} ==", flush=True)
        start = time.monotonic()
        metrics = train(binary, flags, name, flags.ranks, run_flags)
        epochs = metrics["epochs"]
        runs.append({"name": name, "label": label, "seconds": time.monotonic() - start,
                     "images_per_second": sum(e["train_samples"] for e in epochs) /
                     sum(e["train_seconds"] for e in epochs), "metrics": metrics})
    print_table(runs)
    report = os.path.join(flags.output_dir, "experiment.json")
    with open(report, "w", encoding="utf-8") as file:
        json.dump({"schema_version": 1, "flags": vars(flags), "runs": runs}, file, indent=2)
        file.write("\n")
    picture = os.path.join(flags.output_dir, "experiment.png")
    draw(pyplot, runs, flags, picture)
    print(f"\nWrote {report}\nWrote {picture}")


if __name__ == "__main__":
    main()
