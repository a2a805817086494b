"""What a compaction reports as lost."""

from __future__ import annotations

from acms import Entry, Kind, Privacy, Role
from acms.compaction.lost import find_lost
from tests.support.logs import make_entry


def entries_of_turns(*turns: tuple[str, str]) -> list[Entry]:
    return [make_entry(n, text, role=Role(role)) for n, (role, text) in enumerate(turns, 1)]


def test_details_are_lost_unless_they_stand_in_the_summary_letter_by_letter() -> None:
    talk = entries_of_turns(
        ("user", "The dump is /srv/backup/a.sql on db-7.example.org and took 3400 MB."),
        ("assistant", "I filed ORD-4312 for it; the dump is /srv/backup/a.sql again."),
    )
    found = find_lost(talk, "- user: the dump is /srv/backup/a.sql")
    assert found.counts == {"host": 1, "id": 1, "number": 1}
    assert found.ids == (talk[0].id, talk[1].id)
    assert find_lost(talk, "\n".join(one.content for one in talk)).counts == {}


def test_instructions_and_marked_messages_are_lost_unless_one_line_says_all_of_them() -> None:
    talk = [
        make_entry(1, "Never call a customer by the first name.", role=Role.SYSTEM),
        make_entry(2, "we agreed to ship on the usual day", markers=("decision",)),
        make_entry(3, "chatter", role=Role.ASSISTANT),
    ]
    assert find_lost(talk, "Nothing.").counts == {"instruction": 1, "marked": 1}
    other_words = (
        "- system: a customer is never to be called by the first name\n- we ship on the usual day, we agreed"
    )
    assert find_lost(talk, other_words).counts == {}


def test_a_question_is_open_when_nobody_else_went_on_or_only_asked_back() -> None:
    talk = entries_of_turns(
        ("user", "Shall we keep the blue one?"),
        ("assistant", "Yes, it is the better one."),
        ("user", "And who pays for the parking?"),
        ("assistant", "Which parking do you mean?"),
        ("user", "Never mind that, the weather is fine."),
        ("user", "颜色是什么？"),
        ("user", "Well."),
    )
    found = find_lost(talk, "Nothing.")
    assert found.counts == {"question": 2}
    assert found.ids == (talk[2].id, talk[5].id)


def test_what_may_not_leave_and_summaries_are_not_looked_at() -> None:
    talk = [
        make_entry(1, "call db-7.example.org", privacy=Privacy.BLOCK),
        make_entry(2, "see ORD-4312", kind=Kind.SUMMARY),
    ]
    assert find_lost(talk, "Nothing.").counts == {}


def test_no_more_than_ten_ids_are_named() -> None:
    found = find_lost([make_entry(n, f"see ORD-{4300 + n}") for n in range(1, 30)], "Nothing.")
    assert (found.counts, len(found.ids)) == ({"id": 29}, 10)
