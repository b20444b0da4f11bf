import math

import pytest
import torch
from pydantic import ValidationError
from torch.nn import functional

from perennial.engine.parallelism.plan import matching
from perennial.tasks.decoder import Decoder, DecoderOptions, decoder_plan, rotate, rotation

SMALL = {"vocab_size": 50, "context_length": 12, "layers": 2, "width": 16, "heads": 4}
VARIANTS = {
    "llama": {},
    "gpt2": {"variant": "gpt2"},
    "shared keys": {"kv_heads": 2},
    "tied": {"tie_embeddings": True},
    "experts": {"experts": 4, "experts_per_token": 2},
    "gpt2 experts": {"variant": "gpt2", "experts": 4},
}
TOKENS = torch.arange(24).view(2, 12) * 7 % 50


def decoder(**changes):
    torch.manual_seed(0)
    return Decoder(DecoderOptions(**(SMALL | changes)))


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_no_token_sees_later_ones(changes):
    model = decoder(**changes)
    changed = TOKENS.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % 50
    before, after = model(TOKENS), model(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert (before[:, 7:] - after[:, 7:]).abs().amax(dim=(0, 2)).min() > 1e-4
    assert before.shape == (2, 12, 50)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_every_token_sees_all_before_it(changes):
    model = decoder(**changes)
    stream = out = model.embedding(TOKENS).detach().requires_grad_()
    for block in model.blocks:
        out = block(out)
    out[:, -1].sum().backward()
    assert stream.grad.abs().amax(dim=(0, 2)).min() > 0


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("width", [16, 1024])
def test_the_initial_loss_is_the_logarithm_of_the_vocabulary(changes, width):
    model = decoder(**changes, width=width)
    loss = functional.cross_entropy(model(TOKENS).flatten(0, 1), (TOKENS + 3).flatten() % 50)
    assert loss.item() == pytest.approx(math.log(50), abs=0.25)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_every_weight_learns(changes):
    model = decoder(**changes)
    balance = model.train()(TOKENS).float().logsumexp(-1).sum()
    auxiliary = model.balance_losses()
    (balance + (auxiliary.sum() if auxiliary is not None else 0.0)).backward()
    assert all(weight.grad.abs().max() > 0 for weight in model.parameters())


def test_both_variants_have_nearly_as_many_parameters():
    sizes = [
        sum(weight.numel() for weight in decoder(variant=variant, width=192).blocks.parameters())
        for variant in ("llama", "gpt2")
    ]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.02)


def test_rotation_depends_on_distance_alone():
    torch.manual_seed(0)
    query, key = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)
    cosine, sine = rotation(10, 8, torch.device("cpu"))
    at = [(rotate(query, cosine[i], sine[i]), rotate(key, cosine[i], sine[i])) for i in range(10)]
    products = {(i, j): (at[i][0] * at[j][1]).sum().item() for i, j in [(3, 1), (9, 7), (9, 1)]}
    assert products[3, 1] == pytest.approx(products[9, 7], abs=1e-5)
    assert products[9, 1] != pytest.approx(products[9, 7], abs=1e-3)


def test_positions_shift_what_is_learned_for_them():
    model = decoder(variant="gpt2")
    late = model(TOKENS[:, :6], positions=torch.arange(6, 12))
    assert not torch.allclose(late, model(TOKENS[:, :6]))
    torch.testing.assert_close(model(TOKENS[:, :6], torch.arange(6)), model(TOKENS[:, :6]))


def test_balance_is_least_when_experts_are_equally_busy():
    layer = decoder(experts=4).blocks[0].feed_forward
    even = torch.full((1, 8, 4), 0.25)
    busy = torch.arange(8).view(1, 8, 1) % 4
    assert layer._balance(even, busy).tolist() == pytest.approx([1.0])
    skewed = functional.one_hot(torch.zeros(1, 8, dtype=torch.long), 4).float()
    assert layer._balance(skewed, torch.zeros_like(busy)).tolist() == pytest.approx([4.0])


def test_balance_of_an_example_does_not_depend_on_the_others():
    model = decoder(experts=4)
    model(TOKENS)
    together = model.balance_losses()
    model(TOKENS[1:])
    torch.testing.assert_close(model.balance_losses(), together[1:])
    assert decoder().balance_losses() is None


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_the_plan_names_what_the_model_has(changes):
    model = decoder(**changes)
    plan = decoder_plan(model.options)
    for pattern in (*plan.tensor, plan.attention, plan.blocks, *plan.before, *plan.after):
        assert list(matching(model, pattern, "Decoder"))
    matrices = {name for name, module in model.named_modules() if hasattr(module, "in_features")}
    planned = {name for pattern in plan.tensor for name, _ in matching(model, pattern, "Decoder")}
    routers = {name for name in matrices if name.endswith("router")}
    assert matrices - planned == routers


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 3}, "heads = 3 does not divide width = 16"),
        ({"kv_heads": 3}, "kv_heads = 3 does not divide heads = 4"),
        ({"heads": 16}, "must be even"),
        ({"experts": 2, "experts_per_token": 3}, "exceeds experts = 2"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        DecoderOptions(**(SMALL | changes))
