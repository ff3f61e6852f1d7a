"""Law: a claim has a result file in the agreed form, and its figures decide whether it is met."""

import re
import subprocess
import sys

import pytest
from house import ROOT, tracked_files

from kvasir.claims.result_file import read_result

RESULTS = tracked_files(ROOT / "bench" / "results", "*.json")


@pytest.mark.skipif(not RESULTS, reason="no result file has been committed yet")
def test_every_result_file_is_whole() -> None:
    for path in RESULTS:
        result = read_result(path)
        assert result.claims, path.name
        assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", result.commit), path.name
        assert result.command and result.machine.get("cpu") and result.runs >= 1, path.name


def test_claims_lists_every_claim_unmet_first() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / "claims.py", "--json"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    rank = {"false": 0, "true": 1, "null": 2}
    met = [rank[word] for word in re.findall(r'"met": (\w+)', done.stdout)]
    assert met == sorted(met)
    assert len(met) >= sum(len(read_result(path).claims) for path in RESULTS)
