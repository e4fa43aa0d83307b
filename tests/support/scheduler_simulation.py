"""A scheduler on a simulated clock with a fake model.

Oracle: the fake model's next token is a pure function of a sequence's tokens, so every answer is known without a cache.
The simulated cache records in each slot what was computed there.  Each step asserts that a sequence attends to exactly
its own tokens, wherever its blocks came from, and that its state is the one after exactly its own tokens.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass, field

from quire._native.graph import CacheSpec
from quire._native.kv import BlockPool, CacheLayout
from quire._native.testing import CacheEdit, CachePool, Plan, PoolGroup, Scheduler, SchedulerConfig

BLOCK = 4
N_VOCAB = 5
START = N_VOCAB  # the first token of an answer to a source text


@dataclass(frozen=True)
class Layout:
    """The layout of the fake model's cache: groups of (window, chunk), 0 for none, and optionally a recurrent state.

    One group may have the rows of a source text; then prompts are encoded, and answers begin with START.
    """

    groups: tuple[tuple[int, int], ...] = ((0, 0),)
    has_state: bool = False
    undivided: bool = False
    group_bytes: tuple[int, ...] = ()  # bytes of a block of each group; 3 each if empty
    state_bytes: int = 7
    source_group: int | None = None

    @classmethod
    def of(cls, layers: list[CacheSpec]) -> Layout:
        """Return the groups of a model's layers and the sizes of their blocks."""
        groups = CacheLayout(layers, "f16", BLOCK).groups
        lifetimes = tuple((group.window, group.chunk) for group in groups)
        return cls(groups=lifetimes, group_bytes=tuple(group.block_bytes for group in groups))

    def block_bytes(self, group: int) -> int:
        return self.group_bytes[group] if self.group_bytes else 3

    @property
    def all_block_bytes(self) -> int:
        """The bytes of one block of every group."""
        return sum(self.block_bytes(group) for group in range(len(self.groups)))

    @property
    def keeps_nothing(self) -> bool:
        return not self.groups and not self.has_state

    def first_seen(self, group: int, position: int) -> int:
        window, chunk = self.groups[group]
        if chunk:
            return position // chunk * chunk
        return max(0, position - window + 1) if window else 0


FULL = Layout()
WINDOW = Layout(groups=((0, 0), (6, 0)))
WINDOW_ALONE = Layout(groups=((6, 0),))
STATE = Layout(has_state=True)
STATE_ALONE = Layout(groups=(), has_state=True)
MIXED = Layout(groups=((0, 8), (5, 0)), has_state=True)
LATENT = Layout.of([CacheSpec.latent(rank=3, n_rot=2)] * 2 + [CacheSpec(n_kv_head=2, head_dim=4, window=6)])
SOURCE = Layout(groups=((0, 0), (0, 0)), source_group=1)
SOURCE_WINDOW = Layout(groups=((0, 0), (0, 0), (6, 0)), source_group=1)
NOTHING = Layout(groups=(), undivided=True)
LAYOUTS = {
    "full": FULL,
    "window": WINDOW,
    "window-alone": WINDOW_ALONE,
    "state": STATE,
    "state-alone": STATE_ALONE,
    "window-chunk-state": MIXED,
    "latent": LATENT,
    "source": SOURCE,
    "source-window": SOURCE_WINDOW,
}


def make_pool(
    layout: Layout, n_blocks: int, n_states: int, budget_bytes: int | None = None, reuse: str = "by_age"
) -> CachePool:
    groups = [
        PoolGroup(n_blocks, block_bytes=layout.block_bytes(i), window=w, chunk=c, of_source=i == layout.source_group)
        for i, (w, c) in enumerate(layout.groups)
    ]
    return CachePool(
        groups,
        block_tokens=BLOCK,
        n_states=n_states if layout.has_state else 0,
        state_bytes=layout.state_bytes if layout.has_state else 0,
        budget_bytes=budget_bytes,
        reuse=reuse,
    )


