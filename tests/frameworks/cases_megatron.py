"""megatron-core with our training loop (examples/train_megatron.py), and Megatron-LM's pretrain_gpt.py."""

from __future__ import annotations

from .case import Case

EAGER = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "TORCHDYNAMO_DISABLE": "1"}
"""Megatron asks for the first. The second keeps its small fused functions eager: faster to simulate."""

MODEL = (
    "--num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 256 --max-position-embeddings 256"
)
DATA = "--mock-data --tokenizer-type NullTokenizer --vocab-size 1023 --num-workers 0"
TRAIN = (
    "--micro-batch-size 2 --global-batch-size 8 --train-iters 4 --lr 1e-3 --min-lr 1e-4 "
    "--lr-decay-style cosine --lr-warmup-iters 1 --clip-grad 1.0 --weight-decay 0.1 --eval-iters 0 "
    "--eval-interval 1000 --log-interval 1 --log-throughput --bf16"
)


def core(
    name: str, feature: str, arguments: str = "", *, gpus: int = 2, nodes: int = 1, small: bool = False
) -> Case:
    """The example: 4 steps of 4 micro-batches of a GPT with 8 layers."""
    return Case(
        name=f"megatron-core-{name}",
        framework="megatron-core",
        version="megatron-core",
        feature=feature,
        command=["python", "{examples}/train_megatron.py", *arguments.split()],
        nodes=nodes,
        gpus_per_node=gpus,
        environment=EAGER,
        small=small,
        steps=4,
    )


def pretrain(
    name: str,
    feature: str,
    arguments: str = "",
    *,
    gpus: int = 2,
    refused: str | None = None,
    options: tuple[str, ...] = (),
    compiled: bool = False,
) -> Case:
    """Megatron-LM's own script in a checkout: 4 iterations."""
    return Case(
        name=f"megatron-lm-{name}",
        framework="Megatron-LM",
        version="megatron-core",
        feature=feature,
        command=[
            "torchrun",
            "--nproc-per-node",
            str(gpus),
            "pretrain_gpt.py",
            *f"{MODEL} {DATA} {TRAIN} {arguments}".split(),
        ],
        gpus_per_node=gpus,
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if compiled else EAGER,
        options=list(options),
        needs_path="megatron",
        refused=refused,
        steps=None if refused else 4,
    )


MOE = (
    "--num-experts 4 --moe-router-topk 2 --moe-grouped-gemm --moe-token-dispatcher-type alltoall "
    "--disable-bias-linear"
)
NO_LIBRARIES = (
    "--transformer-impl local --no-persist-layer-norm --no-gradient-accumulation-fusion "
    "--no-masked-softmax-fusion"
)

CASES = (
    core("dp", "DDP, gradients reduced beside backward", "--overlap"),
    core("tp-sp", "TP 2, sequence parallel", "--tp 2 --sequence-parallel", small=True),
    core("pp", "PP 2, 1F1B", "--pp 2"),
    core("vpp", "PP 2, interleaved 1F1B", "--pp 2 --vpp 2"),
    core("distributed-optimizer", "distributed optimizer, overlap", "--distributed-optimizer --overlap"),
    core("recompute-full", "full recompute", "--recompute full"),
    core("recompute-selective", "selective recompute", "--recompute selective"),
    core("cp-p2p", "CP 2, ring", "--cp 2"),
    core("cp-all-gather", "CP 2, all-gather", "--cp 2 --cp-comm all_gather"),
    core("cp-a2a", "CP 2, all-to-all", "--cp 2 --cp-comm a2a"),
    core("moe", "4 experts, EP 2", "--ep 2 --experts 4"),
    core("fp8", "fp8, hybrid, delayed scaling", "--fp8"),
    core("no-te", "TP 2 without Transformer Engine", "--tp 2 --local-layers"),
    core(
        "3d",
        "TP 2, PP 2, DP 2, distributed optimizer",
        "--tp 2 --pp 2 --sequence-parallel --distributed-optimizer",
        gpus=4,
        nodes=2,
    ),
    pretrain("dp", "DDP"),
    pretrain("tp-sp", "TP 2, sequence parallel", "--tensor-model-parallel-size 2 --sequence-parallel"),
    pretrain("pp", "PP 2", "--pipeline-model-parallel-size 2"),
    pretrain(
        "vpp",
        "PP 2, interleaved",
        "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1",
    ),
    pretrain(
        "tp-pp",
        "TP 2, PP 2, distributed optimizer, overlap",
        "--tensor-model-parallel-size 2 "
        "--pipeline-model-parallel-size 2 --use-distributed-optimizer --overlap-grad-reduce "
        "--overlap-param-gather",
        gpus=4,
    ),
    pretrain(
        "recompute-full",
        "full recompute",
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
    ),
    pretrain(
        "jit-fusions", "TP 2, fused functions compiled", "--tensor-model-parallel-size 2", compiled=True
    ),
    pretrain("recompute-selective", "selective recompute", "--recompute-granularity selective"),
    pretrain("cuda-graphs", "CUDA graphs of the layers", "--cuda-graph-impl local --te-rng-tracker"),
    pretrain("cp", "CP 2", "--context-parallel-size 2"),
    pretrain("moe", "4 experts, EP 2", f"{MOE} --expert-model-parallel-size 2"),
    pretrain(
        "moe-fused",
        "EP 2, fused routing, permutation and loss",
        f"{MOE} --expert-model-parallel-size 2 "
        "--moe-permute-fusion --moe-router-fusion --cross-entropy-loss-fusion "
        "--cross-entropy-fusion-impl te",
    ),
    pretrain(
        "llama",
        "SwiGLU, RoPE, grouped queries, RMSNorm",
        "--swiglu --position-embedding-type rope "
        "--group-query-attention --num-query-groups 2 --normalization RMSNorm --disable-bias-linear "
        "--untie-embeddings-and-output-weights",
    ),
    pretrain("fp8", "fp8, hybrid, delayed scaling", "--fp8-format hybrid --fp8-recipe delayed"),
    pretrain("apex-only", "layers of megatron-core, Apex", "--transformer-impl local"),
    pretrain(
        "no-libraries", "neither Transformer Engine nor Apex", NO_LIBRARIES, options=("--stand-ins", "none")
    ),
    pretrain(
        "user-buffers",
        "TP overlap with user buffers: refused",
        "--tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap",
        refused="user buffers",
    ),
)
