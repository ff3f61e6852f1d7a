"""The gate: limits that a deployment must keep, and the sentence for each that a setting does not."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvasir.claims.result_file import Better
from kvasir.lab.estimate import Estimate
from kvasir.lab.figures import MeasureResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One bar.  A setting keeps it when the *bad end* of its 95 % interval does: "no loss" is claimed for what the
    data can vouch for, not for a lucky sample."""

    option: str
    measure: str
    metric: str
    label: str
    unit: str
    better: Better
    value: float

    def is_kept_by(self, estimate: Estimate) -> bool:
        if self.better is Better.LOWER:
            return estimate.highest <= self.value
        return estimate.lowest >= self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    setting: str
    option: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """``failures`` in the order of settings; a setting without one has passed."""

    limits: tuple[Limit, ...]
    settings: tuple[str, ...]
    failures: tuple[Failure, ...]

    @property
    def has_passed(self) -> bool:
        return not self.failures

    def has_passed_by(self, setting: str) -> bool:
        return not any(failure.setting == setting for failure in self.failures)


def make_limits(
    *, max_kl: float | None = None, max_copy_gap: float | None = None, min_passkey: float | None = None
) -> tuple[Limit, ...]:
    """The bars that were given; see ``Limit`` for what keeping one means."""
    offered = (
        (max_kl, "--max-kl", "kl", "mean", "mean KL", "nats/token", Better.LOWER),
        (max_copy_gap, "--max-copy-gap", "copy", "gap", "copy gap", "nats/token", Better.LOWER),
        (min_passkey, "--min-passkey", "passkey", "found", "passkeys found", "share", Better.HIGHER),
    )
    return tuple(
        Limit(option=option, measure=measure, metric=metric, label=label, unit=unit, better=better, value=value)
        for value, option, measure, metric, label, unit, better in offered
        if value is not None
    )


def judge(limits: Sequence[Limit], results: Sequence[MeasureResult], settings: Sequence[str]) -> Outcome:
    """Every limit on every setting.  What was not measured on a setting is a failure too: nobody vouched for it."""
    by_name = {result.name: result for result in results}
    failures = []
    for setting in settings:
        for limit in limits:
            result = by_name.get(limit.measure)
            found = None if result is None else result.figure(setting, limit.metric)
            if found is None or result is None:
                message = f"{setting}: {limit.label} was not measured, so {limit.option} {limit.value:g} is not kept."
            elif limit.is_kept_by(found):
                continue
            else:
                message = _sentence(setting, limit, found, result)
            failures.append(Failure(setting=setting, option=limit.option, message=message))
    return Outcome(limits=tuple(limits), settings=tuple(settings), failures=tuple(failures))


def _sentence(setting: str, limit: Limit, found: Estimate, result: MeasureResult) -> str:
    is_lower = limit.better is Better.LOWER
    end = found.highest if is_lower else found.lowest
    interval = "" if end == found.value else f" (95 % interval {'up' if is_lower else 'down'} to {end:.4g})"
    metric = next(metric for metric in result.metrics if metric.key == limit.metric)
    worst = result.settings[setting].worst(metric)
    where = "" if worst is None else f"; worst: {worst[0]} with {worst[1].value:.4g}"
    side = "above" if is_lower else "below"
    return f"{setting}: {limit.label} {found.value:.4g}{interval} is {side} {limit.option} {limit.value:g}{where}."
