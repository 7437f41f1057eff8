"""Every small architecture is unchanged after it is wrapped, saved, and loaded into memory full of NaN.

Covers the classifiers of transformers' three tasks with a config of a few thousand parameters, and a
hundred timm models, some of them with arguments of their own.
"""

import pytest
import timm
import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from hf_maxmig import MaxMIGModel
from hf_maxmig.model.structures import structure_of
from tests.networks import come_back

pytestmark = pytest.mark.slow

TASKS = {
    "image": modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    "audio": modeling_auto.MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES,
    "text": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
}
# What each config takes of these, unless stated otherwise below.
TINY = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 16,
    "vocab_size": 32, "max_position_embeddings": 40, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "n_embd": 16,
    "n_layer": 2, "n_head": 2, "n_positions": 40, "n_inner": 16, "ffn_dim": 16, "embedding_size": 16, "emb_dim": 16,
    "n_heads": 2, "n_layers": 2, "dim": 16, "hidden_dim": 1280, "image_size": 32, "patch_size": 8, "num_channels": 3,
    "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "d_ff": 16, "d_kv": 8, "num_layers": 2,
    "num_heads": 2, "word_embed_proj_dim": 16, "rotary_dim": 4, "max_source_positions": 20, "max_target_positions": 20,
    "num_mel_bins": 8, "max_length": 20, "decoder_start_token_id": 1, "moe_intermediate_size": 8, "n_routed_experts": 4,
    "num_experts": 4, "num_local_experts": 4, "shared_expert_intermediate_size": 8, "classifier_proj_size": 8,
    "kv_lora_rank": 8, "q_lora_rank": 8, "conv_dim": [8], "conv_kernel": [3], "conv_stride": [2],
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
}  # fmt: skip
STAGES = {"hidden_sizes": [8] * 4, "depths": [1] * 4}
WINDOWS = {"embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "window_size": 2, "image_size": 32, "patch_size": 4}  # fmt: skip
TOWER = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
LATENTS = {
    "num_latents": 4, "d_latents": 8, "num_blocks": 1, "num_self_attends_per_block": 1, "num_self_attention_heads": 1,
    "num_cross_attention_heads": 1, "image_size": 32, "vocab_size": 32, "max_position_embeddings": 40, "d_model": 16,
}  # fmt: skip
SETTINGS = {
    "bit": {"embedding_size": 8, **STAGES, "num_groups": 2},
    "clip": {"vision_config": TOWER, "text_config": {**TOWER, "vocab_size": 32}, "projection_dim": 8},
    "convnext": STAGES,
    "convnextv2": STAGES,
    "cvt": {"embed_dim": [8, 8, 8], "num_heads": [1, 2, 2], "depth": [1, 2, 3]},
    "donut-swin": WINDOWS,
    "efficientnet": {
        "image_size": 32, "kernel_sizes": [3, 3], "in_channels": [32, 16], "out_channels": [16, 16], "strides": [1, 2],
        "depthwise_padding": [], "num_block_repeats": [1, 1], "expand_ratios": [1, 2], "hidden_dim": 1280,
        "width_coefficient": 1.0, "depth_coefficient": 1.0,
    },
    "focalnet": {
        "embed_dim": 8, "depths": [1, 1], "focal_levels": [1, 1], "focal_windows": [3, 3], "image_size": 32, "patch_size": 4,
        "hidden_sizes": [8, 16],
    },
    "gemma3": {"vision_config": TOWER, "text_config": {**TOWER, "vocab_size": 32, "head_dim": 8, "num_key_value_heads": 2}},
    "gpt_neo": {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]], "vocab_size": 32},
    "hgnet_v2": {
        "embedding_size": 4, "hidden_sizes": [8, 8], "depths": [1, 1], "stem_channels": [3, 4, 4],
        "stage_in_channels": [4, 8], "stage_mid_channels": [4, 4], "stage_out_channels": [8, 8], "stage_num_blocks": [1, 1],
        "stage_downsample": [False, True], "stage_light_block": [False, False], "stage_kernel_size": [3, 3],
        "stage_numb_of_layers": [1, 1],
    },
    "hiera": {
        "embed_dim": 8, "image_size": [64, 64], "patch_size": [7, 7], "depths": [1, 1, 1, 1], "num_heads": [1, 1, 1, 1],
    },
    "levit": {
        "image_size": 64, "hidden_sizes": [16, 16, 16], "num_attention_heads": [1, 1, 1], "depths": [1, 1, 1],
        "key_dim": [4, 4, 4],
    },
    "metaclip_2": {"vision_config": TOWER, "text_config": {**TOWER, "vocab_size": 32}, "projection_dim": 8},
    "mobilenet_v1": {"depth_multiplier": 0.25, "image_size": 32},
    "mobilevit": {
        "hidden_sizes": [8, 8, 8], "neck_hidden_sizes": [8] * 7, "num_attention_heads": 2, "image_size": 64,
    },
    "mobilevitv2": {"width_multiplier": 0.25, "image_size": 64, "n_attn_blocks": [1, 1, 1]},
    "perceiver": LATENTS,
    "poolformer": STAGES,
    "reformer": {
        "is_decoder": False, "attn_layers": ["local", "local"], "axial_pos_embds": False, "attention_head_size": 8,
        "feed_forward_size": 16, "local_attn_chunk_length": 4,
    },
    "pvt": {**STAGES, "num_attention_heads": [1] * 4, "image_size": 64},
    "t5": {"decoder_start_token_id": 0},
    "pvt_v2": {**STAGES, "num_attention_heads": [1] * 4, "image_size": 64},
    "regnet": {"embedding_size": 8, **STAGES, "groups_width": 4},
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1], "layer_type": "basic"},
    "segformer": {**STAGES, "num_attention_heads": [1] * 4, "decoder_hidden_size": 8},
    "siglip": {"vision_config": TOWER, "text_config": {**TOWER, "vocab_size": 32}},
    "siglip2": {"vision_config": {**TOWER, "num_patches": 16}, "text_config": {**TOWER, "vocab_size": 32}},
    "swiftformer": {"embed_dims": [8] * 4, "depths": [1] * 4},
    "swin": WINDOWS,
    "swinv2": WINDOWS,
    "textnet": {
        "stem_out_channels": 8, "hidden_sizes": [8] * 5, "conv_layer_kernel_sizes": [[[3, 3]], [[3, 1]], [[1, 3]], [[3, 3]]],
        "conv_layer_strides": [[1], [2], [2], [2]],
    },
    "timm_wrapper": {"architecture": "test_resnet"},
    "wav2vec2-bert": {"feature_projection_input_dim": 8},
    "layoutlmv3": {"coordinate_size": 2, "shape_size": 4, "visual_embed": False},
    "lilt": {"hidden_size": 24, "channel_shrink_ratio": 2},
    "luke": {"entity_vocab_size": 8, "entity_emb_size": 8},
    "roc_bert": {
        "pronunciation_vocab_size": 8, "pronunciation_embed_dim": 4, "shape_vocab_size": 8, "shape_embed_dim": 4,
    },
    "zamba": {"num_hidden_layers": 2, "layers_block_type": ["linear_attention", "hybrid"]},
    "xmod": {"default_language": "en_XX"},
}  # fmt: skip
# Left out, with the reason: a dependency is not installed, or no small version exists.
NOT_TRIED = {
    "DinatForImageClassification": "needs natten",
    "LayoutLMv2ForSequenceClassification": "needs detectron2",
    "ShieldGemma2ForImageClassification": "answers yes or no to policies, with two outputs of a language model",
    "CohereCompassTextForSequenceClassification": "needs rotary settings of its own for each kind of layer",
    "JambaForSequenceClassification": "two layers of it have no attention, which its cache asks for",
    "Qwen3_5TextForSequenceClassification": "two layers of it have no attention, which its cache asks for",
    "ZambaForSequenceClassification": "needs a layer type for each of 54 layers",
    "Zamba2ForSequenceClassification": "needs a layer type for each of 54 layers",
    **dict.fromkeys(
        (
            "AXK1ForSequenceClassification",
            "AXK2ForSequenceClassification",
            "DeepseekV2ForSequenceClassification",
            "Gemma3ForSequenceClassification",
            "Mistral4ForSequenceClassification",
            "ModernVBertForSequenceClassification",
            "Qwen2MoeForSequenceClassification",
            "Qwen3MoeForSequenceClassification",
            "Qwen3NextForSequenceClassification",
            "Qwen3_5ForSequenceClassification",
            "T5GemmaForSequenceClassification",
            "T5Gemma2ForSequenceClassification",
            "UltraVBertForSequenceClassification",
        ),
        "a model of billions, with parts that have sizes of their own",
    ),
}
# Refused, with the message of the refusal.
REFUSED = {"PPLCNetForImageClassification": "an output with `logits`, got PPLCNetForImageClass"}


