"""The gate, and the report it goes into: what passes, what does not and why, and what serving makes of it."""

import json
from dataclasses import replace

import pytest
from lab_planted import planted_lab, sees

from kvasir.claims.quality_report import QualityReport, Served, quality_table
from kvasir.claims.result_file import read_result
from kvasir.core.errors import ConfigError
from kvasir.lab.estimate import Estimate
from kvasir.lab.figures import MeasureResult, Metric, SettingFigures
from kvasir.lab.gate import judge, make_limits
from kvasir.lab.measure import Size
from kvasir.lab.measures.passkey import Passkey
from kvasir.lab.page import quality_page
from kvasir.lab.report import QualityRun
from kvasir.lab.subject import SubjectFacts
from kvasir.lab.tables import alike, summary_table

KL = Metric(key="mean", label="mean KL", unit="nats/token", is_damage=True, is_headline=True)


def kl_result(**means: Estimate) -> MeasureResult:
    settings = {
        name: SettingFigures(
            overall={"mean": mean},
            tasks={"early": {"mean": Estimate(value=0.0)}, "late": {"mean": Estimate(value=2 * mean.value)}},
        )
        for name, mean in means.items()
    }
    return MeasureResult(name="kl", title="KL divergence", metrics=(KL,), settings=settings)


GOOD = Estimate(value=0.004, low=0.003, high=0.005, num_samples=100)
CLOSE = Estimate(value=0.009, low=0.007, high=0.012, num_samples=100)
NOTHING = Estimate(value=0.0, low=0.0, high=0.0, num_samples=100)
RESULT = kl_result(ref=NOTHING, again=NOTHING, good=GOOD, close=CLOSE)


def facts(name: str, layout: str, weight_dtype: str = "int8") -> SubjectFacts:
    return SubjectFacts(
        name=name,
        model_digest="m" * 64,
        layout_digest=layout * 64,
        weight_dtype=weight_dtype,
        kernels="cpu",
        flags={"kv_cache_dtype": name},
        bytes_per_token=100.0,
        context=700,
    )


def finished(*, max_kl: float | None = 0.01) -> QualityRun:
    names = ("ref", "again", "good", "close")
    return QualityRun(
        model="demo",
        size=Size.QUICK,
        context=700,
        texts="given",
        reference="ref",
        floor="again",
        nudged=None,
        order=names,
        judged=("good", "close"),
        facts={name: facts(name, name[0]) for name in names},
        servers={},
        results=(RESULT,),
        skipped=(),
        gate=judge(make_limits(max_kl=max_kl), (RESULT,), ("good", "close")),
        duration_s=1.0,
    )


def test_the_bad_end_of_the_interval_decides():
    """0.009 is below 0.01, but the data do not vouch for it."""
    outcome = judge(make_limits(max_kl=0.01), (RESULT,), ("good", "close"))
    assert outcome.has_passed_by("good") and not outcome.has_passed_by("close")
    (failure,) = outcome.failures
    assert failure.message == (
        "close: mean KL 0.009 (95 % interval up to 0.012) is above --max-kl 0.01; worst: late with 0.018."
    )


def test_what_was_not_measured_does_not_pass():
    outcome = judge(make_limits(max_copy_gap=0.1), (RESULT,), ("good",))
    assert outcome.failures[0].message == "good: copy gap was not measured, so --max-copy-gap 0.1 is not kept."


def test_without_limits_everything_passes():
    assert judge((), (RESULT,), ("good", "close")).has_passed


def test_a_lower_bar_binds_the_lower_end():
    result = planted_lab(all=sees(), end=sees(last=200)).run(Passkey(lengths=(400,), depths=(0.0, 1.0), num_keys=3))
    outcome = judge(make_limits(min_passkey=0.95), (result,), ("end",))
    assert "passkeys found 0.5 (95 % interval down to" in outcome.failures[0].message
    assert "below --min-passkey 0.95" in outcome.failures[0].message


def test_a_report_is_a_result_file_that_can_be_read_again(tmp_path):
    run = finished()
    path = run.write(tmp_path / "quality.json", command="kvasir quality demo")
    result = read_result(path)
    assert result.measurements["measures"]["kl"]["settings"]["close"]["worst"]["mean"]["task"] == "late"
    assert result.measurements["measures"]["kl"]["settings"]["close"]["flagged"] == ["mean"]
    assert result.measurements["measures"]["kl"]["settings"]["again"]["flagged"] == []
    claims = {claim.name: claim for claim in result.claims}
    assert len(claims) == 2
    close = next(claim for name, claim in claims.items() if "of close against ref" in name)
    assert (close.value, close.target, close.is_met) == (0.012, 0.01, False)
    assert result.measurements["gate"]["passed"] == {"good": True, "close": False}


