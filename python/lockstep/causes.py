"""The closed list of causes: what each says, and how to mend it."""

CAUSES = {
    # Weights and gradients.
    "first_weights_differ": (
        "the ranks start from different weights",
        "build the model from one seed on all ranks, wrap all of it in DDP, or broadcast its"
        " parameters from rank 0 before the first update",
    ),
    "ddp_bypassed": (
        "forward passes go around DDP, so gradients are not reduced",
        "call the DDP object, not its .module, in the pass that backward follows",
    ),
    "never_synchronised": (
        "every backward pass of an update runs under no_sync, so gradients are not reduced",
        "leave no_sync before the forward pass of the last micro-batch of an update",
    ),
    "not_reduced": (
        "each rank updates with the gradient of its own samples",
        "wrap the model in DDP, or average all gradients over the ranks before the update",
    ),
    "partly_not_reduced": (
        "some parameters are updated with the gradient of a rank's own samples",
        "put these parameters into the module that DDP wraps or fully_shard shards (the root too),"
        " or reduce their gradients",
    ),
    "gradient_missing": (
        "a parameter has a gradient on some ranks and none on others",
        "make every rank use the same parameters, or reduce zeros for those that it did not use",
    ),
    "clipped_before_reduction": (
        "each rank clips the gradient of its own samples, before the reduction",
        "reduce the gradients first, then clip them",
    ),
    "scaled_by_part": (
        "each rank scales its part of a sharded gradient by a number of its own",
        "take the norm of all parts: clip_grad_norm_ of the sharded parameters does, or sum the"
        " squares over the ranks",
    ),
    "not_cleared": (
        "gradients are never cleared: each update adds them to those of the update before",
        "call optimizer.zero_grad() once in each update, before the first backward pass",
    ),
    "update_per_micro_batch": (
        "the optimizer steps after each micro-batch, and gradients are cleared more rarely",
        "call optimizer.step() once for each window, where the gradients are cleared",
    ),
    "short_window_scaled": (
        "an update of fewer micro-batches divides their losses by the number of a full one",
        "divide each loss by the number of micro-batches in its own window",
    ),
    "divided_by_micro_batches_again": (
        "losses are divided by the number of micro-batches twice",
        "do not divide the loss before Accelerate's backward(), which divides it by"
        " gradient_accumulation_steps",
    ),
    "reduced_in_narrow_type": (
        "gradients are reduced in a 16-bit type",
        "reduce them in the parameters' type, or scale them and accept the rounding knowingly",
    ),
    "learning_rate_differs": (
        "the learning rate depends on the rank",
        "compute the learning rate from the update's number and values that all ranks share",
    ),
    "settings_differ": (
        "the optimizer's settings depend on the rank",
        "make the optimizer with the same settings on all ranks",
    ),
    "optimizer_state_differs": (
        "the optimizer's state was restored on some ranks only",
        "load the optimizer's state on every rank",
    ),
    "not_finite": (
        "a loss or a gradient is NaN or infinite",
        "find the first operation that gives it: torch.autograd.set_detect_anomaly(True)",
    ),
    # Against one rank with the same global batch.
    "divided_by_ranks_again": (
        "gradients are divided by the number of ranks twice",
        "divide the loss by a rank's own count, or multiply it by the world size: DDP averages over"
        " the ranks",
    ),
    "summed_not_averaged": (
        "gradients are the sum over ranks, and one rank with the global batch has their mean",
        "divide the gradients by the number of ranks after the reduction, or the loss before it",
    ),
    "mean_of_means": (
        "ranks with different numbers of samples or tokens count alike",
        "weight each rank's loss by its number of samples or tokens",
    ),
    "schedule_depends_on_ranks": (
        "the learning rate's schedule depends on the number of ranks",
        "step the schedule once for each update, and count updates, not batches of all ranks",
    ),
    # Against an earlier run.
    "starts_from_other_weights": (
        "the run starts from other weights than the earlier one",
        "give both runs one seed, or load one checkpoint before the first update",
    ),
    "trains_with_other_settings": (
        "the optimizer's settings are not those of the earlier run",
        "give both runs the same settings, or record a new run to compare with",
    ),
    "differs_from_earlier_run": (
        "the run computes other numbers than the earlier one, by more than rounding",
        "undo what has changed between the runs piece by piece, or keep the change and record a new"
        " run to compare with",
    ),
    # Optimizers and schedules.
    "optimizer_misses_parameters": (
        "parameters with gradients are in no optimizer, which holds others that have none",
        "make the optimizer after the last change of the model's layers",
    ),
    "schedule_steps_by_rank": (
        "the learning rate's schedule steps once per rank and update",
        "call the schedule's step() once after each update, whatever the number of ranks",
    ),
    # Samples.
    "sampler_missing": (
        "every rank trains on the same samples: the loader has no distributed sampler",
        "give the loader a DistributedSampler",
    ),
    "sampler_misconfigured": (
        "the sampler has another rank or another number of replicas than the group",
        "make the sampler after init_process_group, without num_replicas and rank",
    ),
    "ranks_shuffle_apart": (
        "the ranks shuffle with different seeds or epochs, so that their shares overlap",
        "give the sampler the same seed, and set_epoch the same epoch, on all ranks",
    ),
    "same_samples": (
        "several ranks train on the same samples",
        "give each rank its own share of the data",
    ),
    "same_order_every_epoch": (
        "the samples have the same order in every epoch",
        "call sampler.set_epoch(epoch) before each epoch",
    ),
    "resume_repeats_epochs": (
        "after a resume the epochs, and so the orders of samples, begin at 0 again",
        "give set_epoch the epochs that the checkpoint counts: for epoch in range(start, epochs)",
    ),
    # Buffers and metrics.
    "buffers_differ": (
        "the model is evaluated with running statistics that depend on the rank",
        "use SyncBatchNorm, leave broadcast_buffers on and evaluate through DDP, or average the"
        " statistics before the evaluation",
    ),
    "metric_unweighted": (
        "a mean over a rank's samples is averaged over ranks that have different numbers of them",
        "sum the numerators and the counts over the ranks, then divide",
    ),
    # Calls and ends.
    "calls_differ": (
        "the ranks issue different calls of torch.distributed",
        "make every rank of a group issue the same calls, in one order and with the same sizes",
    ),
    "uneven_updates": (
        "some ranks make fewer updates than others",
        "give all ranks the same number of batches, or use DDP's join()",
    ),
    "crashes": (
        "a rank ends with an exception",
        "read the exception's text, and mend the line",
    ),
    "ends_early": (
        "a rank's process ends without finishing Python's exit",
        "look for a signal, os._exit or the system's out-of-memory killer",
    ),
    "hangs": (
        "the ranks record nothing more",
        "compare the last calls of the ranks: one waits for a call that another does not issue",
    ),
    "unknown": ("", ""),
}
