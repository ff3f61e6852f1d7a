"""Steps that can be foreseen, taken at once: for simulations, where nothing but time passes in them.

While every running sequence decodes and nobody comes, starts or ends, the next plans are known: each computes one token
of each sequence.  ``foresee_decodes`` says for how long, ``take_decodes`` leaves scheduler and block manager exactly as
that many rounds of ``schedule`` and ``apply`` would (held by tests/properties/test_simulator_runs.py).
"""

from kvasir.core.errors import InvariantViolation
from kvasir.core.sequence import Sequence
from kvasir.kv.retention import RetentionKind
from kvasir.scheduling.config import BatchingMode
from kvasir.scheduling.scheduler import Scheduler

_FOR_EVER = 1 << 62


def foresee_decodes(scheduler: Scheduler, token_id: int) -> int:
    """How many steps from now on are plain decodes of all that is running, if every drawn token is ``token_id``.

    0 when the next step holds anything else: a prefill, an end, a start, a preemption.  Call between steps."""
    manager = scheduler.manager
    running = list(scheduler.running)
    if not running or scheduler.num_forking or scheduler.config.batching is not BatchingMode.CONTINUOUS:
        return 0
    if len(manager.groups) != 1 or manager.groups[0].retention.kind is not RetentionKind.FULL:
        return 0
    most = _while_nobody_starts(scheduler, running)
    if not most:
        return 0
    for sequence in running:
        record = scheduler.records[sequence.request.request_id]
        num_output = len(sequence.token_ids) - sequence.num_prompt_tokens
        if len(sequence.token_ids) - sequence.num_computed_tokens != 1 or num_output < 1 or token_id in record.stop_ids:
            return 0
        left = record.max_tokens - num_output - 1
        if left < most:
            most = left
    return _with_blocks(running, most, scheduler)


def _while_nobody_starts(scheduler: Scheduler, running: list[Sequence]) -> int:
    """Who waits for a seat waits for an end; who waits for blocks is certain to go on waiting while no block changes
    hands, which is until the next one is full."""
    if not scheduler.waiting or len(running) >= scheduler.config.max_num_seqs:
        return _FOR_EVER
    plan = scheduler.plan_starts()
    if plan.candidates or not plan.is_blocked:
        return 0
    block_size = scheduler.manager.block_size
    slots = [sequence.num_computed_tokens - sequence.num_evicted_tokens for sequence in running]
    return min([block_size - filled % block_size for filled in slots])


def _with_blocks(running: list[Sequence], num_steps: int, scheduler: Scheduler) -> int:
    """The most steps, up to ``num_steps``, that the available blocks allow without a preemption."""
    manager = scheduler.manager
    block_size = manager.block_size
    states = manager.sequences
    if any(states[sequence.sequence_id].is_shared for sequence in running):
        return 0  # a write might have to copy
    left = [states[sequence.sequence_id].num_ready_slots - sequence.num_computed_tokens for sequence in running]
    if min(left) < 0:
        return 0  # a prompt was compacted just now

    def need(steps: int) -> int:
        return sum([-(-(steps - slots) // block_size) for slots in left if steps > slots])

    available = manager.pools[0].num_available
    if need(num_steps) <= available:
        return num_steps
    fits, does_not = 0, num_steps
    while does_not - fits > 1:
        middle = (fits + does_not) // 2
        if need(middle) <= available:
            fits = middle
        else:
            does_not = middle
    return fits


def take_decodes(scheduler: Scheduler, num_steps: int, token_id: int) -> None:
    """Take the next ``num_steps`` (at most what ``foresee_decodes`` said); every sequence draws ``token_id`` each time.

    No plans and no events come of it.  Blocks are filled, made findable and taken in the order in which single steps
    would: by step, and within a step in order of service."""
    manager = scheduler.manager
    block_size = manager.block_size
    running = list(scheduler.running)
    starts = [sequence.num_computed_tokens for sequence in running]
    # By number of steps taken: who has just filled a block, and takes the next one unless the run is over.  Before the
    # first step it is those who had filled theirs already.
    fills: dict[int, list[int]] = {0: [place for place in range(len(running)) if not manager.is_ready(running[place])]}
    for place, start in enumerate(starts):
        filled = start - running[place].num_evicted_tokens
        for step in range(block_size - filled % block_size, num_steps + 1, block_size):
            fills.setdefault(step, []).append(place)
    for step in sorted(fills):
        full = fills[step]
        if step:
            for place in full:
                _bring_to(running[place], starts[place] + step, token_id)
                manager.commit(running[place])
        if step < num_steps:
            for place in full:
                if not manager.is_ready(running[place]) and manager.reserve(running[place], 1) is None:
                    raise InvariantViolation(f"a foreseen decode of {running[place]!r} found no block")
    for sequence, start in zip(running, starts, strict=True):
        _bring_to(sequence, start + num_steps, token_id)
    scheduler.stats.num_steps += num_steps
    scheduler.stats.num_generated_tokens += num_steps * len(running)


def _bring_to(sequence: Sequence, num_computed: int, token_id: int) -> None:
    sequence.token_ids.extend([token_id] * (num_computed - sequence.num_computed_tokens))
    sequence.num_computed_tokens = num_computed
