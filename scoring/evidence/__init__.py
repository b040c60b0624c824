"""Witnesses of contamination: each turns results per item into a statistic with its null distribution."""
