"""Datasets of the twenty-first list: pictures, texts and searches."""

import numpy as np
import polars as pl

from examination.data import numbered, seeded
