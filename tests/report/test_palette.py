"""Colours of the report: text and marks stand out from their ground in both themes (WCAG 2 contrast)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import prefixsim.report.html

CSS = (Path(prefixsim.report.html.__file__).parent / "assets" / "report.css").read_text()


def theme(selector: str) -> dict[str, str]:
    block = CSS[CSS.index(selector) :].partition("{")[2].partition("}")[0]
    return dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", block))


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("selector", [":root {", ':root[data-theme="dark"] {'])
def test_text_and_marks_stand_out(selector: str) -> None:
    colours = theme(selector)
    assert len(colours) >= 25
    for text in ("ink", "soft", "link"):
        assert contrast(colours[text], colours["bg"]) >= 4.5, text
        assert contrast(colours[text], colours["panel"]) >= 4.5, text
    assert contrast(colours["warn-ink"], colours["warn-bg"]) >= 4.5
    for mark in (*(f"e{i}" for i in range(6)), *(f"s{i}" for i in range(7))):
        assert contrast(colours[mark], colours["bg"]) >= 3, mark
    assert contrast(colours["lost"], colours["panel"]) >= 2.4


def test_both_themes_have_the_same_colours() -> None:
    assert theme(":root {").keys() == theme(':root[data-theme="dark"] {').keys()
