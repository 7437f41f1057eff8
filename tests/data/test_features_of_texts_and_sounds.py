"""Frozen features of texts and sounds: independent of the batch, computed once, with bad items named by number."""

import io
import logging
import wave

import numpy as np
import pytest
import torch
from datasets import Audio, Dataset, DatasetDict, Value
from tokenizers.normalizers import Replace
from transformers import (
    BertTokenizer,
    CLIPProcessor,
    RobertaConfig,
    RobertaModel,
    ViTImageProcessor,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2Model,
)

from hf_maxmig import fitted_table_processor, frozen_features
from hf_maxmig.data import features as module
from hf_maxmig.data.features import content_of
from hf_maxmig.model.items import most_tokens
from tests.modalities import AUDIO, RATE, SMALL, TEXT, samples, wav2vec2
from tests.worlds import make_table


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def calls(monkeypatch):
    """Record the batches that an encoder receives, by their number of items."""
    seen, encoded = [], module.encoded

    def counted(encoder, inputs, *args):
        seen.append(len(next(iter(inputs.values()))))
        return encoded(encoder, inputs, *args)

    monkeypatch.setattr(module, "encoded", counted)
    return seen


@pytest.fixture
def folder(tmp_path):
    """Return a function that saves an encoder and returns its folder."""

    def save(encoder, name="encoder"):
        torch.manual_seed(0)
        encoder().save_pretrained(tmp_path / name)
        return str(tmp_path / name)

    return save


def sound(values, rate=RATE, width=2):
    file = io.BytesIO()
    with wave.open(file, "wb") as made:
        made.setparams((1, width, rate, 0, "NONE", None))
        made.writeframes((np.asarray(values) * 2**14).astype("<i2").tobytes())
    return {"bytes": file.getvalue(), "path": None}


def of(column, values):
    items = Dataset.from_dict({column: values})
    return DatasetDict(train=items.cast_column(column, Audio(decode=False)) if column == "audio" else items)  # fmt: skip


def computed(*args, **kwargs):
    data, _ = frozen_features(*args, **kwargs)
    return torch.tensor(data["train"]["features"][:])


@pytest.mark.parametrize("modality", [TEXT, AUDIO], ids=repr)
def test_features_of_an_item_are_those_of_the_item_alone(modality, folder, calls):
    """Items are sorted by length, padded and put back. A mistake would give an item another's features."""
    crowd, processor = modality.crowd(), modality.processor()
    place = folder(modality.encoder)
    data, encoder = frozen_features(DatasetDict(train=crowd), place, processor, modality.name, batch_size=16)  # fmt: skip
    assert max(calls) == 16
    assert len(calls) < 20
    found = torch.tensor(data["train"]["features"][:])
    assert data["train"].features["features"].feature == Value("float32")
    for row in (0, 3, 41, 89):
        item = crowd[row][modality.name]
        inputs = processor(item, return_tensors="pt") if modality is TEXT else processor(samples(item["bytes"]), sampling_rate=RATE, return_tensors="pt")  # fmt: skip
        with torch.no_grad():
            expected = encoder(**inputs).last_hidden_state.mean(dim=1)[0]
        torch.testing.assert_close(found[row], expected, atol=1e-5, rtol=0)
    assert found.std(dim=0).min() > 1e-3
    # A text is cheap to show; a sound would be decoded in each step.
    assert (modality.name in data["train"][0]) == (modality is TEXT)
    assert data["train"].with_format(None)[0].keys() == {modality.name, "features", "annotators", "annotations", "label"}  # fmt: skip


def test_sounds_without_a_mask_are_not_padded(folder, calls):
    """The first wav2vec 2.0 normalises over all samples, so padding would make a sound depend on its neighbours."""
    place = folder(lambda: Wav2Vec2Model(_first_kind()))
    extractor = Wav2Vec2FeatureExtractor(sampling_rate=RATE, return_attention_mask=False)
    rng = np.random.default_rng(0)
    lengths = [300, 420, 300, 350, 300]
    sounds = [sound(rng.normal(size=n) / 4) for n in lengths]
    found = computed(of("audio", sounds), place, extractor, "audio")
    assert sorted(calls) == [1, 1, 3]
    for row in range(5):
        alone = computed(of("audio", sounds[row : row + 1]), place, extractor, "audio")
        torch.testing.assert_close(found[row : row + 1], alone, atol=1e-5, rtol=0)


def _first_kind():
    config = wav2vec2()
    config.feat_extract_norm, config.do_stable_layer_norm = "group", False
    return config


