"""The pictures of docs/model.md: SVG drawn from what the two caches do with three prompts.

vLLM's pool and SGLang's tree here are the plain-Python twins that the compiled engines are held against. Colours follow the page's theme.
"""

from __future__ import annotations

from itertools import groupby

from prefixsim.engines.sglang.reference_tree import EvictionRule, Node, Tree
from prefixsim.engines.vllm.twin_pool import TwinPool

BLOCK = 16
PROMPTS = {"A": [("s", 37), ("a", 8)], "B": [("s", 37), ("b", 11), ("x", 3)], "C": [("s", 37), ("b", 11), ("y", 3)]}
"""Prompt -> pieces: equal names are equal content."""
HIT, NEW, LOST = "#2f9e6e", "#7f9fc9", "#d9822b"
X0, CELL, ROW = 34, 11, 26


def tokens(name: str) -> list[tuple[str, int]]:
    """A prompt's tokens."""
    return [(piece, i) for piece, length in PROMPTS[name] for i in range(length)]


class Ids:
    """Numbers for prefixes: equal prefix, equal number."""

    def __init__(self) -> None:
        self.known: dict[tuple[tuple[str, int], ...], int] = {}

    def row(self, prompt: list[tuple[str, int]], granularity: int) -> list[int]:
        """A number for each full block of the prompt."""
        ends = range(granularity, len(prompt) + 1, granularity)
        return [self.known.setdefault(tuple(prompt[:end]), len(self.known)) for end in ends]


