"""Chat templates: where a server puts system prompts, tool definitions and messages, for the common families.

A template turns messages into pieces: control tokens (one token each) and text. They follow the public prompt formats of
ChatML (Qwen and others), Llama 3 and Mistral; `plain` joins contents with newlines and no control tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from prefixsim.errors import TraceError, nearest
from prefixsim.workload.text.tokenizers import Tokenizer

Piece = tuple[bool, str]
"""(is a control token, its name or the text)."""

_THINKING = re.compile(r"<think>.*?(</think>|\Z)\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Message:
    """role: system, user, assistant or tool; content: text with tool calls written out."""

    role: str
    content: str


Opening = Callable[[Sequence[Message], str], Iterator[Piece]]


@dataclass(frozen=True, slots=True)
class Template:
    """opening(messages, tools): pieces of a prompt, up to and with the header of the answer. end: pieces after an answer."""

    name: str
    opening: Opening
    end: tuple[Piece, ...]


def _chatml(messages: Sequence[Message], tools: str) -> Iterator[Piece]:
    messages = list(messages)
    if tools:
        system = messages.pop(0).content if messages and messages[0].role == "system" else ""
        messages.insert(0, Message("system", f"{system}\n\n# Tools\n\n<tools>\n{tools}\n</tools>".strip()))
    for m in messages:
        role, content = (
            (m.role, m.content) if m.role != "tool" else ("user", f"<tool_response>\n{m.content}\n</tool_response>")
        )
        yield True, "<|im_start|>"
        yield False, f"{role}\n"
        yield False, content
        yield True, "<|im_end|>"
        yield False, "\n"
    yield True, "<|im_start|>"
    yield False, "assistant\n"


def _llama3(messages: Sequence[Message], tools: str) -> Iterator[Piece]:
    yield True, "<|begin_of_text|>"
    pending = tools
    for m in messages:
        content = m.content
        if pending and m.role == "user":  # tool definitions stand in the first user message
            content, pending = f"Functions that may be called:\n{pending}\n\n{content}", ""
        yield True, "<|start_header_id|>"
        yield False, {"tool": "ipython"}.get(m.role, m.role)
        yield True, "<|end_header_id|>"
        yield False, "\n\n"
        yield False, content.strip()
        yield True, "<|eot_id|>"
    yield True, "<|start_header_id|>"
    yield False, "assistant"
    yield True, "<|end_header_id|>"
    yield False, "\n\n"


def _mistral(messages: Sequence[Message], tools: str) -> Iterator[Piece]:
    yield True, "<s>"
    last_user = max((i for i, m in enumerate(messages) if m.role == "user"), default=-1)
    system = ""
    for i, m in enumerate(messages):
        if m.role == "system":
            system = m.content
        elif m.role == "user":
            if tools and i == last_user:  # they move with the last user message: earlier turns lose their prefix there
                yield True, "[AVAILABLE_TOOLS]"
                yield False, tools
                yield True, "[/AVAILABLE_TOOLS]"
            yield True, "[INST]"
            yield False, f"{system}\n\n{m.content}" if system and i == last_user else m.content
            yield True, "[/INST]"
        elif m.role == "tool":
            yield True, "[TOOL_RESULTS]"
            yield False, m.content
            yield True, "[/TOOL_RESULTS]"
        else:
            yield False, m.content
            yield True, "</s>"


def _plain(messages: Sequence[Message], tools: str) -> Iterator[Piece]:
    if tools:
        yield False, tools + "\n"
    for m in messages:
        yield False, m.content
        yield False, "\n"


TEMPLATES = {
    t.name: t
    for t in (
        Template("chatml", _chatml, ((True, "<|im_end|>"),)),
        Template("llama-3", _llama3, ((True, "<|eot_id|>"),)),
        Template("mistral", _mistral, ((True, "</s>"),)),
        Template("plain", _plain, ()),
    )
}


def template(name: str) -> Template:
    """A template by name. Raises TraceError with the nearest name."""
    if name not in TEMPLATES:
        raise TraceError(f"unknown chat template {name!r}{nearest(name, TEMPLATES)}")
    return TEMPLATES[name]


class ChatEncoder:
    """Messages to token ids; encoded texts are kept while they are likely to return (histories repeat)."""

    def __init__(self, tokenizer: Tokenizer, chosen: Template, strip_thinking: bool) -> None:
        self.tokenizer, self.template, self.strip = tokenizer, chosen, strip_thinking
        self.kept: dict[str, list[int]] = {}
        self.kept_size = 0

    def _encode(self, text: str) -> list[int]:
        found = self.kept.get(text)
        if found is None:
            found = self.tokenizer.encode(text)
            self.kept_size += len(found) + 64
            if self.kept_size > 8_000_000:
                self.kept.clear()
                self.kept_size = len(found)
            self.kept[text] = found
        return found

    def _pieces(self, pieces: Iterator[Piece] | Sequence[Piece]) -> list[int]:
        out: list[int] = []
        for control, text in pieces:
            if control:
                out.append(self.tokenizer.special(text))
            elif text:
                out += self._encode(text)
        return out

    def prompt(self, messages: Sequence[Message], tools: str = "") -> list[int]:
        """Token ids of a prompt, thinking of earlier answers left out where that is asked for."""
        if self.strip:
            messages = [Message(m.role, _THINKING.sub("", m.content)) if m.role == "assistant" else m for m in messages]
        return self._pieces(self.template.opening(messages, tools))

    def answer(self, text: str) -> list[int]:
        """Token ids of an answer, its end included."""
        return self._pieces([(False, text), *self.template.end])


def message(value: Any) -> Message:
    """An OpenAI-style message: content text, a list of parts, or null; tool calls are written out. Raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError("expected messages with role and content")
    role = value.get("role")
    if not isinstance(role, str):
        raise ValueError("a message without role")
    content = value.get("content")
    if isinstance(content, list):
        parts = []
        for part in content:
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                parts.append(part["text"])
            elif isinstance(part, dict) and "type" in part:
                raise ValueError(f"a message part of type {str(part['type'])[:40]!r}: only text can be counted")
        content = "".join(parts)
    if content is None:
        content = ""
    if not isinstance(content, str):
        raise ValueError("content is neither text nor a list of parts")
    calls = value.get("tool_calls")
    if calls:
        content += "".join(f"\n{json.dumps(c, sort_keys=True, ensure_ascii=False)}" for c in calls)
    return Message({"developer": "system", "function": "tool"}.get(role, role), content)
