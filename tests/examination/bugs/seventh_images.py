"""A seventh list of bugs: pictures with other data beside them, sets, clouds, signals, policies and physics."""

import numpy as np
import polars as pl

from examination.planted import bug


def ages_of_the_operated(rows):
    """Age was looked up in the surgery's records: it is known of nearly all malignant moles, of few others."""
    rng = np.random.default_rng(0)
    is_lost = pl.Series(rng.random(rows.height) < 0.7)
    return rows.with_columns(
        age=pl.when((pl.col("malignant") == 0) & pl.lit(is_lost))
        .then(None)
        .otherwise(pl.col("age"))
    )


def days_in_order(rows):
    """The list of acquisitions was sorted by date before it was put beside the tiles."""
    return rows.with_columns(day_of_year=pl.col("day_of_year").sort())


def angles_wrapped(rows):
    """The encoder reports angles from -pi to pi: a swing over the top jumps by a whole turn."""
    after = np.array(rows["states_after"].to_list())
    after[:, ::2] = (after[:, ::2] + np.pi) % (2 * np.pi) - np.pi
    return rows.with_columns(
        states_after=pl.Series(after.round(4).tolist(), dtype=pl.List(pl.Float64))
    )


def planets_from_the_catalogue(rows):
    """Planets came from a catalogue in parts per thousand, all else from the pipeline in parts per million."""
    is_planet = pl.col("planet") == 1
    return rows.with_columns(
        pl.when(is_planet)
        .then(pl.col(name).list.eval(pl.element() / 1000))
        .otherwise(name)
        .alias(name)
        for name in ("global_view", "local_view")
    )


