"""Python functions as tools: their schemas, and calls of functions that hang, exit or raise oddly."""

import asyncio
import subprocess
import sys
import threading
import time
from datetime import date
from typing import Any, Literal

import pytest

from verl_ext.tools.catalogue import Catalogue, load_catalogue
from verl_ext.tools.catalogue.formats.functions import function_tool
from verl_ext.tools.threads import in_thread


def weather(city: str, days: int = 1, units: Literal["metric", "imperial"] = "metric", note: str | None = None) -> dict:
    """Forecast for a city.

    Args:
        city: its name in English
        days: how many days
        units: of the temperatures
        note: anything
    """
    return {"city": city, "days": days, "thread": threading.current_thread().name}


async def nested(points: list[dict[str, float]], grid: tuple[int, str], any_of: int | str, free: Any) -> str:
    """Nested types.

    Args:
        points: coordinates
        grid: a pair
        any_of: one or the other
        free: whatever
    """
    await asyncio.sleep(0)
    return "done"


def call(function, **arguments):
    spec = function_tool(function)
    return asyncio.run(spec.backend(spec, arguments))


def test_the_schema_is_of_signature_and_docstring():
    tool = function_tool(weather)
    assert (tool.name, tool.description, tool.source) == ("weather", "Forecast for a city.", "functions")
    assert tool.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "its name in English"},
            "days": {"type": "integer", "description": "how many days", "default": 1},
            "units": {
                "type": "string",
                "enum": ["metric", "imperial"],
                "description": "of the temperatures",
                "default": "metric",
            },
            "note": {"type": ["string", "null"], "description": "anything", "default": None},
        },
        "required": ["city"],
        "additionalProperties": False,
    }
    catalogue = Catalogue([tool, function_tool(nested)])
    catalogue.check()
    assert catalogue.problems("weather", {"city": "Oslo", "note": None}) == []
    good = {"points": [{"x": 1.5}], "grid": [1, "a"], "any_of": "a", "free": {"b": [None]}}
    assert catalogue.problems("nested", good) == []
    assert len(catalogue.problems("nested", good | {"points": [{"x": "1"}], "any_of": [1]})) == 2


def test_synchronous_functions_run_in_threads_and_asynchronous_ones_in_the_loop():
    assert call(weather, city="Oslo") == {"city": "Oslo", "days": 1, "thread": "tool"}
    assert call(nested, points=[], grid=[1, "a"], any_of=1, free=None) == "done"


def test_dotted_names_lead_to_functions_and_modules(tmp_path, monkeypatch):
    (tmp_path / "own_tools.py").write_text(
        "from os.path import join\n"
        "def one(a: int) -> int:\n    '''One.\n\n    Args:\n        a: a number\n    '''\n    return a\n"
        "def two() -> int:\n    '''Two.'''\n    return 2\n"
        "def _hidden():\n    pass\n"
    )
    (tmp_path / "broken_tools.py").write_text("import a_library_that_there_is_not")
    (tmp_path / "no_tools.py").write_text("one = 1")
    monkeypatch.syspath_prepend(tmp_path)
    assert list(load_catalogue([{"kind": "functions", "path": "own_tools"}])) == ["one", "two"]
    assert list(load_catalogue([{"kind": "functions", "path": ["own_tools.two", weather]}])) == ["two", "weather"]
    for name, message in (
        ("own_tools.three", "no function or module 'own_tools.three'.*give MODULE or MODULE.FUNCTION"),
        ("there_is_none.f", "no function or module 'there_is_none.f'"),
        ("broken_tools", "a_library_that_there_is_not"),
        ("no_tools", "the module no_tools has no public functions"),
        ("no_tools.one", "1 is no function"),
        ("", "no function or module ''"),
    ):
        with pytest.raises(ValueError, match=message):
            load_catalogue([{"kind": "functions", "path": name}])


async def choices(days: int, size: float | str, city: str, both: bool | None = None) -> int:
    """Choices that are not all texts.

    Args:
        days: how many (choices: [1, 3, 7])
        size: of the map (choices: [0.5,
            "all"])
        city: where (choices: ["Oslo", " Rome"])
        both: sides (choices: [true, null])
    """
    return days


