"""`make demo`: start a server, run extract.py against it, stop it.

    python examples/demo.py [OPTION OF structgen serve ...]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXTRACT = Path(__file__).with_name("extract.py")
READY = "structgen ready on "


def main() -> int:
    serve = [sys.executable, "-m", "structgen", "serve", "--port", "0", *sys.argv[1:]]
    print("starting the server")
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
        try:
            line = server.stdout.readline()
            if not line.startswith(READY):
                ...
            status = subprocess.run([sys.executable, EXTRACT, address]).returncode
        finally:
            server.terminate()
    return status or server.returncode
