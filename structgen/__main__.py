"""python -m structgen."""

from __future__ import annotations

import sys

from structgen.frontend.cli import main

if __name__ == "__main__":
    sys.exit(main())
