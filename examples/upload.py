"""Run `python examples/upload.py FOLDER s3://BUCKET/PREFIX` to send a dataset's new files there.

Files that lie there with the same size are left alone, so calling again after `prepare.py` wrote
another month plays the arrival of new data. Keys and endpoint are boto3's: AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL.
"""

import argparse
import sys
from pathlib import Path

from perennial.clients.object_store import open_store
from perennial.contracts.errors import PerennialError


def upload(folder: Path, address: str) -> list[str]:
    """Send the files that the store lacks.

    Args:
        folder: Of the dataset; every Parquet file below it counts.
        address: Where the dataset lies for the cluster, as `data.uri` names it.

    Returns:
        The keys that this call wrote, in order.

    Raises:
        PerennialError: there are no files, or the store does not take them.
    """
    files = sorted(folder.rglob("*.parquet"))
    if not files:
        raise PerennialError(
            f"there is no Parquet file under {folder}",
            action="write some: python examples/flights/prepare.py FOLDER --months 1-3",
        )
    store = open_store(address)
    there = {item.key: item.size_bytes for item in store.list()}
    sent = []
    for file in files:
        key = file.relative_to(folder).as_posix()
        if there.get(key) != file.stat().st_size:
            store.upload(key, file)
            sent.append(key)
    return sent


def main() -> int:
    """Upload, and print what was sent."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("address", metavar="ADDRESS", help="such as s3://perennial/flights")
    options = parser.parse_args()
    try:
        sent = upload(options.folder, options.address)
    except PerennialError as error:
        print(f"upload: {error}", file=sys.stderr)
        return 2
    print("\n".join([*sent, f"{len(sent)} files sent to {options.address}"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
