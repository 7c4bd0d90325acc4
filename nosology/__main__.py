"""`python -m nosology` is the command `nosology`."""

from nosology.cli import main

main()
