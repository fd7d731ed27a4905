"""What the puppeteer's system reads out of its agents' outputs."""

from __future__ import annotations

import pytest

from verl_ext.recipe.puppeteer.puppets import found_answer, parameter_of, read_code, read_line, read_result, read_url
from verl_ext.recipe.puppeteer.quality import PLACEHOLDER


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("REASONING RESULT: a. FINAL ANSWER: b", ("a.", "b")),
        ("well\nREASONING RESULT: [a]\nFINAL ANSWER: [b]\nbye", ("[a]", "b")),
        ("only thoughts", ("only thoughts", "")),
        ("FINAL ANSWER: **7**", ("**7**", "7")),
        ("FINAL ANSWER:", ("", "")),
        ("", ("", "")),
    ],
)
def test_the_papers_template(text, expected):
    assert read_result(text) == expected


def test_arguments_of_tools():
    assert read_code("Sure:\n```python\nx = 1\nprint(x)\n```\nDone") == {"program": "x = 1\nprint(x)"}
    assert read_code("```\nprint(1)") == {"program": "print(1)"} and read_code(" print(2) ") == {"program": "print(2)"}
    assert read_line("path")('I will read\nFILE: "notes.txt"\n\n') == {"path": "notes.txt"}
    assert read_url("see (https://a.example/b?c=d). It") == {"url": "https://a.example/b?c=d"}
    assert read_url("nowhere") == {"url": ""}


@pytest.mark.parametrize(
    "text",
    [
        "```python3\nprint(1)\n```\nIt prints 1.",
        "```Python\nprint(1)\n```",
        "```python\r\nprint(1)\r\n```",
        "``` python\nprint(1)\n```",
        "First:\n```bash\npip install numpy\n```\nThen:\n```python\nprint(1)\n```",
        'It gives\n```json\n{"a": 1}\n```\nby\n```\nprint(1)\n```',
    ],
)
def test_the_program_is_the_block_of_python_however_it_is_marked(text):
    assert read_code(text) == {"program": "print(1)"}


def test_a_tools_last_line_is_read_in_linear_time():
    """Quadratic matching of 6 million characters takes hours."""
    page = "[cut: " * 1_000_000
    assert found_answer(f"{page}x") and found_answer(f"{page}]") == ""
    assert found_answer(f"12\n{'Error' * 1_000_000}") == "" and found_answer("ValueError: 3\n12") == "12"


@pytest.mark.parametrize(
    "url",
    [
        "https://en.wikipedia.org/wiki/Hayden_(singer)",
        "https://en.wikipedia.org/wiki/Schindler's_List",
        "http://a.example/b_(c)_(d)/e?f=g,h",
    ],
)
@pytest.mark.parametrize("text", ["{}", "({})", "[page]({}).", "'{}', then", "<{}>", '"{}"', "see {}; or"])
def test_an_address_is_whole_whatever_is_in_it_or_around_it(url, text):
    assert read_url(text.format(url)) == {"url": url}


def test_parameters_in_json():
    assert parameter_of('Sure: {"action": "run_python", "parameter": "print({})\\n"} ok') == "print({})\n"
    deep = '{"parameter": ' + 5000 * "["
    for text in ("no object", "{x} {", '{"action": "read_file"}', '{"parameter": 3}', '[{"a": 1}]', deep):
        assert parameter_of(text) == text


def test_a_whole_answer_is_kept():
    assert read_result("FINAL ANSWER:\nOne.\n\nTwo [2]. ", whole=True)[1] == "One.\n\nTwo [2]."


@pytest.mark.parametrize(
    ("program", "left"),
    [("def f():\n    pass  # later", 1), ("x = 1\n\t...", 1), ("# TODO", 1), ("password = 1", 0), ("\n" * 200_000, 0)],
    ids=lambda value: repr(value)[:12],
)
def test_what_is_left_to_be_written_is_found_in_linear_time(program, left):
    """Quadratic matching of 200,000 blank lines takes longer than the time limit of a test."""
    assert bool(PLACEHOLDER.search(program)) == left
