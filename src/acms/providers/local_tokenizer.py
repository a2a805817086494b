"""Token counts by a model's own `tokenizer.json`, without a network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from acms.errors import ConfigurationError
from acms.model import Json
from acms.prompt_types import Exactness
from acms.providers.arguments import replace_surrogates

__all__ = ["LocalTokenizer"]

_INSTALL = "pip install 'acms-engine[tokenizers]'"


class LocalTokenizer:
    """A model's tokenizer and chat template, read from files of its Hugging Face repository.

    `path` is `tokenizer.json` or the folder that holds it. The chat template is `chat_template.jinja` or the
    `chat_template` of `tokenizer_config.json` beside it. With a template whole requests are counted as the model
    reads them, tools included; without one only texts are, and `count_request` raises `ConfigurationError`.
    Needs the extra `tokenizers`. Safe to use from several threads.
    """

    exactness = Exactness.EXACT

    def __init__(self, path: str | Path) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise ConfigurationError("LocalTokenizer needs tokenizers", options=(_INSTALL,)) from None
        location = Path(path)
        file = location / "tokenizer.json" if location.is_dir() else location
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # tokenizers raises bare Exception for a missing or damaged file
            raise ConfigurationError(f"{file} is not a tokenizer.json: {error}") from None
        #: Stored with counts, so that those of two vocabularies are never mixed.
        self.name = f"tokenizer/{file.resolve().parent.name}"
        settings = _read_settings(file.with_name("tokenizer_config.json"))
        source = _read_template(file.with_name("chat_template.jinja"), settings)
        self._template = None if source is None else _compile_template(source)
        self._variables = {
            name: value["content"] if isinstance(value, dict) else value
            for name, value in settings.items()
            if name.endswith("_token")
        }

    @property
    def counts_requests(self) -> bool:
        """Whether there is a chat template to count requests with."""
        return self._template is not None

    def count(self, text: str) -> int:
        """Return the number of tokens of `text`, without special tokens at its ends."""
        return len(self._tokenizer.encode(replace_surrogates(text), add_special_tokens=False).ids)

    async def count_request(self, payload: Mapping[str, Json], *, model: str) -> int:
        """Return the tokens of a request of the form of Chat Completions, as the chat template writes it."""
        if self._template is None:
            raise ConfigurationError("there is no chat template beside tokenizer.json")
        messages = [_with_parsed_arguments(message) for message in payload["messages"]]
        prompt = self._template.render(
            messages=messages,
            tools=payload.get("tools"),
            add_generation_prompt=True,
            **self._variables,
        )
        return self.count(prompt)


def _read_settings(file: Path) -> dict[str, Any]:
    """Return the settings of a tokenizer; empty without a file."""
    if not file.exists():
        return {}
    try:
        settings = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise ConfigurationError(f"{file} is not JSON: {error}") from None
    return settings if isinstance(settings, dict) else {}


def _read_template(file: Path, settings: Mapping[str, Any]) -> str | None:
    """Return the chat template: of its own file, or of the settings; None without one."""
    if file.exists():
        return file.read_text("utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several templates by name; requests may have tools
        by_name = {named_template["name"]: named_template["template"] for named_template in template}
        template = by_name.get("tool_use", by_name.get("default"))
    return template


def _compile_template(source: str) -> Any:
    """Compile a chat template in a sandbox, with the features that Hugging Face's templates may use."""
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def write_json(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = write_json
    functions: dict[str, Any] = {"raise_exception": raise_exception, "strftime_now": _format_long_date}
    environment.globals.update(functions)
    return environment.from_string(source)


def _format_long_date(form: str) -> str:
    """Format a fixed date. The tokens of a date hardly depend on the day, and the same request keeps its count."""
    return datetime(2026, 12, 28).strftime(form)


def _with_parsed_arguments(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message whose call arguments are objects where they are JSON, as templates expect them."""
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    return {
        **message,
        "tool_calls": [{**call, "function": _parsed_function(call["function"])} for call in calls],
    }


def _parsed_function(function: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {**function, "arguments": json.loads(function["arguments"])}
    except ValueError:
        return dict(function)
