"""What is embedded in the page: small, complete enough to judge an item, and never the cause of a failure."""

import base64
import io
import math
import wave

import numpy as np
import pytest
from PIL import Image as Picture

from hf_maxmig.judging.embedding import SECONDS, player, thumbnail
from tests.judging.pages import picture, tone

# Pictures


def opened(embedded):
    return Picture.open(io.BytesIO(base64.b64decode(embedded[0].partition(",")[2])))


def stored(picture, kind="PNG", **settings):
    file = io.BytesIO()
    picture.save(file, kind, **settings)
    return {"bytes": file.getvalue(), "path": None}


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "I;16", "RGB"])
def test_thumbnails_of_every_kind_are_small_and_in_colour(mode):
    """A 16-bit X-ray clipped to white, or an icon on black, cannot be judged."""
    size = (400, 100)
    ramp = np.tile(np.linspace(0, 1, size[0]), (size[1], 1))
    if mode == "I;16":
        image = Picture.fromarray((300 + 500 * ramp).astype("uint16"))
    else:
        image = Picture.fromarray((255 * ramp).astype("uint8")).convert(mode)
    assert image.mode == mode
    small = opened(thumbnail(stored(image)))
    assert (small.size, small.mode) == ((160, 40), "RGB")
    grey = np.asarray(small.convert("L"), dtype=float)
    assert grey[:, :20].mean() < 60
    assert grey[:, -20:].mean() > 195


def test_thumbnail_is_turned_upright_and_transparent_is_white():
    """Phones store pictures lying on their side."""
    exif = Picture.Exif()
    exif[0x0112] = 6
    assert opened(thumbnail(stored(picture(size=(40, 20)), "JPEG", exif=exif))).size == (80, 160)
    clear = opened(thumbnail(stored(Picture.new("RGBA", (9, 9), (0, 0, 0, 0)))))
    assert clear.getpixel((80, 80)) == (255, 255, 255)
    float_picture = Picture.fromarray(np.full((4, 4), np.nan, dtype="float32"))
    assert opened(thumbnail(stored(float_picture, "TIFF"))).size == (160, 160)


# Sounds


def played(embedded):
    """Return the samples, rate and channels that a browser would play."""
    kind, _, content = embedded[0].partition(",")
    assert kind == "data:audio/wav;base64"
    with wave.open(io.BytesIO(base64.b64decode(content))) as sound:
        frames = sound.readframes(sound.getnframes())
        assert sound.getsampwidth() == 2
        return np.frombuffer(frames, "<i2") / 2**15, sound.getframerate(), sound.getnchannels()


def pitch(samples, rate):
    """Return the strongest frequency, in Hz."""
    return np.abs(np.fft.rfft(samples)).argmax() * rate / len(samples)


def test_small_files_are_embedded_as_they_are():
    """Decoding and encoding again would change what the annotators heard, and needs a decoder that may be missing."""
    small = tone(seconds=1, rate=16000)
    uri, remark = player({"bytes": small, "path": None})
    assert base64.b64decode(uri.partition(",")[2]) == small
    assert (uri[:20], remark) == ("data:audio/wav;base6", "")
    for begins, kind in (
        (b"ID3", "mpeg"),
        (b"OggS", "ogg"),
        (b"fLaC", "flac"),
        (b"\xff\xfb", "mpeg"),
    ):
        uri, _ = player({"bytes": begins + bytes(99), "path": '../a.wav" onerror='})
        assert uri.startswith(f"data:audio/{kind};base64,")


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_long_sounds_keep_their_pitch_and_lose_their_end(width, tmp_path):
    """Half a minute of stereo music is 5 MB. Played at a wrong rate, it would be another song."""
    path = tmp_path / "long.wav"
    path.write_bytes(tone(seconds=12.4, rate=44100, pitch=440, channels=2, width=width))
    embedded = player(str(path))
    samples, rate, channels = played(embedded)
    assert (len(samples) / rate, rate, channels) == (SECONDS, 8000, 1)
    assert embedded[1] == "The first 10 of 12 seconds"
    assert pitch(samples, rate) == pytest.approx(440, abs=0.2)
    assert np.abs(samples).max() == pytest.approx(0.5, abs=0.02)
    assert len(embedded[0]) < 220_000


def test_what_is_too_high_for_the_low_rate_is_not_heard_as_another_tone():
    """If only every sixth sample of a whistle at 7 kHz is kept, it becomes a hum at 1 kHz."""
    samples, rate, _ = played(player({"bytes": tone(12, 48000, pitch=7000), "path": None}))
    assert rate == 8000
    assert np.abs(samples[100:-100]).max() < 0.01


def test_short_sounds_keep_as_high_a_rate_as_fits():
    """A sound of two seconds has room for a higher rate than one of ten."""
    stereo = {"bytes": tone(2, 44100, pitch=9000, channels=2), "path": None}
    samples, rate, _ = played(player(stereo))
    assert rate == 22050
    assert pitch(samples, rate) == pytest.approx(9000, abs=1)


def test_arrays_are_played_at_their_own_rate():
    """Data sets also hold sounds that are already decoded."""
    wave_ = 0.5 * np.sin(2 * math.pi * 300 * np.arange(4000) / 2000)
    samples, rate, _ = played(player({"array": wave_.tolist(), "sampling_rate": 2000}))
    assert (rate, len(samples)) == (2000, 4000)
    assert samples == pytest.approx(wave_, abs=1e-3)


def test_other_kinds_of_large_files_go_through_the_decoder(monkeypatch):
    """A song of five minutes in MP3 is too large to embed, and the standard library cannot cut it."""
    asked = []
    monkeypatch.setattr(
        "hf_maxmig.model.opening.load_audio",
        lambda *_, **given: asked.append(given) or np.zeros(90_000, dtype=np.float32),
    )
    embedded = player({"bytes": b"ID3" + bytes(200_000), "path": "song.mp3"})
    samples, rate, _ = played(embedded)
    assert (asked, rate) == ([{"sampling_rate": 8000}], 8000)
    assert len(samples) == 80_000
    assert embedded[1] == "The first 10 of 11 seconds"


@pytest.mark.parametrize(
    "content",
    [
        None, {"bytes": None, "path": None}, {"bytes": b"", "path": None},
        {"bytes": b"RIFF", "path": None}, {"bytes": b"no sound", "path": None}, "absent.wav",
        {"bytes": tone(seconds=0), "path": None}, {"array": [], "sampling_rate": 8000},
        {"array": [math.nan] * 9, "sampling_rate": 8000}, {"array": [0.1], "sampling_rate": 0},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_sound_costs_only_its_own_player(content):
    """One broken file among a hundred thousand must not cost the whole report."""
    assert player(content) is None