def test_a_floor_of_nothing_is_written_as_nothing(tmp_path):
    table = summary_table(finished())
    row = next(row for row in table.rows if row[1].startswith("mean KL"))
    assert row[2:4] == ("0", "0")
    assert row[4:] == ("0.004 [0.00300, 0.00500] *", "0.009 [0.00700, 0.01200] *")
    worst = table.rows[table.rows.index(row) + 1]
    assert worst[1].strip() == "worst task" and worst[4:] == ("late: 0.008", "late: 0.018")


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [
        ((0.9984, 0.9971, 0.9996), ["0.998", "0.997", "1.000"]),
        ((3.5486, 2.2574, 4.9361), ["3.55", "2.26", "4.94"]),
        ((9.58e-06, 8.58e-06, 1.104e-05), ["9.58e-06", "8.6e-06", "1.1e-05"]),
        ((0.0, -0.0121, 0.0034), ["0", "-0.0121", "0.0034"]),
        ((0.0, 0.0, 0.0), ["0", "0", "0"]),
        ((23040.0, 23039.0, 23041.0), ["2.3e+04", "2.3e+04", "2.3e+04"]),
    ],
)
def test_intervals_are_written_to_the_place_of_their_value(numbers, shown):
    assert alike(*numbers) == shown


@pytest.fixture
def report(tmp_path) -> QualityReport:
    return QualityReport.read(finished().write(tmp_path / "quality.json"))


def served(layout: str, weight_dtype: str = "int8", model: str = "m") -> Served:
    return Served(model_digest=model * 64, layout_digest=layout * 64, weight_dtype=weight_dtype)


def test_what_was_measured_and_passed_may_be_served(report):
    report.check(served("g"))
    report.check(served("r"))


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (served("c"), "failed its gate: close: mean KL"),
        (served("x"), "no setting of it has the KV layout"),
        (served("g", model="x"), "no setting of it has the model"),
        (served("g", weight_dtype="fp32"), "it has int8 weights, and fp32 is served"),
    ],
    ids=["failed", "layout", "model", "weights"],
)
def test_what_was_not_measured_or_failed_may_not(report, what, reason):
    with pytest.raises(ConfigError, match=reason):
        report.check(what)


@pytest.mark.parametrize("name", ["kv_eviction", "kv_sparse_read"])
def test_a_policy_that_was_not_measured_may_not(report, name):
    measured = next(iter(report.settings.values()))
    with pytest.raises(ConfigError, match=f"measured with --{name.replace('_', '-')} off, not some"):
        report.check(replace(measured, **{name: "some"}))


def test_a_report_without_limits_only_ties_digests(tmp_path):
    report = QualityReport.read(finished(max_kl=None).write(tmp_path / "quality.json"))
    report.check(served("c"))
    with pytest.raises(ConfigError, match="something else"):
        report.check(served("x"))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"kind": "else"}'])
def test_what_is_no_report_is_refused_in_a_sentence(tmp_path, content):
    path = tmp_path / "quality.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match="quality report"):
        QualityReport.read(path)
    with pytest.raises(ConfigError, match="quality report"):
        QualityReport.read(tmp_path / "none.json")


def test_another_result_file_is_no_report(tmp_path):
    path = finished().write(tmp_path / "quality.json")
    data = json.loads(path.read_text())
    data["measurements"] = {"something": 1}
    path.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match="no quality report of version"):
        QualityReport.read(path)


def test_the_readme_table_has_a_row_a_setting(tmp_path):
    result = read_result(finished().write(tmp_path / "quality-kv.json"))
    lines = quality_table([result]).splitlines()
    assert len(lines) == 2 + 4
    assert lines[4].startswith("| good | 100 | 0.004 [0.003, 0.005] |")
    assert lines[4].endswith("[quality-kv.json](bench/results/quality-kv.json) |")
    assert quality_table([]) == "No quality report has been committed yet."


def test_the_page_holds_everything_and_asks_the_network_for_nothing():
    page = quality_page(finished()).html()
    assert "close: mean KL 0.009" in page and "Frontier" in page
    assert not [part for part in page.split("<script")[1:] if part.lstrip().startswith("src=")]
    assert "<link" not in page
