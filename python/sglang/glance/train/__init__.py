"""``glance train``: makes a GLANCE head for a Qwen3-VL or Qwen2.5-VL target.

In this order: ``check`` refuses wrong input, ``generate`` writes the target's own answers, ``taps``
its states, ``loop`` trains ``head`` on ``blocks`` of them, ``measure`` and ``card`` say what came
out.
"""

from sglang.glance.train.cli import main

__all__ = ["main"]
