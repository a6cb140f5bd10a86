"""Reads a record while the ranks write it: ends a run that went wrong, and names late ranks."""
