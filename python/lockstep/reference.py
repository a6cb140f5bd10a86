"""Runs the script again, for comparisons: at one rank, on the CPU, or with other roundings."""

import os
import re
import shlex

from . import evidence, launch
from .checks import conditions, rounding

KINDS = ("one_rank", "cpu")  # Of --reference, beside a folder.
HIDES_GPUS = {"CUDA_VISIBLE_DEVICES": ""}
ON_CPU = ["cpu"]
PERTURBED = (1, 2)  # Seeds of the runs that show what rounding does.
NPROC_FLAGS = ("--nproc_per_node", "--nproc-per-node")
NODES_FLAGS = ("--nnodes",)
PROCESSES_FLAGS = ("--num_processes", "--num-processes")
MACHINES_FLAGS = ("--num_machines", "--num-machines")
MULTI_GPU_FLAGS = ("--multi_gpu", "--multi-gpu")  # Accelerate refuses these with one process.
MPI_PROGRAMS = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun")
MPI_FLAGS = ("-n", "-np", "--np", "-c")
OTHER_BATCHES = re.compile(r"eval|test|val|accum|num|max|log|print|micro")


class Impossible(Exception):
    """The reference cannot be made; the text says why."""


def find_flag(command, names):
    """Returns (index, value, whether the value is the next word) of the last such flag, or None."""
    for index in reversed(range(len(command))):
        name, equals, value = command[index].partition("=")
        if name in names:
            if equals:
                return index, value, False
            if index + 1 < len(command):
                return index, command[index + 1], True
    return None


def with_flag(command, names, value):
    """Returns the command with the flag's value replaced, or appended if it is absent."""
    found = find_flag(command, names)
    command = list(command)
    if found is None:
        return command + [names[0], value] if names[0].startswith("-") else command
    index, _, apart = found
    if apart:
        command[index + 1] = value
    else:
        command[index] = command[index].partition("=")[0] + "=" + value
    return command


def at_one_rank(command, nproc, world_size, world_size_flag):
    """Returns the command, and the number of ranks to start, for a world size of 1."""
    if world_size_flag:
        return with_flag(command, [world_size_flag], "1"), 1 if nproc else 0
    if nproc:
        return list(command), 1
    first = after_accelerate_launch(command)
    if first is not None:
        return accelerate_at_one_rank(command, first), 0
    found = find_flag(command, NPROC_FLAGS)
    if found:
        nodes = find_flag(command, NODES_FLAGS)
        if nodes and nodes[1] not in ("1", "1:1"):
            raise Impossible("the command starts several hosts")
        return with_flag(command, NPROC_FLAGS, "1"), 0
    if os.path.basename(command[0]) in MPI_PROGRAMS and find_flag(command, MPI_FLAGS):
        head = next(i for i, word in enumerate(command) if word in MPI_FLAGS)
        return command[: head + 1] + ["1"] + command[head + 2 :], 0
    raise Impossible(
        "the command does not say its %d ranks as torchrun, accelerate launch, mpirun or --nproc"
        " do: name the script's own flag by --world_size_flag" % world_size
    )


def after_accelerate_launch(command):
    """Returns the index of the first word behind `accelerate launch`, in any form, or None."""
    for index, word in enumerate(command[:4]):
        name = os.path.basename(word)
        if name in ("accelerate-launch", "accelerate.commands.launch"):
            return index + 1
        named = name in ("accelerate", "accelerate.commands.accelerate_cli")
        if named and command[index + 1 : index + 2] == ["launch"]:
            return index + 2
    return None


def accelerate_at_one_rank(command, first):
    """Returns the command with one process. A flag overrides what accelerate's own file says.

    first: the index of the first word behind `accelerate launch`.
    """
    scripts = (i for i in range(first, len(command)) if command[i].endswith(".py"))
    end = next(scripts, len(command))  # Flags of the script itself stay.
    own = [word for word in command[first:end] if word not in MULTI_GPU_FLAGS]
    machines = find_flag(own, MACHINES_FLAGS)
    if machines and machines[1] != "1":
        raise Impossible("the command starts several hosts")
    if find_flag(own, PROCESSES_FLAGS):
        own = with_flag(own, PROCESSES_FLAGS, "1")
    else:
        own = ["--num_processes", "1", *own]
    return [*command[:first], *own, *command[end:]]


def training_batch_size(run):
    """Returns the batch size of the only loader that training uses, or None."""
    rank = run.ranks[0]
    sizes = {e["batch_size"] for e in rank.of("pass") if e["loader"] in rank.training_loaders}
    return sizes.pop() if len(sizes) == 1 else None


def batch_candidates(run):
    """Returns [(names, value)] of the script's arguments that may be its batch size."""
    found = {}
    for event in run.ranks[0].of("arguments"):
        for names, value in event["flags"]:
            long = max(names, key=len).lower()
            plain = "batch" in long or long.lstrip("-") in ("bs", "b")
            if plain and not OTHER_BATCHES.search(long) and type(value) is int:
                found[tuple(names)] = value
    return list(found.items())


