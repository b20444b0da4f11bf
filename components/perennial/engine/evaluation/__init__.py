"""How good is a model: scores on a split, exact metrics, intervals."""
