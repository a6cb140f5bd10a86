"""Invariants of data-parallel training. Each check reads a run's record and needs no reference."""
