"""Weights: the constants of the ranking, one set for every log, whatever is said in it (decision 0029)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The constants by which entries are ranked."""

    #: What is added to the count of a term in an empty text: how soon repeating it stops counting.
    floor: float = 0.3
    #: Terms of a message, or of a neighbourhood, that add one to it; and terms of a day that do.
    length: float = 60.0
    day_length: float = 1000.0
    #: Terms of a remark, date and speaker included, at most; and the factor of its neighbourhood when it holds no term
    #: asked: "that is a nice story" answers nothing.
    few: float = 7.0
    remark: float = 0.5
    #: Answers by words: the message itself, its neighbourhood, its day, and the question it follows.
    message: float = 1.0
    window: float = 1.0
    day: float = 0.4
    question: float = 0.4
    #: A term that is related to one nobody has said, against a term that was asked.
    related: float = 0.3
    #: A full answer by meaning, against a full one by words: of the whole message, of its best part, and of the
    #: question it follows.
    whole: float = 0.5
    part: float = 0.25
    reply: float = 0.1
    #: Cosine of a question and an unrelated entry as a whole, and of its best part, believed until entries show what is
    #: usual.
    unrelated_whole: float = 0.2
    unrelated_part: float = 0.3
    #: Exponent by which a speaker who is terse on average gains on one who is verbose.
    terse: float = 1.0
    #: Exponent by which a message of more than `length` terms loses: it takes the room of several others.
    long: float = 0.2
    #: Factors of a message: its speaker is named by the query, which does not name all; it is about the one spoken to
    #: more than about the speaker; it ends with a question; it names a time and the query asks for one.
    named: float = 1.5
    addressed: float = 0.8
    asking: float = 0.95
    timed: float = 1.3
    #: What it adds to the answer by words that a message was said when the query says.
    then: float = 0.15

    @property
    def words(self) -> float:
        """What a text could reach for each term asked."""
        return self.message + self.window + self.day + self.question

    @property
    def meaning(self) -> float:
        """What an entry could reach by meaning."""
        return self.whole + self.part


WEIGHTS = Weights()
"""Those of every log."""
