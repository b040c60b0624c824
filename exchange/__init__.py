"""Formats of other tools: exports of runs, imports of results, and rollouts for training packages."""
