"""A picture as every command reads it, and as every command sends it."""

from __future__ import annotations

import base64
import io
import struct
from pathlib import Path

from PIL import Image, UnidentifiedImageError

ADDRESSES = ("http://", "https://")
SHOWN = 200  # characters of a reference in an error: a data URL is long
# What PIL raises for a file that is no picture, is cut short, or is too large to decode.
UNREADABLE = (OSError, SyntaxError, ValueError, struct.error, Image.DecompressionBombError)


def is_address(name: str) -> bool:
    return name.startswith(ADDRESSES)


def is_path(name: str) -> bool:
    return not is_address(name) and not name.startswith("data:")


def shown(name: str) -> str:
    return name if len(name) <= SHOWN else f"{name[:SHOWN]}..."


def content(name: str) -> bytes:
    """The file's bytes. ``name``: a path or a data URL. Raises ``ValueError``."""
    if is_address(name):
        raise ValueError(
            f"picture {shown(name)}: addresses are not fetched here; expected a path or a data URL"
        )
    if is_path(name):
        try:
            return Path(name).read_bytes()
        except OSError as error:
            raise ValueError(f"picture {shown(name)} cannot be read: {error.strerror}") from error
    kind, comma, coded = name.partition(",")
    if not comma or not kind.endswith(";base64"):
        raise ValueError(f"picture {shown(name)}: expected data:image/KIND;base64,DATA")
    try:
        return base64.b64decode(coded, validate=True)
    except ValueError as error:
        raise ValueError(f"picture {shown(name)} is not base64: {error}") from error


def decode(data: bytes) -> Image.Image:
    """The RGB pixels that a SGLang server of these targets makes of the same file with PIL.

    Transparency is dropped, a rotation noted in EXIF is not carried out, and of several frames the
    first counts. 16-bit grey and floating-point pictures are refused: PIL's conversion turns all
    values above 255 white. (16-bit RGB PNGs are read by PIL as 8-bit ones.)
    """
    with Image.open(io.BytesIO(data)) as image:
        if image.mode in ("I", "F") or image.mode.startswith("I;"):
            raise ValueError(f"mode {image.mode}: expected 8 bits a channel, convert it first")
        image.load()
        rgb = image.convert("RGB")
    rgb.info = {}  # a colour that means transparent, a colour profile: of the old mode
    return rgb


def picture(name: str) -> Image.Image:
    """All of it decoded, so that a file cut short shows now. ``name``: a path or a data URL."""
    data = content(name)
    try:
        return decode(data)
    except UnidentifiedImageError as error:
        raise ValueError(f"picture {shown(name)} is of no kind that PIL reads") from error
    except UNREADABLE as error:
        raise ValueError(f"picture {shown(name)} cannot be decoded: {error}") from error


def sendable(name: str) -> str:
    """A data URL that holds the pixels of :func:`decode`, for both of SGLang's endpoints.

    An RGB PNG is sent as it is. Everything else is sent as a PNG of its decoded pixels, JPEGs
    too: a GPU server decodes them with nvJPEG, whose pixels are not PIL's, which the trainer's
    processor gets. Bare base64 would not do, since SGLang takes what begins with a slash for a
    path. An ``http`` address stays one.
    """
    if is_address(name):
        return name
    data = content(name)
    with Image.open(io.BytesIO(data)) as image:
        as_it_is = (image.format, image.mode) == ("PNG", "RGB")
    if not as_it_is:
        out = io.BytesIO()
        decode(data).save(out, "PNG", compress_level=1)
        data = out.getvalue()
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"
