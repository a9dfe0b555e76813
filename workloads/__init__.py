"""Workloads: pure functions from public traces and seeds to an immutable schedule."""