def classes(task):
    """List the classifiers of a task; of texts, most of which are built alike, every other one is in the full suite only."""
    cases = [
        (model_type, name)
        for model_type, names in TASKS[task].items()
        for name in (names if isinstance(names, tuple) else (names,))
        if (model_type, name) not in (("gpt-sw3", "GPT2ForSequenceClassification"),)
    ]
    for number, (model_type, name) in enumerate(cases):
        marks = pytest.mark.full if task == "text" and number % 2 else ()
        yield pytest.param(model_type, name, marks=marks, id=f"{task}-{model_type}-{name}")


def small_config(model_type):
    config_class, own = CONFIG_MAPPING[model_type], SETTINGS.get(model_type, {})
    other_names = config_class.attribute_map
    known = {*config_class.__dataclass_fields__, *other_names}
    said = {other_names.get(key, key) for key in own}
    shared = {k: v for k, v in TINY.items() if k in known and other_names.get(k, k) not in said}
    if own:
        shared.pop("patch_size", None)
    if "vision_config" in own:
        shared = {}
    return config_class(**{**shared, **own, "num_labels": 5})


def inputs_of(model_type, name, config, main):
    noise = torch.Generator().manual_seed(0)
    if (
        main == "input_ids"
        or model_type == "imagegpt"
        or name == "PerceiverForSequenceClassification"
    ):
        tokens = torch.randint(3, 30, (2, 12), generator=noise)
        tokens[:, -1] = 2  # the end token, which some models look for
        return {"inputs" if model_type == "perceiver" else "input_ids": tokens}
    if model_type == "audio-spectrogram-transformer":
        return {"input_values": torch.randn(2, 20, 8, generator=noise)}
    if model_type == "wav2vec2-bert":
        return {"input_features": torch.randn(2, 20, 8, generator=noise)}
    if model_type == "whisper":
        return {"input_features": torch.randn(2, 8, 40, generator=noise)}
    if main in ("input_values", "input_features"):
        return {main: torch.randn(2, 400, generator=noise)}
    if model_type == "siglip2":
        return {
            "pixel_values": torch.randn(2, 16, 3 * 64, generator=noise),
            "pixel_attention_mask": torch.ones(2, 16, dtype=torch.int64),
            "spatial_shapes": torch.tensor([[4, 4]] * 2),
        }
    side = {"PerceiverForImageClassificationLearned": 32}.get(
        name, 224 if model_type == "perceiver" else 64
    )
    size = getattr(config, "image_size", None) or getattr(
        getattr(config, "vision_config", None), "image_size", None
    )
    if isinstance(size, int) and model_type != "perceiver":
        side = size
    return {"pixel_values": torch.randn(2, 3, side, side, generator=noise)}