def with_global_batch(command, run, batch_flag):
    """Returns the command with the batch size that one rank needs, and words that say so."""
    size = training_batch_size(run)
    candidates = batch_candidates(run)
    if batch_flag:
        candidates = [(names, v) for names, v in candidates if batch_flag in names]
        given = find_flag(command, [batch_flag])
        if given and given[1].isdigit():
            candidates = [((batch_flag,), int(given[1]))]
        if not candidates:
            raise Impossible("the command has no %s with a whole number" % batch_flag)
    elif size is not None:
        candidates = [c for c in candidates if c[1] in (size, size * run.world_size)]
    if len(candidates) != 1:
        what = "several arguments" if candidates else "no argument"
        raise Impossible("%s of the script can be its batch size: name it by --batch_flag" % what)
    names, value = candidates[0]
    shown = max(names, key=len)
    if size is not None and value == size * run.world_size:
        return list(command), "%s is the global batch" % shown
    larger = str(value * run.world_size)
    return with_flag(command, [shown, *names], larger), "%s %s" % (shown, larger)


def make(run, command, folder, options, flags):
    """Runs the references and returns ([plain, perturbed...], words on how they were made).

    Raises Impossible with the reason if one rank cannot be run or ends badly.
    """
    for optimizer in run.ranks[0].optimizers.values():
        if optimizer.sharded:
            raise Impossible(optimizer.sharded)
    command, nproc = at_one_rank(command, flags.nproc, run.world_size, flags.world_size_flag)
    command, words = with_global_batch(command, run, flags.batch_flag)
    runs = []
    for seed in (0, *PERTURBED):
        place = os.path.join(folder, "reference", "run%d" % seed)
        changed = {**changes_of(run, options, flags), "perturb": seed}
        runs.append(run_again(command, place, changed, nproc, 1, flags))
    return runs, "one rank with " + words


def changes_of(run, options, flags):
    """Returns the options of a reference run."""
    spacing = rounding.spacing_of(run)
    return {**options, "reference": flags.reference_updates, "spacing": spacing}


def repeat(run, command, folder, options, flags):
    """Runs the command again with other roundings; returns the runs. Raises Impossible."""
    # Numbers that are drawn for a sample must stay that sample's.
    draws = rounding.draws_in_layers(run) or rounding.first_draw(run.ranks) is not None
    runs = []
    for seed in PERTURBED:
        place = os.path.join(folder, "reference", "run%d" % seed)
        changed = {**changes_of(run, options, flags), "perturb": seed, "reorder": not draws}
        runs.append(run_again(command, place, changed, flags.nproc, run.world_size, flags))
    return runs


def run_changed(command, folder, options, flags):
    """Runs the command of --reference_command, with --reference_env, and returns its run."""
    command = shlex.split(flags.reference_command) or command
    place = os.path.join(folder, "reference", "run0")
    changed = dict(pair.split("=", 1) for pair in flags.reference_env)
    options = {**options, "reference": flags.reference_updates}
    return run_again(command, place, options, flags.nproc, 0, flags, changed)


def run_on_cpu(run, command, folder, options, flags):
    """Runs the command without GPUs, and returns its run. Raises Impossible."""
    if conditions.devices(run) == ON_CPU:
        raise Impossible("the run has its parameters on the CPU already: there is no other device")
    place = os.path.join(folder, "reference", "run0")
    options = {**options, "reference": flags.reference_updates, "no_gpu": True}
    found = run_again(command, place, options, flags.nproc, run.world_size, flags, HIDES_GPUS)
    if conditions.devices(found) != ON_CPU:
        shown = ", ".join(conditions.devices(found)) or "no device that was recorded"
        raise Impossible("without GPUs, the script has its parameters on " + shown)
    return found


def run_again(command, place, options, nproc, world_size, flags, changed=()):
    """Runs the command and returns its run, which must end well with so many ranks, if not 0."""
    outcome = launch.run(command, place, options, nproc, flags.hang_seconds, changed=changed)
    found = evidence.read_run(place, outcome.status, outcome.hung_seconds)
    check_reference(found, world_size or max(found.world_size, 1))
    return found


def check_reference(run, world_size):
    ranks = "one rank" if world_size == 1 else "%d ranks" % world_size
    for rank in run.ranks:
        for event in rank.of("exception"):
            first = (event["text"].splitlines() or [""])[0][:200]
            raise Impossible("the script fails with %s: %s: %s" % (ranks, event["type"], first))
    if run.status or len(run.ranks) != world_size or run.world_size != world_size:
        raise Impossible(
            "with %s the script ends with status %d and leaves %d records"
            % (ranks, run.status, len(run.ranks))
        )
    if run.errors:
        raise Impossible("a hook failed in the reference: " + run.errors[0])
