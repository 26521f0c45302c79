"""`python -m fedsieve`."""

from fedsieve.cli.app import main

main()
