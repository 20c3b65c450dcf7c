"""The libraries that have a stand-in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StandIn:
    """One library: the name users choose it by, its distribution's name and version, what it makes
    importable.

    `named_only`: nothing of it is covered. Then it can be imported, and a question whether it is there
    (importlib.util.find_spec, importlib.metadata) gets a no, so that who asks takes the path without it.
    """

    name: str
    distribution: str
    version: str
    modules: tuple[str, ...]
    title: str
    named_only: bool = False


STAND_INS = (
    StandIn(
        name="transformer_engine",
        distribution="transformer-engine",
        version="2.10.0",
        modules=("transformer_engine", "transformer_engine_torch"),
        title="Transformer Engine",
    ),
    StandIn(
        name="apex",
        distribution="apex",
        version="0.1",
        modules=(
            "apex",
            "amp_C",
            "apex_C",
            "fused_dense_cuda",
            "fused_layer_norm_cuda",
            "fused_rotary_positional_embedding",
            "fused_weight_gradient_mlp_cuda",
            "generic_scaled_masked_softmax_cuda",
            "mlp_cuda",
            "scaled_masked_softmax_cuda",
            "scaled_softmax_cuda",
            "scaled_upper_triang_masked_softmax_cuda",
            "syncbn",
        ),
        title="NVIDIA Apex",
    ),
    StandIn(
        name="flash_attn",
        distribution="flash-attn",
        version="2.8.3",
        modules=("flash_attn", "flash_attn_2_cuda"),
        title="flash-attn",
    ),
    StandIn(
        name="flash_attn_3",
        distribution="flash-attn-3",
        version="3.0.0",
        modules=("flash_attn_interface",),
        title="FlashAttention-3",
    ),
    StandIn(
        name="xformers", distribution="xformers", version="0.0.32", modules=("xformers",), title="xFormers"
    ),
    StandIn(
        name="bitsandbytes",
        distribution="bitsandbytes",
        version="0.48.1",
        modules=("bitsandbytes",),
        title="bitsandbytes",
    ),
    StandIn(
        name="grouped_gemm",
        distribution="grouped_gemm",
        version="1.1.4",
        modules=("grouped_gemm", "grouped_gemm_backend"),
        title="grouped_gemm",
    ),
    StandIn(
        name="causal_conv1d",
        distribution="causal-conv1d",
        version="1.6.1",
        modules=("causal_conv1d", "causal_conv1d_cuda"),
        title="causal-conv1d",
        named_only=True,
    ),
    StandIn(
        name="mamba_ssm",
        distribution="mamba-ssm",
        version="2.3.1",
        modules=("mamba_ssm", "selective_scan_cuda"),
        title="mamba-ssm",
        named_only=True,
    ),
    StandIn(
        name="deep_ep",
        distribution="deep_ep",
        version="1.2.1",
        modules=("deep_ep", "deep_ep_cpp"),
        title="DeepEP",
        named_only=True,
    ),
)

BY_MODULE = {module: stand_in for stand_in in STAND_INS for module in stand_in.modules}
NAMES = tuple(stand_in.name for stand_in in STAND_INS)


class UnknownStandIn(ValueError):
    """`--stand-ins` names a library that has none; the text lists those that have."""


def chosen(text: str) -> frozenset[str]:
    """The libraries that `--stand-ins` allows: all, none or names with commas.

    Raises UnknownStandIn.
    """
    words = [word.strip().replace("-", "_") for word in text.split(",") if word.strip()]
    if words == ["all"]:
        return frozenset(NAMES)
    if words == ["none"] or not words:
        return frozenset()
    unknown = [word for word in words if word not in NAMES]
    if unknown:
        raise UnknownStandIn(
            f"--stand-ins {text}: there is no stand-in of {', '.join(unknown)}; "
            f"want all, none or a list of {', '.join(NAMES)}"
        )
    return frozenset(words)
