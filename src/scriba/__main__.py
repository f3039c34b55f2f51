"""`python -m scriba`, the same as `scriba`."""

import sys

from scriba.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
