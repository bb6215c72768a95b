"""The model, heads and held-out pictures that ship with the package."""

from pathlib import Path

DATA = Path(__file__).resolve().parent
READER = DATA / "reader"
HEAD = DATA / "glance-head"
EAGLE3_HEAD = DATA / "eagle3-head"
PICTURES = DATA / "pictures"
