"""``glance law``: does the target's entropy say how far a draft gets?"""

from sglang.glance.law.cli import main

__all__ = ["main"]
