"""The model, head and pictures that ship with the package."""

from pathlib import Path

DATA = Path(__file__).resolve().parent / "data"
READER = DATA / "reader"
HEAD = DATA / "glance-head"
PICTURES = DATA / "pictures"
