"""``python -m viva`` is the ``viva`` command."""

from viva.cli.main import main

main()
