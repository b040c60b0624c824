"""Results of other tools, read into what viva scores, judges or joins."""
