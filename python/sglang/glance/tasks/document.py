"""Documents: forms, receipts and short letters; all of one is read, or a part is asked for."""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass

from PIL import Image, ImageDraw

from .canvas import FACES, dark, face, finished, page, text_size
from .phrases import expand, joined, sentence
from .sample import HEIGHT, WIDTH, Asked, Picture, Split
from .trace import write
from .values import Values

FIELDS = {
    "Name": "word", "City": "word", "Item": "word", "Street": "word", "Guest": "word",
    "Order": "count", "Room": "count", "Seat": "code", "Code": "code", "Model": "code",
    "Flight": "code", "Total": "price", "Price": "price", "Fee": "price", "Date": "date",
    "Due": "date", "Time": "time", "Gate": "count",
}  # fmt: skip
_SUM = "[. The total is |, in all |. Total: |; sum ]"
_READ = ("Read the document.", "Transcribe this.", "What does the document say?", "Read all lines.")


@dataclass(frozen=True)
class Line:
    """What stands at the left and, aligned right or after it, at the right."""

    left: str
    right: str = ""


def document(rng: random.Random, split: Split) -> Picture:
    """One of the three kinds, forms most often."""
    return rng.choice((_form, _form, _receipt, _letter))(rng, Values(rng, split))


def _value(kind: str, values: Values) -> str:
    if kind == "count":
        return values.number(2, 9999)
    return getattr(values, kind)()


def _form(rng: random.Random, values: Values) -> Picture:
    labels = rng.sample(tuple(FIELDS), rng.randint(3, 5))
    facts = [(label, _value(FIELDS[label], values)) for label in labels]
    colon = rng.choice((":", ":", "", " -"))
    image = _typeset([Line(f"{label}{colon}", value) for label, value in facts], False, rng)
    return Picture("form", image, tuple(values.drawn), functools.partial(_ask_form, facts))


def _ask_form(facts: list[tuple[str, str]], rng: random.Random) -> Asked:
    if rng.random() < 0.35:
        asked = rng.sample(facts, rng.choice((1, 2)))
        names = " and the ".join(label for label, _ in asked)
        prompt = expand(f"[What is the {names}?|Give the {names}.|Find the {names}.]", rng)
    else:
        prompt, asked = rng.choice(_READ), facts
    return prompt, _facts(asked, rng), tuple(value for _, value in asked)


def _facts(facts: list[tuple[str, str]], rng: random.Random) -> str:
    """As a list of lines, or as prose."""
    if len(facts) > 1 and rng.random() < 0.5:
        opener = expand("[|The [form|document|page] [says|reads|states|lists]:\n|It reads:\n]", rng)
        mark = rng.choice(("", "- ", "* "))
        return opener + "\n".join(f"{mark}{label}: {value}" for label, value in facts)
    verb = "[is|reads|is given as|is]"
    parts = [expand(f"the {label} {verb} {value}", rng) for label, value in facts]
    opener = expand("[|According to the [form|document|page], |On the page, |Here ]", rng)
    return sentence(opener + joined(parts, rng))


def _receipt(rng: random.Random, values: Values) -> Picture:
    shop = values.word()
    names = [values.word(6) for _ in range(rng.randint(2, 3))]
    prices, total = values.bill(len(names))
    items = list(zip(names, prices, strict=True))
    lines = [Line(shop), *(Line(*item) for item in items), Line("TOTAL", total)]
    ask = functools.partial(_ask_receipt, shop, items, total)
    return Picture("receipt", _typeset(lines, True, rng), tuple(values.drawn), ask)


