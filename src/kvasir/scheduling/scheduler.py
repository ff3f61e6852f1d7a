"""The scheduler: hands out tokens under a token budget and a block budget, one step at a time.

Pure bookkeeping: no tensors, no text, no threads.  Engine and simulator run this very class.
"""

from kvasir.core.clock import Clock
from kvasir.core.errors import BadRequestError, InvariantViolation
from kvasir.core.events import Event
from kvasir.core.request import Request
from kvasir.core.sequence import FinishReason, Sequence, SequenceStatus
from kvasir.core.step import StepPlan, StepResult
from kvasir.kv.manager import KVManager
from kvasir.scheduling.admission import check_request
from kvasir.scheduling.admission_plan import AdmissionPlan, Candidate, plan_admissions
from kvasir.scheduling.budget import share_tokens
from kvasir.scheduling.completion import Completion
from kvasir.scheduling.config import BatchingMode, SchedulerConfig
from kvasir.scheduling.queue import SequenceLine, ServiceOrder
from kvasir.scheduling.requests import RequestRecord
from kvasir.scheduling.stats import SchedulerStats
from kvasir.scheduling.step_builder import StepBuilder

MAX_CANDIDATES_PER_STEP = 16
"""How many waiting sequences one step looks at: bounds the cost of a step when thousands wait."""

NOBODY = AdmissionPlan([], is_blocked=False)


