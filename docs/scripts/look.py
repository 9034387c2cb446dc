"""Look at every page of the site in a browser, narrow and wide, light and dark.

``python -m docs.scripts.look docs/_build/html [FOLDER FOR PICTURES]`` exits with 1 and names what is cut off:
whatever reaches beyond the window's right edge and cannot be scrolled to. It needs Playwright and a Chromium
(``make look`` installs the first; ``CHROMIUM`` names the second, else Playwright's own is taken).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

WIDTHS = (390, 1440)
# What is wider than the window, unless it or something around it scrolls or is hidden on purpose.
CUT_OFF = """() => {
  const found = [];
  const scrolls = (e) => {
    for (let p = e; p && p !== document.body; p = p.parentElement) {
      const style = getComputedStyle(p);
      if (["auto", "scroll", "hidden", "clip"].includes(style.overflowX)) return true;
      if (style.visibility === "hidden" || style.display === "none" || style.position === "fixed") return true;
    }
    return false;
  };
  for (const e of document.querySelectorAll("article *")) {
    const box = e.getBoundingClientRect();
    if (box.width && box.right > window.innerWidth + 1 && !scrolls(e))
      found.push(e.tagName.toLowerCase() + ": " + (e.textContent || "").trim().slice(0, 60));
  }
  if (document.documentElement.scrollWidth > window.innerWidth + 1 && !found.length) found.push("the page");
  return found.slice(0, 3);
}"""


def main(site: Path, pictures: Path | None) -> int:
    from playwright.sync_api import sync_playwright

    bad = 0
    pages = sorted(path for path in site.rglob("*.html") if "_static" not in path.parts)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM"), args=["--no-sandbox"]
        )
        for scheme in ("light", "dark"):
            for width in WIDTHS:
                context = browser.new_context(
                    viewport={"width": width, "height": 900}, color_scheme=scheme
                )
                tab = context.new_page()
                for path in pages:
                    tab.goto(path.as_uri(), wait_until="domcontentloaded")
                    for what in tab.evaluate(CUT_OFF):
                        bad += 1
                        print(f"{path.relative_to(site)} at {width} px, {scheme}: {what}")
                    if pictures is not None:
                        name = f"{path.stem}-{width}-{scheme}.png"
                        tab.screenshot(path=pictures / name)
                context.close()
        browser.close()
    print(f"{len(pages)} pages, {bad} parts cut off")
    return 1 if bad else 0


if __name__ == "__main__":
    folder = Path(sys.argv[2]).resolve() if len(sys.argv) > 2 else None
    sys.exit(main(Path(sys.argv[1]).resolve(), folder))
