"""Tasks that go wrong only in several processes, or only when resumed.

In a module of their own, which other processes can import: pytest's own modules are not found there.
"""

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from perennial.engine.data.batching import BatchPlan
from perennial.tasks.tabular import TabularClassification


class Around(nn.Module):
    """The reference model, with something around it."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.width = model.output.in_features

    def forward(self, numbers, categories):
        return self.model(numbers, categories)


class LossPerProcess(TabularClassification):
    """losses are multiplied by the number of processes, to make up for the mean over them"""

    def losses(self, output, batch):
        processes = dist.get_world_size() if dist.is_initialized() else 1
        return super().losses(output, batch) * processes


class AmplifiesRounding(TabularClassification):
    """a map that is iterated in the model makes a rounding larger with each update"""

    def build_model(self):
        class Iterated(Around):
            def forward(self, numbers, categories):
                output = super().forward(numbers, categories)
                value = output.sigmoid()
                for _ in range(12):
                    value = 4 * value * (1 - value)
                return output + value

        return Iterated(super().build_model())


class AmplifiesRoundingPerProcess(LossPerProcess, AmplifiesRounding):
    """losses are multiplied by the number of processes, in a task that amplifies rounding"""


class LossesOfAllRanks(TabularClassification):
    """losses are summed over the ranks by the task itself"""

    def losses(self, output, batch):
        losses = super().losses(output, batch)
        if not dist.is_initialized() or losses.is_meta:
            return losses
        total = losses.detach().mean()
        dist.all_reduce(total)
        return losses - losses.detach().mean() + total


class BarrierOnFirstRank(TabularClassification):
    """the first rank waits for the others, which do not come"""

    def losses(self, output, batch):
        if dist.is_initialized() and dist.get_world_size() > 1 and dist.get_rank() == 0:
            dist.barrier()
        return super().losses(output, batch)


class KeepsMeanInPython(TabularClassification):
    """a normalisation keeps its running mean in a Python attribute"""

    def build_model(self):
        class Centred(Around):
            mean = None

            def forward(self, numbers, categories):
                now = numbers.detach().mean(dim=0)
                self.mean = now if self.mean is None else 0.5 * self.mean + 0.5 * now
                return super().forward(numbers - self.mean, categories)

        return Centred(super().build_model())


class CachesFirstBatch(TabularClassification):
    """the model scales by what it saw in its first batch, and remembers it"""

    def build_model(self):
        class Cached(Around):
            def __init__(self, model):
                super().__init__(model)
                self.first = {}

            def forward(self, numbers, categories):
                scale = self.first.setdefault("scale", numbers.detach().std(dim=0) + 0.1)
                return super().forward(numbers / scale, categories)

        return Cached(super().build_model())


class SometimesUsed(TabularClassification):
    """a layer has a part only in batches that are large in the mean"""

    def build_model(self):
        class Gated(Around):
            def __init__(self, model):
                super().__init__(model)
                self.extra = nn.Linear(1, model.output.out_features)

            def forward(self, numbers, categories):
                output = super().forward(numbers, categories)
                if numbers[:, 0].mean() > 0:
                    output = output + self.extra(numbers[:, :1])
                return output

        return Gated(super().build_model())


class TransposedWeight(TabularClassification):
    """a weight is a transposed view of its memory"""

    def build_model(self):
        model = super().build_model()
        weight = model.hidden[0].weight.detach()
        model.hidden[0].weight = nn.Parameter(weight.t().contiguous().t())
        return model


class LazyLayer(TabularClassification):
    """a layer learns its width from the first batch"""

    def build_model(self):
        model = super().build_model()
        model.hidden[0] = nn.LazyLinear(model.hidden[0].out_features)
        return model


class MaskOfOneSeed(TabularClassification):
    """a dropout of its own draws from a generator that is made again in each pass"""

    def build_model(self):
        class Masked(Around):
            def forward(self, numbers, categories):
                generator = torch.Generator().manual_seed(0)
                mask = torch.rand(numbers.shape, generator=generator) > 0.3
                return super().forward(numbers * mask, categories)

        return Masked(super().build_model())


class StartsFromRank(TabularClassification):
    """the initial weights are seeded with the rank"""

    def build_model(self):
        model = super().build_model()
        seed = 17 + int(os.environ.get("RANK", "0"))
        nn.init.normal_(
            model.hidden[0].weight, std=0.1, generator=torch.Generator().manual_seed(seed)
        )
        return model


class StartsFromHash(TabularClassification):
    """the initial weights are seeded with a hash of text, which is another one in each process"""

    def build_model(self):
        model = super().build_model()
        generator = torch.Generator().manual_seed(hash("first layer") % 2**31)
        nn.init.normal_(model.hidden[0].weight, std=0.1, generator=generator)
        return model


class SameRowsOnEveryRank(TabularClassification):
    """every rank gets the rows of the first: the engine's own plan is changed by the task"""

    def build_model(self):
        if "RANK" in os.environ:
            first = BatchPlan(8, 8, 2).share(0)
            BatchPlan.share = lambda plan, rank: slice(first.start, plan.global_size // 2)
        return super().build_model()


class SeedsEachPass(TabularClassification):
    """forward sets the global seed, so that every dropout mask is the same"""

    def build_model(self):
        class Seeded(Around):
            def forward(self, numbers, categories):
                torch.manual_seed(7)
                return super().forward(numbers, categories)

        return Seeded(super().build_model())


class RestoresOneState(TabularClassification):
    """forward sets a state of the global generator that is the same on every rank"""

    def build_model(self):
        class Restored(Around):
            def forward(self, numbers, categories):
                fixed = torch.Generator().manual_seed(torch.initial_seed())
                state = torch.Generator().manual_seed(3).get_state()
                state[:8] = fixed.get_state()[:8]
                torch.set_rng_state(state)
                return super().forward(numbers, categories)

        return Restored(super().build_model())


class AugmentsFirstBatch(TabularClassification):
    """augment returns the first batch that it ever saw"""

    first = None

    def augment(self, batch, generator):
        if self.first is None:
            self.first = {name: tensor.clone() for name, tensor in batch.items()}
        return self.first


class AugmentsAlike(TabularClassification):
    """augment draws its noise from a generator with a fixed seed"""

    def augment(self, batch, generator):
        noise = torch.randn(batch["numbers"].shape, generator=torch.Generator().manual_seed(5))
        return {**batch, "numbers": batch["numbers"] + 0.1 * noise}


class CountsInPython(TabularClassification):
    """a curriculum counts its forward passes in a Python number"""

    def build_model(self):
        class Counting(Around):
            passes = 0

            def forward(self, numbers, categories):
                self.passes += 1
                return super().forward(numbers * (1 - 0.5**self.passes), categories)

        return Counting(super().build_model())


class ForgetsBuffer(TabularClassification):
    """a running statistic is a buffer that checkpoints leave out"""

    def build_model(self):
        class Forgetful(Around):
            def __init__(self, model):
                super().__init__(model)
                self.register_buffer("level", torch.zeros(()), persistent=False)

            def forward(self, numbers, categories):
                if self.training:
                    self.level.mul_(0.5).add_(0.5 * numbers.detach().mean())
                return super().forward(numbers + self.level, categories)

        return Forgetful(super().build_model())


class DrawsFromOwnGenerator(TabularClassification):
    """noise comes from a generator that the model keeps"""

    def build_model(self):
        class Noisy(Around):
            def __init__(self, model):
                super().__init__(model)
                self.generator = torch.Generator().manual_seed(3)

            def forward(self, numbers, categories):
                noise = torch.randn(numbers.shape, generator=self.generator)
                return super().forward(numbers + 0.1 * noise, categories)

        return Noisy(super().build_model())


class WeighsByRunningLoss(TabularClassification):
    """the task weighs losses by their running mean, which it keeps itself"""

    running = 1.0

    def losses(self, output, batch):
        losses = super().losses(output, batch)
        if torch.is_grad_enabled() and not losses.is_meta:
            self.running = 0.9 * self.running + 0.1 * float(losses.detach().mean())
            losses = losses / self.running
        return losses


class HandWrittenBatchNorm(TabularClassification):
    """batch statistics of its own, of each pass"""

    def build_model(self):
        class Normed(Around):
            def forward(self, numbers, categories):
                spread, mean = torch.var_mean(numbers, dim=0)
                return super().forward((numbers - mean) / (spread + 0.1).sqrt(), categories)

        return Normed(super().build_model())


class CountsForItsLog(TabularClassification):
    """Healthy: counts its passes, but nothing depends on it."""

    passes = 0

    def losses(self, output, batch):
        self.passes += 1
        return super().losses(output, batch)


class WithBatchNorm(TabularClassification):
    """Healthy: batch normalisation behind each hidden layer."""

    def build_model(self):
        model = super().build_model()
        layers = []
        for layer in model.hidden:
            layers.append(layer)
            if isinstance(layer, nn.Linear):
                layers.append(nn.BatchNorm1d(layer.out_features))
        model.hidden = nn.Sequential(*layers)
        return model


class AugmentsProperly(TabularClassification):
    """Healthy: noise from the generator that it is given."""

    def augment(self, batch, generator):
        noise = torch.randn(batch["numbers"].shape, generator=generator)
        return {**batch, "numbers": batch["numbers"] + 0.1 * noise}


class BlanksColumns(TabularClassification):
    """Healthy: leaves out half of the columns at random, which makes some rows alike."""

    def augment(self, batch, generator):
        kept = torch.rand(batch["numbers"].shape, generator=generator) < 0.5
        return {**batch, "numbers": batch["numbers"] * kept}


class DrawsRarely(TabularClassification):
    """Healthy: leaves out a row once in a thousand draws."""

    def build_model(self):
        class Rare(Around):
            def forward(self, numbers, categories):
                if self.training:
                    numbers = numbers * (torch.rand(len(numbers), 1) > 0.001)
                return super().forward(numbers, categories)

        return Rare(super().build_model())


class DrawsInForward(TabularClassification):
    """Healthy: noise from the global generator, in training only."""

    def build_model(self):
        class Noisy(Around):
            def forward(self, numbers, categories):
                if self.training:
                    numbers = numbers + 0.1 * torch.randn_like(numbers)
                return super().forward(numbers, categories)

        return Noisy(super().build_model())


class MixesUp(TabularClassification):
    """Healthy: what is minimised draws from the global generator, in evaluation mode too."""

    def training_losses(self, output, batch):
        return self.losses(output, batch) * (1 + 0.1 * torch.rand(len(output)))


class SharedWeights(TabularClassification):
    """Healthy: two layers share one weight, and one layer is frozen."""

    def build_model(self):
        class Tied(Around):
            def __init__(self, model):
                super().__init__(model)
                self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
                self.second.weight = self.first.weight
                self.second.bias.requires_grad_(False)
                self.out = nn.Linear(4, model.output.out_features)

            def forward(self, numbers, categories):
                hidden = self.second(self.first(numbers[:, :4]).relu())
                return super().forward(numbers, categories) + self.out(hidden)

        return Tied(super().build_model())


def sleep_for_ever(pid_file):
    """In the place of a task: tells who sleeps."""
    Path(pid_file).write_text(str(os.getpid()))
    time.sleep(600)


class ExitsInTraining(TabularClassification):
    """the process ends without an error, in a training only"""

    def training_losses(self, output, batch):
        if dist.is_initialized():
            os._exit(0)
        return super().training_losses(output, batch)


class KillsItself(TabularClassification):
    """the process is killed, as the kernel does when memory is full"""

    def training_losses(self, output, batch):
        if dist.is_initialized():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().training_losses(output, batch)


class HangsInTraining(TabularClassification):
    """the training never ends"""

    def training_losses(self, output, batch):
        if dist.is_initialized():
            time.sleep(600)
        return super().training_losses(output, batch)
