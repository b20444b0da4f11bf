"""Write images by digest into an overlay and its two profiles.

    python k8s/pin_images.py k8s/overlays/kind --metadata digests.json --metadata mlflow.json
    python k8s/pin_images.py k8s/overlays/kind postgres=docker.io/library/postgres@sha256:...

`--metadata` takes what `docker buildx bake` or `docker buildx build` wrote with `--metadata-file`;
any other image is named by hand.
"""

import argparse
import json
import re
from pathlib import Path

NAME, DIGEST = "image.name", "containerimage.digest"
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
    """The images that a build names: target, or the last part of the repository → image by digest.

    Raises:
        SystemExit: the file cannot be read, or names no image.
    """
    try:
        document = json.loads(metadata.read_text())
    except (OSError, ValueError) as error:
        raise SystemExit(f"{metadata} cannot be read: {error}") from error
    targets = document if isinstance(document, dict) else {}
    if DIGEST in targets:  # of one `docker buildx build`, which knows no targets
        name = _repository(targets.get(NAME, "")).rpartition("/")[2].removeprefix("perennial-")
        targets = {name: targets}
    images = {
        name: f"{_repository(target[NAME])}@{target[DIGEST]}"
        for name, target in targets.items()
        if isinstance(target, dict) and DIGEST in target and target.get(NAME)
    }
    if not images:
        raise SystemExit(
            f"{metadata} names no image: a build writes {NAME!r} and {DIGEST!r} there when it is "
            "given a name and --push"
        )
    return images


def named(texts: list[str]) -> dict[str, str]:
    """Images given by hand: short name → image.

    Raises:
        SystemExit: a text without a name before its image.
    """
    wrong = [text for text in texts if not text.partition("=")[0] or "=" not in text]
    if wrong:
        raise SystemExit(f"{wrong[0]!r} is not NAME=REPOSITORY@sha256:..., as mlflow=...")
    return dict(text.split("=", 1) for text in texts)


def _repository(tags: str) -> str:
    first = tags.split(",", maxsplit=1)[0]
    folder, _, last = first.rpartition("/")
    return f"{folder}/{last.partition(':')[0]}".lstrip("/")


def main() -> None:
    """Read the command line, write the files, say what was written."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("overlay", type=Path)
    parser.add_argument("images", nargs="*", metavar="NAME=REPOSITORY@sha256:...")
    parser.add_argument(
        "--metadata", type=Path, action="append", default=[], help="what docker buildx wrote"
    )
    options = parser.parse_intermixed_args()  # images may follow --metadata
    if not options.overlay.is_dir():
        parser.error(f"{options.overlay} is no folder; say one of k8s/overlays")
    images: dict[str, str] = {}
    for metadata in options.metadata:
        images |= built(metadata)
    images |= named(options.images)
    if not images:
        parser.error("say which images: --metadata FILE or NAME=REPOSITORY@sha256:...")
    print("\n".join(pin(options.overlay, images)))


if __name__ == "__main__":
    main()
