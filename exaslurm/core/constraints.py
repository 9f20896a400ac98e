"""Conditions on nodes: the small language of ``models[].constraints``. Pure; nothing is executed.

    ib_gbps >= 100 and not feature('maintenance')
    storage_read_ms <= 2 ms
    switch in [leaf1, leaf2] or kind == fat
    numa_local

A comparison is the name of a fact, an operator and a value. A fact that a node does not know makes
a comparison neither true nor false (Kleene's logic), and a condition that is not true is not met.
"""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from exaslurm.errors import UserError

Kind = Literal["number", "text", "flag", "names"]
# ``names`` is a set: a node has several features, and lies below several switches.
Value = float | str | bool | frozenset[str]

MAX_TOKENS = 200


class ConstraintError(UserError):
    """A condition is not well formed, or names what there is not."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A name that conditions may use. ``unit`` is that of a number (see ``UNITS``)."""

    kind: Kind
    meaning: str
    unit: str | None = None


@dataclass(frozen=True, slots=True)
class Test:
    """A fact compared with values: for ``in`` and ``not in`` any of them, else just one.

    ``start`` and ``end`` are its place in the condition's text."""

    fact: str
    op: str
    values: tuple[float | str | bool, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite of a term."""

    term: Term
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Join:
    """Terms joined by ``and`` or ``or``."""

    word: str
    terms: tuple[Term, ...]
    start: int
    end: int


Term = Test | Not | Join

_ORDER: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

# Each unit as a multiple of its dimension's first one.
UNITS: Mapping[str, Mapping[str, float]] = {
    "a rate": {"Gbps": 1.0, "Gb/s": 1.0, "Gbit/s": 1.0, "Mbps": 1e-3, "Mb/s": 1e-3, "Tbps": 1e3},
    "a size": {"GiB": 1.0, "MiB": 2**-10, "TiB": 2**10, "GB": 1e9 / 2**30, "TB": 1e12 / 2**30},
    "a time": {"ms": 1.0, "us": 1e-3, "s": 1e3, "min": 6e4},
    "a throughput": {"MiB/s": 1.0, "GiB/s": 2**10, "MB/s": 1e6 / 2**20, "GB/s": 1e9 / 2**20},
}
_DIMENSION = {unit: name for name, units in UNITS.items() for unit in units}
# Written in any case, where that cannot turn bits into bytes.
_FOLDED = {unit.lower(): unit for unit in _DIMENSION if not unit.endswith("/s")}


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition that was read. ``text`` is what the user wrote."""

    text: str
    root: Term
    facts: Mapping[str, Fact]

    def verdict(self, values: Mapping[str, Value]) -> bool | None:
        """Whether a node with these values meets it; None if they do not tell. Facts that are
        not in ``values`` are not known."""
        return _verdict(self.root, values)

    def terms(self) -> tuple[Term, ...]:
        """The parts that all have to be true."""
        return tuple(_conjuncts(self.root))

    def names(self) -> frozenset[str]:
        """The facts that it looks at."""
        return frozenset(_names(self.root))

    def why_not(self, values: Mapping[str, Value]) -> str:
        """What is not met, with the values that were found: for a node whose verdict is not
        true."""
        parts = []
        for term in self.terms():
            if _verdict(term, values) is not True:
                found = [self._found(name, values) for name in dict.fromkeys(_names(term))]
                parts.append(f"{self.text[term.start : term.end]} ({', '.join(found)})")
        return "; ".join(parts)

    def _found(self, name: str, values: Mapping[str, Value]) -> str:
        if name not in values:
            return f"{name} is not known there"
        return f"{name} is {show(values[name], self.facts[name])}"


def parse(text: str, facts: Mapping[str, Fact]) -> Condition:
    """Read a condition; ``facts`` are the names that it may use.

    Raises ConstraintError with the column (from 1) and, for a misspelt name, the nearest one.
    """
    return _Parser(text, facts).condition()


def show(value: Value, fact: Fact) -> str:
    """A value as it is told to people."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, frozenset):
        return " + ".join(sorted(value)) or "none"
    if isinstance(value, str):
        return value
    return f"{value:g} {fact.unit}" if fact.unit else f"{value:g}"


def _verdict(term: Term, values: Mapping[str, Value]) -> bool | None:
    if isinstance(term, Not):
        inner = _verdict(term.term, values)
        return None if inner is None else not inner
    if isinstance(term, Join):
        found = [_verdict(part, values) for part in term.terms]
        decisive = term.word == "or"
        if decisive in found:
            return decisive
        return None if None in found else not decisive
    if term.fact not in values:
        return None
    return _test(values[term.fact], term)


def _test(value: Value, test: Test) -> bool:
    if test.op in _ORDER:
        wanted = test.values[0]
        assert isinstance(value, int | float)
        assert isinstance(wanted, int | float)
        return _ORDER[test.op](value, wanted)
    among = set(test.values)
    hit = bool(value & among) if isinstance(value, frozenset) else value in among
    return hit if test.op in ("==", "in") else not hit


def _conjuncts(term: Term) -> Iterator[Term]:
    if isinstance(term, Join) and term.word == "and":
        for part in term.terms:
            yield from _conjuncts(part)
    else:
        yield term


def _names(term: Term) -> Iterator[str]:
    if isinstance(term, Test):
        yield term.fact
    elif isinstance(term, Not):
        yield from _names(term.term)
    else:
        for part in term.terms:
            yield from _names(part)


def _nearest(name: str, valid: Iterable[str]) -> str:
    names = sorted(valid)
    folded = {item.casefold(): item for item in names}
    close = difflib.get_close_matches(name.casefold(), list(folded), n=1, cutoff=0.6)
    return f"did you mean {folded[close[0]]}?" if close else f"there are: {', '.join(names)}"


# --- reading --------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>\d+(?:\.\d+)?)(?:[ ]?(?P<unit>[A-Za-z][A-Za-z/]*))?(?![\w.])
    | (?P<string>'[^']*'|"[^"]*")
    | (?P<word>[A-Za-z_](?:[\w.:+-]*\w)?)
    | (?P<op>==|!=|<=|>=|<|>)
    | (?P<mark>[()\[\],])
    )""",
    re.VERBOSE | re.ASCII,
)
_WORDS_AFTER_NUMBER = frozenset({"and", "or", "not", "in"})
_OPPOSITE = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
_SLIPS = {"=": "write ==", "&": "write and", "|": "write or", "!": "write not"}


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int
    unit: str | None = None


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at = 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            start = at + len(text[at:]) - len(text[at:].lstrip())
            if text[start] in "'\"":
                raise _error(start, f"the quote {text[start]} is not closed")
            slip = _SLIPS.get(text[start])
            raise _error(start, f"unexpected {text[start]!r}" + (f": {slip}" if slip else ""))
        kind = match.lastgroup or ""
        unit, end = match["unit"], match.end()
        if unit is not None and unit in _WORDS_AFTER_NUMBER:
            unit, end = None, match.end("number")
        if match["number"] is not None:
            kind = "number"
        found.append(_Token(kind, match[kind], match.start(kind), end, unit))
        at = end
        if len(found) > MAX_TOKENS:
            raise _error(at, f"too long: at most {MAX_TOKENS} words and signs")
    return found


