"""``python -m viva`` is the ``viva`` command."""

from viva.cli.start import main

main()
