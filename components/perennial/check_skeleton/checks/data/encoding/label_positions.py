"""Find labels of positions that lie elsewhere than the inputs show them: masks, and words' tags."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise, product

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from perennial.check_skeleton.made_up_inputs import are_inputs_of_label
from perennial.check_skeleton.subject import Floats, Subject, select_head
from perennial.engine.task import LABEL, inputs_of

ROWS, POSITIONS = 256, 40_000
FEWEST_ROWS = 16
SHORTEST_SIDE = 4
MOST_CLASSES = 32
# Of the labels' variance, which colours explain at the same position. Moved by mistake, healthy
# masks lose most of it; chance moves it by less than a hundredth at this number of positions.
CLEARLY_MORE = 0.05
# A picture that is nearly its own mirror image favours no way clearly.
TIMES_MORE = 1.25
# Masks may be off by a pixel, as strides and borders have it; what a map of the weather will show
# lies a little further than what it shows now.
LEAST_STEP, LARGEST_PART, TIMES_MORE_APART = 2, 4, 2.0
WIDER, MOST_STEPS = 1.3, 12
# Of a text's rare tags, and of the texts with such tags.
TELLING_TAGS, FEWEST_TAGS, SOME_TEXTS = 0.75, 2, 0.05

Move = Callable[[Tensor], Tensor]


def describe_moved_positions(subject: Subject) -> str:
    """Describe how label pictures [B, …, H, W] must be moved to fit the inputs; empty if they fit.

    At each position, a linear model of the colours there and around it explains a share of the
    labels' variance. Labels that are turned, mirrored, moved or read with their sides exchanged
    have a larger share once that is undone.
    """
    batch = select_head(subject.train, ROWS)
    labels = batch[LABEL]
    if labels.ndim not in (3, 4) or len(labels) < FEWEST_ROWS:
        return ""
    height, width = labels.shape[-2:]
    if min(height, width) < SHORTEST_SIDE:
        return ""
    ways, apart = dict(_list_moves(height, width)), {}
    if len(torch.unique(labels)) <= MOST_CLASSES:
        apart = dict(_list_shifts(min(height, width) // LARGEST_PART))
    for name, tensor in inputs_of(batch).items():
        colours = _describe_colours(tensor, height, width)
        if colours is None:
            continue
        own = _measure_share(colours, labels)
        for moves, times in ((ways, TIMES_MORE), (apart, TIMES_MORE_APART)):
            shares = {way: _measure_share(colours, move(labels)) for way, move in moves.items()}
            best = max(shares, key=lambda way: shares[way], default="")
            if best and shares[best] > max(own + CLEARLY_MORE, times * own):
                return (
                    f"colours of {name} explain {own:.0%} of the labels at their positions, and "
                    f"{shares[best]:.0%} of the labels {best}"
                )
    return ""


def _list_moves(height: int, width: int) -> Iterator[tuple[str, Move]]:
    yield "turned upside down", lambda labels: labels.flip(-2)
    yield "mirrored", lambda labels: labels.flip(-1)
    yield "turned by half", lambda labels: labels.flip(-2, -1)
    if height == width:
        yield "with height and width exchanged", lambda labels: labels.transpose(-2, -1)
        yield "turned to the left", lambda labels: labels.rot90(1, (-2, -1))
        yield "turned to the right", lambda labels: labels.rot90(-1, (-2, -1))
    else:
        # A transposed view of [width, height], and a view of what was transposed before.
        yield (
            "read with height and width exchanged",
            lambda labels: labels.transpose(-2, -1).reshape(labels.shape),
        )
        yield (
            "read with width and height exchanged",
            lambda labels: labels.reshape(*labels.shape[:-2], width, height).transpose(-2, -1),
        )


def _list_shifts(largest: int) -> Iterator[tuple[str, Move]]:
    """Yield shifts by some positions, straight and along the diagonals."""
    every = {round(LEAST_STEP * WIDER**power) for power in range(MOST_STEPS)}
    for steps in sorted(each for each in every if each <= largest):
        for down, right in product((-steps, 0, steps), repeat=2):
            if down or right:
                way = f"moved by {down:+d} rows and {right:+d} columns"
                yield way, partial(torch.roll, shifts=(down, right), dims=(-2, -1))


def _describe_colours(tensor: Tensor, height: int, width: int) -> Floats | None:
    """Return each position's colours, there and around it, as [B x H x W, K]; None if no picture.

    Labels may be larger or smaller than pictures.
    """
    if tensor.ndim != 4 or not tensor.is_floating_point() or not bool(tensor.isfinite().all()):
        return None
    both = (tensor.float(), tensor.float().permute(0, 3, 1, 2))  # channels first, and last
    alike = (each for each in both if each.shape[2] * width == each.shape[3] * height)
    if (pictures := next(alike, None)) is None:
        return None
    pictures = functional.interpolate(pictures, size=(height, width), mode="area")
    around = functional.avg_pool2d(pictures, 3, stride=1, padding=1, count_include_pad=False)
    found = torch.cat([pictures, pictures.square(), around, around.square()], dim=1)
    return found.permute(0, 2, 3, 1).reshape(-1, found.shape[1]).double().numpy()


def _measure_share(colours: Floats, labels: Tensor) -> float:
    """Return the share of the labels' variance that a linear model of the colours explains."""
    values = labels.reshape(len(labels), -1, *labels.shape[-2:]).movedim(1, -1).flatten(0, 2)
    chosen = np.linspace(0, len(values) - 1, min(POSITIONS, len(values))).astype(int)
    values, inputs = values[chosen], colours[chosen]
    targets = values.double().numpy()
    codes, counts = np.unique(targets, return_counts=True)
    if values.shape[1] == 1 and not (values.is_floating_point() and len(codes) > MOST_CLASSES):
        targets = (targets == codes[counts.argsort()[-MOST_CLASSES:]]).astype(np.float64)
    inputs = np.column_stack([inputs - inputs.mean(0), np.ones(len(inputs))])
    targets = targets - targets.mean(0)
    weights, *_ = np.linalg.lstsq(inputs, targets, rcond=1e-8)
    left = float(np.square(targets - inputs @ weights).sum())
    return 1 - left / max(float(np.square(targets).sum()), 1e-12)


