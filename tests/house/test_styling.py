"""Tests of colours: all are readable on light and dark backgrounds, in terminals and in HTML."""

import re

import pytest

from rtcompile import styling

STYLES = ["location", "error", "warning", "caret", "hint", "dim", "ok", "note"]


def luminance(color: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def of_palette(number: int) -> str:
    """Return the colour of a number of the 256-colour palette: a cube of six steps, then grey."""
    if number >= 232:
        return "#" + f"{8 + 10 * (number - 232):02x}" * 3
    steps = [0, 95, 135, 175, 215, 255]
    red, rest = divmod(number - 16, 36)
    return "#" + "".join(f"{steps[step]:02x}" for step in (red, *divmod(rest, 6)))


@pytest.mark.parametrize("style", STYLES)
def test_a_style_is_readable_on_light_and_on_dark(style):
    css = re.findall(r"color:(#\w{6})", styling.as_html([(style, "x")]))
    ansi = re.findall(r"38;5;(\d+)", styling.as_ansi([(style, "x")]))
    assert [of_palette(int(number)) for number in ansi] == css, "one colour for both"
    backgrounds = ("#ffffff", "#111111")
    readable = {contrast(color, other) >= 3.9 for color in css for other in backgrounds}
    assert readable <= {True}, "4.36 is the most for both"
    # None takes a colour that the terminal's theme chooses.
    assert not re.search(r"\033\[(?:\d;)?(?:3[0-7]|9[0-7]|2)m", styling.as_ansi([(style, "x")]))
