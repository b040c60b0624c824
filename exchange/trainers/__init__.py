"""Adapters of rollouts for training packages, one per package."""
