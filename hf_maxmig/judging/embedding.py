"""Pictures and sounds as the page embeds them: small, and in a form that every browser shows."""

import base64
import io
import os
import wave
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
from datasets import Image
from PIL import Image as Picture
from PIL import ImageOps

from ..model.opening import opened_sound

SECONDS = 10  # of a sound that is embedded at most, unless its file is small
THUMBNAIL = 160  # pixels of the longer side
_CLIP = 160_000  # bytes of a sound: ten seconds at the lowest rate
_RATES = (8000, 11025, 16000, 22050, 44100)
_PLAYED = {  # how files begin that every browser plays
    b"RIFF": "audio/wav", b"fLaC": "audio/flac", b"OggS": "audio/ogg", b"ID3": "audio/mpeg",
    b"\xff\xfb": "audio/mpeg", b"\xff\xf3": "audio/mpeg", b"\xff\xf2": "audio/mpeg",
}  # fmt: skip


def thumbnail(content: Any, pixels: int = THUMBNAIL) -> tuple[str, str] | None:
    """Bring a picture to a small JPEG.

    Args:
        content: its path, or a dict of path and bytes.
        pixels: of the longer side.

    Returns:
        A data URI and a remark, here empty; None if the picture cannot be read.
    """
    if content is None:
        return None
    stored = content if isinstance(content, dict) else {"path": content, "bytes": None}
    try:
        picture = _in_colour(ImageOps.exif_transpose(Image().decode_example(stored)))
        scale = pixels / max(picture.size)
        size = [max(1, round(side * scale)) for side in picture.size]
        way = Picture.Resampling.NEAREST if scale > 2 else Picture.Resampling.LANCZOS
        small = io.BytesIO()
        picture.resize((size[0], size[1]), way).save(small, "JPEG", quality=82, subsampling=0)
    except Exception:  # whatever a broken file raises, the page is about the others too
        return None
    return _uri("image/jpeg", small.getvalue()), ""


def _in_colour(picture: Picture.Image) -> Picture.Image:
    """Bring any mode to RGB: more than 8 bits by their own range, what is transparent to white."""
    if picture.mode[0] in "IF":
        values = np.nan_to_num(np.asarray(picture, dtype=np.float64))
        low, high = values.min(), values.max()
        grey = (255 * (values - low) / max(high - low, 1e-300)).astype(np.uint8)
        return Picture.fromarray(grey).convert("RGB")
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        paper = Picture.new("RGBA", picture.size, "white")
        return Picture.alpha_composite(paper, picture).convert("RGB")
    return picture.convert("RGB")


def player(content: Any) -> tuple[str, str] | None:
    """Bring a sound to a file of at most 160 kB.

    A file that is small enough and of a kind that browsers play stays as it is, and needs no decoder.
    Of others the first ten seconds are taken, as a WAV of one channel and a low rate; of a WAV the
    standard library reads them.

    Args:
        content: its path; a dict of path and bytes; or a dict of `array` and `sampling_rate`.

    Returns:
        A data URI and a remark on what is cut off; None if the sound cannot be read.
    """
    if content is None:
        return None
    try:
        if isinstance(content, Mapping) and "array" in content:
            samples, rate = content["array"], content["sampling_rate"]
            beginning = {"array": samples[: SECONDS * rate], "sampling_rate": rate}
            return _clip(beginning, rate, len(samples) / rate)
        stored = content if isinstance(content, Mapping) else {"path": content, "bytes": None}
        with _file_of(stored) as file:
            head, size = file.read(12), file.seek(0, os.SEEK_END)
            kind = next((kind for start, kind in _PLAYED.items() if head.startswith(start)), None)
            wav = _beginning(file) if kind == "audio/wav" else None
            if kind and size <= _CLIP:
                file.seek(0)
                return _uri(kind, file.read()), ""
        if wav is not None:
            return _clip(*wav)
        rate = _RATES[0]
        samples = opened_sound(stored, rate, 0)
        beginning = {"array": samples[: SECONDS * rate], "sampling_rate": rate}
        return _clip(beginning, rate, len(samples) / rate)
    except Exception:  # whatever a broken file raises, the page is about the others too
        return None


def _file_of(stored: Mapping[str, Any]) -> BinaryIO:
    given = stored.get("bytes")
    return io.BytesIO(given) if given is not None else open(stored["path"], "rb")


def _beginning(file: BinaryIO) -> tuple[Any, int, float] | None:
    """Cut off all but the first seconds of a WAV, without reading the rest.

    Returns:
        The beginning as a file, its rate, and how many seconds the whole has; None for a kind that the
        standard library does not read, such as one of floating-point numbers.
    """
    file.seek(0)
    try:
        with wave.open(file) as sound:
            form = sound.getparams()
            frames = sound.readframes(min(form.nframes, SECONDS * form.framerate))
    except wave.Error as error:
        if "unknown format" in str(error):
            return None
        raise
    if not frames:
        raise ValueError("a sound must have samples, got none.")
    return {"bytes": _written(form, frames)}, form.framerate, form.nframes / form.framerate


def _clip(beginning: Any, rate: int, seconds: float) -> tuple[str, str]:
    """Write the beginning of a sound as a WAV of one channel, at the highest rate that is small enough.

    Args:
        beginning: what `opened_sound` takes, of at most `SECONDS`.
        rate: samples per second.
        seconds: how long the whole sound is.
    """
    size = 2 * min(seconds, SECONDS)  # bytes at one sample per second
    lower = [low for low in _RATES if low < rate and low * size <= _CLIP]
    low = rate if rate * size <= _CLIP else max(lower, default=_RATES[0])
    samples = np.clip(opened_sound(beginning, low, 0), -1, 1) * 32767
    clip = _written((1, 2, low, 0, "NONE", ""), samples.round().astype("<i2").tobytes())
    remark = f"The first {SECONDS} of {seconds:,.0f} seconds" if seconds > SECONDS + 0.5 else ""
    return _uri("audio/wav", clip), remark


def _written(form: Any, frames: bytes) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams(form)
        sound.writeframes(frames)
    return file.getvalue()


def _uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
