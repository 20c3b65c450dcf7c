"""Routers of mixtures of experts: what they choose, and that everything made of it is known."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

from .attached import configure

TOKENS, EXPERTS, CHOICES = 1000, 16, 4


def unknown(*shape: int) -> torch.Tensor:
    from interpose import extension

    out = torch.empty(shape, device="cuda")
    extension.load().drop_value(out)
    return out


class Router(torch.nn.Module):
    """Chooses as most routers do."""

    def forward(self, scores: torch.Tensor, choices: int = CHOICES) -> torch.Tensor:
        return torch.topk(scores.softmax(dim=-1), choices, dim=-1, sorted=False)[1]


class Top1Gate(torch.nn.Module):
    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        return torch.argmax(scores, dim=1)


def route(
    mode: dict[str, Any] | None = None,
    *,
    seed: int = 0,
    tokens: int = TOKENS,
    layer: int | None = None,
    experts: int = EXPERTS,
    choices: int = CHOICES,
) -> torch.Tensor:
    from interpose import extension
    from interpose.hooks import routing

    routing.install(extension.load())
    configure(moe_routing=mode, seed=seed)
    router = Router()
    if layer is not None:
        router.layer_idx = layer
    chosen = router(unknown(tokens, experts), choices)
    return chosen.cpu()


def counts_of(chosen: torch.Tensor, experts: int = EXPERTS) -> torch.Tensor:
    return torch.bincount(chosen.flatten(), minlength=experts)


ZIPF = {"mode": "zipf", "alpha": 1.0}


@pytest.mark.parametrize(
    "mode", [None, ZIPF, {"mode": "zipf", "alpha": 4.0}, {"mode": "shares", "layers": [[1.0, *[0.0] * 15]]}]
)
@pytest.mark.parametrize("tokens", [1, 7, 1000, 4096])
def test_counts_add_up_and_no_token_meets_an_expert_twice(
    extension: ModuleType, mode: dict[str, Any] | None, tokens: int
) -> None:
    chosen = route(mode, tokens=tokens)
    assert counts_of(chosen).sum() == tokens * CHOICES
    assert counts_of(chosen).max() <= tokens
    assert all(len(set(row)) == CHOICES for row in chosen.tolist())


@pytest.mark.parametrize(("tokens", "experts", "choices"), [(1000, 16, 4), (1001, 7, 2), (64, 60, 6)])
def test_balanced_counts_differ_by_one_at_most(
    extension: ModuleType, tokens: int, experts: int, choices: int
) -> None:
    counts = counts_of(route(tokens=tokens, experts=experts, choices=choices), experts)
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.2])
def test_shares_follow_the_exponent(extension: ModuleType, alpha: float) -> None:
    counts = counts_of(route({"mode": "zipf", "alpha": alpha}, choices=1, tokens=20000))
    weights = torch.tensor([(rank + 1) ** -alpha for rank in range(EXPERTS)], dtype=torch.float64)
    expected = 20000 * weights / weights.sum()
    assert (counts.sort(descending=True).values - expected).abs().max() <= 1


def test_an_expert_gets_at_most_every_token_and_the_rest_follows_the_shares(extension: ModuleType) -> None:
    counts = counts_of(route({"mode": "shares", "layers": [[8.0, 2.0, 1.0, 1.0]]}, experts=4, choices=2), 4)
    # Of 2000 choices expert 0 would get 1333 of 1000 tokens; the other 1000 are shared out 2 : 1 : 1.
    assert counts.tolist() == [1000, 500, 250, 250]


def test_any_stretch_of_tokens_has_the_same_shares(extension: ModuleType) -> None:
    """Tensor-parallel ranks may take a part of the tokens each."""
    chosen = route(ZIPF, tokens=4096)
    whole = counts_of(chosen).double() / 4
    for part in chosen.split(1024):
        assert (counts_of(part) - whole).abs().max() <= 0.02 * 4096


def test_seed_and_layer_say_which_expert_is_busy(extension: ModuleType) -> None:
    busiest = [int(counts_of(route(ZIPF, layer=layer)).argmax()) for layer in range(6)]
    again = [int(counts_of(route(ZIPF, layer=layer)).argmax()) for layer in range(6)]
    other = [int(counts_of(route(ZIPF, layer=layer, seed=1)).argmax()) for layer in range(6)]
    assert busiest == again
    assert len(set(busiest)) > 1
    assert busiest != other


def test_shares_by_layer(extension: ModuleType) -> None:
    mode = {"mode": "shares", "layers": [[1.0, 1.0], [3.0, 1.0]], "source": "--moe-routing s.json"}
    assert counts_of(route(mode, experts=2, choices=1, layer=0), 2).tolist() == [500, 500]
    assert counts_of(route(mode, experts=2, choices=1, layer=1), 2).tolist() == [750, 250]
    with pytest.raises(
        RuntimeError, match=r"s\.json has shares for 2 MoE layers, but the job has a router in layer 2"
    ):
        route(mode, experts=2, choices=1, layer=2)
    with pytest.raises(RuntimeError, match=r"s\.json has shares for 2 experts, but the router of layer 0"):
        route(mode, experts=3, choices=1, layer=0)


def test_the_same_layer_chooses_the_same_when_it_is_recomputed(extension: ModuleType) -> None:
    from interpose.hooks import routing

    routing.install(extension)
    configure(moe_routing=ZIPF)
    routers = [Router() for _ in range(4)]
    first = [router(unknown(TOKENS, EXPERTS)).cpu() for router in routers]
    recomputed = [router(unknown(TOKENS, EXPERTS)).cpu() for router in reversed(routers)]
    assert all(a.equal(b) for a, b in zip(first, reversed(recomputed), strict=True))


def test_a_classifier_is_no_router(extension: ModuleType) -> None:
    from interpose.hooks import routing

    routing.install(extension)
    configure(moe_routing=ZIPF)

    class Classifier(torch.nn.Module):
        def forward(self, scores: torch.Tensor) -> torch.Tensor:
            return torch.topk(scores, 1, dim=-1)[1]

    counts = counts_of(Classifier()(unknown(TOKENS, EXPERTS)).cpu())
    assert counts.max() - counts.min() <= 1
    configure(unknown_values="error", moe_routing=ZIPF)
    Router()(unknown(TOKENS, EXPERTS)).cpu()  # modelled, hence no read of an unknown value
    with pytest.raises(RuntimeError, match="--unknown-values error"):
        Classifier()(unknown(TOKENS, EXPERTS)).cpu()


def test_torchtitan_counts_are_known(extension: ModuleType) -> None:
    from interpose.hooks import routing

    routing.install(extension)
    configure(moe_routing=ZIPF)
    chosen = Router()(unknown(TOKENS, EXPERTS))
    counts = torch.histc(chosen.view(-1), bins=EXPERTS, min=0, max=EXPERTS)
    assert counts.dtype == torch.int64
    assert counts.cpu().equal(counts_of(chosen.cpu()))
    order = torch.argsort(chosen.view(-1), stable=True)
    assert chosen.view(-1)[order].cpu().diff().min() == 0
    assert sum(counts.view(4, -1).sum(dim=1).tolist()) == TOKENS * CHOICES


def test_megatron_routing_map_is_known(extension: ModuleType) -> None:
    from interpose.hooks import routing

    routing.install(extension)
    configure(moe_routing=ZIPF)
    logits = unknown(TOKENS, EXPERTS)
    chosen = Router()(logits)
    routing_map = torch.zeros_like(logits).int().scatter(1, chosen, 1).bool()
    assert routing_map.sum(dim=0).cpu().equal(counts_of(chosen.cpu()))
    positions = torch.arange(TOKENS, device="cuda").unsqueeze(0).expand(EXPERTS, -1)
    assert positions.masked_select(routing_map.T.contiguous()).numel() == TOKENS * CHOICES


def test_a_routing_map_of_many_experts_is_kept_whole(extension: ModuleType) -> None:
    from interpose.hooks import routing

    routing.install(extension)
    configure(moe_routing=ZIPF)
    logits = unknown(32768, 256)  # 32 MiB of int32, beyond what integers from elsewhere may take
    chosen = Router()(logits, 8)
    routing_map = torch.zeros_like(logits).int().scatter(1, chosen, 1).bool()
    assert int(routing_map.sum()) == 32768 * 8


def test_hugging_face_masks_are_known(extension: ModuleType) -> None:
    from interpose.hooks import routing

    routing.install(extension)
    configure(moe_routing=ZIPF)
    chosen = Router()(unknown(TOKENS, EXPERTS), 2)
    mask = torch.nn.functional.one_hot(chosen, num_classes=EXPERTS).permute(2, 1, 0)
    hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
    assert hit.shape == (EXPERTS, 1)
    expected = counts_of(chosen.cpu())
    for expert in range(EXPERTS):
        _, tokens = torch.where(mask[expert])
        assert tokens.numel() == expected[expert]


def test_deepspeed_gates_choose_two_different_experts(extension: ModuleType) -> None:
    from interpose.hooks import routing

    routing.install(extension)
    configure(moe_routing=ZIPF)
    scores = unknown(TOKENS, EXPERTS)
    gate = Top1Gate()
    first = gate(scores.softmax(dim=1))
    mask = torch.nn.functional.one_hot(first, num_classes=EXPERTS)
    second = gate((scores + unknown(TOKENS, EXPERTS)).masked_fill(mask.bool(), float("-inf")))
    assert not (first == second).any().item()
    assert counts_of(first.cpu()).sum() == counts_of(second.cpu()).sum() == TOKENS
    capacity = torch.max(torch.sum(mask, dim=0))
    assert int(capacity) == int(counts_of(first.cpu()).max())


def test_groups_that_a_token_may_not_use_are_left_out(extension: ModuleType) -> None:
    """Node-limited routing as TorchTitan and DeepSeek-V3 have it."""
    from interpose.hooks import routing

    routing.install(extension)
    configure(moe_routing=ZIPF)
    groups, limit = 4, 2

    class NodeLimitedRouter(torch.nn.Module):
        def forward(self, scores: torch.Tensor) -> torch.Tensor:
            grouped = scores.view(-1, groups, EXPERTS // groups)
            group_scores = grouped.topk(2, dim=-1)[0].sum(dim=-1)
            chosen_groups = torch.topk(group_scores, k=limit, dim=-1, sorted=False)[1]
            closed = torch.ones_like(group_scores, dtype=torch.bool).scatter_(1, chosen_groups, False)
            open_scores = grouped.masked_fill(closed.unsqueeze(-1), float("-inf")).view(-1, EXPERTS)
            return torch.topk(open_scores, k=CHOICES, dim=-1, sorted=False)[1]

    chosen = NodeLimitedRouter()(unknown(TOKENS, EXPERTS)).cpu()
    assert all(len(set(row)) == CHOICES for row in chosen.tolist())
    assert all(len({expert // (EXPERTS // groups) for expert in row}) <= limit for row in chosen.tolist())
    assert counts_of(chosen).max() > 2 * counts_of(chosen).min()


def test_equal_scores_do_not_send_every_token_to_one_expert(extension: ModuleType) -> None:
    """A gate initialised with zeros has known scores, all the same."""
    from interpose.hooks import routing

    routing.install(extension)
    configure()
    counts = counts_of(Router()(torch.zeros(TOKENS, EXPERTS, device="cuda")).cpu())
    assert counts.max() - counts.min() <= 1


def test_integers_that_a_cpu_kernel_lacks_are_counted_all_the_same(extension: ModuleType) -> None:
    values = torch.tensor([0, 1, 1, 3, 3, 3], device="cuda")
    assert torch.histc(values, bins=4, min=0, max=4).tolist() == [1, 2, 0, 3]
