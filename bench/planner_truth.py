"""The planner against start-ups that vLLM, SGLang and llama.cpp logged: each row predicted again from its bytes."""

import argparse
from pathlib import Path

from kvasir.claims.result_file import Better, ResultWriter
from kvasir.planner.recorded import Reproduction, read_rows, reproduce

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "bench" / "results" / "planner_truth.json"
ROWS = ROOT / "tests" / "planner_truth.json"


def as_json(found: Reproduction) -> dict[str, object]:
    return {
        "engine": found.engine.value,
        "model_is_stated": found.is_stated,
        "is_exact": found.is_exact,
        "worst_deviation": found.worst_deviation,
        "comparisons": [
            {"name": c.name, "logged": c.logged, "predicted": c.predicted, "is_exact": c.is_exact}
            for c in found.comparisons
        ],
    }


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    found = [reproduce(row) for row in read_rows(ROWS)]
    sized = [entry for entry in found if entry.has_size]
    stated, inferred = [e for e in sized if e.is_stated], [e for e in sized if not e.is_stated]
    writer = ResultWriter(path=RESULT)
    writer.measurements = {
        "rows": len(found),
        "rows_with_a_size": len(sized),
        "stated": {"rows": len(stated), "exact": sum(e.is_exact for e in stated)},
        "inferred": {"rows": len(inferred), "exact": sum(e.is_exact for e in inferred)},
        "by_row": {entry.row_id: as_json(entry) for entry in found},
    }
    higher, lower = Better.HIGHER, Better.LOWER
    exact = 100 * sum(e.is_exact for e in stated) / len(stated)
    writer.claim("logged pools reproduced within print rounding, model stated", exact, "%", better=higher, target=100)
    exact = 100 * sum(e.is_exact for e in inferred) / len(inferred)
    writer.claim("logged pools reproduced within print rounding, model inferred", exact, "%", better=higher)
    worst = 100 * max(e.worst_deviation for e in found)
    writer.claim("largest deviation of any logged pool", worst, "%", better=lower, target=1.2)
    for claim in writer.claims:
        print(f"{claim.name}: {claim.value:.4g} {claim.unit} (target {claim.target})")
    for entry in found:
        if not entry.is_exact:
            print(f"  deviates: {entry.row_id}, {100 * entry.worst_deviation:.2f} %")
    print(writer.write())


if __name__ == "__main__":
    main()
