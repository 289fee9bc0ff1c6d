"""``python -m oncegate.gateway.docs``, run at the root of the repository: write all generated pages."""

from __future__ import annotations

from pathlib import Path

from oncegate.gateway.docs.sections import SECTIONS, filled_pages

if __name__ == "__main__":
    for path, present, text in filled_pages(Path(), SECTIONS):
        if text != present:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")  # noqa: T201
