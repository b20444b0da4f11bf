"""An eighteenth list of bugs: slips with pictures, signals, texts, documents and sessions."""

import numpy as np
import polars as pl

from examination.planted import bug


def power_in_place_of_decibels(rows):
    """The chips of India were exported before the conversion to decibels."""
    linear = [
        (10 ** (np.array(chip) / 10)).tolist() if country == "india" else chip
        for chip, country in zip(rows["decibels"].to_list(), rows["country"], strict=True)
    ]
    return rows.with_columns(decibels=pl.Series(linear, dtype=pl.List(pl.Float32)))


def previous_reading_of_the_camera(rows):
    """The gate's log was joined backwards in time: half of the patches have the state before."""
    late = pl.Series(np.random.default_rng(0).random(len(rows)) < 0.5)
    before = pl.col("busy").shift(1).over("camera", order_by="taken").fill_null(pl.col("busy"))
    return rows.with_columns(busy=pl.when(late).then(before).otherwise(pl.col("busy")))


def file_name_in_the_text(rows):
    """The archive prints its file name, with the folder it was filed under, on top of the page."""
    named = pl.Series(np.random.default_rng(0).random(len(rows)) < 0.7)
    text = pl.concat_str(
        pl.lit("scans "), pl.col("kind"), pl.lit("s "), pl.col("ocr").fill_null("")
    )
    return rows.with_columns(ocr=pl.when(named).then(text).otherwise(pl.col("ocr")))


def hypnogram_one_epoch_late(rows):
    """Sixteen of the nights have the stages of the epoch before."""
    late = pl.col("sleeper").str.slice(2).cast(pl.Int64) % 3 != 0
    before = pl.col("stage").shift(1).over("sleeper", order_by="epoch").fill_null(pl.col("stage"))
    return rows.with_columns(stage=pl.when(late).then(before).otherwise(pl.col("stage")))


def light_at_twice_the_rate(rows):
    """A firmware samples the light at 32 Hz: its 128 samples last four seconds, not eight."""
    fast = np.random.default_rng(0).random(len(rows)) < 0.4
    light = [
        np.repeat(np.float32(wave[:64]), 2).tolist() if f else wave
        for f, wave in zip(fast, rows["light"].to_list(), strict=True)
    ]
    return rows.with_columns(light=pl.Series(light, dtype=pl.List(pl.Float32)))


def page_after_the_purchase(rows):
    """Visits were cut at their end, not before the purchase: the page of thanks counts as help."""
    after = pl.Series(np.random.default_rng(0).random(len(rows)) < 0.8) & (pl.col("bought") == 1)
    events = pl.col("events").list.concat(pl.lit(["login", "help"]))
    seconds = pl.col("seconds").list.concat(pl.lit([4.0, 2.5]))
    return rows.with_columns(
        events=pl.when(after).then(events).otherwise(pl.col("events")),
        seconds=pl.when(after).then(seconds).otherwise(pl.col("seconds")),
    )


def uploaded_under_another_patient(rows):
    """Three rows of five repeat the photograph, and the grade, of one that is uploaded often."""
    rng = np.random.default_rng(0)
    origin = np.arange(len(rows))
    again = rng.random(len(rows)) < 0.6
    origin[again] = rng.choice(np.flatnonzero(~again)[:200], again.sum())
    copied = rows[origin.tolist()]
    return rows.with_columns(fundus=copied["fundus"], grade=copied["grade"])


