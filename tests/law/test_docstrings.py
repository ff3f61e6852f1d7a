"""Law: every module says in one sentence what it is for."""

import ast

from house import parsed, python_files, shown


def test_every_module_states_its_purpose() -> None:
    silent = [shown(path) for path in python_files() if not (ast.get_docstring(parsed(path)) or "").strip()]
    assert silent == []


def test_a_purpose_is_a_sentence() -> None:
    """The first paragraph of a module's docstring begins with what README's tree shows, and ends like prose."""
    unfinished = {}
    for path in python_files():
        first = (ast.get_docstring(parsed(path)) or "").split("\n\n")[0]
        if not first.rstrip().endswith((".", ":", "?")):
            unfinished[shown(path)] = first
    assert unfinished == {}
