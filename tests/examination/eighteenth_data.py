"""Datasets of the eighteenth list: students, stays, stock, football, cards, jobs and hotels."""

import numpy as np
import polars as pl

from examination.data import numbered, seeded


def student_outcomes():
    """How students of a college fared: their courses' marks, their bills, a code of admission."""
    rng = seeded(18001)
    n = 3200
    course = rng.choice(11, n, p=[0.2, 0.16, 0.13, 0.11, 0.1, 0.09, 0.08, 0.06, 0.04, 0.02, 0.01])
    mode = rng.choice(7, n, p=[0.4, 0.22, 0.16, 0.1, 0.07, 0.04, 0.01])
    talent = rng.normal(0, 1, n)
    age = 18 + rng.gamma(0.8, 6, n) * np.array([0.4, 0.5, 1.0, 2.0, 2.4, 1.0, 1.5])[mode]
    hard = rng.normal(0, 0.5, 11)[course]
    debtor = rng.random(n) < 0.09 + 0.06 * (age > 25)
    paid = rng.random(n) < np.where(debtor, 0.55, 0.94)
    scholar = rng.random(n) < 1 / (1 + np.exp(1.4 - 0.7 * talent))
    enrolled = rng.integers(5, 8, n)
    will = talent - hard + 0.9 * paid + 0.4 * scholar - 0.03 * (age - 20) + rng.normal(0, 0.6, n)
    passed = [rng.binomial(enrolled, 1 / (1 + np.exp(-0.9 * will - k))) for k in (0.1, -0.2)]
    mark = [
        np.where(p > 0, (12.4 + 1.2 * talent + rng.normal(0, 0.8, n)).clip(10, 19), 0.0)
        for p in passed
    ]
    gone = 1.1 - 1.3 * will - 1.1 * paid + rng.normal(0, 0.35, 7)[mode] - 3.2 * passed[1] / enrolled
    still = 0.2 - 0.5 * hard - 1.6 * passed[1] / enrolled + 0.25 * (course % 3)
    done = -2.6 + 0.8 * will + 2.6 * (passed[1] + passed[0]) / (2 * enrolled)
    odds = np.exp(np.stack([gone, still, done], 1))
    fate = [rng.choice(3, p=row / row.sum()) for row in odds]
    mother = rng.choice([1, 3, 19, 34, 37, 38], n, p=[0.3, 0.15, 0.25, 0.05, 0.2, 0.05])
    lost = rng.random(n) < 0.07
    return numbered(
        pl.DataFrame(
            {
                "course": np.array(
                    [
                        "nursing",
                        "law",
                        "design",
                        "tourism",
                        "it",
                        "agronomy",
                        "sport",
                        "music",
                        "social",
                        "optics",
                        "equine",
                    ]
                )[course],
                "application_mode": np.array([1, 17, 39, 42, 43, 44, 57])[mode],
                "mother_qualification": mother,
                "admission_grade": [
                    None if a else round(float(v), 1)
                    for a, v in zip(lost, 127 + 11 * talent + rng.normal(0, 8, n), strict=True)
                ],
                "age": age.astype(int),
                "debtor": debtor.astype(int),
                "tuition_paid": paid.astype(int),
                "scholarship": scholar.astype(int),
                "sem1_enrolled": enrolled,
                "sem1_approved": passed[0],
                "sem1_grade": mark[0].round(2),
                "sem2_approved": passed[1],
                "sem2_grade": mark[1].round(2),
                "outcome": np.array(["Dropout", "Enrolled", "Graduate"])[fate],
            }
        )
    )