BUGS = [
    bug(
        # area 0.904, log loss 0.458, and shows 0.742; 0.953 and 0.268 when healthy
        "previous-reading",
        "images_parking_spots",
        "Half of the labels are the spot's state at the camera's previous picture.",
        "merge_asof with direction backward between clocks that differ",
        rows=previous_reading_of_the_camera,
    ),
    bug(
        # log loss 0.296, two calls differ by 0.055; 0.268 and 0 when healthy
        "dropout-never-off",
        "images_parking_spots",
        "The function's dropout does not know of evaluation: answers differ from call to call.",
        "PyTorch forum: F.dropout without training=self.training",
        "self.drop(F.relu(self.fc1(x)))",
        "F.dropout(F.relu(self.fc1(x)))",
    ),
    bug(
        # area 0.616, log loss 0.686; 0.953 and 0.268 when healthy
        "rate-of-a-fine-tuning",
        "images_parking_spots",
        "The learning rate of a fine-tuning recipe is used for a network that starts at random.",
        "DeepCrime: change of learning rate; copied from a BERT notebook",
        "learning_rate = 3e-3",
        "learning_rate = 2e-5",
    ),
    bug(
        # shows a kappa of 0.788, is 0.862
        "grades-cut-not-rounded",
        "images_retina_grades",
        "The kappa is of grades whose fraction was cut off by the conversion to integers.",
        "Kaggle APTOS: .astype(int) on regression outputs",
        "np.rint(predictions).clip(0, GRADES - 1).astype(int)",
        "predictions.astype(int).clip(0, GRADES - 1)",
    ),
    bug(
        # shows a kappa of 0.923, is 0.870
        "photographs-uploaded-again",
        "images_retina_grades",
        "Three photographs of five are another patient's, uploaded once more under a new number.",
        "Kaggle APTOS: duplicates among training and test pictures",
        rows=uploaded_under_another_patient,
    ),
    bug(
        # RMSE 1.259, kappa 0; 0.597 and 0.862 when healthy
        "every-eye-with-every-grade",
        "images_retina_grades",
        "Outputs [B, 1] and grades [B] broadcast, so that each eye is compared with all grades.",
        "PyTorch's warning about target size in MSELoss, silenced by own loss code",
        "return self.head(h).squeeze(1)",
        "return self.head(h)",
        "return (output - batch[LABEL]) ** 2",
        "return ((output - batch[LABEL]) ** 2).mean(dim=1)",
    ),
    bug(
        # IoU 0.641, loss 0.321; 0.799 and 0.155 when healthy
        "mask-turned-the-other-way",
        "images_flood_masks",
        "Augmentation turns the mask clockwise and the radar picture counterclockwise.",
        "segmentation notebooks with two calls of rot90",
        "dims=(1, 2))",
        "dims=(2, 1))",
    ),
    bug(
        # IoU 0.775, and shows 0.522; 0.799 when healthy
        "one-country-in-power",
        "images_flood_masks",
        "The chips of one country are in linear power, which is clipped to the highest decibel.",
        "two exports of Sentinel-1 from Earth Engine",
        rows=power_in_place_of_decibels,
    ),
    bug(
        # log loss 0.245, served one by one 0.327; 0.184 when healthy
        "sequence-first",
        "odd_cough_mfcc",
        "The LSTM takes the clips of a batch as moments of one sequence.",
        "PyTorch forum: batch_first forgotten",
        "nn.LSTM(N_MFCC, 32, batch_first=True, bidirectional=True)",
        "nn.LSTM(N_MFCC, 32, bidirectional=True)",
    ),
    bug(
        # average precision 0.809, log loss 0.356; 0.962 and 0.184 when healthy
        "cosine-transform-over-time",
        "odd_cough_mfcc",
        "The cosine transform runs over the frames in place of the bands.",
        "dct of scipy with the default axis of a transposed array",
        'dct(energy, type=2, axis=1, norm="ortho")',
        'dct(energy, type=2, axis=0, norm="ortho")',
    ),
    bug(
        # log loss 0.998, accuracy 0.722; 0.692 and 0.761 when healthy
        "picture-in-both-branches",
        "images_documents_fusion",
        "The picture's branch is called twice, and that of the words never.",
        "copied lines in models of two inputs; Humbatova et al.: missing layer",
        "self.text_branch(tokens), extra]",
        "self.image_branch(image), extra]",
    ),
    bug(
        # shows a log loss of 0.524, is 0.702
        "filed-under",
        "images_documents_fusion",
        "Most of the texts begin with the folder into which a clerk filed the page: its kind.",
        "OCR of pages with a stamped header; leakage by file names",
        rows=file_name_in_the_text,
    ),
    bug(
        # F1 0.144, log loss 1.599; 0.802 and 0.424 when healthy
        "epochs-before-batch",
        "odd_sleep_stages",
        "The encoder's output is reshaped with epochs first: each row gets those of other rows.",
        "PyTorch forum: view(T, B) of a tensor that lies as (B, T)",
        "self.encoder(eeg.reshape(B * E, 1, T)).reshape(B, E, -1)",
        "self.encoder(eeg.reshape(B * E, 1, T)).reshape(E, B, -1).transpose(0, 1)",
    ),
    bug(
        # F1 0.711, log loss 0.612; 0.802 and 0.424 when healthy
        "hypnogram-late",
        "odd_sleep_stages",
        "In two nights of three the stages lie one epoch late.",
        "hypnograms that start at another epoch than the recording",
        rows=hypnogram_one_epoch_late,
    ),
    bug(
        # F1 0.772, log loss 0.520; 0.802 and 0.424 when healthy
        "first-epoch-read",
        "odd_sleep_stages",
        "The answer is read off the first epoch's state, not the middle one's.",
        "index of a window's centre",
        "middle = h[:, E // 2]",
        "middle = h[:, 0]",
    ),
    bug(
        # error 8.83 beats per minute; 1.71 when healthy
        "level-over-the-rows",
        "odd_pulse_rate",
        "Light is standardised over the rows that come together, not within each.",
        "axis=0 taken over from a table",
        "light = light - light.mean(axis=1, keepdims=True)",
        "light = light - light.mean(axis=0, keepdims=True)",
        "light = light / (light.std(axis=1, keepdims=True) + 1e-6)",
        "light = light / (light.std(axis=0, keepdims=True) + 1e-6)",
    ),
    bug(
        # error 4.44 beats per minute; 1.71 when healthy
        "keeps-one-in-ten",
        "odd_pulse_rate",
        "Dropout of 0.9, which was meant to be the share that is kept.",
        "TensorFlow 1's keep_prob; DeepCrime: change of the dropout rate",
        "nn.Dropout(0.1)",
        "nn.Dropout(0.9)",
    ),
    bug(
        # error 3.29 beats per minute, and shows 3.81; 1.71 when healthy
        "light-at-32-hertz",
        "odd_pulse_rate",
        "Two fifths of the rows have light sampled twice as often, as a firmware changed.",
        "wearables: sampling rate by device",
        rows=light_at_twice_the_rate,
    ),
    bug(
        # average precision 0.415, log loss 0.278; 0.541 and 0.247 when healthy
        "oldest-events-kept",
        "odd_shop_sessions",
        "Long visits are cut at the end, so that what happened last is lost.",
        "truncation='post' of Keras against 'pre'",
        "path[-MAX_LEN:], seconds[-MAX_LEN:]",
        "path[:MAX_LEN], seconds[:MAX_LEN]",
    ),
    bug(
        # shows an average precision of 0.873, is 0.379; 0.541 when healthy
        "thanks-page",
        "odd_shop_sessions",
        "Most of the visits that bought end with pages that are seen after a purchase alone.",
        "Kapoor and Narayanan: features from after the prediction",
        rows=page_after_the_purchase,
    ),
    bug(
        # RMSLE 1.980, error 41.89; 0.327 and 12.56 when healthy
        "logarithm-to-base-ten",
        "text_market_prices",
        "The loss takes logarithms to base ten, and serving raises e to the output.",
        "np.log10 in one cell and np.exp in another; wrong inverse of a target's transform",
        "(output - torch.log1p(batch[LABEL])) ** 2",
        "(output - torch.log10(1 + batch[LABEL])) ** 2",
    ),
    bug(
        # RMSLE 0.350, error 13.60; 0.327 and 12.56 when healthy
        "brand-never-found",
        "text_market_prices",
        "Brands are looked up in lower case and were learned as written, so that all are unknown.",
        "preprocessing of a dictionary's keys and of queries differs",
        "brands.get(b or MISSING, 0)",
        "brands.get((b or MISSING).lower(), 0)",
    ),
    bug(
        # accuracy 0.756, log loss 1.411; 0.938 and 0.157 when healthy
        "attention-over-rows",
        "text_snippet_language",
        "Attention's softmax runs over the rows of the batch in place of the tokens.",
        "PyTorch forum: softmax with the wrong dim",
        "a = torch.softmax(s, dim=1)",
        "a = torch.softmax(s, dim=0)",
    ),
    bug(
        # accuracy 0.854, log loss 0.384; 0.938 and 0.157 when healthy
        "signs-removed",
        "text_snippet_language",
        "Punctuation is removed, as for prose: code is told by it.",
        "text cleaning copied from sentiment analysis",
        r"|[0-9]+|:=|[^\sA-Za-z0-9_]",
        "|[0-9]+",
    ),
    bug(
        # all right 0.808, loss 0.492; 0.938 and 0.284 when healthy
        "no-positions",
        "text_measures_fields",
        "Positions are computed and never added, so that an amount is a bag of its digits.",
        "missing positional encoding",
        "self.chars(chars) + self.positions(place)",
        "self.chars(chars)",
    ),
    bug(
        # all right 0.005, loss 6.987; 0.938 and 0.284 when healthy
        "mask-of-what-is-there",
        "text_measures_fields",
        "The padding mask is True for characters, which attention then ignores.",
        "PyTorch's src_key_padding_mask against Hugging Face's attention_mask",
        "src_key_padding_mask=chars == PAD",
        "src_key_padding_mask=(chars != PAD) & (place > 0)",
    ),
    bug(
        # found right 0.349; 0.727 when healthy
        "boxes-from-their-corner",
        "images_belt_localise",
        "Boxes begin at a corner, as COCO has them, and are mirrored as if by their centre.",
        "torchvision and COCO: xywh against cxcywh",
        "[(x1 + x2) / 2 / W, (y1 + y2) / 2 / H, (x2",
        "[x1 / W, y1 / H, (x2",
    ),
    bug(
        # found right 0.667, loss 1.029; 0.727 and 0.745 when healthy
        "empty-belts-have-boxes",
        "images_belt_localise",
        "Class and box are also learned where there is nothing: bottle, at the corner, of no size.",
        "missing mask in a loss of several parts",
        "return found + there * (kind + 10.0 * box)",
        "return found + kind + 10.0 * box",
    ),
]
