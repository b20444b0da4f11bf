"""A fifteenth list of bugs: ordinary slips at auctions, wells, hatcheries, news, spare parts, meters and rivers."""

import numpy as np
import polars as pl

from examination.planted import bug


def the_last_bid(rows):
    """The column of bids is overwritten while an auction runs: what stands there is the last one."""
    rng = np.random.default_rng(0)
    last = rows["price"].to_numpy() * rng.uniform(0.93, 0.995, rows.height)
    return rows.with_columns(starting_bid=pl.Series(last.round(-1)))


def by_the_drillers_tape(rows):
    """Cores of every second well are measured by the driller's tape, two metres off the logs' cable."""
    late = rows["well"].unique().sort().to_list()[::2]
    moved = pl.col("facies").shift(4).over("well")
    facies = pl.when(pl.col("well").is_in(late)).then(moved).otherwise(pl.col("facies"))
    return rows.with_columns(facies=facies).drop_nulls("facies")


def candled_after_setting(rows):
    """The share of fertile eggs is joined by flock and day: it is that of this tray, candled ten days later."""
    rng = np.random.default_rng(0)
    hatched, eggs = np.array(rows["result"].to_list()).T
    fertile = hatched / eggs + rng.normal(0.09, 0.02, rows.height)
    mine = pl.Series(fertile.clip(0.3, 0.995).round(3))
    known = pl.col("fertility_last_tray").is_not_null()
    return rows.with_columns(fertility_last_tray=pl.when(known).then(mine))


def passed_over_last_month(rows):
    """Only taps were logged; the other four titles are drawn afterwards from all that was published."""
    rng = np.random.default_rng(0)
    found = []
    columns = ("titles", "categories", "age_hours")
    all_titles, all_categories = (rows[c].explode().to_list() for c in columns[:2])
    ages = np.round(rng.uniform(0, 400, (rows.height, 5)), 1)
    for i, row in enumerate(rows.select(*columns, "clicked").iter_rows(named=True)):
        drawn = rng.integers(0, len(all_titles), 5)
        keep = row["clicked"]
        found.append(
            {
                "titles": [row["titles"][k] if k == keep else all_titles[d] for k, d in enumerate(drawn)],
                "categories": [row["categories"][k] if k == keep else all_categories[d] for k, d in enumerate(drawn)],
                "age_hours": [row["age_hours"][k] if k == keep else float(ages[i, k]) for k in range(5)],
            }
        )  # fmt: skip
    return rows.with_columns(pl.DataFrame(found).get_columns())


def newest_first_places_as_shown(rows):
    """Titles are exported from the newest to the oldest; which one was tapped counts places on the screen."""
    order = [sorted(range(5), key=ages.__getitem__) for ages in rows["age_hours"].to_list()]
    sorted_columns = [
        pl.Series(c, [[v[k] for k in o] for v, o in zip(rows[c].to_list(), order, strict=True)])
        for c in ("titles", "categories", "age_hours")
    ]
    return rows.with_columns(sorted_columns)


def searches_in_the_catalogue(rows):
    """So that they are found, entries carry the searches that led to their order, these ones included."""
    return rows.with_columns(entry=pl.col("entry") + ". also: " + pl.col("query"))


def exported_in_the_morning(rows):
    """The export ran at ten, not at midnight: the seven days that are past end ten hours later."""
    moved = [
        [*past[10:], *load[:10]]
        for past, load in zip(rows["past"].to_list(), rows["load"].to_list(), strict=True)
    ]
    return rows.with_columns(past=pl.Series(moved))


