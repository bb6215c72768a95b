"""``glance doctor``: would a server of this target and this head start in this very shell?

In this order: ``diagnose`` has a process of its own ``examine`` the host and try the flags, reads
the ``pair`` of target and head, and puts both into ``findings``.
"""

from sglang.glance.check.doctor.cli import main

__all__ = ["main"]
