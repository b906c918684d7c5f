"""`python -m tito_core` is `tito`."""

from tito_core.cli.main import main

main()
