"""Ends the engine process when the HTTP process is gone, however it went.

The HTTP process holds the only write end of the engine's standard input and never writes: end of file means that it
died, even by SIGKILL.  A thread sees it, so a step in progress does not delay the end.
"""

import os
import sys
import threading
from collections.abc import Callable


def watch_parent(clean_up: Callable[[], None]) -> None:
    """Start the watch; when the parent is gone, ``clean_up`` runs and the process exits at once with status 1."""

    def wait() -> None:
        descriptor = sys.stdin.fileno()
        while os.read(descriptor, 4096):
            pass
        clean_up()
        os._exit(1)

    threading.Thread(target=wait, name="parent-watch", daemon=True).start()
