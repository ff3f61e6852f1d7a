"""Law: a file has at most 400 lines, a function at most 60, and at most 8 parameters."""

import ast

from house import parsed, python_files, shown

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 8


def functions(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def num_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1


def num_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    arguments = function.args
    named = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len(named) - (named[:1] in (["self"], ["cls"]))


def test_files_are_short() -> None:
    lengths = {shown(path): len(path.read_text().splitlines()) for path in python_files()}
    assert len(lengths) > 20
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FILE_LINES} == {}


def test_functions_are_short() -> None:
    too_long = {
        f"{shown(path)}:{function.name}": num_lines(function)
        for path in python_files()
        for function in functions(parsed(path))
        if num_lines(function) > MAX_FUNCTION_LINES
    }
    assert too_long == {}


def test_functions_take_few_parameters() -> None:
    too_many = {
        f"{shown(path)}:{function.name}": num_parameters(function)
        for path in python_files()
        for function in functions(parsed(path))
        if num_parameters(function) > MAX_PARAMETERS
    }
    assert too_many == {}


def test_the_counting_counts() -> None:
    tree = ast.parse("class A:\n    def f(self, a, /, b, *, c, **rest):\n        x = 1\n        return x\n")
    (function,) = functions(tree)
    assert num_lines(function) == 3
    assert num_parameters(function) == 3
