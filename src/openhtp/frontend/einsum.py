"""Einsum as transpositions, sums and matrix products.

Each operand is summed over the letters that nobody else has. Two operands at a time are then brought into the form
``[shared, own, summed]`` and ``[shared, summed, own]``, multiplied as matrices, and their letters sorted again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from openhtp.frontend.writing import Writer

_ADVICE = "write it as Transpose, Reshape and MatMul"
# Letters for the axes that an ellipsis stands for; equations have none of these.
_ELLIPSIS = "0123456789"


@dataclass(frozen=True, slots=True)
class _Term:
    """A value with a letter per axis."""

    name: str
    letters: str


def write_einsum(w: Writer) -> None:
    """Write the nodes of an Einsum."""
    terms, wanted, sizes = _parsed(w)
    current = terms[0]
    for index, other in enumerate(terms[1:], 1):
        later = wanted + "".join(term.letters for term in terms[index + 1 :])
        current = _product(w, current, other, later, sizes)
    current = _summed(w, current, wanted)
    perm = [current.letters.index(letter) for letter in wanted]
    if perm:
        w.end("Transpose", [current.name], {"perm": perm})
    else:
        w.end("Identity", [current.name])


def _parsed(w: Writer) -> tuple[list[_Term], str, dict[str, int]]:
    equation = str(w.attr("equation", "")).replace(" ", "")
    left, arrow, wanted = equation.partition("->")
    parts = left.split(",")
    if len(parts) != len(w.node.inputs):
        w.refuse(f"equation {equation!r} has {len(parts)} terms for {len(w.node.inputs)} inputs", _ADVICE)
    shapes = [w.type(index).shape for index in range(len(parts))]
    ranks = [len(shape) - len(part) + 3 if "..." in part else 0 for part, shape in zip(parts, shapes, strict=True)]
    widest = max(ranks)
    written = [
        part.replace("...", _ELLIPSIS[widest - rank : widest]) for part, rank in zip(parts, ranks, strict=True)
    ]
    if not arrow:
        everything = "".join(written)
        wanted = "..." + "".join(sorted(c for c in set(everything) if everything.count(c) == 1 and c.isalpha()))
    wanted = wanted.replace("...", _ELLIPSIS[:widest])
    sizes: dict[str, int] = {}
    for letters, shape in zip(written, shapes, strict=True):
        if len(letters) != len(shape) or len(set(letters)) != len(letters):
            w.refuse(f"equation {equation!r} repeats a letter in a term, or does not fit {list(shape)}", _ADVICE)
        for letter, size in zip(letters, shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                w.refuse(f"axes of sizes {sizes[letter]} and {size} share a letter of {equation!r}", _ADVICE)
    if len(set(wanted)) != len(wanted) or not set(wanted) <= set(sizes):
        w.refuse(f"the result of equation {equation!r} repeats a letter, or has one of its own", _ADVICE)
    names = w.node.inputs
    return [_Term(name, letters) for name, letters in zip(names, written, strict=True)], wanted, sizes


def _summed(w: Writer, term: _Term, kept: str) -> _Term:
    """The term without the letters that nobody else has."""
    axes = [axis for axis, letter in enumerate(term.letters) if letter not in kept]
    if not axes:
        return term
    name = w.add("ReduceSum", [term.name, w.constant(np.array(axes, np.int64))], {"keepdims": 0})
    return _Term(name, "".join(letter for letter in term.letters if letter in kept))


def _product(w: Writer, left: _Term, right: _Term, later: str, sizes: dict[str, int]) -> _Term:
    left, right = _summed(w, left, right.letters + later), _summed(w, right, left.letters + later)
    both = [letter for letter in left.letters if letter in right.letters]
    shared = "".join(letter for letter in both if letter in later)
    inner = "".join(letter for letter in both if letter not in later)
    rows = "".join(letter for letter in left.letters if letter not in both)
    columns = "".join(letter for letter in right.letters if letter not in both)
    a = _arranged(w, left, (shared, rows, inner), sizes)
    b = _arranged(w, right, (shared, inner, columns), sizes)
    product = w.add("MatMul", [a, b])
    letters = shared + rows + columns
    shape = np.array([sizes[letter] for letter in letters], np.int64)
    return _Term(w.add("Reshape", [product, w.constant(shape)]), letters)


def _arranged(w: Writer, term: _Term, groups: tuple[str, str, str], sizes: dict[str, int]) -> str:
    """The term with three axes, one for each group of letters."""
    order = "".join(groups)
    name = term.name
    if order != term.letters:
        name = w.add("Transpose", [name], {"perm": [term.letters.index(letter) for letter in order]})
    shape = [math.prod(sizes[letter] for letter in group) for group in groups]
    return w.add("Reshape", [name, w.constant(np.array(shape, np.int64))])