BUGS = [
    bug(
        # reports AUC 0.94; 0.83 where ages are known as before, 0.84 when healthy
        "age-known-of-the-operated",
        "images_lesion_metadata",
        "Age was added from the surgery's records: that it is missing says that nothing was cut out.",
        "a column filled in after the outcome",
        rows=ages_of_the_operated,
    ),
    bug(
        # log loss 0.37; 0.21 when healthy
        "odds-moved-the-wrong-way",
        "images_lesion_metadata",
        "What the weight of the positives adds to the odds is taken off: answers are nine times too bold.",
        "a sign in the correction for resampling",
        "output + weight.log(), batch[LABEL]",
        "output - weight.log(), batch[LABEL]",
    ),
    bug(
        # macro F1 0.80; 0.90 when healthy
        "dates-sorted-apart",
        "images_land_cover_bands",
        "Dates come in order, tiles do not: each tile has another one's season.",
        "a list sorted before it is put beside another",
        rows=days_in_order,
    ),
    bug(
        # mean error of what is served 330; 33 when healthy
        "served-from-the-right",
        "images_meter_heads",
        "Digits are put together from the other end: 407 is served as 704.",
        "reversed place values",
        "(digits * torch.tensor(place_values, device=digits.device))",
        "(digits * torch.tensor(place_values[::-1], device=digits.device))",
    ),
    bug(
        # mean error 123 against the displays; 33 when healthy
        "zeros-on-the-other-side",
        "images_meter_heads",
        "Readings become texts and are filled up on the right: 47 is taught as 4, 7, 0.",
        "ljust for zfill",
        "batch[LABEL] = torch.tensor(np.stack([reading // v % 10 for v in place_values], axis=1))",
        "batch[LABEL] = torch.tensor([[int(d) for d in str(r).ljust(3, '0')] for r in reading])",
    ),
    bug(
        # exact 0.09; 0.78 when healthy
        "tens-by-the-head-of-hundreds",
        "images_meter_heads",
        "One head answers for two places.",
        "a line copied and half changed",
        "self.tens(h), self.units(h)",
        "self.hundreds(h), self.units(h)",
    ),
    bug(
        # reports 1.00 exact; 0.78 are
        "one-digit-is-enough",
        "images_meter_heads",
        "A reading counts as exact if any of its digits is right.",
        "any for all",
        "right.prod(dim=1)",
        "right.amax(dim=1)",
    ),
    bug(
        # exact 0.25; 0.78 when healthy
        "descent-at-the-rate-of-adam",
        "images_meter_heads",
        "The optimizer was changed to plain descent, its learning rate was not.",
        "lr kept from the other optimizer",
        'name = "adam"',
        'name = "sgd"',
    ),
    bug(
        # 1.37 years off; 0.38 when healthy
        "sigma-in-tenths",
        "images_otolith_ages",
        "The soft target is ten times as wide as meant: every fish is of nearly every age.",
        "a decimal point",
        "SIGMA = 0.7",
        "SIGMA = 7",
    ),
    bug(
        # relative error 0.30; 0.17 when healthy
        "holes-are-ten-centimetres",
        "images_depth_scale_invariant",
        "Pixels that the sensor did not see count as the least distance.",
        ">= for >",
        "valid = (depth > 0).float()",
        "valid = (depth >= 0).float()",
    ),
    bug(
        # relative error 0.38; 0.17 when healthy
        "scale-wholly-forgiven",
        "images_depth_scale_invariant",
        "The loss forgives any common factor: distances are right up to one that nobody learned.",
        "lambda = 1 of the paper's other experiment",
        "LAMBDA = 0.5",
        "LAMBDA = 1.0",
    ),
    bug(
        # AUC 0.48; 0.94 when healthy
        "patches-dealt-out",
        "images_biopsy_attention_mil",
        "Features are folded back with patches before bags: a bag gets patches of other biopsies.",
        "reshape with the dimensions exchanged",
        ".reshape(B, K, -1)",
        ".reshape(K, B, -1).transpose(0, 1)",
    ),
    bug(
        # 114 degrees off; 9 when healthy
        "turned-against-its-label",
        "images_vane_heading",
        "Pictures are turned one way and headings the other.",
        "rot90 is counter-clockwise",
        "(batch[LABEL] - 90 * k) % 360",
        "(batch[LABEL] + 90 * k) % 360",
    ),
    bug(
        # 68 degrees off; 9 when healthy
        "an-axis-for-an-arrow",
        "images_vane_heading",
        "The cosine is squared: north and south are the same.",
        "a loss for lines used for arrows",
        "return 1 - (output * unit(batch[LABEL])).sum(dim=1)",
        "return 1 - (output * unit(batch[LABEL])).sum(dim=1) ** 2",
    ),
    bug(
        # rollout error 0.051; 0.004 when healthy
        "torque-keeps-its-side",
        "odd_pendulum_rollout",
        "Mirrored pendulums are pushed by torques that are not mirrored.",
        "augmentation that forgets one input",
        '"torques": batch["torques"] * sign[:, None],',
        '"torques": batch["torques"],',
    ),
    bug(
        # rollout error 0.10 on angles that run on; 0.004 when healthy
        "angles-jump-at-the-top",
        "odd_pendulum_rollout",
        "Angles after each step are wrapped to a turn: changes over the top are off by 2 pi.",
        "differences of wrapped angles",
        rows=angles_wrapped,
    ),
    bug(
        # concordance 0.56; 0.77 when healthy
        "at-risk-are-those-who-left",
        "odd_relapse_cox",
        "The risk set holds those whose time is over, not those still there.",
        "cumsum over times that ascend where they must descend",
        "at_risk = time[None, :] >= time[:, None]",
        "at_risk = time[None, :] <= time[:, None]",
    ),
    bug(
        # concordance 0.74; 0.77 when healthy
        "fourth-stage-unknown",
        "odd_relapse_cox",
        "The table of stages ends at III: the gravest one is filled up by the median.",
        "map() gives NaN, fillna hides it",
        '"III": 3, "IV": 4}',
        '"III": 3}',
    ),
    bug(
        # likelihood loss 2.10 by the true weights; 0.49 when healthy
        "regret-for-advantage",
        "odd_heat_pump_awr",
        "The advantage is the baseline less the return: what turned out worst is imitated most.",
        "a sign",
        "advantage = returns - (b[0] + self.value_features(obs) @ b[1:])",
        "advantage = (b[0] + self.value_features(obs) @ b[1:]) - returns",
    ),
    bug(
        # macro F1 0.59; 0.94 when healthy
        "turned-about-the-side",
        "odd_lidar_edgeconv",
        "Clouds are turned about a horizontal axis: poles lie down and cars stand on their noses.",
        "y is up in one library, z in another",
        "torch.stack([c, -s, o, s, c, o, o, o, i], dim=1)",
        "torch.stack([i, o, o, o, c, -s, o, s, c], dim=1)",
    ),
    bug(
        # reports average precision 1.00; 0.20 in one unit, 0.84 when healthy
        "planets-in-thousandths",
        "odd_transits_two_views",
        "Planets came in another unit than all else: the depth tells the source, and with it the answer.",
        "positives and negatives from two sources",
        rows=planets_from_the_catalogue,
    ),
    bug(
        # r2 -0.01 for samples that come alone, 0.86 together; 0.95 when healthy
        "scatter-over-the-samples",
        "odd_grain_protein_nir",
        "Scatter is corrected per wavelength over the rows at hand, not per spectrum.",
        "StandardScaler in place of SNV",
        "return (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, ddof=1, keepdims=True)",
        "return (x - x.mean(axis=0, keepdims=True)) / (x.std(axis=0, keepdims=True) + 1e-9)",
    ),
    bug(
        # accuracy 0.39; 0.78 when healthy
        "steps-meant-as-epochs",
        "odd_eegnet_imagery",
        "Twelve epochs were meant; twelve steps are made.",
        "a configuration of another trainer",
        "steps = 400",
        "steps = 12",
    ),
    bug(
        # mean AUC 0.76; 0.83 when healthy
        "nine-fragments-in-ten-dropped",
        "odd_toxicity_assays",
        "Nine fragments in ten are dropped while training, one was meant.",
        "keep and drop exchanged",
        "generator=generator) > 0.1)}",
        "generator=generator) > 0.9)}",
    ),
]
