"""Random stories, applied to a store and to plain lists: both must hold the same after every step.

Few contexts, so that their fates cross: an entry is inherited by a fork, replaced in the parent, erased through the
grandchild, and the whole tree moves to another store. After every step the whole state is compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from acms.errors import (
    ACMSError,
    ConflictError,
    IdempotencyMismatchError,
    LeaseLostError,
    SessionNotFoundError,
    ValidationError,
)
from acms.log import active_entries as history
from acms.model import (
    Append,
    ContextDraft,
    Derived,
    Draft,
    Entry,
    Expect,
    JobDraft,
    Kind,
    Origin,
    Receipt,
    Role,
    State,
    ToolCall,
    ToolResult,
)
from acms.ports import StorageBackend
from acms.testing.books import (
    Book,
    Cell,
    Tree,
    check_atomic_groups,
    find_active_entries,
    ids_of_entries,
    spans_of_versions,
    versions_of_spans,
)
from acms.testing.logs import (
    WHEN,
    draft_fact,
    draft_message,
    draft_of_entry,
    draft_retraction,
    draft_summary,
    pack_vector,
    restore_contexts,
    sound,
)

__all__ = ["StorageStory", "run_story"]

Factory = Callable[[], AbstractAsyncContextManager[StorageBackend]]

SPACES = ("s", "t")


# ── the story ───────────────────────────────────────────────────────────────────────────────────────────────────────

anyone = st.integers(0, 99)
"""Chooses one of what there is: the number modulo how many there are."""

messages = st.builds(
    draft_message,
    st.sampled_from(["", "yes", "a longer text", "\u00fc\U0001f600"]),
    tokens=st.integers(0, 5),
    role=st.sampled_from([Role.USER, Role.ASSISTANT]),
    metadata=st.sampled_from([{}, {"run": 1}]),
    markers=st.sampled_from([(), ("goal",)]),
)


class StorageStory(RuleBasedStateMachine):
    """A story: rules that write, invariants that read everything."""

    #: Makes a fresh, empty store.
    factory: ClassVar[staticmethod[[], AbstractAsyncContextManager[StorageBackend]]]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.books: list[Book] = []
        self.counter = 0
        self.moves = 0
        self.closings = 0

    def run(self, coroutine: Any) -> Any:
        """Wait for the store."""
        return self.runner.run(coroutine)

    @initialize()
    def open(self) -> None:
        """Open the store and begin a first context."""
        self.store: StorageBackend = self.run(self.stack.enter_async_context(type(self).factory()))
        self.begin("k0", "default")
        self.append(self.books[0], draft_message("x", key="a"), draft_message("x", key="b"), draft_fact("z"))

    def teardown(self) -> None:
        """Close the store."""
        try:
            self.run(self.stack.aclose())
        finally:
            self.runner.close()

    # ── who and what ────────────────────────────────────────────────────────────────────────────────────────────────

    def live(self) -> list[Book]:
        """Return the contexts that are not deleted."""
        return [book for book in self.books if not book.deleted]

    def book(self, number: int) -> Book:
        """Return one of the live contexts."""
        books = self.live()
        return books[number % len(books)]

    def number(self) -> int:
        """Return a number that was not used in this story."""
        self.counter += 1
        return self.counter

    def try_append(self, book: Book, *drafts: Draft, **options: Any) -> Receipt | ACMSError:
        """Append and return the result of the store."""
        (result,) = self.run(self.store.append([Append(context=book.id, drafts=drafts, **options)]))
        return result

    def append(self, book: Book, *drafts: Draft, **options: Any) -> Receipt:
        """Append what must be accepted, and write it into the book."""
        result = self.try_append(book, *drafts, **options)
        return self.accept(book, drafts, result, options.get("tail"))

    def accept(
        self,
        book: Book,
        drafts: Sequence[Draft],
        result: Receipt | ACMSError,
        tail: dict[str, Any] | None = None,
    ) -> Receipt:
        """Write an accepted append into the book; the entries must equal the drafts, at the next versions."""
        assert isinstance(result, Receipt), result
        assert not result.repeated
        length = len(book.cells)
        assert result.versions == (length + 1, length + len(drafts))
        added: list[Entry] = self.run(self.store.read(book.id, after=length))
        assert [draft_of_entry(entry) for entry in added] == list(drafts)
        assert {(entry.context, entry.batch, entry.state) for entry in added} <= {
            (book.id, length + 1, State.LIVE)
        }
        assert (ids_of_entries(added), [entry.chain for entry in added]) == ([*result.ids], [*result.chains])
        for draft, entry in zip(drafts, added, strict=True):
            cell = Cell(entry)
            book.cells.append(cell)
            if draft.key is not None:
                book.keys[draft.key] = cell
            book.rewrites += bool(draft.replaces)
            book.views[entry.version] = ids_of_entries(find_active_entries(book.entries))
        if tail is not None:
            book.tail = tail
        return result

    # ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: len({id(book.tree) for book in self.books}) < 2)
    @rule(key=st.sampled_from(["k0", "k1", None]), namespace=st.sampled_from(["default", "n"]))
    def begin(self, key: str | None, namespace: str) -> None:
        """Create a context, or get the live one of that key."""
        draft = ContextDraft(key=key, namespace=namespace, counter="words", created_at=WHEN)
        context = self.run(self.store.create(draft))
        for book in self.live():
            if key is not None and (book.context.key, book.context.namespace) == (key, namespace):
                assert context.id == book.id
                return
        assert context.id not in {book.id for book in self.books}
        self.books.append(Book(context, Tree(), views={0: []}))

    @precondition(lambda self: self.live())
    @rule(which=anyone, draft=messages, tail=st.sampled_from([None, {}, {"n": 1}]))
    def say(self, which: int, draft: Draft, tail: dict[str, Any] | None) -> None:
        """Append one message."""
        self.append(self.book(which), draft, tail=tail)

    @precondition(lambda self: self.live())
    @rule(which=anyone, drafts=st.lists(messages, min_size=2, max_size=6))
    def say_many(self, which: int, drafts: list[Draft]) -> None:
        """Append several messages and a fact as one operation."""
        self.append(self.book(which), *drafts, draft_fact("a fact among them"))

    @precondition(lambda self: self.live())
    @rule(
        tries=st.lists(
            st.tuples(anyone, st.dictionaries(st.sampled_from("abc"), st.sampled_from("xxxxy"), min_size=1)),
            min_size=1,
            max_size=5,
        )
    )
    def say_with_keys(self, tries: list[tuple[int, dict[str, str]]]) -> None:
        """Append under keys that may have been used, as a client that tries again and again."""
        for which, bodies in tries:
            self.say_once(self.book(which), bodies)

    def say_once(self, book: Book, bodies: dict[str, str]) -> None:
        """Append bodies by key: all new, all repeats, or a mistake."""
        drafts = [draft_message(body, key=key) for key, body in bodies.items()]
        known = [book.keys[key].entry for key in bodies if key in book.keys]
        result = self.try_append(book, *drafts)
        if not known:
            self.accept(book, drafts, result)
        elif len(known) < len(drafts) or not all(map(_repeats, drafts, known)):
            assert isinstance(result, IdempotencyMismatchError), result
        else:
            assert isinstance(result, Receipt), result
            assert result.repeated
            assert list(result.ids) == ids_of_entries(known)
            assert list(result.positions) == [entry.position for entry in known]
            assert list(result.chains) == [entry.chain for entry in known]

    @precondition(lambda self: self.live())
    @rule(which=anyone, seen=anyone, off=st.sampled_from([None, -1, 0, 1]), draft=messages)
    def expect(self, which: int, seen: int, off: int | None, draft: Draft) -> None:
        """Append after a message that may no longer be the newest, expecting a count of rewrites that may be wrong."""
        book = self.book(which)
        known = [None, *(entry.id for entry in book.entries if entry.kind is Kind.MESSAGE)]
        newest_first = list(reversed(known))[:3]
        last = newest_first[seen % len(newest_first)]
        expect = Expect(last_message=last, rewrites=None if off is None else book.rewrites + off)
        result = self.try_append(book, draft, expect=expect)
        if last == newest_first[0] and not off:
            self.accept(book, [draft], result)
        else:
            assert isinstance(result, ConflictError), result

    @precondition(lambda self: self.live())
    @rule(which=anyone, other=anyone, good=messages, bad_first=st.booleans())
    def say_with_refused_neighbours(self, which: int, other: int, good: Draft, bad_first: bool) -> None:
        """Append to two contexts in one call, with refused operations between."""
        one, two = self.book(which), self.book(other)
        second = draft_message("second")
        good_one = Append(context=one.id, drafts=(good,))
        good_two = Append(context=two.id, drafts=(second,))
        invalid_drafts = (draft_message("bad"), draft_message("worse", replaces=((1, 10_000),)))
        invalid = Append(context=one.id, drafts=invalid_drafts, tail={"bad": 1})
        conflicting = Append(context=two.id, drafts=(draft_message("bad"),), expect=Expect(rewrites=10_000))
        if bad_first:
            results = self.run(self.store.append([invalid, good_one, conflicting, good_two]))
            refused_one, first, refused_two, last = results
        else:
            results = self.run(self.store.append([good_one, invalid, good_two, conflicting]))
            first, refused_one, last, refused_two = results
        assert isinstance(refused_one, ValidationError)
        assert isinstance(refused_two, ConflictError)
        if one is two:
            self.accept_pair(one, (good, second), [first, last])
        else:
            self.accept(one, [good], first)
            self.accept(two, [second], last)

    def accept_pair(
        self, book: Book, drafts: tuple[Draft, Draft], results: Sequence[Receipt | ACMSError]
    ) -> None:
        """Write two appends of one call to one context into the book."""
        length = len(book.cells)
        added: list[Entry] = self.run(self.store.read(book.id, after=length))
        assert [draft_of_entry(entry) for entry in added] == list(drafts)
        assert [entry.batch for entry in added] == [length + 1, length + 2]
        for entry, result in zip(added, results, strict=True):
            assert isinstance(result, Receipt), result
            assert result.ids == (entry.id,)
            book.cells.append(Cell(entry))
            book.views[entry.version] = ids_of_entries(find_active_entries(book.entries))

    @precondition(lambda self: self.live())
    @rule(which=anyone, old=anyone, draft=messages)
    def edit(self, which: int, old: int, draft: Draft) -> None:
        """Replace a message; the new text is read at its position."""
        book = self.book(which)
        active = find_active_entries(book.entries)
        targets = [entry for entry in active if entry.kind is Kind.MESSAGE and entry.group is None]
        if targets:
            edited = targets[old % len(targets)]
            versions = versions_of_spans(edited.replaces) | {edited.version}
            self.append(book, replace(draft, replaces=spans_of_versions(versions)))

    @precondition(lambda self: self.live())
    @rule(which=anyone, old=anyone)
    def retract(self, which: int, old: int) -> None:
        """Retract an entry with its whole tool group; the entries that it replaced are active again."""
        book = self.book(which)
        targets = [entry for entry in book.entries if entry.replaces] + find_active_entries(book.entries)
        if targets:
            spans = history.group_spans(targets[old % len(targets)], book.entries)
            self.append(book, replace(draft_retraction(), replaces=spans))

    @precondition(lambda self: self.live())
    @rule(which=anyone, start=anyone, length=st.integers(1, 4))
    def sum_up(self, which: int, start: int, length: int) -> None:
        """Replace some atomic groups, which may hold earlier summaries, by a summary."""
        book = self.book(which)
        groups = history.fold_atomic_groups(find_active_entries(book.entries), whole=True).units
        complete = [group for group in groups if group.complete]
        if not complete:
            return
        start %= len(complete)
        versions: set[int] = set()
        for group in complete[start : start + length]:
            for entry in group.entries:
                versions |= versions_of_spans(entry.replaces) | {entry.version}
        self.append(book, draft_summary(min(versions), max(versions), replaces=spans_of_versions(versions)))

    @precondition(lambda self: self.live())
    @rule(which=anyone, calls=st.integers(1, 2))
    def call_tools(self, which: int, calls: int) -> None:
        """Append tool calls."""
        group = f"g{self.number()}"
        parts = tuple(ToolCall(f"{group}.{n}", "look") for n in range(calls))
        draft = draft_message("", role=Role.ASSISTANT, origin=Origin.ASSISTANT, group=group, parts=parts)
        self.append(self.book(which), draft)

    @precondition(lambda self: self.live())
    @rule(which=anyone, call=anyone)
    def answer_tool(self, which: int, call: int) -> None:
        """Append the result of a tool call that has none in this context."""
        book = self.book(which)
        open_calls: dict[str, str | None] = {}
        for entry in find_active_entries(book.entries):
            for part in entry.parts:
                if isinstance(part, ToolCall):
                    open_calls[part.call_id] = entry.group
                elif isinstance(part, ToolResult):
                    open_calls.pop(part.call_id, None)
        if open_calls:
            call_id = list(open_calls)[call % len(open_calls)]
            result = ToolResult(call_id, "found")
            draft = draft_message(
                "found", role=Role.TOOL, origin=Origin.TOOL, group=open_calls[call_id], parts=(result,)
            )
            self.append(book, draft)

    @precondition(lambda self: self.live())
    @rule(which=anyone, draft=messages)
    def work(self, which: int, draft: Draft) -> None:
        """Enqueue a job, lose it, and let the loser and the owner both finish it."""
        book, name = self.book(which), f"job {self.number()}"
        self.append(book, jobs=(JobDraft(kind=name, dedupe=name),))
        (stale,) = self.run(self.store.claim([name], lease=timedelta(0)))
        (owner,) = self.run(self.store.claim([name], lease=timedelta(days=1)))
        late = Append(context=book.id, drafts=(draft_message("too late"),), tail={"late": 1}, finish=stale)
        done = Append(context=book.id, drafts=(draft,), finish=owner)
        first, second, third = self.run(self.store.append([late, done, done]))
        assert isinstance(first, LeaseLostError), first
        assert isinstance(third, LeaseLostError), third
        self.accept(book, [draft], second)

    @precondition(lambda self: self.live())
    @rule(
        which=anyone,
        version=anyone,
        blanked=st.booleans(),
        space=st.sampled_from(SPACES),
        data=st.sampled_from([b"", b"1", pack_vector(1, 2), pack_vector(2, 1)]),
    )
    def derive(self, which: int, version: int, blanked: bool, space: str, data: bytes) -> None:
        """Store derived rows of one entry; the store drops those of a blanked or missing entry."""
        book = self.book(which)
        versions = [entry.version for entry in book.entries if entry.state is not State.LIVE]
        if not blanked or not versions:
            versions = list(range(1, len(book.cells) + 2))
        version = versions[version % len(versions)]
        rows = [Derived(version=version, space=space, part=part, data=data) for part in (0, version % 2)]
        stored = self.run(self.store.put_derived(book.id, rows))
        cell = book.cells[version - 1] if version <= len(book.cells) else None
        if cell is None or cell.entry.state is not State.LIVE:
            assert stored == 0
            return
        assert stored == len(rows)
        for row in rows:
            book.tree.derived += 1
            cell.derived[space, row.part] = (book.tree.derived, data)

    # ── fates ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @precondition(
        lambda self: self.live() and len(self.books) < 4
    )  # few contexts, so that their histories cross
    @rule(which=anyone, at=anyone, newest=st.booleans())
    def fork(self, which: int, at: int, newest: bool) -> None:
        """Fork anywhere."""
        parent = self.book(which)
        at = len(parent.cells) if newest else at % (len(parent.cells) + 1)
        draft = ContextDraft(counter="words", created_at=WHEN, parent=parent.id, fork=None if newest else at)
        try:
            self.run(self.store.create(replace(draft, fork=len(parent.cells) + 1)))
        except ValidationError:
            context = self.run(self.store.create(draft))
        else:
            raise AssertionError("a fork of the future was accepted")
        assert (context.parent, context.fork, context.root) == (parent.id, at, parent.context.root)
        child = Book(context, parent.tree, parent.cells[:at], parent)
        child.keys = {cell.entry.key: cell for cell in child.cells if cell.entry.key is not None}
        child.rewrites = sum(bool(entry.replaces) for entry in child.entries)
        child.views = {version: view for version, view in parent.views.items() if version <= at}
        self.books.append(child)

    @rule(
        which=anyone,
        chosen=st.sets(anyone, max_size=3),
        keyed=st.booleans(),
        to=st.sampled_from([State.EXPIRED, State.ERASED]),
    )
    def blank(self, which: int, chosen: set[int], keyed: bool, to: State) -> None:
        """Expire or erase entries, also through a fork and in a deleted context."""
        book = self.books[which % len(self.books)]
        versions = {1 + number % (len(book.cells) + 1) for number in chosen}
        if keyed:
            versions |= {entry.version for entry in book.entries if entry.key is not None}
        cells = [book.cells[version - 1] for version in versions if version <= len(book.cells)]
        changed = [cell for cell in cells if cell.entry.state not in (to, State.ERASED)]
        for cell in changed:
            cell.entry = replace(cell.entry, content="", parts=(), data={}, metadata={}, salt=None, state=to)
            if to is State.ERASED:
                self.erase_cell(cell)
        audit = {"by": "the story"}
        assert self.run(self.store.blank(book.id, sorted(versions), to=to, audit=audit)) == len(changed)
        if changed:
            book.tree.epoch += 1
            for relative in self.books:
                if relative.tree is book.tree:
                    relative.rewrites += 1
                    relative.views.clear()  # an erased summary counts as undone, in the past too

    def erase_cell(self, cell: Cell) -> None:
        """Remove an entry's author, derived data and key, the key in every context that has it."""
        cell.entry = replace(cell.entry, key=None, actor=None)
        cell.derived.clear()
        for book in self.books:
            book.keys = {key: other for key, other in book.keys.items() if other is not cell}

    @precondition(lambda self: len(self.live()) > 1)
    @rule(which=anyone)
    def delete(self, which: int) -> None:
        """Hide a context."""
        book = self.book(which)
        self.run(self.store.settings(book.id, {"deleted": True}, rev=book.rev))
        book.deleted, book.rev = True, book.rev + 1

    @precondition(lambda self: any(book.deleted for book in self.books))
    @rule(which=anyone)
    def undelete(self, which: int) -> None:
        """Bring a context back, unless its key is taken."""
        deleted = [book for book in self.books if book.deleted]
        book = deleted[which % len(deleted)]
        key, namespace = book.context.key, book.context.namespace
        live = [(other.context.key, other.context.namespace) for other in self.live()]
        taken = key is not None and (key, namespace) in live
        try:
            self.run(self.store.settings(book.id, {"deleted": False}, rev=book.rev))
        except ConflictError:
            assert taken
        else:
            assert not taken
            book.deleted = False
            book.rev += 1

    @precondition(lambda self: self.closings < 2)
    @rule()
    def reopen(self) -> None:
        """Close the store; the next call opens it again."""
        self.closings += 1
        self.run(self.store.aclose())

    @precondition(lambda self: self.moves < 2 and not any(book.deleted for book in self.books))
    @rule()
    def move(self) -> None:
        """Restore everything in a fresh store and go on there."""
        self.moves += 1
        target = self.run(self.stack.enter_async_context(type(self).factory()))
        self.run(restore_contexts(self.store, target, *(book.context for book in self.books)))
        self.store = target
        for book in self.books:
            book.rewrites = sum(bool(entry.replaces) for entry in book.entries)
            book.tree.epoch, book.tree.derived, book.tail = 0, 0, {}
        for book in self.books:
            blanks = any(entry.state is not State.LIVE for entry in book.entries)
            book.tree.epoch = max(book.tree.epoch, int(blanks))
            for cell in book.cells:
                cell.derived.clear()

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: self.live())
    @rule(which=anyone, at=anyone)
    def look_back(self, which: int, at: int) -> None:
        """Read a context as it was: the same as then, and the same as its parent had it."""
        book = self.book(which)
        at %= len(book.cells) + 1
        view = self.view(book, at)
        assert view == ids_of_entries(find_active_entries(book.entries[:at]))
        assert view == book.views.get(at, view), "what was in force at a version has changed"
        parent = book.parent
        if parent is not None and not parent.deleted and at <= (book.context.fork or 0):
            assert view == self.view(parent, at), "a fork sees its past otherwise than its parent"

    def view(self, book: Book, at: int) -> list[str]:
        """Return the ids of the active entries at a version, according to the store."""
        entries = self.run(self.store.read(book.id, at=at))
        assert entries == book.entries[:at]
        replacements = history.Replacements(self.run(self.store.read(book.id, at=at, replacing=True)))
        sequence = history.effective_sequence(entries, replacements)
        check_atomic_groups(sequence)
        return ids_of_entries(sequence)

    @invariant()
    def the_store_tells_the_same_story(self) -> None:
        """Compare everything."""
        for book in self.books:
            self.run(self.check_deleted(book) if book.deleted else self.compare(book))

    async def check_deleted(self, book: Book) -> None:
        """Assert that a deleted context cannot be read, and that its entries are still there."""
        for call in (self.store.head(book.id), self.store.read(book.id)):
            try:
                await call
            except SessionNotFoundError:
                continue
            raise AssertionError("a deleted context was read")
        assert await self.store.get(ids_of_entries(book.entries)) == book.entries

    async def compare(self, book: Book) -> None:
        """Assert that a context equals its book."""
        entries = await sound(self.store, book.id)
        assert entries == book.entries
        assert await self.store.get(ids_of_entries(entries)) == entries
        head = await self.store.head(book.id)
        assert (head.version, head.rewrites, head.epoch) == (len(entries), book.rewrites, book.tree.epoch)
        assert (head.derived, dict(head.tail)) == (book.tree.derived, book.tail)
        for space in SPACES:
            await self.compare_derived(book, space)
        replacing = await self.store.read(book.id, replacing=True)
        assert replacing == [entry for entry in entries if entry.replaces]
        sequence = history.effective_sequence(entries, history.Replacements(replacing))
        assert ids_of_entries(sequence) == ids_of_entries(find_active_entries(entries))
        check_atomic_groups(sequence)

    async def compare_derived(self, book: Book, space: str) -> None:
        """Assert that the derived rows of one space equal those of the book."""
        expected: list[tuple[int, int, int, bytes]] = []
        missing: list[tuple[str, int]] = []
        for cell in book.cells:
            entry = cell.entry
            rows = [(part, *row) for (other, part), row in cell.derived.items() if other == space]
            expected += [(sequence, entry.version, part, data) for part, sequence, data in rows]
            indexed = entry.kind in (Kind.MESSAGE, Kind.FACT, Kind.SUMMARY) and entry.content
            if indexed and not rows:
                missing.append((book.id, entry.version))
        expected.sort()
        for after in (0, book.tree.derived // 2):
            stored = await self.store.derived(book.id, space, after=after)
            rows = [(row.seq, row.version, row.part, row.data) for row in stored]
            assert rows == [row for row in expected if row[0] > after]
        assert await self.store.missing(space, context=book.id, limit=len(book.cells)) == missing


def _repeats(draft: Draft, entry: Entry) -> bool:
    """Return whether a draft says the same as the stored entry with its key, as far as that is still known."""
    return entry.state is not State.LIVE or entry.content == draft.content


def run_story(factory: Factory, *, max_examples: int = 40, steps: int = 25, **options: Any) -> None:
    """Tell a number of random stories to fresh stores; raise at the first contradiction, with the shortest story found.

    `factory` returns an async context manager that yields a store, such as the store itself. `options` are more
    settings of Hypothesis, such as `derandomize=True`.
    """
    story = type("Story", (StorageStory,), {"factory": staticmethod(factory)})
    run_state_machine_as_test(
        story,
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=(
                HealthCheck.too_slow,
                HealthCheck.data_too_large,
                HealthCheck.filter_too_much,
            ),
            **options,
        ),
    )
