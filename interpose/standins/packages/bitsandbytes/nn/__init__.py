"""Stand-in of bitsandbytes.nn: the classes are there to be asked about, quantized layers cannot be made."""

from typing import Any

import torch

from interpose.standins.surface import missing_names, not_covered


def _refuse(name: str) -> Exception:
    return not_covered("bitsandbytes.nn", name, why="(quantized weights; load the model in 16 bits)")


class Params4bit(torch.nn.Parameter):
    """A 4-bit weight."""

    def __new__(cls, *arguments: Any, **named: Any) -> Any:
        """Raises NotCovered."""
        raise _refuse("Params4bit")


class Int8Params(torch.nn.Parameter):
    """An 8-bit weight."""

    def __new__(cls, *arguments: Any, **named: Any) -> Any:
        """Raises NotCovered."""
        raise _refuse("Int8Params")


class Linear4bit(torch.nn.Linear):
    """A linear layer with a 4-bit weight."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        raise _refuse(type(self).__name__)


class LinearFP4(Linear4bit):
    """With FP4."""


class LinearNF4(Linear4bit):
    """With NF4."""


class Linear8bitLt(torch.nn.Linear):
    """A linear layer with an 8-bit weight."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        raise _refuse(type(self).__name__)


class StableEmbedding(torch.nn.Embedding):
    """An embedding with a norm behind it, whose optimizer state stays in fp32."""

    def __init__(self, num_embeddings: int, embedding_dim: int, *arguments: Any, **named: Any) -> None:
        super().__init__(num_embeddings, embedding_dim, *arguments, **named)
        self.norm = torch.nn.LayerNorm(embedding_dim)
        from bitsandbytes.optim import GlobalOptimManager

        GlobalOptimManager.get_instance().register_module_override(self, "weight", {"optim_bits": 32})

    def forward(self, input: Any) -> Any:
        """The normalized rows."""
        return self.norm(super().forward(input))


class Embedding(torch.nn.Embedding):
    """An embedding whose optimizer state stays in fp32."""

    def __init__(self, num_embeddings: int, embedding_dim: int, *arguments: Any, **named: Any) -> None:
        super().__init__(num_embeddings, embedding_dim, *arguments, **named)
        from bitsandbytes.optim import GlobalOptimManager

        GlobalOptimManager.get_instance().register_module_override(self, "weight", {"optim_bits": 32})


__getattr__ = missing_names(__name__)
