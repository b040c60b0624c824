"""Pages of rooms, where people answer in place of a model."""
