"""Published training steps that the generic job can rebuild: read, filtered, split in two."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Row:
    """One published step: what ran, on what, and how long it took.

    *step_s* is seconds per step, or per micro-batch where *per_micro_batch*.  *assumed* says what the source
    leaves open and what was taken.
    """

    id: str
    source: str
    gpu: str
    cluster: str
    nodes: int
    gpus_per_node: int
    style: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    length: int
    parallel: str
    tensor: int
    pipeline: int
    data: int
    micro_batch: int
    micro_batches: int
    dtype: str
    recompute: str
    step_s: float
    options: tuple[str, ...] = ()
    per_micro_batch: bool = False
    assumed: str = ""

    @property
    def ranks(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def scope(self) -> str:
        return "single node" if self.nodes == 1 else "several nodes"

    @property
    def fitted(self) -> bool:
        """Whether constants may be fitted on this row: of the rows of one server a third, by hash of the id.

        Nothing is fitted on rows of several servers.
        """
        return self.nodes == 1 and (bucket(self.id) in (0, 1) or self.id in kernel_fit_rows())


def bucket(identity: str) -> int:
    """Return 0 to 5 by hash of a row's id."""
    return int(hashlib.sha256(identity.encode()).hexdigest(), 16) % 6


def _lot(identity: str) -> int:
    """Return 0 to 99 by hash of a row's id, independent of :func:`bucket`."""
    return int(hashlib.sha256(f"lot {identity}".encode()).hexdigest(), 16) % 100


def kernel_fit_rows() -> frozenset[str]:
    """Return the ids of the rows on which the product's constants were fitted already."""
    text = (resources.files("phantom.kernels") / "data" / "training_fit_rows.csv").read_text(encoding="utf-8")
    return frozenset(line["id"] for line in csv.DictReader(text.splitlines()))


