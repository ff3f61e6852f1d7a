"""Hit rates of replays as a table: a row for each size, a column for each policy."""

from collections.abc import Sequence

from kvasir.simulator.cache_replay import CacheReplay
from kvasir.simulator.report_tables import TextTable


def hit_table(runs: Sequence[CacheReplay], from_share: float) -> TextTable:
    """Rates to four digits over the requests after the first ``from_share``; an unlimited cache is the last row."""
    policies = list(dict.fromkeys(run.policy for run in runs if run.num_blocks is not None))
    block_size = runs[0].block_size
    sizes = sorted({run.num_blocks for run in runs if run.num_blocks is not None})
    rates = {(run.num_blocks, run.policy): f"{run.hit_rate(from_share):.4f}" for run in runs}
    rows = [
        (f"{size:,}", f"{size * block_size:,}", *(rates.get((size, policy), "-") for policy in policies))
        for size in sizes
    ]
    unlimited = next((run for run in runs if run.num_blocks is None), None)
    if unlimited is not None:
        rows.append(("unlimited", "", *[f"{unlimited.hit_rate(from_share):.4f}"] * max(1, len(policies))))
    names = [policy.value for policy in policies] or ["any policy"]
    columns = (f">blocks of {block_size}", ">tokens", *(f">{name}" for name in names))
    return TextTable(title="Hit rate, by prompt tokens", columns=columns, rows=rows)
