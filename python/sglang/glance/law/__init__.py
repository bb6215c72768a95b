"""``python -m sglang.glance law``: does the target's entropy say how far a draft gets?"""

from sglang.glance.law.command import main

__all__ = ["main"]