def test_choices_may_be_any_json():
    tool = function_tool(choices)
    found = {name: (one["enum"], one["description"]) for name, one in tool.parameters["properties"].items()}
    assert found == {
        "days": ([1, 3, 7], "how many"),
        "size": ([0.5, "all"], "of the map"),
        "city": (["Oslo", "Rome"], "where"),
        "both": ([True, None], "sides"),
    }
    assert tool.parameters["required"] == ["days", "size", "city"] and "choices: [1, 3, 7]" in choices.__doc__
    problems = Catalogue([tool]).problems("choices", {"days": 2, "size": "all", "city": "Rome"})
    assert problems == ["days: 2 is not one of [1, 3, 7]"]
    assert asyncio.run(tool.backend(tool, {"days": 3, "size": 0.5, "city": "Rome"})) == 3


@pytest.mark.parametrize(
    "argument, description, reason",
    [
        ("a: int", None, "no docstring"),
        ("a", "a thing", "missing a type hint"),
        ("a: int", "", "no description for the argument 'a'"),
        ("a: date", "a day", "argument a is of type date"),
        ("a: dict[str, list]", "lists", "argument a is of type list"),
        ("a: int | list[str]", "one", "argument a is a union of which get_json_schema would drop the inner types"),
        ("*a: int", "numbers", r"argument \*a: int cannot be given by name"),
        ("a: 'NoSuchClass'", "a thing", "NoSuchClass"),
        ("a: int", "one (choices: [1, 3)", ""),
        ("a: int", "one (choices: 5)", ""),
    ],
)
def test_functions_that_cannot_be_described_are_refused(argument, description, reason):
    found = {"date": date}
    exec(f"def odd({argument}): pass", found)
    if description is not None:
        found["odd"].__doc__ = f"Something.\n\nArgs:\n    a: {description}\n" if description else "Something."
    with pytest.raises(ValueError, match=f"odd cannot be described.*{reason}.*`Args:`"):
        function_tool(found["odd"])


def test_the_version_changes_with_the_code(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for number in range(2):
        (tmp_path / f"code_{number}.py").write_text(f"def f() -> int:\n    '''F.'''\n    return {number}\n")
    one, other = (load_catalogue([{"kind": "functions", "path": f"code_{number}.f"}])["f"] for number in range(2))
    assert one.extra["code"] != other.extra["code"]


# Threads


def raises(error):
    def function():
        raise error

    return function


@pytest.mark.parametrize(
    "error, expected",
    [
        (KeyError("k"), KeyError),
        (SystemExit(3), RuntimeError),
        (StopIteration(1), RuntimeError),
        (KeyboardInterrupt(), RuntimeError),
        (asyncio.CancelledError(), RuntimeError),
    ],
)
def test_whatever_is_raised_in_a_thread_arrives_as_an_exception(error, expected):
    with pytest.raises(expected, match=None if expected is KeyError else type(error).__name__):
        asyncio.run(in_thread(raises(error)))


def test_a_function_that_never_returns_keeps_neither_the_loop_nor_the_process():
    code = (
        "import asyncio, threading\n"
        "from verl_ext.tools.threads import in_thread\n"
        "async def main():\n"
        "    try:\n"
        "        await asyncio.wait_for(in_thread(threading.Event().wait), 0.2)\n"
        "    except asyncio.TimeoutError:\n"
        "        print('left', threading.active_count())\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500)
    assert (done.stdout, done.returncode) == ("left 2\n", 0), done.stderr


def test_a_result_after_the_end_of_the_loop_is_dropped(monkeypatch):
    free, complaints, before = threading.Event(), [], threading.active_count()
    monkeypatch.setattr(threading, "excepthook", complaints.append)

    async def run():
        asyncio.ensure_future(in_thread(lambda: free.wait(20)))
        await asyncio.sleep(0.05)

    asyncio.run(run())
    free.set()
    while threading.active_count() > before:
        time.sleep(0.01)
    assert not complaints
