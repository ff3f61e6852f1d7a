"""Law: every module says in one sentence what it is for, and public classes say what they hold."""

import ast

from house import parsed, python_files, shown


def test_every_module_states_its_purpose() -> None:
    silent = [shown(path) for path in python_files() if not (ast.get_docstring(parsed(path)) or "").strip()]
    assert silent == []


def test_a_purpose_is_a_sentence() -> None:
    """The first line of a module's docstring is what README's tree shows."""
    unfinished = {}
    for path in python_files():
        first = (ast.get_docstring(parsed(path)) or "").splitlines()[0]
        if not first.rstrip().endswith((".", ":")):
            unfinished[shown(path)] = first
    assert unfinished == {}