def test_features_are_computed_once_and_anew_when_something_changed(folder, calls):
    """Features of another text, encoder, tokenizer or pooling must not be reused; votes must not matter."""
    place, tokenizer, crowd = folder(TEXT.encoder), TEXT.processor(), TEXT.crowd(12)
    first = computed(DatasetDict(train=crowd), place, tokenizer, "text")
    done = len(calls)
    assert done
    tokenizer(["cat"] * 2, truncation=True, max_length=2, padding="max_length")  # changes its state
    other_votes = crowd.remove_columns(["annotators", "annotations"])
    torch.testing.assert_close(computed(DatasetDict(train=other_votes), place, tokenizer, "text"), first)  # fmt: skip
    assert len(calls) == done

    changed = crowd.map(lambda row, i: {"text": row["text"] + " cat" * (i == 4)}, with_indices=True)
    shorter = TEXT.processor()
    shorter.model_max_length = 3
    replaced = TEXT.processor()
    replaced.backend_tokenizer.normalizer = Replace("cat", "dog")
    for data, options, processor in (
        (changed, {}, tokenizer),
        (crowd, {"pooling": "cls"}, tokenizer),
        (crowd, {"pooling": "pooled"}, tokenizer),
        (crowd.add_column("more", crowd["text"][::-1]), {"pair_column": "more"}, tokenizer),
        (crowd, {}, shorter),
        (crowd, {}, replaced),
    ):
        before = len(calls)
        new = computed(DatasetDict(train=data), place, processor, "text", **options)
        assert len(calls) > before
        assert not torch.equal(new, first)
    before = len(calls)
    torch.manual_seed(7)
    TEXT.encoder().save_pretrained(place)
    assert not torch.equal(computed(DatasetDict(train=crowd), place, tokenizer, "text"), first)
    assert len(calls) > before


def test_long_texts_are_cut_at_what_the_encoder_reads(folder):
    """An index beyond the last position ends a training without saying which text it was."""
    place, tokenizer = folder(TEXT.encoder), TEXT.processor()
    long = "cat dog " * 40
    found = computed(of("text", [long, "cat dog " * 6]), place, tokenizer, "text")
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=0)
    config = RobertaConfig(hidden_size=8, vocab_size=11, max_position_embeddings=12, pad_token_id=0, **SMALL)  # fmt: skip
    torch.manual_seed(0)
    roberta = RobertaModel(config)
    roberta.save_pretrained(place)
    assert most_tokens(roberta, tokenizer) == 11  # positions start after the padding index
    computed(of("text", [long]), place, tokenizer, "text")
    pairs = {"text": [long, "cat"], "other": ["dog", long]}
    data, _ = frozen_features(DatasetDict(train=Dataset.from_dict(pairs)), place, tokenizer, "text", pair_column="other")  # fmt: skip
    assert {"text", "other", "features"} == data["train"][0].keys()


def test_sounds_of_any_rate_and_form_have_the_same_features(folder, tmp_path):
    """Files are resampled and read without FFmpeg. A path, bytes and samples must give the same sound."""
    place, extractor = folder(AUDIO.encoder), AUDIO.processor()
    twice = np.sin(np.arange(800) / 20) / 2  # a tone, at twice the rate
    tone = sound(twice[::2])
    (tmp_path / "tone.wav").write_bytes(tone["bytes"])
    by_bytes = computed(of("audio", [tone, sound(twice, rate=2 * RATE)]), place, extractor, "audio")
    torch.testing.assert_close(by_bytes[0], by_bytes[1], atol=0.05, rtol=0)
    assert by_bytes.std() > 0.1
    paths = DatasetDict(train=Dataset.from_dict({"audio": [str(tmp_path / "tone.wav")]}))
    arrays = [{"array": samples(tone["bytes"]).tolist(), "sampling_rate": RATE}]
    for data in (paths, DatasetDict(train=paths["train"].cast_column("audio", Audio())), DatasetDict(train=Dataset.from_dict({"audio": arrays}))):  # fmt: skip
        torch.testing.assert_close(computed(data, place, extractor, "audio")[0], by_bytes[0], atol=1e-5, rtol=0)  # fmt: skip


GOOD = {"text": "cat", "audio": sound(np.ones(300) / 2)}
CUT = {"bytes": sound(np.ones(400))["bytes"][:300], "path": None}


@pytest.mark.parametrize(
    ("column", "bad", "message"),
    [
        ("text", None, "column 'text' must hold a text in every example, got none at item 5"),
        ("text", "", "column 'text' must hold texts of at least one word, got '' at item 5"),
        ("text", " \n", r"texts of at least one word, got ' \\n' at item 5"),
        ("audio", None, "column 'audio' must hold a sound in every example, got none at item 5"),
        ("audio", sound([]), "column 'audio': `audio` must have samples, got none at item 5"),
        ("audio", CUT, "column 'audio': item 5 must be a sound that can be read"),
        ("audio", {"bytes": b"RIFF", "path": None}, "item 5 must be a sound that can be read, .*WAV"),
        ("audio", {"bytes": None, "path": "gone.wav"}, "files that are there, got gone.wav at item 5"),
        ("audio", sound([0.5] * 9), r"Wav2Vec2Model must be able to read .*\(9,\) at item 5"),
    ],
)  # fmt: skip
def test_bad_items_are_named(column, bad, message, folder, cache):
    """After an hour's work, an error must say which item was bad."""
    modality = {"text": TEXT, "audio": AUDIO}[column]
    values = [GOOD[column]] * 7
    values[5] = bad
    with pytest.raises((ValueError, OSError, TypeError), match=message):
        frozen_features(of(column, values), folder(modality.encoder), modality.processor(), column, 2)  # fmt: skip
    assert not list(cache.rglob("*.arrow"))