def _read(name: str) -> list[dict[str, str]]:
    with (HERE / "data" / name).open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def _padded(vocabulary: int, tensor: int) -> int:
    """Megatron pads its vocabulary to a multiple of 128 per tensor-parallel rank."""
    unit = 128 * tensor
    return -(-vocabulary // unit) * unit


def _llm_foundry() -> Iterator[Row]:
    """bf16 rows of at most 64 GPUs; of the many rows of one server, those of lots 0 to 29."""
    clusters = {
        "A100-SXM-40GB": str(HERE / "clusters" / "a100-40gb-roce.toml"),
        "A100-SXM-80GB": "a100-dgx",
        "H100-SXM-80GB": "h100-dgx",
    }
    for line in _read("training_rows.csv"):
        if line["source"] != "mosaicml/llm-foundry" or line["config_complete"] != "yes":
            continue
        ranks = int(line["n_gpus"])
        if ranks > 64 or (ranks == 8 and _lot(line["id"]) >= 30):
            continue
        pure = "mp=PURE" in line["fsdp_zero"]
        yield Row(
            id=line["id"],
            source="llm-foundry",
            gpu=line["gpu"],
            cluster=clusters[line["gpu"]],
            nodes=ranks // 8,
            gpus_per_node=8,
            style="mpt",
            **_dimensions(line),
            parallel="fsdp1",
            tensor=1,
            pipeline=1,
            data=ranks,
            micro_batch=int(line["micro_batch"]),
            micro_batches=int(line["grad_accum"]),
            dtype="bf16",
            recompute=line["act_ckpt"],
            step_s=float(line["derived_step_time_s"]),
            options=(
                "--sharding",
                "full" if "FULL_SHARD" in line["fsdp_zero"] else "grad",
                "--reduce",
                "bf16" if pure else "fp32",
                "--prefetch",
                "post",
                "--optimizer",
                "loop",
                "--attention",
                "full",
            ),
            # Their times at long sequences are those of attention that computes the masked half too.
            assumed="attention computes the masked half"
            + ("" if line["inter_node"] or ranks == 8 else "; eight 400 Gb/s ports per H100 server"),
        )


def _dimensions(line: dict[str, str]) -> dict[str, int]:
    return {
        "layers": int(line["layers"]),
        "hidden": int(line["hidden"]),
        "heads": int(line["heads"]),
        "kv_heads": int(line["kv_heads"]),
        "ffn": int(line["ffn"]),
        "vocabulary": int(line["vocab"] or 50257),
        "length": int(line["seq_len"]),
    }


def _titan() -> Iterator[Row]:
    """Eager bf16 rows of at most 64 GPUs of one parallel dimension (FSDP2)."""
    clusters = {"A100-SXM-80GB": "a100-dgx", "B200-SXM-180GB": "b200-dgx"}
    recompute = {"none": "none", "full": "full", "selective op": "op", "selective layer": "layer"}
    for line in _read("training_rows.csv"):
        if line["source"] != "pytorch/torchtitan" or line["config_complete"] != "yes":
            continue
        ranks = int(line["n_gpus"])
        eager = line["compile"] in ("", "no")
        if not eager or ranks > 64 or int(line["tp"]) > 1 or "bf16" not in line["precision"]:
            continue
        if line["gpu"] not in clusters or line["act_ckpt"] not in recompute or line["seq_len"] == "128":
            continue
        modern = line["gpu"].startswith("B200")
        yield Row(
            id=line["id"],
            source="TorchTitan",
            gpu=line["gpu"],
            cluster=clusters[line["gpu"]],
            nodes=ranks // 8,
            gpus_per_node=8,
            style="llama",
            **_dimensions(line),
            parallel="fsdp2",
            tensor=1,
            pipeline=1,
            data=ranks,
            micro_batch=int(line["micro_batch"]),
            micro_batches=int(line["grad_accum"] or 1),
            dtype="bf16",
            recompute=recompute[line["act_ckpt"]],
            step_s=float(line["derived_step_time_s"]),
            options=(
                "--sharding",
                "grad" if "no-reshard" in line["fsdp_zero"] else "full",
                "--optimizer",
                "fused",
                "--norm",
                "fused" if modern else "eager",
            ),
            assumed="eager" + ("" if modern else "; one 200 Gb/s port per GPU"),
        )


def _litgpt() -> Iterator[Row]:
    """The eager rows whose time per iteration is in the notes (their configuration is complete for one)."""
    for line in _read("training_rows.csv"):
        if line["source"] != "Lightning-AI/litgpt" or line["compile"] != "eager":
            continue
        ranks = int(line["n_gpus"])
        milliseconds = float(line["notes"].split("published value: ")[1].split(" ms")[0])
        options = ("--loss", "half", "--norm", "eager")
        yield Row(
            id=line["id"],
            source="litgpt",
            gpu=line["gpu"],
            cluster="a100-azure-nd",
            nodes=1,
            gpus_per_node=ranks,
            style="llama",
            **_dimensions(line),
            parallel="fsdp1" if ranks > 1 else "plain",
            tensor=1,
            pipeline=1,
            data=ranks,
            micro_batch=int(line["micro_batch"]),
            micro_batches=1 if ranks > 1 else 32,
            dtype="bf16",
            recompute="none",
            step_s=milliseconds / 1e3,
            options=(*options, "--reduce", "bf16") if ranks > 1 else options,
            per_micro_batch=ranks == 1,
            assumed="time per micro-batch",
        )


def _bigscience() -> Iterator[Row]:
    """Rows of at most 8 GPUs (those of 320 and 384 cost hours here) whose heads divide the hidden size."""
    for line in _read("training_rows.csv"):
        if not line["source"].startswith("BigScience") or line["config_complete"] != "yes":
            continue
        ranks = int(line["n_gpus"])
        if ranks > 8 or not line["step_time_s"] or int(line["hidden"]) % int(line["heads"]):
            continue
        tensor, pipeline = int(line["tp"]), int(line["pp"])
        data = ranks // tensor // pipeline
        volta = line["gpu"].startswith("V100")
        if volta and line["gpu"] != "V100 32GB":
            continue
        dimensions = _dimensions(line)
        dimensions["vocabulary"] = _padded(dimensions["vocabulary"], tensor)
        per_node = 4 if volta else 8
        yield Row(
            id=line["id"],
            source="BigScience V100" if volta else "BigScience",
            gpu=line["gpu"],
            cluster=str(HERE / "clusters" / "v100-jean-zay.toml") if volta else "a100-dgx",
            nodes=ranks // per_node,
            gpus_per_node=per_node,
            style="megatron",
            **dimensions,
            parallel="dp",
            tensor=tensor,
            pipeline=pipeline,
            data=data,
            micro_batch=int(line["micro_batch"]),
            micro_batches=int(line["global_batch"]) // data // int(line["micro_batch"]),
            dtype=line["precision"],
            recompute=line["act_ckpt"],
            step_s=float(line["step_time_s"]),
            options=(
                "--attention",
                "unfused",
                "--dropout",
                "0.1" if volta else "0.0",
                "--wait-for-sizes",
                "ends",
                *(("--zero1",) if "ZeRO-1" in line["fsdp_zero"] else ()),
            ),
            assumed="vocabulary 50257, dropout 0.1" if volta else "",
        )


def _megatron() -> Iterator[Row]:
    """vTrain's runs of Megatron-DeepSpeed: single node lots 0 to 2, all of 64 GPUs, of 256 the cheapest."""
    for scope in ("single", "multi"):
        for number, line in enumerate(_read(f"megatron_a100_{scope}_node.csv"), start=2):
            identity = f"m{scope[0]}{number:04d}"
            value = {
                name: int(text)
                for name, text in line.items()
                if name not in ("iteration_ms", "params_billion")
            }
            micro_batches = value["global_batch_sequences"] // value["dp"] // value["micro_batch_sequences"]
            if scope == "single" and _lot(identity) >= 3:
                continue
            work = micro_batches * value["layers"] // value["pp"]
            if scope == "multi" and (value["gpus"] > 256 or (value["gpus"] == 256 and work > 160)):
                continue
            ranks = value["gpus"]
            yield Row(
                id=identity,
                source=f"Megatron A100 {scope}-node",
                gpu="A100-SXM-80GB",
                cluster=str(HERE / "clusters" / f"a100-vtrain{'' if scope == 'single' else '-nodes'}.toml"),
                nodes=max(1, ranks // 8),
                gpus_per_node=min(ranks, 8),
                style="megatron",
                layers=value["layers"],
                hidden=value["hidden"],
                heads=value["heads"],
                kv_heads=value["heads"],
                ffn=4 * value["hidden"],
                vocabulary=_padded(50257, value["tp"]),
                length=value["seq_len"],
                parallel="dp",
                tensor=value["tp"],
                pipeline=value["pp"],
                data=value["dp"],
                micro_batch=value["micro_batch_sequences"],
                micro_batches=micro_batches,
                dtype="fp16",
                recompute="full",
                step_s=float(line["iteration_ms"]) / 1e3,
                options=(
                    *("--attention", "unfused", "--dropout", "0.1"),
                    *("--wait-for-sizes", "all", "--wait-for-exchange"),
                ),
                assumed="fp16, dropout 0.1, no flash attention, gradients reduced after the backward pass",
            )


def rows() -> list[Row]:
    """Return every row of the filter, in the order of the sources."""
    return [*_llm_foundry(), *_titan(), *_litgpt(), *_bigscience(), *_megatron()]
