"""The demo as a measurement: a chat with prefix caching off and on, paging, continuous batching; with its picture."""

import sys

from kvasir.cli.main import main

if __name__ == "__main__":
    sys.argv = ["kvasir", "demo", *sys.argv[1:]]
    main()
