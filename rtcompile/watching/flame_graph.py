"""A profile as a flame graph: one HTML file without scripts from elsewhere, for light and dark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtcompile.watching.header_times import Frame
    from rtcompile.watching.profiling import Profile

_NARROWEST = 0.0005  # of the whole: what is narrower cannot be seen
_COLORS = 6


@dataclass(slots=True)
class _Box:
    """Something that took time, and its parts; the same name within one box is one part."""

    name: str
    milliseconds: float = 0.0
    parts: dict[str, _Box] = field(default_factory=dict)

    def part(self, name: str, milliseconds: float) -> _Box:
        box = self.parts.setdefault(name, _Box(name))
        box.milliseconds += milliseconds
        return box


def html(profile: Profile) -> str:
    """Return the page."""
    whole = _Box(f"{profile.program} for {profile.arch}", profile.milliseconds)
    for name, milliseconds in profile.phases:
        box = whole.part(name, milliseconds)
        if name == "front end" and profile.frames is not None:
            _add(box, profile.frames.included)
            _add_instances(box.part(f"{profile.program} itself", profile.source), profile)
            box.part("after the last line", profile.finish)
    depths: dict[int, int] = defaultdict(int)
    boxes = "\n".join(_boxes(whole, 0.0, 0, profile.milliseconds or 1.0, depths))
    height = 20 * (max(depths) + 1)
    title = escape(f"{profile.program} for {profile.arch}: {profile.milliseconds:.0f} ms")
    return _PAGE.format(
        title=title, boxes=boxes, height=height, tables=escape(profile.text(most=50))
    )


def _add(box: _Box, frames: Iterable[Frame]) -> None:
    for frame in frames:
        _add(box.part(frame.path, frame.seconds * 1e3), frame.included)


def _add_instances(source: _Box, profile: Profile) -> None:
    """Add the templates that the source's own text instantiates, each within the one that needs it."""
    headers = {frame.path for frame in profile.frames.walk()} if profile.frames else set()
    ends = [event["ts"] + event["dur"] for event in profile.events if event["name"] in headers]
    after = max(ends, default=0.0)
    found = [
        (event["ts"], -event["dur"], event["args"]["detail"].partition(" [")[0])
        for event in profile.events
        if event["name"].startswith("Instantiating Template") and event["ts"] >= after
    ]
    open_until: list[tuple[float, _Box]] = []
    for begin, negative, name in sorted(found):
        while open_until and open_until[-1][0] <= begin:
            open_until.pop()
        within = open_until[-1][1] if open_until else source
        open_until.append((begin - negative, within.part(name, -negative / 1e3)))


def _boxes(
    box: _Box, left: float, depth: int, whole: float, depths: dict[int, int]
) -> Iterable[str]:
    width = box.milliseconds / whole
    if width < _NARROWEST:
        return
    depths[depth] += 1
    own = box.milliseconds - sum(part.milliseconds for part in box.parts.values())
    said = f"{box.name}: {box.milliseconds:.2f} ms, {100 * width:.1f}%; by itself {own:.2f} ms"
    short = box.name.rpartition("/")[2] or box.name
    color = sum(box.name.encode(errors="replace")) % _COLORS
    yield (
        f'<div class="c{color}" style="left:{100 * left:.4f}%;width:{100 * width:.4f}%;'
        f'top:{20 * depth}px" data-l="{left:.6f}" data-w="{width:.6f}" '
        f'title="{escape(said)}">{escape(short)}</div>'
    )
    for part in box.parts.values():
        yield from _boxes(part, left, depth + 1, whole, depths)
        left += part.milliseconds / whole


_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
:root {{ color-scheme: light dark; font: 13px system-ui, sans-serif; }}
body {{ margin: 1em; }}
#flame {{ position: relative; height: {height}px; overflow: hidden; }}
#flame div {{ position: absolute; height: 19px; line-height: 19px; overflow: hidden; cursor: pointer;
  white-space: nowrap; box-sizing: border-box; padding: 0 3px; border-right: 1px solid Canvas;
  color: #000; }}
.c0 {{ background: #f4a582; }} .c1 {{ background: #fddbc7; }} .c2 {{ background: #f6c667; }}
.c3 {{ background: #e9d8a6; }} .c4 {{ background: #a6d8c8; }} .c5 {{ background: #b8d4ee; }}
pre {{ font: 12px ui-monospace, monospace; overflow-x: auto; }}
</style></head><body>
<h1 style="font-size:1.2em">{title}</h1>
<p>Click a box to see it as wide as the page; click the first to see all.</p>
<div id="flame">
{boxes}
</div>
<pre>{tables}</pre>
<script>
const boxes = [...document.querySelectorAll("#flame div")];
for (const box of boxes) box.onclick = () => {{
  const left = +box.dataset.l, width = +box.dataset.w;
  for (const other of boxes) {{
    const l = (+other.dataset.l - left) / width, w = +other.dataset.w / width;
    const from = Math.max(0, l), to = Math.min(1, l + w);
    other.style.display = to - from > 1e-6 ? "" : "none";
    other.style.left = 100 * from + "%";
    other.style.width = 100 * (to - from) + "%";
  }}
}};
</script></body></html>
"""
