"""Open a picture or a sound from its path, its address, or the form in which a data set holds it.

The Hub carries this with the model. Pillow is needed only for pictures, and SciPy only for sounds of another
rate than the model's.
"""

import base64
import io
import math
import os
import reprlib
import wave
from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from transformers.audio_utils import load_audio
from transformers.image_utils import load_image

Image: Any
ImageOps: Any
try:  # texts and numbers do not need it
    from PIL import Image, ImageOps
except ImportError:
    Image = ImageOps = None

_SHOWN = 80  # characters of what was given, in an error
_RATES = range(100, 1_000_001)  # samples a second that a sound may have


def is_picture(value: Any) -> bool:
    """Whether something is a picture that has been opened."""
    return Image is not None and isinstance(value, Image.Image)


def opened_picture(content: Any, number: int) -> Any:
    """Open a picture: upright, in RGB.

    Args:
        content: an open picture; or the path or address of its file; or its bytes, as a data set
            holds them.
        number: of the item, for errors.

    Returns:
        A Pillow image.

    Raises:
        OSError: if there is no such file, or it cannot be read.
        TypeError: if it is none of these.
        ValueError: if it is not a picture, or has more than 8 bits per channel.
    """
    if Image is None:
        raise ImportError("pictures need Pillow: pip install pillow.")
    if isinstance(content, Mapping) and {*content} <= {"path", "bytes"}:
        stored = content.get("bytes")
        content = (
            content.get("path")
            if stored is None
            else _tried(_upright, io.BytesIO(stored), "a picture", number)
        )
    if isinstance(content, str) and content.startswith(("http://", "https://")):
        content = _tried(load_image, content, "a picture", number)
    elif isinstance(content, str | os.PathLike):
        check_file(content, "a picture", number)
        content = _tried(_upright, os.fspath(content), "a picture", number)
    if not is_picture(content):
        raise TypeError(
            f"`image` must be a picture, or the path of one, got {type(content).__name__} "
            f"{short(content)} at item {number}."
        )
    if content.mode.startswith(("I", "F")):
        raise ValueError(
            f"`image` must have 8 bits per channel, got mode {content.mode!r} at item {number}, which RGB "
            "would cut off: scale it."
        )
    return _tried(in_rgb, content, "a picture", number)


def in_rgb(picture: Any) -> Any:
    """Turn a picture into 8 bits of red, green and blue."""
    if "transparency" in picture.info:  # Pillow warns when it has to drop this itself
        picture = picture.convert("RGBA")
    return picture.convert("RGB")


def opened_sound(content: Any, rate: int, number: int) -> Any:
    """Read a sound as numbers, at the rate that a classifier takes.

    WAV files of whole numbers need no library. Others are read by torchcodec or soundfile, whichever is
    installed.

    Args:
        content: (T,) samples at `rate`; or a dict with `array` and `sampling_rate`, with `bytes` and
            `path`, or a decoder, as a data set has them; or the path or address of a file. A file's
            channels are averaged.
        rate: samples per second that the classifier takes. A sound of another rate is resampled.
        number: of the item, for errors.

    Returns:
        (T,) float32, a numpy array.

    Raises:
        OSError: if there is no such file, or it cannot be read.
        TypeError: if it is none of these.
        ValueError: if it is not a sound, has no samples, several channels or an unknown rate, or is not
            finite.

    Example:
        >>> opened_sound({"array": [0.0, 0.5] * 100, "sampling_rate": 8000}, 16_000, number=0).shape
        (400,)
    """
    given: Any = rate
    name = None  # of the file, for errors
    if isinstance(content, Mapping) and {*content} <= {"path", "bytes"}:
        stored, name = content.get("bytes"), content.get("path")
        content = name if stored is None else bytes(stored)
    if isinstance(content, str | os.PathLike | bytes):
        source = content if isinstance(content, bytes) else os.fspath(content)
        if isinstance(source, str) and not source.startswith(("http://", "https://")):
            check_file(source, "a sound", number)
        shown = name or source
        content, given = _tried(lambda _: _read_sound(source, rate), shown, "a sound", number)
    elif hasattr(content, "get_all_samples"):
        samples = content.get_all_samples()
        content, given = samples.data.mean(dim=0), samples.sample_rate
    elif isinstance(content, Mapping):
        given = content.get("sampling_rate")
        content = content.get("array", content.get("raw"))
    try:
        samples = torch.as_tensor(content if hasattr(content, "__array__") else listed(content))
        samples = samples.detach().cpu()
    except (ValueError, TypeError, RuntimeError, OverflowError, RecursionError) as error:
        raise TypeError(
            f"`audio` must be samples, a dict with `array` and `sampling_rate`, or the path of a sound, "
            f"got {type(content).__name__} {short(content)} at item {number}."
        ) from error
    if not samples.numel():
        raise ValueError(f"`audio` must have samples, got none at item {number}: leave it out.")
    if not samples.is_floating_point():
        raise ValueError(
            f"`audio` must have samples in -1..1, got whole numbers ({str(samples.dtype)[6:]}) at item "
            f"{number}: divide those of 16 bits by 32768."
        )
    samples = samples.float()
    if samples.ndim != 1 or not samples.isfinite().all():
        raise ValueError(
            f"`audio` must be finite samples of one channel, got the shape {tuple(samples.shape)}"
            f"{'' if samples.isfinite().all() else ' with NaN or infinity'} at item {number}."
        )
    return (samples if given == rate else _resampled(samples, given, rate, number)).numpy()


