"""Start a server, let extract.py talk to it, stop it: what `make demo` runs.

python examples/demo.py [OPTION OF structgen serve]...
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXTRACT = Path(__file__).with_name("extract.py")
READY = "structgen ready on "
STOP_S = 60


def main() -> int:
    serve = [sys.executable, "-m", "structgen", "serve", "--port", "0", "--log-level", "WARNING"]
    print("starting the server ...", flush=True)
    with subprocess.Popen([*serve, *sys.argv[1:]], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            line = server.stdout.readline()  # at its end: the server said why on stderr
            if not line.startswith(READY):
                return server.wait(STOP_S) or 1
            address = line.removeprefix(READY).strip()
            print(f"ready on {address}", flush=True)
            extracted = subprocess.run([sys.executable, EXTRACT, address]).returncode
        finally:
            server.terminate()
        stopped = server.wait(STOP_S)
    print("the server has stopped" if stopped == 0 else f"the server ended with {stopped}")
    return extracted or stopped


if __name__ == "__main__":
    sys.exit(main())