@torch.no_grad()
def check(model, again, inputs):
    first, second = model(**inputs).logits, again(**inputs).logits
    assert first.isfinite().all()
    torch.testing.assert_close(second, first, rtol=1e-4, atol=1e-5)


def freeze_every_third(network):
    parameters = list(network.parameters())
    for parameter in parameters[::3]:
        parameter.requires_grad_(False)


@pytest.mark.parametrize(("model_type", "name"), [case for task in TASKS for case in classes(task)])
def test_classifier_of_transformers_comes_back(model_type, name, tmp_path, memory_of_nan):
    """Another class, a random head or uninitialised memory would each give other logits, or NaN."""
    if name in NOT_TRIED:
        pytest.skip(NOT_TRIED[name])
    config = small_config(model_type)
    torch.manual_seed(0)
    classifier = getattr(transformers, name)(config).eval()
    assert sum(p.numel() for p in classifier.parameters()) < 3e6
    freeze_every_third(classifier)
    if name in REFUSED:
        with pytest.raises((TypeError, ValueError), match=REFUSED[name]):
            MaxMIGModel.from_classifier(classifier, num_annotators=3)
        return
    model, again = come_back(classifier, tmp_path)
    assert type(again.classifier).__name__ == name
    check(model, again, inputs_of(model_type, name, config, classifier.main_input_name))


