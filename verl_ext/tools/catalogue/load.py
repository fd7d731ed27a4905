"""`load_catalogue`: from the `sources` of a configuration to a catalogue.

    - {kind: json, path: data/tools.jsonl}                            a function per line, in OpenAI's form
    - {kind: openapi, path: data/tmdb_oas.json, prefix: "tmdb "}      path: one file or a list of them
    - {kind: toolbench, path: data/toolbench.jsonl}                   or corpus.tsv of ToolBench's retriever
    - {kind: api_bank, path: data/api_bank.jsonl}
    - {kind: toolhop, path: data/toolhop.jsonl}
    - {kind: functions, path: my_package.my_tools}                    dotted names of functions or modules
    - {kind: mcp, command: [python, server.py]}                       or url
    - {kind: encyclopedia}                                            over a corpus, see formats/encyclopedia.py

`prefix` (any kind) is put before the names, for sources that use the same names. To add a kind, write a file with
`load` in formats/ and a line in KINDS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

from pydantic.dataclasses import dataclass

from verl_ext.tools.catalogue.formats import api_bank, encyclopedia, functions, mcp, openapi, toolbench, toolhop
from verl_ext.tools.catalogue.formats import json_lines as plain
from verl_ext.tools.catalogue.types import Catalogue, ToolSpec
from verl_ext.tools.settings import STRICT, options_from

# Kinds of sources whose schemas this package makes, so that they need no check.
TRUSTED = ("toolbench", "api_bank")


class Kind(NamedTuple):
    """A kind of source.

    load: makes tools of the source's settings. settings: their names. optional: none of them is required.
    partial: `load` leaves out tools that it cannot read, and adds them to its argument `left_out` (name -> reason).
    """

    load: Callable[..., list[ToolSpec]]
    settings: tuple[str, ...] = ("path",)
    optional: bool = False
    partial: bool = False


KINDS = {
    "json": Kind(plain.load),
    "openapi": Kind(openapi.load, partial=True),
    "toolbench": Kind(toolbench.load),
    "api_bank": Kind(api_bank.load),
    "toolhop": Kind(toolhop.load),
    "functions": Kind(functions.load),
    "mcp": Kind(
        lambda **settings: mcp.load(options_from(mcp.Server, settings, "settings of an mcp source")),
        tuple(field.name for field in fields(mcp.Server)),
        optional=True,
    ),
    "encyclopedia": Kind(encyclopedia.load, ()),
}


def load_catalogue(sources: Iterable[Mapping[str, Any]], only: Sequence[str] | None = None) -> Catalogue:
    """The tools of all sources, in order.

    Args:
        sources: mappings as in the module's docstring.
        only: names of the tools to keep (e.g. the ground-truth tools of a benchmark), in this order; None keeps all.

    Raises:
        ValueError: a source is malformed or cannot be read, two tools share a name, or `only` names a tool that does
            not exist or cannot be read.
        ImportError: a library that a source needs is missing.
    """
    if isinstance(sources, Mapping | str) or not isinstance(sources, Iterable):
        raise ValueError(f"sources must be a list of tool sources, given {sources!r:.200}; e.g. {_example()}")
    left_out: dict[str, str] = {}
    catalogue = Catalogue(tool for number, source in enumerate(sources) for tool in _load(source, number, left_out))
    if not catalogue:
        raise ValueError(f"there are no tools in the sources; e.g. sources: {_example()}")
    if isinstance(only, str):
        raise ValueError(f"only must be a list of names, given {only!r:.120}")
    for name in only or ():
        if name in left_out and name not in catalogue:
            raise ValueError(f"only names {name!r}, which cannot be read: {left_out[name]}")
    return catalogue if only is None else catalogue.only(only)


def _load(source: Any, number: int, left_out: dict[str, str]) -> list[ToolSpec]:
    if not isinstance(source, Mapping) or source.get("kind") not in list(KINDS):
        kind = source.get("kind") if isinstance(source, Mapping) else source
        raise ValueError(f"tool source {number}: given kind {kind!r:.80}, allowed {list(KINDS)}; e.g. {_example()[0]}")
    kind = KINDS[source["kind"]]
    settings = {str(key): value for key, value in source.items() if key != "kind" and value is not None}
    prefix = settings.pop("prefix", "")
    allowed = [*kind.settings, "prefix"]
    unknown = sorted(set(settings) - set(allowed))
    missing = [] if kind.optional else [name for name in kind.settings if name not in settings]
    if unknown or missing:
        raise ValueError(
            f"tool source {number} ({source['kind']}): unknown settings {unknown}, missing {missing}; allowed {allowed}"
        )
    without: dict[str, str] = {}
    tools = kind.load(**settings, left_out=without) if kind.partial else kind.load(**settings)
    left_out |= {f"{prefix}{name}": reason for name, reason in without.items()}
    return [replace(tool, name=f"{prefix}{tool.name}") for tool in tools] if prefix else tools


@dataclass(frozen=True, config=STRICT)
class CatalogueSettings:
    """Settings that tool_call and tool_search share: `sources` and `only` as `load_catalogue` has them."""

    sources: Any = None
    only: Any = None

    def __post_init__(self) -> None:
        if self.sources is None:
            raise ValueError(f"sources are needed, e.g. sources: {_example()}")

    def catalogue(self) -> Catalogue:
        """See `load_catalogue`."""
        return load_catalogue(self.sources, self.only)


def _example() -> list[dict[str, str]]:
    return [{"kind": "openapi", "path": "data/tmdb_oas.json"}]


def names_of(extra: Mapping[str, Any], row: int, remedy: str) -> list[str]:
    """`extra_info.tools` of a row of a data set: the names of its tools.

    Raises:
        ValueError: it names none, or is no list of names; with the number of the row, and in the first case `remedy`.
    """
    names = extra.get("tools")
    if names is None or len(names) == 0:
        raise ValueError(f"row {row} has no extra_info.tools. Remedy: {remedy}")
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"extra_info.tools of row {row} must be a list of names, but is {names!r:.200}")
    return list(names)
