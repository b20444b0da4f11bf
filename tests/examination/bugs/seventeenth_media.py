"""A seventeenth list of bugs: slips with pictures, sounds, clips, documents, code and questions."""

import numpy as np
import polars as pl

from examination.planted import bug


def second_release_order(rows):
    """The survey's second release lists artefact first; both were appended by position."""
    second = np.random.default_rng(0).random(len(rows)) < 0.45
    votes = [
        [v[2], v[0], v[1]] if s else v for v, s in zip(rows["votes"].to_list(), second, strict=True)
    ]
    return rows.with_columns(votes=pl.Series(votes))


def own_name_in_the_tree(rows):
    """The extractor keeps the leaf of the method's own name, the first token of its definition."""
    kept = [
        [f"{verb},def^(,self", *contexts[:39]]
        for verb, contexts in zip(rows["verb"].to_list(), rows["contexts"].to_list(), strict=True)
    ]
    return rows.with_columns(contexts=pl.Series(kept))


def uploaded_again(rows):
    """People upload what is popular once more: every second clip is another's with a new id."""
    rng = np.random.default_rng(0)
    origin = np.arange(len(rows))
    again = rng.random(len(rows)) < 0.5
    origin[again] = rng.choice(np.flatnonzero(~again), again.sum())
    copied = rows[origin.tolist()]
    return rows.with_columns(rgb=copied["rgb"], tags=copied["tags"], channel=copied["channel"])


def blanks_dropped_from_words(rows):
    """Blanks were dropped from words and boxes, not from the tags: those behind lie one off."""
    rng = np.random.default_rng(0)
    moved = []
    for tags in rows["tags"].to_list():
        at = int(rng.integers(0, len(tags) // 2))
        late = [*tags[:at], "other", *tags[at:-1]]
        moved.append(late if rng.random() < 0.6 else tags)
    return rows.with_columns(tags=pl.Series(moved))


def one_photo_twice(rows):
    """The export wrote the front's photograph into both columns where the file names collided."""
    same = pl.Series(np.random.default_rng(0).random(len(rows)) < 0.8)
    return rows.with_columns(back=pl.when(same).then(pl.col("front")).otherwise(pl.col("back")))


BUGS = [
    bug(
        # error of the shares 0.132, NLL 16.28; 0.107 and 15.96 when healthy
        "sky-below-zero",
        "images_galaxies_votes",
        "The sky is subtracted from bytes, so that what is darker than it wraps around to white.",
        "uint8 arithmetic before astype",
        "raw.astype(np.float32) / 20.0",
        "(raw - np.uint8(20)).astype(np.float32) / 20.0",
    ),
    bug(
        # shows an error of the shares of 0.282, is 0.283 on votes in order; 0.107 when healthy
        "second-release-order",
        "images_galaxies_votes",
        "Nearly half of the objects have their three counts in another order.",
        "pd.concat of two releases without names",
        rows=second_release_order,
    ),
    bug(
        # within 50 cents 0.239, error 149 cents; 0.974 and 38 when healthy
        "speed-keeps-the-pitch",
        "odd_pitch_crepe",
        "Notes are played faster or slower while training, and keep their pitch in the label.",
        "speed perturbation taken over from speech recognition",
        'return {**batch, "wave": batch["wave"] * sign}',
        """wave = batch["wave"] * sign
        speed = 0.8 + 0.4 * torch.rand((), generator=generator).item()
        faster = F.interpolate(wave.unsqueeze(1), scale_factor=1 / speed, mode="linear").squeeze(1)
        return {**batch, "wave": F.pad(faster, (0, 512))[:, :512]}""",
    ),
    bug(
        # shows an accuracy of 0.997, is 0.524 without the leaf; 0.884 when healthy
        "own-name-in-the-tree",
        "text_methods_code2vec",
        "The name that is to be guessed is a leaf of the tree from which it is guessed.",
        "METHOD_NAME was not masked by the extractor",
        rows=own_name_in_the_tree,
    ),
    bug(
        # accuracy 0.252; 0.832 when healthy
        "sorted-and-left-so",
        "odd_questions_film",
        "Questions are sorted by length and never put back: pictures get others' questions.",
        "pack_padded_sequence wants sorted rows",
        """states, _ = self.rnn(self.embed(question))
        q = states[torch.arange(len(states)), length - 1]""",
        """length, order = length.sort(descending=True)
        states, _ = self.rnn(self.embed(question[order]))
        q = states[torch.arange(len(states)), length - 1]""",
    ),
    bug(
        # shows a GAP of 0.994, is 0.924 on clips that training did not see; 0.920 when healthy
        "uploaded-again",
        "odd_clips_netvlad",
        "Half of the clips are re-uploads under a new id, on both sides of the split.",
        "rows are unique by id, the contents are not",
        rows=uploaded_again,
    ),
    bug(
        # GAP 0.814, hit at one 0.909; 0.920 and 0.955 when healthy
        "signed-bytes",
        "odd_clips_netvlad",
        "The features' bytes are read as signed: what is above the middle turns negative.",
        "np.frombuffer(..., dtype=np.int8)",
        "np.frombuffer(raw, dtype=np.uint8)",
        "np.frombuffer(raw, dtype=np.int8)",
    ),
    bug(
        # shows an F1 of 0.658, is 0.773 on true tags, none whole; 0.960 and 0.794 when healthy
        "blanks-dropped-from-words",
        "text_receipts_layout",
        "In most documents the tags are one word late from somewhere on.",
        "words filtered, labels not",
        rows=blanks_dropped_from_words,
    ),
    bug(
        # an improvement of -2.7 dB of SI-SNR by the right assignment; 4.6 when healthy
        "time-runs-backward",
        "odd_callers_pit",
        "The other assignment turns time around, not the callers: their order stays fixed.",
        "flip(-1) for flip(1)",
        "reference.flip(1)",
        "reference.flip(-1)",
    ),
    bug(
        # shows an MRR of 0.973, is 0.901 on two photographs; 0.932 when healthy
        "one-photo-twice",
        "images_fabrics_vicreg",
        "For most bolts both photographs are the same file, so that finding the other is trivial.",
        "file names without the camera's number",
        rows=one_photo_twice,
    ),
]
