#!/usr/bin/env bash
# A base image where nothing can be pulled: Debian's Python under the name that the official image has.
#   bash tests/images/make_base.sh && make images BASE=docker.io/library/python@sha256:...
set -euo pipefail
name=docker.io/library/python:3.11-slim-bookworm
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$folder"
rm -rf "$folder"/var/cache/apt/archives/*.deb "$folder"/var/lib/apt/lists/* \
    "$folder"/usr/share/{doc,locale,man}/* "$folder"/usr/lib/python3*/EXTERNALLY-MANAGED
ln -s python3 "$folder/usr/bin/python"
tar -C "$folder" -c . | podman import - "$name"
podman image inspect --format '{{index .RepoDigests 0}}' "$name"
