"""Charts, drawn by matplotlib: bars standing and lying, lines, pies."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

import numpy as np
from PIL import Image

from . import trace
from .canvas import face, finished
from .icons import COLOURS
from .phrases import expand, joined, sentence
from .sample import HEIGHT, WIDTH, Asked, Picture, Split
from .values import Values

DPI = 100
_ALL = ("Read the chart.", "List the values in the chart.", "What does the chart show?")
_STYLES = ("default", "ggplot", "bmh", "fast", "grayscale")
# family: the face of it
_FAMILIES = {
    "DejaVu Sans": "DejaVuSans",
    "DejaVu Serif": "DejaVuSerif",
    "DejaVu Sans Mono": "DejaVuSansMono",
    "STIXGeneral": "STIXGeneral",
}
# The labels of two thin slices side by side would cover each other.
_SCALES: dict[str, Callable[[Values], str]] = {
    "slices": lambda values: values.number(25, 75),
    "units": lambda values: values.number(5, 98),
    "hundreds": lambda values: values.number(100, 980),
    "tenths": lambda values: values.tenths(30),
}
_OPENERS = ("[|In the chart |Here ]", "[|The chart [shows|gives|lists] |In it, |We read |It has ]")
_IS = "[is|is at|has|stands at|shows|reaches]"


def chart(rng: random.Random, split: Split) -> Picture:
    """Three to five values with their names; every value is printed beside its mark."""
    values = Values(rng, split)
    kind = rng.choice(("bars", "bars", "lying bars", "line", "pie"))
    count = rng.randint(3, 4 if kind in ("lying bars", "pie") else 5)
    longest = {"lying bars": 6, "pie": 4}.get(kind, 8 - count)
    names = [values.word(longest) for _ in range(count)]
    scale = "slices" if kind == "pie" else rng.choice(("units", "units", "hundreds", "tenths"))
    amounts = [_SCALES[scale](values) for _ in names]
    image = finished(_drawn(kind, names, amounts, rng), rng, 0.7)
    facts = list(zip(names, amounts, strict=True))
    return Picture(kind, image, tuple(values.drawn), functools.partial(_asked, facts))


def _asked(facts: list[tuple[str, str]], rng: random.Random) -> Asked:
    choice = rng.random()
    if choice < 0.55:
        told = tuple(text for name, amount in facts for text in (name, amount))
        return rng.choice(_ALL), _listed(facts, rng), told
    if choice < 0.75:
        name, amount = rng.choice(facts)
        prompt = expand(f"[What is the value of {name}?|How large is {name}?]", rng)
        answer = f"[{name} {_IS} {amount}|The value [of|for] {name} is {amount}|It is {amount}]"
        return prompt, sentence(expand(answer, rng)), (amount,)
    if choice < 0.9:
        most = rng.random() < 0.5
        name, amount = (max if most else min)(facts, key=lambda fact: float(fact[1]))
        word = "highest" if most else "lowest"
        prompt = expand(f"[Which value is the {word}?|Name the {word} one.]", rng)
        answer = f"[The {word} [is|one is|value is that of]|It is] {name}[ with| at|, at] {amount}"
        return prompt, sentence(expand(answer, rng)), (name, amount)
    (one, first), (two, second) = rng.sample(facts, 2)
    prompt = expand(f"[Compare {one} and {two}.|Is {one} larger than {two}?]", rng)
    relation = "[larger|higher|more]" if float(first) > float(second) else "[smaller|lower|less]"
    answer = (
        f"{one} [is|has] {relation} than {two}: {first} [against|to|versus] {second}"
        f"|{one} {_IS} {first} and {two} {_IS} {second}, so {one} is {relation}"
    )
    return prompt, sentence(expand(f"[{answer}]", rng)), (first, second)


def _listed(facts: list[tuple[str, str]], rng: random.Random) -> str:
    style = rng.randrange(3)
    if style == 0:
        mark = rng.choice((" = ", ": ", " "))
        opener = expand("[|The values are\n|Read from the chart:\n]", rng)
        return opener + "\n".join(f"{name}{mark}{amount}" for name, amount in facts)
    verb = _IS if style == 1 else rng.choice(("at", "with", "as"))
    parts = [expand(f"{name} {verb} {amount}", rng) for name, amount in facts]
    return sentence(expand(_OPENERS[style - 1], rng) + joined(parts, rng))


@functools.cache
def _pyplot():
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _drawn(kind: str, names: list[str], amounts: list[str], rng: random.Random) -> Image.Image:
    pyplot = _pyplot()
    family = rng.choice(tuple(_FAMILIES))
    style = {"font.family": family, "font.size": rng.uniform(8.5, 9.5)}
    inks = [np.array(shades[0]) / 255 for name, shades in COLOURS.items() if name != "white"]
    colours = rng.sample(inks, len(names))
    if rng.random() < 0.5:
        colours = colours[:1] * len(names)
    with pyplot.style.context([rng.choice(_STYLES), style]):
        figure, axes = pyplot.subplots(figsize=(WIDTH / DPI, HEIGHT / DPI), dpi=DPI)
        _MARKS[kind](axes, names, amounts, colours, rng)
        figure.subplots_adjust(left=0.03, right=0.97, bottom=0.17, top=0.97)
        if kind == "lying bars":
            figure.subplots_adjust(left=0.34, bottom=0.03)
        elif kind == "pie":
            figure.subplots_adjust(left=0.2, right=0.8, bottom=0.16, top=0.84)
        figure.canvas.draw()
        _told(axes, face(_FAMILIES[family], 12))
        pixels = np.asarray(figure.canvas.buffer_rgba())[..., :3].copy()
        pyplot.close(figure)
    return Image.fromarray(pixels)


def _told(axes, font) -> None:
    """Every written text, to who listens."""
    from matplotlib.text import Text

    for text in axes.findobj(lambda artist: isinstance(artist, Text) and artist.get_text()):
        box, words = text.get_window_extent(), text.get_text()
        if not text.get_visible() or box.x0 <= 0:
            continue
        stretch = box.width / font.getlength(words)
        inked = font.getbbox(words)
        middle = HEIGHT - (box.y0 + box.y1) / 2
        trace.text((box.x0, middle - (inked[1] + inked[3]) / 2), words, font, stretch=stretch)


def _bare(axes, rng: random.Random) -> None:
    """No scale: the values are printed."""
    axes.tick_params(length=0, pad=2)
    axes.grid(rng.random() < 0.3)
    axes.set_axisbelow(True)
    for side in rng.sample(("top", "right", "left"), rng.randint(0, 3)):
        axes.spines[side].set_visible(False)


def _bars(axes, names: list[str], amounts: list[str], colours: list, rng: random.Random) -> None:
    sizes = [float(amount) for amount in amounts]
    drawn = axes.bar(names, sizes, color=colours, width=rng.uniform(0.5, 0.8))
    axes.bar_label(drawn, amounts, padding=1)
    axes.set_ylim(0, max(sizes) * 1.25)
    axes.set_yticks([])
    _bare(axes, rng)


def _lying(axes, names: list[str], amounts: list[str], colours: list, rng: random.Random) -> None:
    sizes = [float(amount) for amount in amounts]
    drawn = axes.barh(names, sizes, color=colours, height=rng.uniform(0.5, 0.8))
    axes.bar_label(drawn, amounts, padding=2)
    axes.set_xlim(0, max(sizes) * 1.35)
    axes.invert_yaxis()
    axes.set_xticks([])
    _bare(axes, rng)


def _line(axes, names: list[str], amounts: list[str], colours: list, rng: random.Random) -> None:
    sizes = [float(amount) for amount in amounts]
    axes.plot(names, sizes, marker=rng.choice("osD^"), markersize=4, color=colours[0])
    for place, amount in zip(enumerate(sizes), amounts, strict=True):
        axes.annotate(amount, place, xytext=(0, 4), textcoords="offset points", ha="center")
    axes.set_ylim(min(sizes) - 0.2 * max(sizes), 1.3 * max(sizes))
    axes.set_xlim(-0.4, len(names) - 0.6)
    axes.set_yticks([])
    _bare(axes, rng)


def _pie(axes, names: list[str], amounts: list[str], colours: list, rng: random.Random) -> None:
    labels = [f"{name} {amount}" for name, amount in zip(names, amounts, strict=True)]
    axes.pie(
        [float(amount) for amount in amounts],
        labels=labels,
        colors=None if colours[0] is colours[-1] else [(*colour, 0.75) for colour in colours],
        startangle=90,  # and with the clock: where the first one is, is not to be seen otherwise
        counterclock=False,
        labeldistance=1.1,
        wedgeprops={"linewidth": 1, "edgecolor": "white"},
    )


_MARKS = {"bars": _bars, "lying bars": _lying, "line": _line, "pie": _pie}