class Scheduler:
    """``add`` and ``abort`` between steps; then ``schedule`` -> execute -> ``apply``, over and over.

    Order of service is arrival (or priority, then arrival).  Running sequences are served before waiting ones; when
    blocks run out, the last in order is preempted and computed again later, so the first always progresses.
    """

    def __init__(self, config: SchedulerConfig, manager: KVManager, clock: Clock) -> None:
        self.config = config
        self.manager = manager
        self.stats = SchedulerStats()
        self.records: dict[str, RequestRecord] = {}
        self._order = ServiceOrder(config.policy)
        self.waiting = SequenceLine(self._order)
        self.running = SequenceLine(self._order)
        self.num_forking = 0
        """Siblings that hold a seat and wait for their prompt."""
        self._has_windows = any(spec.retention.window for spec in manager.groups)
        self._clock = clock
        self._next_sequence_id = 0
        self._sequences: dict[int, Sequence] = {}
        self._known: set[int] = set()
        """Sequences the executor has been told about and not told to forget."""
        self._ended: list[int] = []
        self._plan: StepPlan | None = None
        self._is_batch_closed = False
        self._completion = Completion(
            end_sequence=self._end_sequence, end_request=self._end_request, stats=self.stats, clock=clock
        )

    # ---- requests come and go

    @property
    def has_work(self) -> bool:
        return bool(self.records)

    def add(self, request: Request) -> None:
        """Admit ``request``, or raise a refusal and change nothing."""
        if request.request_id in self.records:
            raise BadRequestError(f"A request with id {request.request_id!r} is running already.", param="request_id")
        max_tokens = check_request(request, self.manager, self.config, len(self.waiting))
        sequences = []
        for index in range(request.sampling.n):
            sequence = Sequence(sequence_id=self._next_sequence_id, request=request, index=index)
            self._next_sequence_id += 1
            self._sequences[sequence.sequence_id] = sequence
            sequences.append(sequence)
        eos = () if request.sampling.ignore_eos else request.eos_token_ids
        self.records[request.request_id] = RequestRecord(
            request=request,
            sequences=sequences,
            max_tokens=max_tokens,
            stop_ids=frozenset(eos) | frozenset(request.sampling.stop_token_ids),
            arrival_s=self._clock.now_s(),
        )
        self._order.arrive(request.request_id)
        self.waiting.add(sequences[0])
        self.stats.num_admitted += 1
        self.stats.num_prompt_tokens += len(request.prompt_token_ids)

    def abort(self, request_id: str) -> list[Event]:
        """End every sequence of the request now; [] when it is unknown or over.  Not between schedule and apply."""
        record = self.records.get(request_id)
        if record is None:
            return []
        self.stats.num_aborted += 1
        return self._completion.end_all(record, FinishReason.ABORT)

    def stop_sequence(self, request_id: str, index: int) -> list[Event]:
        """End one sequence of a request as stopped (its text hit a stop string); siblings go on."""
        record = self.records.get(request_id)
        if record is None or not 0 <= index < len(record.sequences):
            return []
        return self._completion.stop_sequence(record, record.sequences[index])

    # ---- one step

    def schedule(self) -> StepPlan | None:
        """Decide the next step, or None when there is nothing to do.  Changes block tables, not progress."""
        if self._plan is not None:
            raise InvariantViolation("schedule was called before the last plan's result was applied")
        if not self.records:
            return None
        self.stats.num_steps += 1
        builder = StepBuilder(self.stats.num_steps, self._ended)
        running = list(self.running)
        candidates = self.plan_starts().candidates
        shares = self._share_budget(running, candidates)
        is_ready = self.manager.is_ready
        for sequence in running:
            # Most rows of most steps: a token was drawn, its slot is there, the next one is wanted.
            computed = sequence.num_computed_tokens
            if (
                len(sequence.token_ids) - computed == 1
                and computed >= sequence.num_prompt_tokens
                and sequence.status is SequenceStatus.RUNNING
                and is_ready(sequence)
            ):
                builder.add_decode(sequence)
            else:
                self._schedule_running(builder, sequence, shares)
        for candidate in candidates:
            self._schedule_waiting(builder, candidate, shares.get(candidate.sequence.sequence_id, 0))
        if len(builder) == 0:
            raise InvariantViolation(f"{len(self.records)} requests are unfinished, but the step is empty")
        self._plan = builder.build(self.manager.eviction.take())
        self._ended = []
        return self._plan

    def apply(self, result: StepResult) -> list[Event]:
        """Take over the result of the plan that ``schedule`` returned last; the events are in token order."""
        plan = self._plan
        if plan is None or plan.step_id != result.step_id:
            raise InvariantViolation(f"the result of step {result.step_id} does not answer the last plan")
        self._plan = None
        failed = result.failed
        block_size = self.manager.block_size
        for sequence_id, _, token_ids, _, sample_for, _ in plan.rows:
            if failed and (sequence_id in failed or any(s in failed for s in sample_for)):
                continue
            sequence = self._sequences[sequence_id]
            num_tokens = len(token_ids)
            sequence.num_computed_tokens += num_tokens
            if num_tokens > 1 or sequence.num_computed_tokens % block_size == 0:
                self.manager.commit(sequence)  # a decode completes a block once in block_size steps
            if self._has_windows:
                self.manager.trim(sequence)
            if num_tokens > 1 or sequence.num_computed_tokens == sequence.num_prompt_tokens:
                self.manager.evict(sequence)
            if len(sample_for) > 1:
                self._fork_siblings(sequence, sample_for[1:])
        return self._completion.take_tokens(result, self._sequences, self.records)

    # ---- who gets what

    def plan_starts(self) -> AdmissionPlan:
        """Waiting sequences that could start now, in order of service."""
        is_static = self.config.batching is BatchingMode.STATIC
        if is_static and not self.running:
            self._is_batch_closed = False
        if not self.waiting:
            self._is_batch_closed = is_static and bool(self.running)
            return NOBODY
        num_seats = self.config.max_num_seqs - len(self.running) - self.num_forking
        if self._is_batch_closed or num_seats <= 0:
            self._is_batch_closed = is_static
            return AdmissionPlan([], is_blocked=True)
        waiting = ((sequence, self._seats_needed(sequence)) for sequence in self.waiting.first(MAX_CANDIDATES_PER_STEP))
        plan = plan_admissions(waiting, self.running, self.manager, num_seats)
        self._is_batch_closed = is_static and plan.is_blocked
        return plan

    def _seats_needed(self, sequence: Sequence) -> int:
        """The first sequence of a new request brings its siblings; one that was preempted comes alone."""
        record = self.records[sequence.request.request_id]
        return len(record.sequences) if record.first_scheduled_s is None else 1

    def _share_budget(self, running: list[Sequence], candidates: list[Candidate]) -> dict[int, int]:
        """Tokens for every prefill of the step, by sequence id.  Decodes are served first, one token each."""
        prefills = [(s, need) for s in running if (need := len(s.token_ids) - s.num_computed_tokens) > 1]
        budget = self.config.max_num_batched_tokens - (len(running) - len(prefills))
        if candidates:
            prefills.extend((c.sequence, c.num_remaining) for c in candidates)
            prefills.sort(key=lambda item: self._order.key(item[0]))
        if not prefills:
            return {}
        remaining = [need for _, need in prefills]
        shares = share_tokens(remaining, budget, self.config.long_prefill_token_threshold)
        return {sequence.sequence_id: share for (sequence, _), share in zip(prefills, shares, strict=True)}

    def _schedule_running(self, builder: StepBuilder, sequence: Sequence, shares: dict[int, int]) -> None:
        """Serve one running sequence, preempting from the end of the line until its blocks are there."""
        if sequence.status is not SequenceStatus.RUNNING:
            return  # preempted by one before it in this step
        uncomputed = len(sequence.token_ids) - sequence.num_computed_tokens
        num_tokens = 1 if uncomputed == 1 else shares[sequence.sequence_id]
        if num_tokens == 0:
            return
        num_tokens = self.manager.eviction.limit(sequence, sequence.num_computed_tokens, num_tokens)
        while (reservation := self.manager.reserve(sequence, num_tokens)) is None:
            victim = self.running.last()
            if victim is sequence and len(self.running) == 1:
                raise InvariantViolation(f"{sequence!r} runs alone and still cannot get its blocks")
            self._preempt(victim)
            if victim is sequence:
                return
        if num_tokens != uncomputed:
            sample_for = ()
        elif uncomputed == 1 and sequence.num_computed_tokens >= sequence.num_prompt_tokens:
            sample_for = (sequence.sequence_id,)  # plain decode: siblings, if any, run on their own
        else:
            sample_for = self._samplers(builder, sequence)
        builder.add_row(sequence, num_tokens, reservation, sample_for)

    def _schedule_waiting(self, builder: StepBuilder, candidate: Candidate, share: int) -> None:
        """Start a candidate if its blocks are (still) there; else it stays where it is."""
        sequence = candidate.sequence
        if share == 0:
            return
        # Serving the running sequences may have evicted what the candidate had found, so look again.
        hit = self.manager.lookup(sequence)
        num_remaining = sequence.num_tokens - hit.num_tokens
        num_tokens = self.manager.eviction.limit(sequence, hit.num_tokens, min(share, num_remaining))
        reservation = self.manager.reserve(sequence, num_tokens, hit)
        if reservation is None:
            return
        self._seat(sequence)
        self.stats.num_prefix_queries += sequence.num_tokens
        self.stats.num_prefix_hits += hit.num_tokens
        sequence.num_computed_tokens = hit.num_tokens
        if sequence.num_preemptions == 0:
            sequence.num_cached_tokens = hit.num_tokens
        self._start(builder, sequence)
        sample_for = self._samplers(builder, sequence) if num_tokens == num_remaining else ()
        builder.add_row(sequence, num_tokens, reservation, sample_for)

    def _samplers(self, builder: StepBuilder, sequence: Sequence) -> tuple[int, ...]:
        """Who draws a token from the sequence's last logits: itself, and siblings waiting to fork."""
        sequence_id = sequence.sequence_id
        if sequence.index or sequence.request.sampling.n == 1:
            return (sequence_id,)
        siblings = self.records[sequence.request.request_id].sequences[1:]
        forking = [sibling for sibling in siblings if sibling.status is SequenceStatus.FORKING]
        for sibling in forking:
            self._start(builder, sibling)
        return (sequence_id, *(sibling.sequence_id for sibling in forking))

    # ---- changes of state

    def _start(self, builder: StepBuilder, sequence: Sequence) -> None:
        builder.start(sequence)
        self._known.add(sequence.sequence_id)

    def _seat(self, sequence: Sequence) -> None:
        """From the queue to a seat; with the first sequence of a request its siblings take theirs."""
        record = self.records[sequence.request.request_id]
        if record.first_scheduled_s is None:
            record.first_scheduled_s = self._clock.now_s()
            for sibling in record.sequences[1:]:
                sibling.status = SequenceStatus.FORKING
                self.num_forking += 1
        self.waiting.remove(sequence)
        sequence.status = SequenceStatus.RUNNING
        self.running.add(sequence)

    def _fork_siblings(self, parent: Sequence, sibling_ids: tuple[int, ...]) -> None:
        """The shared prompt is computed: siblings get its blocks and run on their own."""
        for sibling_id in sibling_ids:
            sibling = self._sequences[sibling_id]
            self.manager.fork(parent, sibling)
            sibling.num_computed_tokens = parent.num_computed_tokens
            sibling.num_cached_tokens = parent.num_cached_tokens
            sibling.status = SequenceStatus.RUNNING
            self.num_forking -= 1
            self.running.add(sibling)

    def _preempt(self, sequence: Sequence) -> None:
        """Take everything back; the sequence waits in its old place and is computed again (mostly from the cache)."""
        self.manager.release(sequence)
        self.running.remove(sequence)
        self._forget(sequence)
        sequence.status = SequenceStatus.WAITING
        sequence.num_computed_tokens = 0
        sequence.num_preemptions += 1
        self.stats.num_preemptions += 1
        self.waiting.add(sequence)

    def _end_sequence(self, sequence: Sequence) -> None:
        """Give back whatever the ended sequence holds: its place in a line, its seat, its blocks."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        elif self._holds_forking_seat(sequence):
            self.num_forking -= 1
        self.manager.release(sequence)
        self._forget(sequence)
        del self._sequences[sequence.sequence_id]

    def _holds_forking_seat(self, sequence: Sequence) -> bool:
        """An ended sibling that never forked, of a request that was seated."""
        record = self.records[sequence.request.request_id]
        return sequence.index > 0 and record.first_scheduled_s is not None

    def _forget(self, sequence: Sequence) -> None:
        if sequence.sequence_id in self._known:
            self._known.remove(sequence.sequence_id)
            self._ended.append(sequence.sequence_id)

    def _end_request(self, record: RequestRecord) -> None:
        del self.records[record.request.request_id]
        self._order.leave(record.request.request_id)
