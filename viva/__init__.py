"""viva examines language models by talking with them. The public names are here; see docs/ for the rest."""
