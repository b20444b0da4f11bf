"""Checkpoints that the earlier writer of this project made are still loaded and resumed."""

import hashlib
import shutil
from pathlib import Path

from perennial.engine.checkpoints.folder import verify
from tiny_training import TinyOptions, finished, tiny_job, weights

# Step 8 of the tiny training on two ranks under fsdp, and the digest of its weights as the earlier
# code loaded them.
EARLIER = Path(__file__).with_name("earlier_checkpoint.zip")
WEIGHTS = "56df851850af5f4d5a1dfa2411d7a1babd976e809925b48a8832cdf64006114f"


def digest_of(state) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(state.items()):
        digest.update(name.encode())
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()


def test_an_earlier_checkpoint_is_loaded_bit_for_bit_and_resumed_under_another_strategy(root):
    job = tiny_job(root, options=TinyOptions(batch_norm=True), strategy="ddp", steps=12)
    shutil.unpack_archive(EARLIER, job.checkpoints)
    fingerprint = verify(job.checkpoints / "step-00000008").fingerprint
    result = finished(job.model_copy(update={"fingerprint": fingerprint}))
    assert result.num_resumes == 1
    assert [record.step for record in result.checkpoints] == [8, 12]
    assert digest_of(weights(result, step=8)) == WEIGHTS