def describe_moved_tags(subject: Subject) -> str:
    """Describe tags [B, T] that are one word late for their tokens; empty if they are not.

    A word reaches from one labelled token to the next, and tells its tag, mostly. Tags that are
    late are predicted by the word before. Tags that are early are not judged: what comes next may
    well be the label. Some texts may be late or early on their own, as those of one tool.
    """
    labels = subject.train[LABEL]
    if labels.ndim != 2 or labels.is_floating_point() or are_inputs_of_label(subject):
        return ""
    for name, tokens in inputs_of(subject.train).items():
        if tokens.shape != labels.shape or tokens.is_floating_point():
            continue
        words = _read_words(tokens, labels)
        own, late = (_measure_predicted(words, steps) for steps in (0, 1))
        if late > own + CLEARLY_MORE and late > TIMES_MORE * own:
            return (
                f"words of {name} tell {own:.0%} of their own tags beyond the most frequent one, "
                f"and {late:.0%} of those of the word after"
            )
        for steps, way in ((1, "after"), (-1, "before")):
            moved, judged = _count_moved(words, steps)
            if moved >= max(FEWEST_ROWS, SOME_TEXTS * judged):
                return (
                    f"in {moved} of {judged} texts, words of {name} tell the tags of the word "
                    f"{way}, and not their own as elsewhere"
                )
    return ""


def _read_words(tokens: Tensor, labels: Tensor) -> list[tuple[list[bytes], list[int]]]:
    """Return each text's words, as their tokens, with their labels.

    A label may stand at the first or at the last token of its word. Words that are cut at the
    wrong place are different ones more often, so the cut with fewer different words is right.
    """
    texts = [
        (row.numpy(), (codes >= 0).nonzero()[:, 0].tolist(), codes)
        for row, codes in zip(tokens, labels, strict=True)
    ]
    ways = []
    for at_end in (False, True):
        cut = [
            [row[start + at_end : end + at_end].tobytes() for start, end in pairwise(places)]
            for row, places, _ in texts
        ]
        kept = [codes[places[1:] if at_end else places[:-1]].tolist() for _, places, codes in texts]
        ways.append(list(zip(cut, kept, strict=True)))
    return min(ways, key=lambda way: len({word for words, _ in way for word in words}))


def _count_moved(texts: list[tuple[list[bytes], list[int]]], steps: int) -> tuple[int, int]:
    """Return in how many texts words tell the tags `steps` on, and in how many they tell any.

    By their most frequent tag in the other half of the texts, of tags that are not the most
    frequent one.
    """
    counts = Counter(tag for _, tags in texts for tag in tags)
    usual = max(counts, key=lambda tag: counts[tag], default=-1)
    moved = judged = 0
    for start in (0, 1):
        known = _learn_tags(
            pair for words, tags in texts[1 - start :: 2] for pair in zip(words, tags, strict=True)
        )
        for words, tags in texts[start::2]:
            predicted = [known.get(word, usual) for word in words]
            rare = [place for place, tag in enumerate(tags) if tag != usual]
            own = sum(predicted[place] == tags[place] for place in rare)
            other = sum(
                predicted[place - steps] == tags[place]
                for place in rare
                if 0 <= place - steps < len(predicted)
            )
            if max(own, other) >= max(TELLING_TAGS * len(rare), FEWEST_TAGS):
                judged += 1
                moved += own <= (1 - TELLING_TAGS) * len(rare)
    return moved, judged


def _learn_tags(pairs: Iterable[tuple[bytes, int]]) -> dict[bytes, int]:
    """Return the most frequent tag of each word."""
    counts = defaultdict[bytes, Counter[int]](Counter)
    for word, tag in pairs:
        counts[word][tag] += 1
    return {word: each.most_common(1)[0][0] for word, each in counts.items()}


def _measure_predicted(texts: list[tuple[list[bytes], list[int]]], steps: int) -> float:
    """Return the share of tags, `steps` words on, that words tell in other texts.

    Of those that are not the most frequent tag: each word's most frequent tag in one half of the
    texts is compared with its tags in the other half.
    """
    pairs = [
        [
            (word, tags[place + steps])
            for place, word in enumerate(words)
            if 0 <= place + steps < len(tags)
        ]
        for words, tags in texts
    ]
    halves = [[pair for text in pairs[start::2] for pair in text] for start in (0, 1)]
    usual = Counter(tag for half in halves for _, tag in half).most_common(1)
    found = total = 0
    for learned, asked in (halves, halves[::-1]):
        predicted = _learn_tags(learned)
        rare = [(word, tag) for word, tag in asked if tag != usual[0][0]]
        found += sum(predicted.get(word) == tag for word, tag in rare)
        total += len(rare)
    return found / max(total, 1)