# The smallest model of each timm family, and more of the small ones.
TIMM = [
    "cait_xxs24_224",
    "coat_lite_tiny",
    "coat_tiny",
    "convit_tiny",
    "convnext_zepto_rms",
    "cpubone_nano",
    "crossvit_tiny_240",
    "cs3darknet_focus_s",
    "cs3darknet_s",
    "cspnext_s",
    "cspnext_tiny",
    "deit_tiny_distilled_patch16_224",
    "densenet121",
    "dla46_c",
    "dla46x_c",
    "dla60x_c",
    "dpn48b",
    "edgenext_small",
    "edgenext_x_small",
    "edgenext_xx_small",
    "efficientformer_l1",
    "efficientformerv2_s0",
    "efficientvim_m1",
    "efficientvit_b0",
    "efficientvit_m0",
    "efficientvit_m1",
    "efficientvit_m2",
    "ese_vovnet19b_slim",
    "ese_vovnet19b_slim_dw",
    "eva02_tiny_patch14_224",
    "fasternet_t0",
    "fastvit_t8",
    "gcvit_xxtiny",
    "ghostnet_050",
    "ghostnet_100",
    "ghostnetv2_100",
    "ghostnetv3_050",
    "gmlp_ti16_224",
    "hgnetv2_b0",
    "hgnetv2_b1",
    "hrnet_w18_small",
    "iformer_t",
    "inception_next_atto",
    "lcnet_035",
    "lcnet_050",
    "lcnet_075",
    "lcnet_100",
    "lcnetv2_small",
    "legacy_seresnet18",
    "levit_128s",
    "mobilevit_xs",
    "mobilevit_xxs",
    "mobilevitv2_050",
    "pit_ti_224",
    "pit_ti_distilled_224",
    "poolformerv2_s12",
    "pvt_v2_b0",
    "regnetx_002",
    "regnetx_004",
    "regnety_002",
    "regnety_004",
    "repghostnet_050",
    "repghostnet_058",
    "repghostnet_080",
    "repghostnet_100",
    "repvit_m0_9",
    "repvit_m1",
    "resnet10t",
    "resnetv2_18",
    "rexnet_100",
    "rexnetr_100",
    "shvit_s1",
    "starnet_s050",
    "starnet_s1",
    "starnet_s100",
    "starnet_s150",
    "swiftformer_xs",
    "test_byobnet",
    "test_coatnet",
    "test_convnext",
    "test_convnext2",
    "test_convnext3",
    "test_efficientnet",
    "test_efficientnet_evos",
    "test_efficientnet_gn",
    "test_efficientnet_ln",
    "test_mambaout",
    "test_maxvit",
    "test_nfnet",
    "test_resnet",
    "test_vit",
    "test_vit2",
    "test_vit3",
    "test_vit4",
    "test_vit_relpos",
    "tiny_vit_5m_224",
    "visformer_tiny",
    "vit_tiny_patch16_dinov3_qkvb",
    "xcit_nano_12_p16_224",
    "xcit_nano_12_p8_224",
]
# Models with arguments of their own, and the error for those whose arguments cannot be read off the
# model.
TIMM_WITH = [
    ("test_resnet", {"global_pool": "max", "in_chans": 1}),
    ("test_resnet", {"output_stride": 16, "drop_rate": 0.2}),
    ("test_resnet", {"output_stride": 8, "drop_path_rate": 0.25}),
    ("test_resnet", {"act_layer": "gelu"}),
    ("test_vit", {"global_pool": "avg"}),
    ("test_vit", {"img_size": 96, "patch_size": 8}),
    ("test_vit", {"img_size": [96, 64], "drop_path_rate": 0.1, "drop_rate": 0.1}),
    ("test_vit", {"class_token": False, "global_pool": "avg", "in_chans": 4}),
    ("test_vit", {"act_layer": "relu", "depth": 2}),
    ("test_vit", {"pos_drop_rate": 0.1, "proj_drop_rate": 0.2, "attn_drop_rate": 0.3}),
    ("test_vit3", {"dynamic_img_size": True}),
    ("test_convnext", {"global_pool": "max", "drop_path_rate": 0.2}),
    ("test_convnext", {"in_chans": 2, "act_layer": "silu"}),
    ("test_efficientnet", {"output_stride": 16, "drop_rate": 0.3}),
    ("test_efficientnet", {"drop_path_rate": 0.2, "in_chans": 1}),
    ("test_nfnet", {"drop_rate": 0.1}),
    ("test_byobnet", {"global_pool": "catavgmax"}),
    ("mobilenetv3_small_050", {"global_pool": "max", "drop_rate": 0.5}),
    ("regnetx_002", {"output_stride": 8, "in_chans": 1}),
    ("resnet10t", {"replace_stem_pool": True}),
    ("resnet10t", {"stem_width": 16, "global_pool": "avg"}),
    ("test_vit", {"embed_dim": 32, "num_heads": 4}),
    ("test_vit", {"mlp_ratio": 2.0, "init_values": 0.1}),
]


