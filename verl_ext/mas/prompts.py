"""Which prompts a workflow uses: a module of the recipe, by name, or a user's own texts from a file.

    # my_prompts.yaml, for `mas.workflow.prompts=my_prompts.yaml`
    base: faithful                      # the prompts of all agents that this file does not name
    rewriter:
      system: You write search queries.
      user: "Question: {{ question }}"

A text is a Jinja template. Its variables are the arguments of the function of that name in the module, as texts: the
module's `TEXTS` says how an argument that is no text is written ("docs" -> numbered documents).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from jinja2 import StrictUndefined, TemplateError, meta
from jinja2.sandbox import SandboxedEnvironment

from verl_ext.mas.messages import Messages
from verl_ext.tools.catalogue.render import neutral

ROLES = ("system", "user")
JINJA = SandboxedEnvironment(undefined=StrictUndefined, finalize=lambda value: "" if value is None else value)


class OwnPrompts:
    """The functions of a module of prompts, some of them replaced by a user's texts."""

    def __init__(self, module: Any, replaced: Mapping[str, Callable[..., Messages]]):
        self._module, self._replaced = module, dict(replaced)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._replaced.get(name) or getattr(self._module, name)


def prompts_of(given: str, modules: Mapping[str, Any]) -> Any:
    """The prompts that `mas.workflow.prompts` asks for: a module, or `OwnPrompts`.

    Args:
        given: a name of `modules`, or the path of a YAML file.
        modules: name -> module whose functions return the messages for an agent; the first is the default base.

    Raises:
        ValueError: no such name and no such file; or the file names an agent or a variable that there is not, or leaves
            out one that the agent needs.
    """
    if isinstance(given, str) and given in modules:
        return modules[given]
    path = Path(str(given))
    if path.suffix not in (".yaml", ".yml"):
        raise ValueError(
            f"mas.workflow.prompts={given!r} is unknown; allowed: {', '.join(modules)}, or a YAML file of your own"
        )
    if not path.is_file():
        raise ValueError(f"mas.workflow.prompts={given!r}: there is no such file")
    return _own(path, modules)


def _own(path: Path, modules: Mapping[str, Any]) -> OwnPrompts:
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no YAML: {error}") from None
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ValueError(f"{path} must map names of agents to texts, as `rewriter: {{user: 'Question: …'}}`")
    base = content.pop("base", next(iter(modules)))
    if base not in modules:
        raise ValueError(f"{path}: base={base!r} is unknown; allowed: {', '.join(modules)}")
    module = modules[base]
    return OwnPrompts(module, {name: _function(path, module, name, given) for name, given in content.items()})


def _function(path: Path, module: Any, name: str, given: Any) -> Callable[..., Messages]:
    """The prompt of one agent, from its texts."""
    allowed = prompt_names(module)
    if name not in allowed:
        raise ValueError(f"{path}: there is no agent {name!r}; allowed: {', '.join(allowed)}")
    if not isinstance(given, dict) or not given.get("user") or not set(given) <= {*ROLES, "unused"}:
        raise ValueError(f"{path}: {name} needs a text `user`, and may have `system` and `unused`; given: {given!r}")
    signature = inspect.signature(getattr(module, name))
    written = {role: str(given[role]) for role in ROLES if given.get(role)}
    _check_variables(f"{path}: {name}", signature, written, given.get("unused") or ())
    templates = {role: JINJA.from_string(text) for role, text in written.items()}
    texts: Mapping[str, Callable[[Any], str]] = getattr(module, "TEXTS", {})

    def prompt(*args: Any, **inputs: Any) -> Messages:
        bound = signature.bind(*args, **inputs)
        bound.apply_defaults()
        values = {key: texts.get(key, _text)(value) for key, value in bound.arguments.items()}
        return [{"role": role, "content": template.render(values)} for role, template in templates.items()]

    return prompt


def _check_variables(place: str, signature: inspect.Signature, written: Mapping[str, str], unused: Any) -> None:
    """Raises ValueError if the texts use a variable that there is not, or leave one out that the agent needs."""
    try:
        used = set().union(*(meta.find_undeclared_variables(JINJA.parse(text)) for text in written.values()))
    except TemplateError as error:
        raise ValueError(f"{place} is no Jinja template: {error}") from None
    variables = ", ".join(f"{{{{ {one} }}}}" for one in signature.parameters)
    if unknown := sorted(used - set(signature.parameters)):
        raise ValueError(f"{place} uses {', '.join(unknown)}; allowed: {variables}")
    needed = [name for name, one in signature.parameters.items() if one.default is inspect.Parameter.empty]
    if missing := [name for name in needed if name not in used and name not in unused]:
        raise ValueError(
            f"{place} never uses {', '.join(missing)}, which the agent would not see. Remedy: use all of {variables}, "
            f"or say so by `unused: [{', '.join(missing)}]`"
        )


def prompt_names(module: Any) -> list[str]:
    """The functions of a module of prompts that return `Messages`."""
    public = {name: one for name, one in vars(module).items() if not name.startswith("_") and inspect.isfunction(one)}
    own = {name: one for name, one in public.items() if one.__module__ == module.__name__}
    return [name for name, one in own.items() if inspect.signature(one).return_annotation in (Messages, "Messages")]


def _text(value: Any) -> Any:
    """A value for a template: None and numbers can be asked for by `{% if … %}`, everything else is a text."""
    return value if value is None or isinstance(value, bool | int | float) else neutral(str(value))