def test_samples_that_are_no_numbers_are_named(folder):
    """NaN passes through every layer and finally makes all weights NaN."""
    good = {"array": [0.5] * 300, "sampling_rate": RATE}
    for bad, message in (
        ([np.nan] * 300, "finite samples of one channel, got .* NaN or infinity at item 1"),
        ([0.0] * 300, None),  # silence is a sound
    ):
        data = DatasetDict(train=Dataset.from_dict({"audio": [good, good | {"array": bad}]}))
        arguments = data, folder(AUDIO.encoder), AUDIO.processor(), "audio"
        if message is None:
            assert computed(*arguments).isfinite().all()
        else:
            with pytest.raises(ValueError, match=message):
                frozen_features(*arguments)


def test_features_that_are_not_finite_are_named(folder, monkeypatch):
    """Half precision overflows, and a broken checkpoint gives NaN."""
    encoded = module.encoded

    def broken(encoder, inputs, *args):
        features = encoded(encoder, inputs, *args)
        features[inputs["input_ids"][:, 0] == 5] = torch.inf  # "dog"
        return features

    monkeypatch.setattr(module, "encoded", broken)
    with pytest.raises(ValueError, match="must be finite, got others at item 2"):
        computed(of("text", ["cat", "emu", "dog"]), folder(TEXT.encoder), TEXT.processor(), "text")


def test_numbers_are_no_texts(folder):
    """The chosen column must hold text."""
    data = DatasetDict(train=Dataset.from_dict({"text": [3, 4]}))
    with pytest.raises(TypeError, match="column 'text' must hold a text in every example, got int 3"):  # fmt: skip
        frozen_features(data, folder(TEXT.encoder), TEXT.processor(), "text")


def test_wrong_arguments_are_refused_before_the_encoder_is_loaded():
    """Otherwise a model of gigabytes would be loaded for nothing."""
    data, nowhere = of("text", ["cat"]), "no/such"
    with pytest.raises(ValueError, match="must have a column 'review' in each split, got text in 'train'"):  # fmt: skip
        frozen_features(data, nowhere, TEXT.processor(), "review")
    with pytest.raises(ValueError, match="must have a column 'second'"):
        frozen_features(data, nowhere, TEXT.processor(), "text", pair_column="second")
    with pytest.raises(ValueError, match="`pair_column` must only be given for texts"):
        frozen_features(data, nowhere, ViTImageProcessor(), "text", pair_column="text")
    with pytest.raises(ValueError, match="`pooling` must be one of mean, cls, pooled or None"):
        frozen_features(data, nowhere, TEXT.processor(), "text", pooling="max")
    with pytest.raises(TypeError, match="an image processor, a tokenizer or a feature extractor, got TableProcessor"):  # fmt: skip
        content_of(fitted_table_processor(make_table()))
    clip = CLIPProcessor.__new__(CLIPProcessor)
    with pytest.raises(TypeError, match="got CLIPProcessor: take one of its parts"):
        content_of(clip)
    assert content_of(BertTokenizer()) == "text"


def test_pooling_layer_that_the_checkpoint_lacks_is_told(folder, caplog, calls):
    """If it were initialised at random in each run, features would also be recomputed in each."""
    logging.getLogger("hf_maxmig").propagate = True
    place = folder(TEXT.native)  # a classifier, whose own pooling layer is saved
    bare = folder(lambda: type(TEXT.encoder())(TEXT.encoder().config, add_pooling_layer=False), "bare")  # fmt: skip
    data, tokenizer = of("text", ["cat", "dog"]), TEXT.processor()
    with caplog.at_level("WARNING", logger="hf_maxmig"):
        computed(data, place, tokenizer, "text", pooling="pooled")
        computed(data, bare, tokenizer, "text")
        assert not [record for record in caplog.records if record.name.startswith("hf_maxmig")]
        first = computed(data, bare, tokenizer, "text", pooling="pooled")
    assert "The pooling layer of BertModel is not in the checkpoint" in caplog.text
    done = len(calls)
    torch.manual_seed(3)
    assert torch.equal(computed(data, bare, tokenizer, "text", pooling="pooled"), first)
    assert len(calls) == done
