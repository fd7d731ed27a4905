"""Choices in the docstrings of Python functions: any JSON."""

import asyncio

import pytest

from verl_ext.tools.catalogue import Catalogue
from verl_ext.tools.catalogue.formats.functions import function_tool


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
    said = {name: (one["enum"], one["description"]) for name, one in tool.parameters["properties"].items()}
    assert said == {
        "days": ([1, 3, 7], "how many"),
        "size": ([0.5, "all"], "of the map"),
        "city": (["Oslo", "Rome"], "where"),
        "both": ([True, None], "sides"),
    }
    assert tool.parameters["required"] == ["days", "size", "city"] and "choices: [1, 3, 7]" in choices.__doc__
    catalogue = Catalogue([tool])
    assert catalogue.problems("choices", {"days": 3, "size": "all", "city": "Rome"}) == []
    assert catalogue.problems("choices", {"days": 2, "size": "all", "city": "Rome"}) == [
        "days: 2 is not one of [1, 3, 7]"
    ]
    assert asyncio.run(tool.backend(tool, {"days": 3, "size": 0.5, "city": "Rome"})) == 3


@pytest.mark.parametrize("said", ["[1, 3", "5"])
def test_choices_that_are_no_list_of_json_are_refused(said):
    def chosen(days: int) -> int:
        return days

    chosen.__doc__ = f"Has choices.\n\nArgs:\n    days: how many (choices: {said})\n"
    with pytest.raises(ValueError, match="the function chosen cannot be described as a tool"):
        function_tool(chosen)
