"""A model's chat template: messages -> prompt text, in a sandbox.

The template comes with the model and is a stranger's program; the messages come with the request
and are a stranger's text.  The environment has what templates written for Hugging Face expect.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from structgen.errors import ConfigError, InvalidRequest

FIELD = "input.chat"


class ChatTemplate:
    """A compiled template and the variables that every rendering sees (bos_token, ...).

    Raises ConfigError: the text is not a Jinja template.
    """

    def __init__(self, text: str, variables: Mapping[str, str]) -> None:
        self._variables = dict(variables)
        try:
            self._template = _environment().from_string(text)
        except jinja2.TemplateError as error:
            raise ConfigError(f"the model's chat template cannot be compiled: {error}") from None

    def render(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool) -> str:
        """Return the prompt text.  Raises InvalidRequest: the template refuses the messages."""
        try:
            return self._template.render(
                **self._variables,
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
            )
        except (jinja2.TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise InvalidRequest(
                f"the model's chat template refused the messages: {error}", field=FIELD
            ) from None


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what a trainer learns from; here its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance's attribute

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which no model was trained on.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
