"""`find_matching`: which records meet a condition that is written as text.

Parses the text with `ast` and evaluates comparisons of fields with constants, as `filter` does.
Runs no code of the text.
"""

from __future__ import annotations

import ast
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastrecord.dataset.selection import Selection
from fastrecord.errors import Code

# Characters of a condition: more would not be written by hand.
_LONGEST = 10_000
_OPS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
}
# The same comparison with its sides exchanged: `3 < label` is `label > 3`.
_TURNED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_RULE = "compare a field with a constant, as in `label == 3`, and join comparisons with `and`, `or` and `not`"


def find_matching(selection: Selection, text: str) -> Selection:
    """Return the records that meet a condition, in order.

    Args:
        selection: The records to choose from.
        text: Comparisons of a field with a constant by `==`, `!=`, `<`, `<=`, `>`, `>=`, `in` and
            `not in`, joined by `and`, `or`, `not` and parentheses: `image.width > 500 and label in
            ("cat", "owl")`. Fields, constants and class names are the same as in
            `FastRecordDataset.filter`.

    Raises:
        SchemaError: the text is something else, a field does not exist, or it cannot be compared
            with the constant.
    """
    if len(text) > _LONGEST:
        raise Code.BAD_CONDITION.error(f"the condition has {len(text):,} characters; at most {_LONGEST:,} are allowed")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of the text, not of a program
            tree = ast.parse(text.strip(), mode="eval").body
        mask = _mask(selection, tree)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error) or type(error).__name__
        raise Code.BAD_CONDITION.error(f"condition {text!r:.200}: {reason}") from error
    return selection.subset(mask)


def _mask(selection: Selection, node: ast.expr) -> NDArray[np.bool_]:
    if isinstance(node, ast.BoolOp):
        join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
        mask = _mask(selection, node.values[0])
        for value in node.values[1:]:
            join(mask, _mask(selection, value), out=mask)
        return mask
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return ~_mask(selection, node.operand)
    if isinstance(node, ast.Compare):
        return _compared(selection, node)
    raise ValueError(f"`{ast.unparse(node)}` is not a comparison: {_RULE}")


def _compared(selection: Selection, node: ast.Compare) -> NDArray[np.bool_]:
    """Evaluate `a < b < c` as `a < b and b < c`."""
    mask = np.ones(len(selection), np.bool_)
    sides = [node.left, *node.comparators]
    for left, operation, right in zip(sides, node.ops, sides[1:], strict=False):
        op = _OPS.get(type(operation))
        if op is None:
            raise ValueError(f"`{ast.unparse(node)}`: `is` does not compare values: write `==`")
        field, constant = _field(left), right
        if field is None and op in _TURNED:
            field, constant, op = _field(right), left, _TURNED[op]
        if field is None:
            raise ValueError(f"`{ast.unparse(node)}` has no field on the side where one is expected: {_RULE}")
        mask &= selection.mask(field, op, _constant(constant))
    return mask


def _field(node: ast.expr) -> str | None:
    """Return a field's name, with the part after a dot if there is one."""
    if isinstance(node, ast.Attribute):
        base = _field(node.value)
        return None if base is None else f"{base}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else None


def _constant(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise ValueError(f"`{ast.unparse(node)}` is not a constant: {_RULE}") from error