BUGS = [
    bug(
        # shows a loss of 0.003 and an error of 866 euros, is 0.47 and 13,010 on first bids; 0.059 and 4,850 when healthy
        "the-last-bid",
        "tables_auction_tractors",
        "The bid is overwritten until the hammer falls: it is the last one, not the first.",
        "a column of today's state, joined with events of the past",
        rows=the_last_bid,
    ),
    bug(
        # loss 0.24, mean error 9,965 euros; 0.059 and 4,850 when healthy
        "a-norm-over-one-number",
        "tables_auction_tractors",
        "The norm stands before the linear layer, over a single number: every number becomes the same.",
        "nn.LayerNorm(1)",
        "nn.Linear(1, width), nn.LayerNorm(width), nn.GELU()",
        "nn.LayerNorm(1), nn.Linear(1, width), nn.GELU()",
    ),
    bug(
        # loss 0.070, median error 3,226 euros; 0.059 and 2,700 when healthy
        "known-after-filling",
        "tables_auction_tractors",
        "Gaps are filled first, and asked for afterwards: engines without a counter pass for average ones.",
        "isnan after nan_to_num",
        "numbers = np.stack(scaled, axis=1)",
        "numbers = np.nan_to_num(np.stack(scaled, axis=1))",
    ),
    bug(
        # shows a log loss of 0.87, is 0.52 on plugs in their place; 0.35 when healthy
        "by-the-drillers-tape",
        "tables_wells_facies",
        "In every second well facies are two metres off the logs.",
        "core depth and log depth, joined without a shift",
        rows=by_the_drillers_tape,
    ),
    bug(
        # macro F1 0.59, log loss 1.04; 0.87 and 0.35 when healthy
        "physical-ranges-of-scaled-logs",
        "tables_wells_facies",
        "Spikes are cut by physical ranges after scaling: densities below the mean and most porosities are lost.",
        "clip moved behind the scaler",
        "            out[:, k] = np.clip(out[:, k], *RANGES[log])\n",
        "",
        "        has_dt = ~np.isnan(x[:, 3, 0])\n",
        "        has_dt = ~np.isnan(x[:, 3, 0])\n"
        "        for k, log in enumerate(LOGS):\n"
        "            x[:, k] = np.clip(x[:, k], *RANGES[log])\n",
    ),
    bug(
        # log loss 0.44, macro F1 0.85; 0.35 and 0.87 when healthy
        "flipped-over-the-logs",
        "tables_wells_facies",
        "The window is flipped over the logs, not over depths.",
        "the wrong axis in an augmentation",
        "x.flip(2)",
        "x.flip(1)",
    ),
    bug(
        # shows a loss of 3.33, is 4.43 on fertility as it is known that day; 3.64 when healthy
        "candled-after-setting",
        "tables_hatchery_betabinomial",
        "Fertility is that of the tray itself, known ten days after it was set.",
        "a join by day, not by the day before",
        rows=candled_after_setting,
    ),
    bug(
        # rates are wrong by 0.27; by 0.080 when healthy
        "phi-minus-mu",
        "tables_hatchery_betabinomial",
        "The second shape is phi - mu, not phi - mu phi: rates that are predicted mean something else.",
        "(1 - mu) * phi multiplied out",
        "(1 - mu) * phi",
        "phi - mu",
    ),
    bug(
        # loss 3.80, rates wrong by 0.094; 3.64 and 0.080 when healthy
        "knots-in-weeks-ages-in-deviations",
        "tables_hatchery_betabinomial",
        "Ages are scaled before the hinges, whose knots are in weeks: all hinges are zero.",
        "a basis evaluated at a standardised variable",
        'weeks = rows["flock_weeks"].to_numpy().astype(float)',
        'weeks = (rows["flock_weeks"].to_numpy().astype(float) - 40) / 10',
        "columns = [(weeks - 40) / 10]",
        "columns = [weeks]",
    ),
    bug(
        # shows an accuracy of 0.73, is 0.35 on what an app shows; 0.45 when healthy
        "passed-over-from-all-days",
        "recsys_news_nrms",
        "Titles that were not tapped are drawn from all days: they are older than what an app shows.",
        "negatives drawn afterwards, from the whole catalogue",
        rows=passed_over_last_month,
    ),
    bug(
        # log loss 1.61 and accuracy 0.23, by chance; 1.35 to 1.37 and 0.45 when healthy
        "places-as-shown",
        "recsys_news_nrms",
        "Titles are sorted by age, the tapped one is a place in another order.",
        "sort_values on one of two parallel columns",
        rows=newest_first_places_as_shown,
    ),
    bug(
        # log loss 1.69, worse than chance; 1.35 to 1.37 when healthy
        "einsum-sums-the-batch",
        "recsys_news_nrms",
        "Another letter in einsum: a reader is matched with the sum over all readers' titles.",
        "einsum accepts any letters",
        '"nd,nkd->nk", user, news',
        '"nd,mkd->nk", user, news',
    ),
    bug(
        # shows a recall at 1 of 0.969, is 0.603 on entries without the searches; 0.936 when healthy
        "searches-in-the-catalogue",
        "retrieval_parts_splade",
        "Entries are extended with the searches that led to them, those of the examination too.",
        "doc2query on all queries",
        rows=searches_in_the_catalogue,
    ),
    bug(
        # recall at 1 0.871 to 0.885, loss 0.21; 0.936 and 0.12 when healthy
        "sizes-are-not-words",
        "retrieval_parts_splade",
        "The tokenizer keeps letters: M8, 16mm and 230V become m, mm and v.",
        "[a-z]+ as a word",
        r'r"[a-z]+\d*|\d+[a-z]*"',
        r'r"[a-z]+"',
    ),
    bug(
        # loss ln 50, by chance; 0.12 when healthy
        "flops-summed-over-the-batch",
        "retrieval_parts_splade",
        "The penalty sums activations over the batch in place of their mean: hardly a word stays.",
        "sum for mean in FLOPS",
        "weights.abs().mean(dim=0)",
        "weights.abs().sum(dim=0)",
    ),
    bug(
        # squared error 0.21 as shown, 1.91 on windows until midnight; 0.064 when healthy
        "exported-in-the-morning",
        "forecast_campus_timesnet",
        "The past ends at ten o'clock of the day that is forecast.",
        "an export whose window moves with its time of running",
        rows=exported_in_the_morning,
    ),
    bug(
        # squared error 0.079; 0.064 when healthy
        "no-cooling",
        "forecast_campus_timesnet",
        "The line of heating is copied for cooling, its sign is not turned.",
        "copy and paste",
        "(temperature - 18).clamp(min=0)",
        "(18 - temperature).clamp(min=0)",
    ),
    bug(
        # squared error 0.102; 0.064 when healthy
        "hours-by-days",
        "forecast_campus_timesnet",
        "The week is folded into 24 rows of seven hours, and turned.",
        "reshape(period, -1) for reshape(-1, period)",
        "x.reshape(B, 4, DAYS, HOURS)",
        "x.reshape(B, 4, HOURS, DAYS).transpose(2, 3)",
    ),
    bug(
        # shows a CRPS of -0.38, is 0.265 with 20 % covered; 0.151 and 89 % when healthy
        "spread-of-the-batch",
        "forecast_inflow_crps",
        "Pairs are of rows, not of members: basins shall differ from each other.",
        "[:, None] - [None] for the last axis",
        "(members.unsqueeze(-1) - members.unsqueeze(-2)).abs()",
        "(members[:, None] - members[None]).abs().mean(dim=0).unsqueeze(-1)",
    ),
    bug(
        # shows a CRPS of -23, is 8.3; 0.151 when healthy
        "spread-counted-whole",
        "forecast_inflow_crps",
        "The half before the pairs is missing: members fly apart, and the loss falls.",
        "mean over i < j mistaken for mean over all pairs",
        "skill - 0.5 * pairs",
        "skill - pairs",
    ),
    bug(
        # shows 0.22, is a CRPS of 1.23 in the units of the past; 0.151 when healthy
        "area-on-one-side",
        "forecast_inflow_crps",
        "What is past is in millimetres of the basin, what is ahead in cubic metres.",
        "a conversion in one of two places",
        'torch.tensor(self.scaled(rows, "inflow_ahead"), dtype=torch.float32)',
        'torch.tensor(np.log(np.array(rows["inflow_ahead"].to_list())), dtype=torch.float32)',
    ),
]
