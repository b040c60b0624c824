"""Sweeps: grids of candidates, datasets and seeds, on one machine or a Ray cluster. Shards, merging, planning."""