def one_of_each_file(names):
    """Return the first model of each timm file, preferring those that timm made for tests."""
    first = {}
    for name in sorted(names, key=lambda name: not name.startswith("test_")):
        first.setdefault(timm.models.model_entrypoint(name).__module__, name)
    return {*first.values()}


def plain(names):
    """Return the models without arguments; of three files one runs outside the full suite, with one model."""
    always = sorted(one_of_each_file(names))[1::3]
    return [
        pytest.param(name, {}, marks=[] if name in always else pytest.mark.full) for name in names
    ]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [*plain(TIMM), *TIMM_WITH],
    ids=lambda value: value if isinstance(value, str) else "-".join(value) or "plain",
)
def test_model_of_timm_comes_back_or_is_refused(name, arguments, tmp_path, memory_of_nan):
    """Rebuilt by name alone, a model with arguments of its own would be another model."""
    torch.manual_seed(0)
    network = timm.create_model(name, num_classes=5, **arguments)
    freeze_every_third(network)
    try:
        model, again = come_back(network, tmp_path)
    except ValueError as error:
        if name.startswith("coat_") and "whose layers share some" in str(error):
            return
        if not arguments or "would come back as another model" not in str(error):
            raise  # without arguments, none may be refused
        pytest.skip(f"refused: {error}")
    assert structure_of(again.classifier, True) == structure_of(model.classifier, True)
    size = arguments.get("img_size", network.pretrained_cfg["input_size"][-1])
    size = size if isinstance(size, list) else [size] * 2
    noise = torch.Generator().manual_seed(0)
    pictures = torch.randn(1, arguments.get("in_chans", 3), *size, generator=noise)
    check(model, again, {"pixel_values": pictures})
