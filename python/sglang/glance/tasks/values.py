"""Strings to read: words, codes, numbers, prices, dates. No string serves both splits."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable

from .sample import Split

HELD_OUT_SHARE = 8  # one string in so many is held out
_WORDS = """
ACORN AGENT ALBUM AMBER ANCHOR ANGLE APPLE APRON ARENA ARROW ATLAS BACON BADGE BAKER BANJO BARLEY
BASIN BEACH BEACON BERRY BIRCH BISON BLADE BLOOM BOOTH BOTTLE BRICK BRIDGE BROOK BRUSH BUCKET BUTTER
CABIN CACTUS CAMEL CAMERA CANAL CANDLE CANOE CANYON CARBON CARGO CARPET CASTLE CEDAR CELLAR CEREAL
CHALK CHERRY CIDER CINEMA CIRCUS CLAY CLOVER COAST COBALT COCOA COFFEE COMET COPPER CORAL COTTON
CRANE CRATER CREEK CRUST CRYSTAL DAIRY DAISY DELTA DENIM DESERT DINER DOLPHIN DRAGON EAGLE EASEL
ECHO ELBOW EMBER ENGINE FABRIC FALCON FARMER FENNEL FERRY FIDDLE FJORD FLAME FLINT FLOUR FOREST
FOSSIL FROST GALAXY GARDEN GARLIC GINGER GLACIER GLOVE GOBLET GRAIN GRAVEL GUITAR HAMMER HARBOR
HARVEST HAZEL HELMET HERON HONEY HORIZON HOTEL ICEBERG INDIGO ISLAND IVORY JACKET JAGUAR JASMINE
JIGSAW JUNGLE KAYAK KERNEL KETTLE KITTEN KIWI LADDER LAGOON LANTERN LAVA LEMON LILAC LINEN LIZARD
LOBSTER LUNAR MAGNET MANGO MAPLE MARBLE MARINA MARKET MEADOW MELON METEOR MIRROR MITTEN MORTAR
MUFFIN MUSEUM MUSTARD NECTAR NEEDLE NICKEL NOODLE NUTMEG OASIS OCEAN OLIVE ONION ONYX ORBIT ORCHID
OTTER OYSTER PADDLE PALACE PANDA PAPER PARADE PASTEL PEBBLE PENCIL PEPPER PIANO PILLOW PILOT PLAZA
PLUM POCKET POLAR POPPY POTTER PRAIRIE PUZZLE QUARTZ QUILT RABBIT RADAR RAVEN RIBBON RIVER ROCKET
RUBBER SADDLE SAFFRON SALMON SANDAL SATIN SHADOW SIGNAL SILVER SKETCH SLATE SPARROW SPRUCE STABLE
STUDIO SUMMIT SUNSET TEMPLE THISTLE THUNDER TIGER TIMBER TOFFEE TULIP TUNNEL TURTLE VALLEY VELVET
VIOLET VIOLIN VOYAGE WAFFLE WALNUT WHEAT WILLOW WINTER YARROW YOGURT ZEBRA ZENITH ZIGZAG
"""
WORDS = tuple(_WORDS.split())
_ONSETS = (
    *"BCDGHJKLMNPRSTVWZ",
    "BR",
    "CH",
    "CL",
    "DR",
    "FL",
    "GR",
    "KR",
    "PL",
    "SL",
    "ST",
    "TH",
    "TR",
)
_VOWELS = (*"AEIOUAEIO", "AI", "EA", "OO")
_CODAS = ("", "", "", "L", "N", "R", "M", "ND", "RT", "SK", "X")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_CODE_CHARACTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"


def split_of(value: str) -> Split:
    """The split that owns a string, by its CRC-32."""
    return "heldout" if zlib.crc32(value.encode()) % HELD_OUT_SHARE == 0 else "train"


class Values:
    """Random strings of one split, none twice; ``drawn`` lists them in order."""

    def __init__(self, rng: random.Random, split: Split) -> None:
        self.rng = rng
        self.split = split
        self.drawn: list[str] = []

    def _owned(self, draw: Callable[[], str]) -> str:
        while split_of(value := draw()) != self.split or value in self.drawn:
            continue
        self.drawn.append(value)
        return value

    def word(self, longest: int = 7) -> str:
        """A dictionary word, an invented name or plain letters, in capitals: what it is must be
        read, it cannot be guessed from its start."""

        def draw() -> str:
            known = [word for word in WORDS if len(word) <= longest]
            choice = self.rng.random()
            if len(known) > 50 and choice < 0.35:  # of few, one would be the only held-out one
                return self.rng.choice(known)
            if choice < 0.55:
                return "".join(self.rng.choices(_LETTERS, k=self.rng.randint(2, longest)))
            while len(word := self._invented()) > longest:
                continue
            return word

        return self._owned(draw)

    def _invented(self) -> str:
        syllables = self.rng.choice((1, 2, 2))
        return "".join(
            self.rng.choice(_ONSETS) + self.rng.choice(_VOWELS) + self.rng.choice(_CODAS)
            for _ in range(syllables)
        )

    def code(self) -> str:
        """4 to 6 letters and digits."""
        length = self.rng.randint(4, 6)
        return self._owned(lambda: "".join(self.rng.choices(_CODE_CHARACTERS, k=length)))

    def number(self, low: int, high: int) -> str:
        return self._owned(lambda: str(self.rng.randint(low, high)))

    def price(self, high: int = 99) -> str:
        return self._owned(lambda: f"{self.rng.randint(1, high)}.{self.rng.randint(0, 99):02d}")

    def tenths(self, high: int) -> str:
        return self._owned(lambda: f"{self.rng.randint(1, high)}.{self.rng.randint(1, 9)}")

    def bill(self, count: int) -> tuple[list[str], str]:
        """Prices and their sum."""
        while True:
            cents = [self.rng.randint(50, 1999) for _ in range(count)]
            *prices, total = (f"{each // 100}.{each % 100:02d}" for each in (*cents, sum(cents)))
            if {split_of(text) for text in (*prices, total)} == {self.split}:
                self.drawn += [*prices, total]
                return prices, total

    def date(self) -> str:
        def draw() -> str:
            day, month, year = (self.rng.randint(*ends) for ends in ((1, 28), (1, 12), (20, 39)))
            return f"{day:02d}/{month:02d}/{year}"

        return self._owned(draw)

    def time(self) -> str:
        return self._owned(lambda: f"{self.rng.randint(0, 23):02d}:{self.rng.randint(0, 59):02d}")

    def amount(self) -> str:
        """What an infographic shows large: 48, 3.2K, 75%, 12M."""

        def draw() -> str:
            kind = self.rng.randrange(4)
            if kind == 0:
                return f"{self.rng.randint(1, 9)}.{self.rng.randint(1, 9)}K"
            if kind == 1:
                return f"{self.rng.randint(2, 98)}%"
            if kind == 2:
                return f"{self.rng.randint(2, 99)}M"
            return str(self.rng.randint(10, 999))

        return self._owned(draw)
