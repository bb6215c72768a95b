"""What the engine tests start: the shipped models behind a real server."""

from sglang.glance.assets import HEAD, PICTURES, READER
from sglang.glance.server import Answer, Server, chat, picture_prompts, serve

GLANCE = ("--speculative-algorithm", "GLANCE", "--speculative-draft-model-path", str(HEAD))

__all__ = [
    "GLANCE", "HEAD", "PICTURES", "READER", "Answer", "Server", "chat", "picture_prompts", "serve"
]