def _ask_receipt(shop: str, items: list[tuple[str, str]], total: str, rng: random.Random) -> Asked:
    kind = rng.randrange(5)
    if kind == 0:
        item, price = rng.choice(items)
        prompt = expand(f"[How much is the {item}?|What does {item} cost?]", rng)
        says = f"[The {item} costs {price}|It costs {price}|{item} is sold for {price}"
        answer = sentence(expand(f"{says}|The receipt lists {item} at {price}]", rng))
        told: tuple[str, ...] = (price,)
    elif kind == 1:
        prompt = expand("[What is the total?|Where was this bought and for how much?]", rng)
        says = f"[The total at {shop} is {total}|At {shop} the sum is {total}"
        answer = sentence(expand(f"{says}|{shop} asks {total} in all|It is {shop}, {total}]", rng))
        told = (shop, total)
    else:
        prompt = rng.choice(("Read the receipt.", "What was bought?", "List the items."))
        opener = expand(f"[{shop}: |The receipt of {shop} lists |At {shop} one bought ]", rng)
        each = rng.choice(("{} for {}", "{} at {}", "{} ({})", "{}, {}"))
        bought = joined([each.format(*item) for item in items], rng)
        answer = opener + bought + expand(_SUM, rng) + f"{total}."
        told = (shop, *(text for item in items for text in item), total)
    return prompt, answer, told


def _letter(rng: random.Random, values: Values) -> Picture:
    name, place, day, number = values.word(6), values.word(6), values.date(), values.code()
    lines = [
        Line(expand(f"[Dear|Hello|To] {name},", rng)),
        Line(expand(f"[your parcel|your order|item] {number}", rng)),
        Line(expand(f"[leaves|left|goes to] {place}", rng)),
        Line(expand(f"[on|by|before] {day}.", rng)),
    ]
    texts = (name, number, place, day)
    ask = functools.partial(_ask_letter, texts, [line.left for line in lines])
    return Picture("letter", _typeset(lines, False, rng), texts, ask)


def _ask_letter(texts: tuple[str, str, str, str], lines: list[str], rng: random.Random) -> Asked:
    _, _, place, day = texts
    if rng.random() < 0.3:
        prompt = expand("[When and where?|Give the date and the place.]", rng)
        says = f"[It is {place} [on|by] {day}|The place is {place} and the date {day}"
        answer = expand(f"{says}|{place}, [on|at] {day}]", rng)
        return prompt, sentence(answer), (place, day)
    opener = expand("[|The letter [says|reads]: |It [says|reads]: ]", rng)
    return rng.choice(_READ), opener + " ".join(lines), texts


def _typeset(lines: list[Line], portrait: bool, rng: random.Random) -> Image.Image:
    """Lines in one face; each off its place by up to 2 px."""
    size = (HEIGHT, WIDTH) if portrait else (WIDTH, HEIGHT)
    image = page(size, rng)
    draw = ImageDraw.Draw(image)
    name, pixels, ink = rng.choice(FACES), rng.randint(12, 15), dark(rng)
    longest = max(lines, key=lambda line: len(line.left) + len(line.right))
    while pixels > 10 and _line_width(longest, face(name, pixels)) > size[0] - 8:
        pixels -= 1
    font = face(name, pixels)
    gap = min((size[1] - 8) // len(lines), rng.randint(18, 30))
    top = rng.randint(3, max(3, size[1] - gap * len(lines)))
    left, column = rng.randint(3, 10), None
    if rng.random() < 0.5:
        column = left + max(text_size(line.left, font)[0] for line in lines) + rng.randint(6, 12)
        if column + max(text_size(line.right, font)[0] for line in lines) > size[0] - 2:
            column = None
    for number, line in enumerate(lines):
        x = left + rng.randint(-2, 2)
        y = top + number * gap + rng.randint(-2, 2)
        write(draw, (x, y), line.left, font, ink)
        if line.right:
            wide = text_size(line.right, font)[0]
            after = x + text_size(line.left, font)[0] + 7
            x = column or (size[0] - wide - left if portrait else after)
            write(draw, (min(x, size[0] - wide - 1), y), line.right, font, ink)
    return finished(image, rng)


def _line_width(line: Line, font) -> int:
    return text_size(f"{line.left} {line.right}", font)[0] + 12
