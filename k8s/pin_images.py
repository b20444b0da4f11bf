"""Write images by digest into an overlay and its two profiles.

    python k8s/pin_images.py k8s/overlays/kind --metadata digests.json
    python k8s/pin_images.py k8s/overlays/kind mlflow=localhost:5001/mlflow@sha256:...

The first takes what `docker buildx bake --metadata-file` wrote, the second any image by name.
"""

import argparse
import json
import re
from pathlib import Path

IMAGE = re.compile(r"(?P<name>[^\s@]+)@(?P<digest>sha256:[0-9a-f]{64})")


def pin(overlay: Path, images: dict[str, str]) -> list[str]:
    """Replace images in an overlay's files; a line for each place.

    Args:
        overlay: Its folder.
        images: Short name, such as `trainer` or `postgres`, → REPOSITORY@DIGEST.

    Raises:
        SystemExit: an image without digest, or one that the overlay does not use.
    """
    done = []
    texts = {path: path.read_text() for path in sorted(overlay.iterdir()) if path.is_file()}
    for short, image in images.items():
        match = IMAGE.fullmatch(image)
        if match is None:
            raise SystemExit(f"{short}={image} is no image by digest: REPOSITORY@sha256:...")
        before = len(done)
        for path, text in texts.items():
            changed, places = _replaced(path.suffix, text, short, match)
            texts[path] = changed
            done += [f"{path.name}: {short} = {image}"] * places
        if len(done) == before:
            raise SystemExit(f"{overlay} uses no image {short!r}")
    for path, text in texts.items():
        path.write_text(text)
    return done


def _replaced(suffix: str, text: str, short: str, image: re.Match[str]) -> tuple[str, int]:
    if suffix == ".toml":
        line = rf'^{re.escape(short)} = "[^"]*@sha256:[0-9a-f]{{64}}"$'
        return re.subn(line, f'{short} = "{image.group()}"', text, flags=re.M)
    entry = (
        rf"^(  - name: (?:perennial-|\S*/)?{re.escape(short)}\n)"
        r"(?:    newName: \S+\n)?    digest: \S+$"
    )
    new = rf"\1    newName: {image['name']}\n    digest: {image['digest']}"
    return re.subn(entry, new, text, flags=re.M)


def built(metadata: Path) -> dict[str, str]:
    """The images that a build names: target → REPOSITORY@DIGEST."""
    targets = {
        name: target
        for name, target in json.loads(metadata.read_text()).items()
        if isinstance(target, dict) and "containerimage.digest" in target
    }
    return {
        name: f"{_repository(target['image.name'])}@{target['containerimage.digest']}"
        for name, target in targets.items()
    }


def _repository(tags: str) -> str:
    first = tags.split(",", maxsplit=1)[0]
    folder, _, last = first.rpartition("/")
    return f"{folder}/{last.partition(':')[0]}".lstrip("/")


def main() -> None:
    """Read the command line, write the files, say what was written."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("overlay", type=Path)
    parser.add_argument("images", nargs="*", metavar="NAME=REPOSITORY@sha256:...")
    parser.add_argument("--metadata", type=Path, help="what `docker buildx bake` wrote")
    options = parser.parse_args()
    images = built(options.metadata) if options.metadata else {}
    images |= dict(each.split("=", 1) for each in options.images)
    print("\n".join(pin(options.overlay, images)))


if __name__ == "__main__":
    main()