def _error(at: int, message: str) -> ConstraintError:
    return ConstraintError(f"column {at + 1}: {message}")


class _Parser:
    def __init__(self, text: str, facts: Mapping[str, Fact]) -> None:
        self._text = text
        self._facts = facts
        self._tokens = _tokens(text)
        self._at = 0

    def condition(self) -> Condition:
        root = self._joined("or")
        if (left := self._peek()) is not None:
            raise _error(left.start, f"unexpected {left.text!r}: 'and' or 'or' comes before it")
        return Condition(self._text, root, self._facts)

    def _joined(self, word: str) -> Term:
        part = self._negated if word == "and" else lambda: self._joined("and")
        terms = [part()]
        while self._take_word(word):
            terms.append(part())
        if len(terms) == 1:
            return terms[0]
        return Join(word, tuple(terms), terms[0].start, terms[-1].end)

    def _negated(self) -> Term:
        begin = self._peek()
        if begin is not None and self._take_word("not"):
            inner = self._negated()
            return Not(inner, begin.start, inner.end)
        if begin is not None and self._take_mark("("):
            inner = self._joined("or")
            self._close(")", begin)
            return replace(inner, start=begin.start, end=self._tokens[self._at - 1].end)
        return self._test()

    def _test(self) -> Test:
        name = self._next("a fact")
        if name.kind == "number":
            raise self._turned(name)
        if name.kind != "word":
            raise _error(name.start, f"a fact comes first, not {name.text}")
        fact = self._facts.get(name.text)
        if fact is None:
            near = _nearest(name.text, self._facts)
            raise _error(name.start, f"there is no fact {name.text!r}; {near}")
        here = self._peek()
        if here is not None and self._take_mark("("):
            if fact.kind != "names":
                raise _error(here.start, f"{name.text} takes no brackets: compare it")
            value = self._value(name.text, fact)
            self._close(")", here)
            return self._made(name, "==", (value,))
        if here is not None and here.kind == "op":
            self._at += 1
            if here.text in _ORDER and fact.kind != "number":
                raise _error(here.start, f"{name.text} is no number: use ==, !=, in or not in")
            return self._made(name, here.text, (self._value(name.text, fact),))
        negated = self._take_word("not")
        if self._take_word("in"):
            return self._made(name, "not in" if negated else "in", self._list(name.text, fact))
        if negated:
            raise _error(self._here(), "in is missing after not")
        if fact.kind != "flag":
            raise _error(
                name.end, f"{name.text} is not true or false by itself: {self._example(name.text)}"
            )
        return self._made(name, "==", (True,))

    def _example(self, name: str) -> str:
        example = {"number": f"{name} >= 1", "text": f"{name} == word", "names": f"{name}('word')"}
        return f"write {example[self._facts[name].kind]}"

    def _turned(self, number: _Token) -> ConstraintError:
        """``100 <= ib_gbps``, which people write too."""
        rest = self._tokens[self._at :]
        if len(rest) >= 2 and rest[0].kind == "op" and rest[1].text in self._facts:
            value = self._text[number.start : number.end]
            turned = f"{rest[1].text} {_OPPOSITE[rest[0].text]} {value}"
            return _error(number.start, f"the fact comes first: {turned}")
        return _error(number.start, f"a fact comes first, not {number.text}")

    def _list(self, name: str, fact: Fact) -> tuple[float | str | bool, ...]:
        begin = self._peek()
        if begin is None or not self._take_mark("["):
            raise _error(self._here(), f"a list is missing, such as {name} in [a, b]")
        values = [self._value(name, fact)]
        while self._take_mark(","):
            values.append(self._value(name, fact))
        self._close("]", begin)
        return tuple(values)

    def _value(self, name: str, fact: Fact) -> float | str | bool:
        token = self._next(f"a value for {name}")
        if token.kind in ("op", "mark"):
            raise _error(token.start, f"a value for {name} is missing")
        if fact.kind == "number":
            if token.kind != "number":
                raise _error(token.start, f"{name} is a number, not {token.text}")
            number = float(token.text) * self._factor(name, fact, token)
            if not math.isfinite(number):
                raise _error(token.start, f"no {name} has so many digits")
            return number
        if token.kind == "number":
            written = self._text[token.start : token.end]
            if fact.kind == "flag":
                raise _error(token.start, f"{name} is true or false, not {written}")
            return written
        text = token.text[1:-1] if token.kind == "string" else token.text
        if fact.kind != "flag":
            return text
        if text.lower() not in ("true", "false"):
            raise _error(token.start, f"{name} is true or false, not {text}")
        return text.lower() == "true"

    def _factor(self, name: str, fact: Fact, token: _Token) -> float:
        if token.unit is None:
            return 1.0
        at = token.end - len(token.unit)
        unit = token.unit if token.unit in _DIMENSION else _FOLDED.get(token.unit.lower())
        if fact.unit is None:
            raise _error(at, f"{name} is a plain number, without {token.unit}")
        dimension = _DIMENSION[fact.unit]
        if unit is None or _DIMENSION[unit] != dimension:
            raise _error(at, f"{name} is {dimension} in {fact.unit}, and {token.unit} is not")
        return UNITS[dimension][unit] / UNITS[dimension][fact.unit]

    def _made(self, name: _Token, op: str, values: tuple[float | str | bool, ...]) -> Test:
        return Test(name.text, op, values, name.start, self._tokens[self._at - 1].end)

    def _peek(self) -> _Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _here(self) -> int:
        token = self._peek()
        return len(self._text.rstrip()) if token is None else token.start

    def _next(self, wanted: str) -> _Token:
        token = self._peek()
        if token is None:
            raise _error(len(self._text.rstrip()), f"{wanted} is missing")
        self._at += 1
        return token

    def _take_word(self, word: str) -> bool:
        token = self._peek()
        if token is None or token.kind != "word" or token.text.lower() != word:
            return False
        self._at += 1
        return True

    def _take_mark(self, mark: str) -> bool:
        token = self._peek()
        if token is None or token.kind != "mark" or token.text != mark:
            return False
        self._at += 1
        return True

    def _close(self, mark: str, begin: _Token) -> None:
        if not self._take_mark(mark):
            raise _error(self._here(), f"{mark} is missing for the {begin.text} in column "
                                       f"{begin.start + 1}")  # fmt: skip