def context_hash(tokens: list[int], salt: str = "") -> int:
    value = zlib.crc32(salt.encode())
    for token in tokens:
        value = zlib.crc32(bytes([token]), value)
    return value


def next_token(tokens: list[int], choice: int, salt: str = "") -> int:
    return zlib.crc32(bytes([choice]), context_hash(tokens, salt)) % N_VOCAB


def answer_alone(prompt: list[int], n_new: int, choice: int = 0, salt: str = "") -> list[int]:
    tokens = list(prompt)
    for _ in range(n_new):
        tokens.append(next_token(tokens, choice, salt))
    return tokens[len(prompt) :]


@dataclass
class Job:
    prompt: list[int]
    n_new: int
    choice: int
    salt: str
    source: list[int] = field(default_factory=list)
    answer: list[int] = field(default_factory=list)
    logit_positions: list[int] = field(default_factory=list)
    finished_s: float | None = None

    def seen(self, tokens: list[int]) -> list[int]:
        """Return what the model sees of this sequence, including the source."""
        return [*self.source, *tokens]

    def source_row(self, position: int) -> int:
        """Return what a layer keeps of a token of the source, which depends on the whole source."""
        return context_hash([*self.source, position], self.salt)


class Simulation:
    """Runs plans on a cache that records, for each slot, the hash of the context it was computed from."""

    def __init__(
        self,
        n_blocks: int = 33,
        step_s: float = 1.0,
        layout: Layout = FULL,
        n_states: int = 17,
        budget_bytes: int | None = None,
        reuse: str = "by_age",
        draft_max: int = 0,
        agreement: float = 0.7,
        **config: object,
    ) -> None:
        self.layout = layout
        self.draft_max, self.agreement = draft_max, agreement
        self.rng = random.Random(n_blocks)
        self.pool = make_pool(layout, n_blocks, n_states, budget_bytes, reuse)
        config = {"max_step_tokens": 16, "max_running": 8, "undivided_prompts": layout.undivided, **config}
        self.config = SchedulerConfig(**config)  # type: ignore[arg-type]
        self.scheduler = Scheduler(self.config, self.pool)
        self.step_s = step_s
        self.now_s = 0.0
        self.slots: dict[tuple[int, int], int] = {}  # (group, slot) -> hash of the context
        self.states: dict[int, int] = {}
        self.jobs: dict[int, Job] = {}
        self.finished: list[int] = []
        self.paused: set[int] = set()
        self.plans: list[Plan] = []

    def submit(
        self, prompt: list[int], n_new: int = 1, n_choices: int = 1, salt: str = "", **options: object
    ) -> list[int]:
        source: list[int] = []
        if self.layout.source_group is not None:
            source, prompt = prompt, [START]
            options["source"] = source
        ids = self.scheduler.submit(
            prompt,
            max_tokens=len(prompt) + n_new,
            now_s=self.now_s,
            n_choices=n_choices,
            salt=salt.encode(),
            **options,  # type: ignore[arg-type]
        )
        for choice, id_ in enumerate(ids):
            self.jobs[id_] = Job(prompt, n_new, choice, salt, source)
        return ids

    @property
    def blocks(self) -> BlockPool:
        """The pool of the only group."""
        (group,) = self.pool.groups
        return group

    def make(self, edit: CacheEdit) -> None:
        if edit.group is None:
            if edit.kind == "discard":
                self.states.pop(edit.source, None)
                return
            assert edit.target != 0
            self.states[edit.target] = self.states[edit.source] if edit.source else -1  # -1: before any token
            return
        for offset in range(BLOCK):
            source = (edit.group, edit.source * BLOCK + offset)
            target = source if edit.kind == "discard" else (edit.group, edit.target * BLOCK + offset)
            content = self.slots.get(source) if edit.kind == "copy" else None
            self.slots.pop(target, None)
            if content is not None:
                self.slots[target] = content

    def run_batch(self, plan: Plan) -> None:
        for edit in plan.edits:
            self.make(edit)
        batch = self.scheduler.batch(plan)
        n_rows = plan.n_tokens - sum(item.n_encoded for item in plan.items)
        assert batch["row_begin"][-1] == len(batch["tokens"]) == n_rows
        assert len(batch["logit_rows"]) == plan.n_logit_rows
        assert len(batch["groups"]) == len(self.layout.groups)
        assert len(set(batch["states"])) == len(batch["states"]) == len(plan.items) * self.layout.has_state
        for g, group in enumerate(batch["groups"]):
            n_written = 0 if g == self.layout.source_group else n_rows
            assert len(set(group["slots"])) == len(group["slots"]) == n_written
            assert all(slot >= BLOCK for slot in group["slots"])
        self.encode(plan)
        contexts = []
        for i, item in enumerate(plan.items):
            state = self.scheduler.sequence(item.sequence_id)
            job = self.jobs[item.sequence_id]
            salt, tokens = job.salt, state.tokens + state.drafted
            contexts.append((tokens, salt))
            begin, end = batch["row_begin"][i], batch["row_begin"][i + 1]
            assert len(state.drafted) == item.n_drafted
            assert item.n_drafted == 0 or item.first + item.n_tokens == len(tokens)
            assert batch["tokens"][begin:end] == tokens[item.first : item.first + item.n_tokens]
            assert batch["positions"][begin:end] == list(range(item.first, item.first + item.n_tokens))
            assert batch["n_kv"][i] == item.first + item.n_tokens
            for g, group in enumerate(batch["groups"]):
                if g == self.layout.source_group:
                    continue
                for position, slot in zip(batch["positions"][begin:end], group["slots"][begin:end], strict=True):
                    self.slots[g, slot] = context_hash(tokens[: position + 1], salt)
            if self.layout.has_state:
                self.advance_state(batch["states"][i], tokens, item.first, batch["n_kv"][i], salt)
        for i, (tokens, salt) in enumerate(contexts):  # all writes first, as in a step: none overwrites another
            for g, group in enumerate(batch["groups"]):
                table = group["tables"][group["table_begin"][i] :]
                if g == self.layout.source_group:
                    self.expect_source(self.jobs[plan.items[i].sequence_id], table)
                    assert group["n_source"][i] == len(self.jobs[plan.items[i].sequence_id].source)
                    continue
                for position in range(self.layout.first_seen(g, plan.items[i].first), batch["n_kv"][i]):
                    slot = table[position // BLOCK] * BLOCK + position % BLOCK
                    assert self.slots.get((g, slot)) == context_hash(tokens[: position + 1], salt)

    def encode(self, plan: Plan) -> None:
        """Write the rows of the sources that this step encodes, each as a whole."""
        encoded = [item for item in plan.items if item.n_encoded]
        if not encoded:
            return
        batch, g = self.scheduler.source_batch(plan), self.layout.source_group
        assert g is not None
        slots = batch["groups"][g]["slots"]
        assert len(set(slots)) == len(slots) == len(batch["tokens"])
        for i, item in enumerate(encoded):
            job, begin = self.jobs[item.sequence_id], batch["row_begin"][i]
            assert batch["tokens"][begin : batch["row_begin"][i + 1]] == job.source
            for position, slot in enumerate(slots[begin : begin + len(job.source)]):
                self.slots[g, slot] = job.source_row(position)

    def expect_source(self, job: Job, table: list[int]) -> None:
        assert self.layout.source_group is not None
        for position in range(len(job.source)):
            slot = table[position // BLOCK] * BLOCK + position % BLOCK
            assert self.slots.get((self.layout.source_group, slot)) == job.source_row(position)

    def advance_state(self, slot: int, tokens: list[int], begin: int, end: int, salt: str) -> None:
        assert slot != 0
        assert self.states[slot] == (context_hash(tokens[:begin], salt) if begin else -1)
        self.states[slot] = context_hash(tokens[:end], salt)

    def step(self) -> Plan:
        self.draft()
        plan = self.scheduler.plan(self.now_s)
        self.plans.append(plan)
        assert plan.n_tokens <= self.config.max_step_tokens
        assert plan.n_logit_rows <= self.config.max_step_logit_rows
        if self.config.max_step_kv_tokens is not None:
            read = (max(i.first + i.n_tokens, len(self.jobs[i.sequence_id].source)) for i in plan.items)
            assert sum(read) <= self.config.max_step_kv_tokens
        self.run_batch(plan)
        self.now_s += self.step_s
        following = [id_ for id_ in self.jobs if id_ in self.scheduler and self.queue(id_) == "following"]
        self.scheduler.commit(plan)
        sampled = []
        for item in plan.items:
            job = self.jobs[item.sequence_id]
            end = item.first + item.n_tokens
            job.logit_positions += range(end - item.n_logit_rows, end - item.n_drafted)  # sample() notes the others
            if not self.scheduler.sequence(item.sequence_id).has_work:
                sampled.append(item.sequence_id)
        sampled += [id_ for id_ in following if self.queue(id_) != "following"]
        for id_ in sampled:
            if id_ not in self.paused:
                self.sample(id_)
        self.scheduler.check()
        assert self.scheduler.stats.n_running <= self.config.max_running
        return plan

    def draft(self) -> None:
        """Draft up to ``draft_max`` tokens, each right with a probability of ``agreement``."""
        for id_, job in self.jobs.items():
            if not self.draft_max or id_ not in self.scheduler:
                continue
            tokens = self.scheduler.sequence(id_).tokens
            n = min(self.scheduler.draft_limit(id_), self.rng.randint(0, self.draft_max))
            drafted: list[int] = []
            for _ in range(n):
                right = next_token(job.seen(tokens + drafted), job.choice, job.salt)
                wrong = (right + self.rng.randrange(1, N_VOCAB)) % N_VOCAB
                drafted.append(right if self.rng.random() < self.agreement else wrong)
            self.scheduler.draft(id_, drafted)

    def sample(self, id_: int) -> None:
        """Sample a token, and continue as long as tokens agree with the draft, whose rows are already computed."""
        job = self.jobs[id_]
        while id_ in self.scheduler and not self.scheduler.sequence(id_).has_work:
            job.answer.append(next_token(job.seen(self.scheduler.sequence(id_).tokens), job.choice, job.salt))
            self.scheduler.append(id_, job.answer[-1])
            if len(job.answer) == job.n_new:
                job.finished_s = self.now_s
                self.finished.append(id_)
                self.scheduler.remove(id_)
            elif not self.scheduler.sequence(id_).has_work:
                job.logit_positions.append(len(job.prompt) + len(job.answer) - 1)

    def queue(self, id_: int) -> str:
        return self.scheduler.sequence(id_).queue

    def run(self, max_steps: int = 10_000) -> None:
        for _ in range(max_steps):
            if all(job.finished_s is not None or id_ not in self.scheduler for id_, job in self.jobs.items()):
                break
            plan = self.step()
            assert plan.items or plan.preempted or plan.yielded, "requests remain but nothing runs"
        self.expect_all_answers()

    def expect_all_answers(self) -> None:
        for id_, job in self.jobs.items():
            if job.finished_s is None:
                assert id_ not in self.scheduler  # removed by the test
                continue
            assert job.answer == answer_alone(job.seen(job.prompt), job.n_new, job.choice, job.salt)
        if all(id_ not in self.scheduler for id_ in self.jobs):
            assert self.pool.held_bytes == 0


def prompt(n: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed * 1000 + n)
    return [rng.randrange(N_VOCAB) for _ in range(n)]
