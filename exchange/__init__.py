"""Formats of other tools: runs written in theirs, their results read into ours, rollouts for training packages. A
file holds what a run's report and transcripts say.
"""
