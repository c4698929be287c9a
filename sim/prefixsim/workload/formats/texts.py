"""What text traces share: token ids gathered request by request."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from prefixsim.workload.checks import dense_ids
from prefixsim.workload.formats.registry import ReadContext
from prefixsim.workload.ragged import offsets
from prefixsim.workload.rows import MAX_TOKENS
from prefixsim.workload.table import I64, Decision
from prefixsim.workload.text.chat import ChatEncoder, template
from prefixsim.workload.text.tokenizers import load


class Texts:
    """Prompts and outputs as token ids. `add` returns a fault in words, or None."""

    def __init__(self, context: ReadContext) -> None:
        options = context.options
        self.tokenizer = load(options.tokenizer, context.path.parent)
        self.chat = ChatEncoder(self.tokenizer, template(options.chat_template), options.strip_thinking)
        self.ids = array("q")
        self.counts: list[int] = []
        self.prompts: list[int] = []
        self.outputs: list[int] = []

    def add(self, prompt: list[int], output: list[int], output_tokens: int | None = None) -> str | None:
        """One request; an empty output has `output_tokens` (at least 1) of unknown content."""
        if not prompt:
            return "the prompt is empty"
        if len(prompt) > MAX_TOKENS or len(output) > MAX_TOKENS or (output_tokens or 0) > MAX_TOKENS:
            return f"more than {MAX_TOKENS:,} tokens"
        self.ids.extend(prompt)
        self.ids.extend(output)
        self.prompts.append(len(prompt))
        self.outputs.append(len(output) or max(1, output_tokens or 1))
        self.counts.append(len(prompt) + len(output))
        return None

    @property
    def n(self) -> int:
        """Requests so far."""
        return len(self.prompts)

    def columns(self) -> dict[str, Any]:
        """Content columns for `make_workload`."""
        flat: I64 = np.frombuffer(self.ids, dtype=np.int64) if len(self.ids) else np.zeros(0, np.int64)
        return {
            "prompt_tokens": np.array(self.prompts, dtype=np.int64),
            "output_tokens": np.array(self.outputs, dtype=np.int64),
            "atom_offset": offsets(self.counts),
            "prompt_atoms": np.array(self.prompts, dtype=np.int64),
            "atom_id": dense_ids(flat),
            "atom_tokens": None,
        }

    def decisions(self, chat: bool) -> tuple[Decision, ...]:
        """What tokens and templates are."""
        out = [Decision("tokenizer", self.tokenizer.words.split(" (")[0], self.tokenizer.words, self.tokenizer.exact)]
        if chat:
            words = "tool definitions and messages where this family's servers put them"
            out.append(Decision("chat_template", self.chat.template.name, words))
        return tuple(out)