def _resampled(samples: Tensor, given: Any, rate: int, number: int) -> Tensor:
    """Resample (T,) samples from one rate to another."""
    if not isinstance(given, Real) or given not in _RATES:
        raise ValueError(
            f"`audio` must have from {_RATES[0]} to {_RATES[-1]:,} samples a second, got {short(given)} at item "
            f"{number}: say it as `sampling_rate`."
        )
    try:
        from scipy.signal import resample_poly
    except ImportError as error:
        raise ImportError(
            f"`audio` must have {rate} samples a second, got {short(given)} at item {number}: resample it, or "
            "install what does: pip install scipy."
        ) from error
    whole = round(float(given))
    common = math.gcd(whole, rate)
    resampled = resample_poly(samples.numpy(), rate // common, whole // common)
    return torch.from_numpy(resampled).float()


def check_file(path: str | os.PathLike[str], what: str, number: int) -> None:
    """Raise unless there is such a file."""
    name = os.fspath(path)
    try:
        is_file, is_there = os.path.isfile(name), os.path.exists(name)
    except ValueError:  # a NUL
        is_file = is_there = False
    if not is_file:
        raise FileNotFoundError(
            f"item {number} must be {what} or the path of one, got {short(name)}: there is "
            f"{'a folder' if is_there else 'no such file'}."
        )


def _upright(file: Any) -> Any:
    with Image.open(file) as picture:
        return ImageOps.exif_transpose(picture)  # the pixels are read before the file closes


def _read_sound(source: str | bytes, rate: int) -> tuple[Any, int]:
    """Read a file, given by its path, address or bytes: samples, and how many a second has."""
    if not isinstance(source, str) or not source.startswith(("http://", "https://")):
        try:
            return _read_wav(io.BytesIO(source) if isinstance(source, bytes) else source)
        except (wave.Error, EOFError):  # another format
            pass
    if isinstance(source, bytes):
        source = f"data:;base64,{base64.b64encode(source).decode()}"
    try:
        return load_audio(source, sampling_rate=rate), rate
    except ImportError as error:
        raise ImportError(
            "only WAV files of whole numbers can be read without soundfile or torchcodec: pip install "
            "soundfile soxr"
        ) from error


def _read_wav(file: Any) -> tuple[Tensor, int]:
    with wave.open(file, "rb") as sound:
        channels, width, rate, length = sound.getparams()[:4]
        frames = bytearray(sound.readframes(length))
    if len(frames) < length * channels * width:
        raise ValueError(
            f"the file ends after {len(frames) // (channels * width)} of {length} samples"
        )
    if not frames:
        return torch.zeros(0), rate
    if width == 3:
        low, middle, high = torch.frombuffer(frames, dtype=torch.uint8).view(-1, 3).int().unbind(1)
        numbers = low | middle << 8 | (high - 256 * (high > 127)) << 16
    else:
        kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[width]
        numbers = torch.frombuffer(frames, dtype=kind)
    whole = numbers.double() - (128 if width == 1 else 0)  # those of 8 bits have no sign
    return whole.view(-1, channels).mean(dim=1).float() / 2 ** (8 * width - 1), rate


def _tried(read: Any, source: Any, what: str, number: int) -> Any:
    """Read, and name the item and the file if that fails."""
    try:
        return read(source)
    except Exception as error:
        kind = OSError if isinstance(error, OSError) and error.errno else ValueError
        raise kind(
            f"item {number} must be {what} that can be read, got {short(source)}: {short(error)}."
        ) from error


def listed(value: Any) -> Any:
    """Turn lists of tensors or arrays into lists of numbers; torch reads the rest."""
    if isinstance(value, list | tuple):
        return [listed(part) for part in value]
    return value.tolist() if hasattr(value, "tolist") else value


def plain(value: Any) -> Any:
    """Return a single number of numpy or torch as Python's own, and anything else as it is.

    Example:
        >>> plain(Tensor([2.0])), plain("two")
        (2.0, 'two')
    """
    return value.item() if hasattr(value, "item") else value


def short(value: Any) -> str:
    """Describe a value in a few characters; a picture's bytes would fill the screen.

    Example:
        >>> short([1, None]), short("x" * 1000)[:9], len(short("x" * 1000))
        ('[1, None]', "'xxxxxxxx", 80)
    """
    if isinstance(value, str | bytes):
        value = value[:1000]  # of a file's bytes no more is shown
    elif isinstance(value, list | dict | tuple) and len(value) > 100:
        return reprlib.repr(value)
    elif type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
        value = value.item()
    try:
        text = str(value) if isinstance(value, Exception) else repr(value)
    except Exception:
        text = f"a {type(value).__name__}"
    text = " ".join(text.split()).rstrip(".")
    most = 300 if isinstance(value, Exception) else _SHOWN
    return text if len(text) <= most else f"{text[: most - 3]}..."


__all__ = ["in_rgb", "is_picture", "listed", "opened_picture", "opened_sound", "plain", "short"]
