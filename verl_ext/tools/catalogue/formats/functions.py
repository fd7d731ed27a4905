"""Plain Python functions as tools: the schema from signature and docstring, the function itself as the back end.

    def weather(city: str, days: int = 1) -> dict:
        '''Forecast for a city.

        Args:
            city: its name in English
            days: how many days (choices: [1, 3, 7])
        '''

The schema comes from transformers' `get_json_schema`: every argument needs a type hint and a line under Args (Google
style). It describes unknown types as objects; here they are refused. Defaults are added, and choices may be any JSON.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

from verl_ext.tools.catalogue.schemas import nullable
from verl_ext.tools.catalogue.types import ToolSpec, as_json
from verl_ext.tools.threads import in_thread

PLAIN = (str, int, float, bool, dict, type(None), Any)
ALLOWED = "str, int, float, bool, dict, list[...], tuple[...], dict[str, ...], Literal[...], Any, unions and None"
# At the end of an argument's description, as in transformers.
CHOICES = re.compile(r"\(choices:\s*(.*?)\)\s*$", re.IGNORECASE)
_KIND = inspect.Parameter
KINDS_WITHOUT_NAME = (_KIND.VAR_POSITIONAL, _KIND.VAR_KEYWORD, _KIND.POSITIONAL_ONLY)


def load(path: str | Callable[..., Any] | Sequence[str | Callable[..., Any]]) -> list[ToolSpec]:
    """Tools from functions, synchronous or asynchronous.

    Args:
        path: functions, or dotted names of a function (`my_tools.weather`) or of a module, all of whose public
            functions become tools.

    Raises:
        ValueError: a name leads nowhere, or a function cannot be described.
        ImportError: transformers is missing.
    """
    given = [path] if isinstance(path, str) or callable(path) else list(path)
    found: list[Callable[..., Any]] = []
    for one in given:
        found += _named(one) if isinstance(one, str) else [one]
    return [function_tool(function) for function in found]


def function_tool(function: Callable[..., Any]) -> ToolSpec:
    """One function as a tool. A synchronous function runs in a thread.

    Raises:
        ValueError: no docstring, an argument without a type hint or description, or a type that is no JSON.
        ImportError: transformers is missing.
    """
    try:
        from transformers.utils import chat_template_utils as templates
    except ImportError as error:
        raise ImportError("Python functions as tools need transformers (a dependency of verl_ext).") from error
    name = getattr(function, "__name__", None) or repr(function)
    if not callable(function) or not hasattr(function, "__name__"):
        raise ValueError(f"{name:.120} is no function; give a function, or the dotted name of one")
    try:
        _check_signature(function)
        schema = _schema(function, templates)
    except (
        templates.TypeHintParsingException, templates.DocstringParsingException, ValueError, NameError, TypeError
    ) as error:  # fmt: skip
        reason = " ".join(map(str, error.args)) or repr(error)
        raise ValueError(
            f"the function {name} cannot be described as a tool: {reason}. Every argument needs a type hint "
            f"({ALLOWED}) and a line `name: what it is` under `Args:` in the docstring"
        ) from error
    parameters = _parameters(schema["parameters"], function)
    extra = {"function": f"{function.__module__}.{function.__qualname__}", "code": _code_sha256(function)}

    async def backend(_: ToolSpec, arguments: dict[str, Any]) -> Any:
        if inspect.iscoroutinefunction(function):
            return await function(**arguments)
        result = await in_thread(lambda: function(**arguments))
        return await result if inspect.isawaitable(result) else result

    return ToolSpec(name, schema["description"] or "", parameters, schema.get("return"), "functions", extra, backend)


def _schema(function: Callable[..., Any], templates: types.ModuleType) -> dict[str, Any]:
    """The schema of get_json_schema, which reads only choices that are texts; other choices are inserted afterwards."""
    doc, choices = (inspect.getdoc(function) or "").strip(), {}
    for name, text in templates.parse_google_format_docstring(doc)[1].items():
        said = CHOICES.search(text)
        values = json.loads(said[1]) if said else None
        if isinstance(values, list) and not all(isinstance(value, str) for value in values):
            choices[name] = values
            doc = re.sub(r"\s+".join(map(re.escape, said[0].split())), "(choices: [])", doc)

    @functools.wraps(function)
    def documented() -> None:
        """Stands in for the function."""

    documented.__doc__ = doc
    schema = templates.get_json_schema(documented if choices else function)["function"]
    for name in choices.keys() & schema["parameters"]["properties"].keys():
        schema["parameters"]["properties"][name]["enum"] = choices[name]
    return schema


def _named(name: str) -> list[Callable[..., Any]]:
    """The function, or the public functions of the module, of a dotted name."""
    module, _, last = name.rpartition(".")
    try:
        is_module = importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # `name` is no module: it may be in one
        is_module = False
    try:
        found = importlib.import_module(name if is_module else module)
        public = [value for key, value in vars(found).items() if inspect.isfunction(value) and not key.startswith("_")]
        own = [value for value in public if value.__module__ == found.__name__]
        functions = own if is_module else [getattr(found, last)]
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"no function or module {name!r} ({error}); give MODULE or MODULE.FUNCTION") from error
    if not functions:
        raise ValueError(f"the module {name} has no public functions of its own")
    return functions


def _check_signature(function: Callable[..., Any]) -> None:
    hints = typing.get_type_hints(function)
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in KINDS_WITHOUT_NAME:
            raise ValueError(f"its argument {parameter} cannot be given by name")
        if name in hints:
            _check_hint(hints[name], name)


def _check_hint(hint: Any, name: str) -> None:
    """Refuse types that get_json_schema would describe as an object, also a bare `list`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is None and hint not in PLAIN:
        raise ValueError(f"its argument {name} is of type {getattr(hint, '__name__', hint)}")
    if origin in (typing.Union, types.UnionType):
        several = [inner for inner in arguments if inner is not type(None)]
        if len(several) > 1 and any(typing.get_args(inner) for inner in several):
            raise ValueError(f"its argument {name} is a union of which get_json_schema would drop the inner types")
    if origin in (list, tuple, dict, typing.Union, types.UnionType):
        for inner in arguments:
            _check_hint(inner, name)


def _parameters(schema: dict[str, Any], function: Callable[..., Any]) -> dict[str, Any]:
    defaults = inspect.signature(function).parameters
    properties = {}
    for name, said in schema["properties"].items():
        properties[name] = nullable(said)
        default = defaults[name].default
        if default is not inspect.Parameter.empty:
            try:
                properties[name]["default"] = as_json(default)
            except ValueError:  # not representable in JSON
                pass
    return {**schema, "properties": properties, "additionalProperties": False}


def _code_sha256(function: Callable[..., Any]) -> str | None:
    """Hash of the source, because recorded answers of other code must not be served. None: there is no source."""
    try:
        return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:16]
    except (OSError, TypeError):
        return None
