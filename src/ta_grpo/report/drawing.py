"""How figures look, and how they become files: PNG, SVG, and SVG that stands in a page and follows its colours.

One panel a figure, narrow enough to be read on a phone; a page sets several side by side. Texts stay texts.
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

INK, MUTED, GRID, PAPER = "#1c1c1e", "#5f6368", "#dcdfe3", "#ffffff"

# Okabe and Ito's colours, which colour-blind people can tell apart; each also has a dash and a marker of its own.
_BLUE, _SKY, _ORANGE, _RED, _GREEN, _PURPLE = "#0072b2", "#3f9fd8", "#d98c00", "#d55e00", "#009e73", "#b0588d"
_STYLES = (
    (_BLUE, "-", "o"),
    (_RED, "-", "s"),
    (_GREEN, "--", "^"),
    (_ORANGE, "-.", "D"),
    (_PURPLE, "--", "v"),
    (_SKY, "-", "P"),
    (INK, ":", "X"),
    (MUTED, "-.", "*"),
)
# Of the page's style sheet, which has a light and a dark value for each.
_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--line",
    PAPER: "--paper",
    _BLUE: "--blue",
    _SKY: "--sky",
    _ORANGE: "--orange",
    _RED: "--red",
    _GREEN: "--green",
    _PURPLE: "--purple",
}
_RC: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a name with a dollar sign is a name
    "font.size": 9.5,
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that figures are the same everywhere
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.unicode_minus": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "text.color": INK,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
}
_WIDTH, _HEIGHT = 4.1, 3.3  # inches: 295 points, of which a phone shows each with more than a pixel


@dataclass(frozen=True)
class Style:
    """Of one series, in all figures of a page."""

    color: str
    dash: str
    marker: str


@dataclass(frozen=True)
class Figure:
    """A finished figure.

    Attributes:
        name: of its files.
        title, caption: for the page; the caption says units and n.
        png, svg: contents of its files.
        inline: SVG for the page, with the page's colours as variables.
    """

    name: str
    title: str
    caption: str
    png: bytes
    svg: str
    inline: str


# So that an arm looks the same on every page, and a run named for one like it; others take what is left.
_PREFERRED = {
    "grpo-matched": (0,),
    "grpo": (0, 5),
    "ta-grpo": (1,),
    "ta-pull": (2,),
    "ta-own-prompt": (3,),
    "rephrased-data": (4,),
    "ta-both": (6,),
    "base": (7,),
}


def styles(names: Sequence[str]) -> dict[str, Style]:
    """Series -> style."""
    places: dict[str, int] = {}
    for name in sorted(names, key=lambda name: (name not in _PREFERRED, len(_PREFERRED.get(name, ())))):
        free = [place for place in range(len(_STYLES)) if place not in places.values()] or [len(places) % len(_STYLES)]
        wished = [place for place in _PREFERRED.get(name, ()) if place in free]
        places[name] = (wished or free)[0]
    return {name: Style(*_STYLES[places[name]]) for name in names}


@contextmanager
def drawing(height: float = _HEIGHT) -> Iterator[tuple[Any, Any]]:
    """A figure and its axes, in our style."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context(_RC):
        canvas = Canvas(figsize=(_WIDTH, height), layout="constrained")
        yield canvas, canvas.subplots()


def finished(canvas: Any, name: str, title: str, caption: str) -> Figure:
    """The files of a drawing; the same drawing gives the same bytes."""
    import matplotlib

    png, svg = io.BytesIO(), io.StringIO()
    with matplotlib.rc_context({**_RC, "svg.hashsalt": name}):
        canvas.savefig(png, format="png", dpi=200, metadata={"Software": None})
        canvas.savefig(svg, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = svg.getvalue()
    return Figure(name, title, caption, png.getvalue(), text, inline_svg(text, name, f"{title}. {caption}"))


_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"


def inline_svg(svg: str, name: str, label: str) -> str:
    """matplotlib's SVG made fit for a page: its own ids, no style attributes or elements, the page's font and colours.

    A page with a strict content security policy takes no style attributes, and a style element would reach the whole
    page. Presentation attributes say the same.
    """
    ET.register_namespace("", _SVG)
    root = ET.fromstring(svg)  # noqa: S314 - what matplotlib has just written
    for parent in root.iter():
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    used = set(re.findall(r"(?:url\(|href=\")#([\w.-]+)", svg))
    for element in root.iter():
        _own_ids(element, name, used)
        _presentation(element)
    view = root.get("viewBox", "")
    root.attrib.clear()
    root.attrib.update(
        {"viewBox": view, "role": "img", "aria-label": label, "stroke-linejoin": "round", "stroke-linecap": "butt"}
    )
    return ET.tostring(root, encoding="unicode")


def _own_ids(element: ET.Element, name: str, used: set[str]) -> None:
    identity = element.attrib.pop("id", None)
    if identity in used:
        element.set("id", f"{name}-{identity}")
    href = element.attrib.pop(f"{{{_XLINK}}}href", None)
    if href is not None:
        element.set("href", f"#{name}-{href.removeprefix('#')}")
    if "clip-path" in element.attrib:
        element.set("clip-path", element.attrib["clip-path"].replace("#", f"#{name}-"))


def _presentation(element: ET.Element) -> None:
    for declaration in element.attrib.pop("style", "").split(";"):
        key, _, value = (part.strip() for part in declaration.partition(":"))
        if key and key != "font-family":
            element.set(key, value)
    for key in ("fill", "stroke"):
        variable = _VARIABLES.get(element.get(key, ""))
        if variable:
            element.set(key, f"var({variable})")


def legend(canvas: Any, axes: Any, columns: int = 2) -> None:
    """Below the axes, so that it covers nothing."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        canvas.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)), handlelength=2.6)
