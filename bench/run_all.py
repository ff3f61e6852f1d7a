"""Runs every measurement in turn, each in a process of its own, and then lists the claims."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parent
# Libraries and reports that are not measurements, what has a target of its own (`make bench-peers`), and this file.
NOT_MEASUREMENTS = {"run_all", "claims", "readme", "engines", "peers", "frontier", "long_keys"}


def measurements() -> list[Path]:
    return [path for path in sorted(BENCH.glob("*.py")) if path.stem not in NOT_MEASUREMENTS]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="which ones (default: all), by file name without .py")
    parser.add_argument("--list", action="store_true", help="name them and measure nothing")
    arguments = parser.parse_args()
    scripts = [path for path in measurements() if not arguments.names or path.stem in arguments.names]
    if unknown := set(arguments.names) - {path.stem for path in scripts}:
        parser.error(f"no such measurement: {', '.join(sorted(unknown))}")
    if arguments.list:
        print("\n".join(path.stem for path in scripts))
        return 0
    failed = []
    for path in scripts:
        print(f"== {path.stem}", flush=True)
        if "KVASIR_DATA" in path.read_text() and "KVASIR_DATA" not in os.environ:
            print("skipped: KVASIR_DATA must name a folder with the evaluation texts")
        elif subprocess.run([sys.executable, str(path)], cwd=BENCH.parent).returncode:
            failed.append(path.stem)
    subprocess.run([sys.executable, str(BENCH / "claims.py")], check=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
