"""HTML reports: one file, nothing from elsewhere, and no text that could become markup or script."""

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from kvasir.core.errors import ConfigError
from kvasir.report import figures, page
from kvasir.report.page import Figure, Page, ReportError, Section, Table, Tile

EVIL = '</script><script>alert("1")</script><img src=x onerror=y>&'


class Tags(HTMLParser):
    """Every tag that a browser would open, and the texts of table cells."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.cells: list[str] = []
        self.marked = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.opened.append(tag)
        self.marked += ("class", "marked") in attrs

    def handle_data(self, data: str) -> None:
        if self.opened[-1:] == ["td"]:
            self.cells.append(data)


def figure(text: str = "t") -> Figure:
    axes = figures.Axes(title=text, x="s", y="ms", y2="n")
    curve = figures.curve("a", [1, 2], [3, 4], figures.BLUE)
    return Figure(spec=figures.figure(axes, [curve, figures.on_right(curve)], [figures.upright(1, text)]), caption=text)


def whole(text: str) -> Page:
    table = Table(columns=("a", ">b"), rows=[[text, "1"], ["x", "2"]], marked=frozenset({1}))
    return Page(
        title=text,
        subtitle=text,
        alerts=[text],
        tiles=[Tile(label=text, value=text, note=text)],
        sections=[Section(title=text, text=text, tables=[table], figures=[figure(text), figure()])],
    )


def parsed(html: str) -> Tags:
    tags = Tags()
    tags.feed(html)
    return tags


def test_no_text_becomes_markup() -> None:
    evil, harmless = parsed(whole(EVIL).html()), parsed(whole("harmless").html())
    assert evil.opened == harmless.opened
    assert "img" not in evil.opened
    assert EVIL in "".join(evil.cells)
    assert evil.marked == 1


def test_plots_are_what_was_given() -> None:
    found = re.findall(
        r'<script type="application/json" data-for="([\w-]+)">(.*?)</script>', whole(EVIL).html(), re.DOTALL
    )
    assert [name for name, _ in found] == ["figure-0-0", "figure-0-1"]
    assert json.loads(found[0][1]) == figure(EVIL).spec
    assert json.loads(found[1][1])["data"][1]["yaxis"] == "y2"


def test_the_plotting_code_lies_inside() -> None:
    html = whole("t").html()
    assert "plotly.js" in html[:5000]
    assert not re.search(
        r"<(script|link|img)[^>]+(src|href)=", re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)
    )


def test_without_plotly_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    page._plotly_js.cache_clear()
    with pytest.raises(ConfigError, match=r"kvasir\[report\]"):
        page.check_can_draw()
    monkeypatch.undo()
    page.check_can_draw()


def test_a_report_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ReportError, match="cannot be written"):
        whole("t").write(tmp_path / "file" / "r.html")
    whole("t").write(tmp_path / "new" / "r.html")
    assert (tmp_path / "new" / "r.html").read_text().startswith("<!doctype html>")


def test_many_points_are_thinned_and_keep_their_ends() -> None:
    curve: dict[str, Any] = figures.curve("a", list(range(50_000)), [float(i) for i in range(50_000)], figures.BLUE)
    assert len(curve["x"]) == len(curve["y"]) <= 3001
    assert (curve["x"][0], curve["x"][-1]) == (0, 49_999)


def test_shares() -> None:
    assert figures.cumulative("a", [3.0, 1.0, 2.0, 4.0], figures.BLUE)["x"] == [1.0, 2.0, 3.0, 4.0]
    assert figures.cumulative("a", [3.0, 1.0, 2.0, 4.0], figures.BLUE)["y"] == [25.0, 50.0, 75.0, 100.0]
