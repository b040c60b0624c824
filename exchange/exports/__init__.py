"""Finished runs written in the formats of other tools."""
