"""Run as `python -I ask.py MODEL_URI QUESTIONS ANSWERS [EARLIER_URI...]`, with MLFLOW_TRACKING_URI: asks a
model, as a stranger, who has loaded the earlier ones before it.

QUESTIONS is a folder of Parquet files; ANSWERS becomes a JSON file: of each, its predictions or what was
printed in their place, and below `loaded`, where `perennial.engine` came from and which packages were there.
"""

import json
import sys
from pathlib import Path

import mlflow.pyfunc
import polars as pl

HEAVY = {"kfp", "great_expectations", "boto3", "kubernetes", "perennial.cli"}


def answers(model_uri: str, questions: Path) -> dict[str, object]:
    model = mlflow.pyfunc.load_model(model_uri)
    found: dict[str, object] = {}
    for file in sorted(questions.glob("*.parquet")):
        try:
            frame = pl.read_parquet(file).to_pandas()[::-1]
            predicted = model.predict(frame)
            assert predicted.index.equals(frame.index)
            rows = predicted.sort_index().values.tolist()
            found[file.stem] = {"names": list(predicted.columns), "rows": rows}
        except mlflow.MlflowException as error:
            found[file.stem] = {"refused": str(error)}
    heavy = sorted(HEAVY.intersection(sys.modules))
    found["loaded"] = {"code": sys.modules["perennial.engine"].__file__, "heavy": heavy}
    return found


if __name__ == "__main__":
    model_uri, questions, target, *earlier = sys.argv[1:]
    loaded = [mlflow.pyfunc.load_model(each) for each in earlier]
    Path(target).write_text(json.dumps(answers(model_uri, Path(questions))))
