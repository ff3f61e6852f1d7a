"""State machine: random traffic against the real scheduler and manager; every plan is checked slot by slot."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from layouts import MIXTURES
from modelled_executor import VOCAB_SIZE, ModelledExecutor, expected_tokens, sees

from kvasir.core.clock import VirtualClock
from kvasir.core.errors import BadRequestError
from kvasir.core.events import RequestFinishedEvent, TokensEvent
from kvasir.core.request import Request
from kvasir.core.sampling import SamplingParams
from kvasir.core.sequence import FinishReason
from kvasir.kv.allocation import AllocationKind
from kvasir.kv.audit import audit
from kvasir.kv.eviction import parse_eviction
from kvasir.kv.manager import KVManager, KVManagerConfig
from kvasir.kv.retention import RetentionKind
from kvasir.kv.sparse_read import SparseRead
from kvasir.scheduling.config import BatchingMode, QueuePolicy, SchedulerConfig
from kvasir.scheduling.scheduler import Scheduler

MAX_MODEL_LEN = 128
EVICTIONS = [None, None, *map(parse_eviction, ("keydiff:keep=0.3,sinks=2,recent=5", "random:keep=0.6,recent=0"))]


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        mixture=st.sampled_from(sorted(MIXTURES)),
        spare_blocks=st.integers(0, 12),
        max_num_seqs=st.integers(1, 6),
        budget=st.integers(6, 70),
        policy=st.sampled_from(QueuePolicy),
        batching=st.sampled_from(BatchingMode),
        caching=st.booleans(),
        contiguous=st.booleans(),
        threshold=st.sampled_from([0, 5]),
        fail=st.booleans(),
        eviction=st.sampled_from(EVICTIONS),
        sparse_read=st.sampled_from([None, None, SparseRead(num_blocks=2), SparseRead(num_blocks=4)]),
    )
    def start(
        self, mixture, spare_blocks, max_num_seqs, budget, policy, batching, caching, contiguous, threshold, fail,
        eviction, sparse_read,
    ):  # fmt: skip
        layout = MIXTURES[mixture if eviction is None else "full"]  # with the others it is refused
        has_window = any(spec.retention.kind is RetentionKind.WINDOW for spec in layout.groups)
        is_contiguous = contiguous and not caching and not has_window and eviction is None
        allocation = AllocationKind.CONTIGUOUS if is_contiguous else AllocationKind.PAGED
        whole = MAX_MODEL_LEN // 16
        num_blocks = tuple(
            (whole if allocation is AllocationKind.CONTIGUOUS else spec.max_blocks(MAX_MODEL_LEN, budget))
            + spare_blocks
            for spec in layout.groups
        )
        self.manager = KVManager(
            KVManagerConfig(
                layout=layout,
                num_blocks=num_blocks,
                max_model_len=MAX_MODEL_LEN,
                max_chunk_tokens=budget,
                enable_prefix_caching=caching,
                allocation=allocation,
                eviction=eviction,
                sparse_read=sparse_read,
            )
        )
        config = SchedulerConfig(
            max_num_batched_tokens=budget,
            max_num_seqs=max_num_seqs,
            policy=policy,
            batching=batching,
            long_prefill_token_threshold=threshold,
        )
        self.clock = VirtualClock()
        self.scheduler = Scheduler(config, self.manager, self.clock)
        self.fail_token = 7 if fail else None
        self.executor = ModelledExecutor(layout, self.fail_token, eviction, sparse_read)
        self.requests: dict[str, Request] = {}
        self.outputs: dict[tuple[str, int], list[int]] = {}
        self.finish_reasons: dict[tuple[str, int], FinishReason] = {}
        self.finished: dict[str, RequestFinishedEvent] = {}
        self.stopped: set[tuple[str, int]] = set()
        self.num_requests = 0

    @rule(
        shared=st.sampled_from([0, 16, 33, 48, 80]),
        unique=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=40),
        max_tokens=st.one_of(st.none(), st.integers(1, 60)),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        priority=st.integers(0, 2),
        salt=st.sampled_from(["", "", "salt"]),
        ignore_eos=st.booleans(),
    )
    def add_request(self, shared, unique, max_tokens, n, priority, salt, ignore_eos):
        self.num_requests += 1
        request = Request(
            request_id=f"r{self.num_requests}",
            prompt_token_ids=tuple([3] * shared + unique),
            sampling=SamplingParams(n=n, max_tokens=max_tokens, ignore_eos=ignore_eos),
            eos_token_ids=(0, 1),
            priority=priority,
            cache_salt=salt,
        )
        before = (len(self.scheduler.waiting), self.manager.num_available())
        try:
            self.scheduler.add(request)
        except BadRequestError:
            assert before == (len(self.scheduler.waiting), self.manager.num_available())
            return
        self.requests[request.request_id] = request

    @precondition(lambda self: self.outputs)
    @rule(data=st.data(), unique=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=20), max_tokens=st.integers(1, 60))
    def add_next_turn(self, data, unique, max_tokens):
        """A prompt that is an earlier one with its answer and more: what a chat sends, and what a preempted sequence
        looks like to the prefix cache."""
        (request_id, _), output = data.draw(st.sampled_from(sorted(self.outputs.items())))
        prompt = (*self.requests[request_id].prompt_token_ids, *output, *unique)
        self.add_prompt(prompt[: MAX_MODEL_LEN - 1], max_tokens=max_tokens)

    def add_prompt(self, prompt, **sampling):
        self.num_requests += 1
        request = Request(
            request_id=f"r{self.num_requests}",
            prompt_token_ids=tuple(prompt),
            sampling=SamplingParams(**sampling),
            eos_token_ids=(0, 1),
        )
        try:
            self.scheduler.add(request)
        except BadRequestError:
            return
        self.requests[request.request_id] = request

    @precondition(lambda self: self.scheduler.has_work)
    @rule(steps=st.integers(1, 8))
    def step(self, steps):
        for _ in range(steps):
            plan = self.scheduler.schedule()
            if plan is None:
                assert not self.scheduler.has_work
                return
            assert plan.num_tokens <= self.scheduler.config.max_num_batched_tokens
            seats = len(self.scheduler.running) + self.scheduler.num_forking
            assert seats <= self.scheduler.config.max_num_seqs
            audit(self.manager)
            result = self.executor.execute(plan)
            self.clock.advance(0.01)
            self.take(self.scheduler.apply(result))
            audit(self.manager)
            self.check_nothing_invisible_is_held()

    @precondition(lambda self: self.scheduler.has_work)
    @rule(data=st.data())
    def abort(self, data):
        request_id = data.draw(st.sampled_from(sorted(self.scheduler.records)))
        events = self.scheduler.abort(request_id)
        assert isinstance(events[-1], RequestFinishedEvent)
        self.take(events)
        assert self.scheduler.abort(request_id) == []

    @precondition(lambda self: self.scheduler.has_work)
    @rule(data=st.data())
    def stop_string_found(self, data):
        request_id = data.draw(st.sampled_from(sorted(self.scheduler.records)))
        index = data.draw(st.integers(0, 2))
        record = self.scheduler.records[request_id]
        if index < len(record.sequences) and record.sequences[index].finish_reason is None:
            self.stopped.add((request_id, index)) if record.sequences[index].num_output_tokens else None
        self.take(self.scheduler.stop_sequence(request_id, index))

    @rule()
    def forget_cache(self):
        self.manager.reset_prefix_cache()

    @invariant()
    def nothing_leaks(self):
        if hasattr(self, "manager"):
            audit(self.manager)

    def check_nothing_invisible_is_held(self):
        """In the step in which nobody can see a block any more, it comes back; every other stays."""
        if self.manager.regions is not None:
            return
        for sequence in self.scheduler.running:
            for spec, table in zip(
                self.manager.groups, self.manager.sequences[sequence.sequence_id].tables, strict=True
            ):
                for i, block in enumerate(table.blocks):
                    last = (i + 1) * 16 - 1
                    is_needed = last >= sequence.num_computed_tokens or sees(
                        spec.retention, sequence.num_computed_tokens, last
                    )
                    assert (block is not None) == is_needed, f"{sequence!r} block {i} of {spec.retention}"

    def take(self, events):
        for event in events:
            if isinstance(event, TokensEvent):
                key = (event.request_id, event.index)
                assert key not in self.finish_reasons, "tokens after the end"
                self.outputs.setdefault(key, []).extend(event.token_ids)
                if event.finish_reason is not None:
                    self.finish_reasons[key] = event.finish_reason
            else:
                assert event.request_id not in self.finished, "two terminal events"
                self.finished[event.request_id] = event

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        for _ in range(20_000):
            if not self.scheduler.has_work:
                break
            self.step(1)
        assert not self.scheduler.has_work, "somebody waits for ever"
        assert self.finished.keys() == self.requests.keys()
        assert all(pool.num_used == 0 for pool in self.manager.pools)
        assert self.scheduler.num_forking == 0
        self.manager.reset_prefix_cache()
        assert len(self.manager.index) == 0 and len(self.manager.pending) == 0
        for (request_id, index), tokens in self.outputs.items():
            self.check_output(self.requests[request_id], index, tokens)

    def check_output(self, request, index, tokens):
        max_tokens = request.sampling.max_tokens or MAX_MODEL_LEN - len(request.prompt_token_ids)
        stop_ids = frozenset() if request.sampling.ignore_eos else frozenset(request.eos_token_ids)
        wanted = expected_tokens(request.prompt_token_ids, index, max_tokens, stop_ids)
        reason = self.finish_reasons.get((request.request_id, index))
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            assert tokens == wanted
        else:
            assert tokens == wanted[: len(tokens)]
            assert reason is not None or (request.request_id, index) in self.stopped


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
TestSchedulerMachine = pytest.mark.filterwarnings("ignore")(TestSchedulerMachine)