def serve_hash(prompts: list[list[tuple[str, int]]], block: int) -> list[int]:
    """Cached tokens of each prompt in vLLM's pool, one after another."""
    ids, pool, cached = Ids(), TwinPool(200), []
    for prompt in prompts:
        keys = ids.row(prompt, block)
        hits = pool.lookup(keys, (len(prompt) - 1) // block)
        pool.touch(hits)
        table = hits + pool.take(-(-len(prompt) // block) - len(hits))
        for b, key in list(zip(table, keys, strict=False))[len(hits) :]:
            pool.commit(b, key)
        pool.release(table)
        cached.append(len(hits) * block)
    return cached


def serve_radix(prompts: list[list[tuple[str, int]]], page: int = 1) -> tuple[list[int], Tree, set[int]]:
    """Cached tokens of each prompt in SGLang's tree, one after another; the tree; the pages that were hit."""
    ids, tree, cached, hit = Ids(), Tree(1000, page, EvictionRule()), [], set()
    for prompt in prompts:
        row = ids.row(prompt, page)
        pages = tree.match(row, (len(prompt) - 1) // page)[0]
        tree.insert(row, len(row), 0, 0)
        cached.append(pages * page)
        hit |= set(row[:pages])
    return cached, tree, hit


def svg(width: int, height: int, title: str, body: list[str]) -> str:
    """The picture; letters take the page's colour."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}" '
        f'style="width:100%;max-width:{width}px" font-family="system-ui, sans-serif" font-size="12" fill="currentColor">'
    )
    return "\n".join([head, f"<title>{title}</title>", *body, "</svg>", ""])


def text(x: float, y: float, words: str, anchor: str = "start", colour: str = "") -> str:
    """Words; on a bar they need a colour of their own."""
    fill = f' fill="{colour}"' if colour else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{fill}>{words}</text>'


def bar(x: float, y: float, length: float, colour: str, height: int = 16) -> str:
    """A run of tokens."""
    return f'<rect x="{x:g}" y="{y:g}" width="{length:g}" height="{height}" rx="2" fill="{colour}"/>'


def legend(x: int, y: int, entries: list[tuple[str, str]]) -> list[str]:
    """Colours and their meaning."""
    out = []
    for colour, words in entries:
        out += [bar(x, y - 10, 12, colour, 12), text(x + 17, y, words)]
        x += 32 + 7 * len(words)
    return out


def hash_picture() -> str:
    """Three prompts cut in blocks: hit, computed and stored, without a key."""
    names = list(PROMPTS)
    cached = serve_hash([tokens(n) for n in names], BLOCK)
    body = [text(X0 + k * BLOCK * CELL, 14, str(k * BLOCK), "middle") for k in range(4)]
    for i, name in enumerate(names):
        y, n = 24 + i * ROW, len(tokens(name))
        body.append(text(10, y + 13, name))
        for start in range(0, n, BLOCK):
            end = min(start + BLOCK, n)
            colour = HIT if end <= cached[i] else NEW if end - start == BLOCK else LOST
            body.append(bar(X0 + start * CELL + 1, y, (end - start) * CELL - 2, colour))
        body.append(text(X0 + 53 * CELL, y + 13, f"{cached[i]} served"))
    shared = X0 + 37 * CELL
    bottom = 24 + 3 * ROW
    body.append(f'<path d="M{shared} 18V{bottom}" stroke="currentColor" stroke-dasharray="3 3"/>')
    body.append(text(shared, bottom + 12, "37: the end of what all three share", "middle"))
    body += legend(
        X0,
        bottom + 36,
        [(HIT, "block hit"), (NEW, "full block, computed and stored"), (LOST, "no full block: no key, never hit")],
    )
    return svg(X0 + 53 * CELL + 76, bottom + 46, "Three prompts in blocks of 16 tokens", body)


def radix_picture() -> str:
    """The tree after the three prompts, and what each was served."""
    names = list(PROMPTS)
    cached, tree, hit = serve_radix([tokens(n) for n in names])
    body: list[str] = []
    line = 0

    def draw(node: Node, above: float | None) -> None:
        nonlocal line
        y = 20 + line * ROW
        if node.pages:
            x = X0 + node.start * CELL
            if above is not None and y != above:
                body.append(f'<path d="M{x:g} {above + 8:g}V{y + 8:g}h4" fill="none" stroke="currentColor"/>')
            body.append(bar(x + 3, y, len(node.pages) * CELL - 4, HIT if node.pages[0] in hit else NEW))
            body.append(text(x + len(node.pages) * CELL / 2, y + 13, str(len(node.pages)), "middle", "#10151a"))
        for i, child in enumerate(node.children.values()):
            line += i > 0
            draw(child, y if node.pages else None)

    draw(tree.root, None)
    bottom = 20 + (line + 1) * ROW
    body.append(text(X0 + 3, 12, "tokens of each node"))
    body.append(text(X0, bottom + 12, "; ".join(f"{n}: {c} served" for n, c in zip(names, cached, strict=True))))
    body += legend(X0, bottom + 36, [(HIT, "served to a later prompt"), (NEW, "stored, not asked for again")])
    return svg(X0 + 53 * CELL + 76, bottom + 46, "The radix tree after the same three prompts", body)


def stairs_picture() -> str:
    """Tokens served by length of the shared prefix."""
    longest, scale, height = 80, 7, 150
    x0, y0 = 40, 12 + height
    body = [f'<path d="M{x0} 12V{y0}H{x0 + longest * scale}" fill="none" stroke="currentColor"/>']
    for t in range(0, longest + 1, 16):
        body.append(text(x0 + t * scale, y0 + 16, str(t), "middle"))
        body.append(text(x0 - 6, y0 - t * height / longest + 4, str(t), "end"))
    body.append(text(x0 + longest * scale / 2, y0 + 32, "tokens that two prompts share", "middle"))
    body.append(text(x0 + 8, 20, "tokens served"))

    def served(shared: int, kind: str, unit: int) -> int:
        pair = [[("s", i) for i in range(shared)] + [(name, i) for i in range(40)] for name in "pq"]
        return serve_hash(pair, unit)[1] if kind == "blocks" else serve_radix(pair, unit)[0][1]

    entries = []
    for kind, unit, colour in (("pages", 1, HIT), ("blocks", 16, NEW), ("blocks", 64, LOST)):
        points = [(s, served(s, kind, unit)) for s in range(longest + 1)]
        path, last = f"M{x0} {y0}", 0
        for value, run in groupby(points, key=lambda p: p[1]):
            at = next(run)[0]
            path += (
                f"H{x0 + at * scale:g}V{y0 - value * height / longest:g}"
                if unit > 1 and value != last
                else f"L{x0 + at * scale:g} {y0 - value * height / longest:g}"
            )
            last = value
        path += f"H{x0 + longest * scale:g}" if unit > 1 else ""
        body.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        entries.append((colour, "radix tree, page 1" if unit == 1 else f"blocks (or pages) of {unit}"))
    body += legend(x0, y0 + 56, entries)
    return svg(x0 + longest * scale + 30, y0 + 66, "Tokens served by the length of the shared prefix", body)


def pictures() -> dict[str, str]:
    """File name and text of every picture."""
    return {"hash.svg": hash_picture(), "radix.svg": radix_picture(), "stairs.svg": stairs_picture()}
