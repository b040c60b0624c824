"""Sweeps over several machines: which part runs where, and what becomes of a part whose machine is lost.

What never belongs here: scheduling of our own.
"""
