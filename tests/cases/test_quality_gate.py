"""A number format that breaks answers must not pass because it is fast: quality is gated, not only speed."""

import pytest
from lab_models import make_induction_model
from lab_setup import SIXTEEN_BITS, lab_plan

from kvasir.lab.fault import NoisyKV
from kvasir.lab.gate import make_limits
from kvasir.lab.session import QualityPlan, run_quality
from kvasir.lab.setting import Setting


def test_Q1_a_cache_that_makes_gibberish_fails_the_gate_whatever_its_speed(tmp_path):
    """A kernel path that mangles K and V answers as fast as ever; the gate names what it broke."""
    settings = [
        Setting(name="sound", flags=SIXTEEN_BITS),
        Setting(name="mangled", flags=SIXTEEN_BITS, fault=NoisyKV(relative_error=1.5)),
    ]
    plan = QualityPlan(
        lab=lab_plan(make_induction_model(tmp_path / "model"), settings, context=512),
        measures=("kl", "copy", "passkey"),
        limits=make_limits(max_kl=0.05, max_copy_gap=0.1, min_passkey=0.9),
    )
    run = run_quality(plan)
    assert run.gate.has_passed_by("sound")
    failed = {failure.option for failure in run.gate.failures if failure.setting == "mangled"}
    assert failed == {"--max-kl", "--max-copy-gap", "--min-passkey"}
    assert {result.name for result, _ in run.flagged("mangled")} == {"kl", "copy", "passkey"}
    assert run.flagged("sound") == []
    floor = run.results[0].figure(run.floor, "mean")
    assert floor is not None and floor.value == pytest.approx(0.0, abs=1e-9)
