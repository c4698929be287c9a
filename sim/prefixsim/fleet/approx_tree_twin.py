"""The approximate prefix tree as it is described: nodes in dictionaries. For tests."""

from __future__ import annotations

from prefixsim.workload.intern import Trie
from prefixsim.workload.table import I64


class TwinTree:
    """sent: for each replica, element -> number of its latest sending."""

    def __init__(self, trie: Trie, prompt_tokens: I64, n_replicas: int) -> None:
        self.trie, self.prompt_tokens = trie, prompt_tokens
        self.sent: list[dict[int, int]] = [{} for _ in range(n_replicas)]
        self.count = 0

    def path(self, request: int) -> list[int]:
        """The prompt's elements, from the root."""
        t, before = self.trie, 0
        out: list[int] = []
        for j in range(t.run_offset[request], t.run_offset[request + 1]):
            out += range(int(t.run_start[j]), int(t.run_start[j] + t.run_end[j]) - before)
            before = int(t.run_end[j])
        return [e for e in out if t.element_end[e] <= self.prompt_tokens[request]]

    def match(self, request: int) -> tuple[int, int]:
        """See ApproxTree."""
        tokens, replica = 0, -1
        for e in self.path(request):
            holders = [(sent[e], i) for i, sent in enumerate(self.sent) if e in sent]
            if not holders:
                break
            tokens, replica = int(self.trie.element_end[e]), max(holders)[1]
        return tokens, replica

    def enter(self, request: int, replica: int) -> None:
        """See ApproxTree."""
        self.count += 1
        for e in self.path(request):
            self.sent[replica][e] = self.count

    def size(self, replica: int) -> int:
        """Tokens in a replica's tree."""
        return sum(int(self.trie.element_tokens[e]) for e in self.sent[replica])

    def trim(self, limit_tokens: int) -> None:
        """See ApproxTree."""
        for replica, sent in enumerate(self.sent):
            while self.size(replica) > limit_tokens:
                del sent[min(sent, key=lambda e: (sent[e], -int(self.trie.element_end[e])))]
