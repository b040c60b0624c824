"""Pages of rooms: people see what is asked of them, and answer it in the place of a model."""
