"""`python -m anabranch`: the same as the command `anabranch`."""

import sys

from anabranch.command import main

if __name__ == "__main__":
    sys.exit(main())
