"""The docstrings that stand under the fields of a class, which Python itself forgets.

Knows source text. pydantic reads its own models' the same way (`use_attribute_docstrings`); this is for dataclasses.
"""

import ast
import inspect
import textwrap

__all__ = ["attribute_docstrings"]


def attribute_docstrings(kind: type) -> dict[str, str]:
    """Field → its docstring in one line. Raises `OSError` where the source is not at hand."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    for statement, after in zip(definition.body, definition.body[1:], strict=False):
        match statement, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as text)):
                found[name] = " ".join(text.split())
    return found
