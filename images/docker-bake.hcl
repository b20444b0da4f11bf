# Build and push the three images with their provenance and bill of materials:
#   BASE=docker.io/library/python@sha256:... REGISTRY=registry.example/team VERSION=0.1.0 COMMIT=$(git rev-parse HEAD) \
#     docker buildx bake --file images/docker-bake.hcl --push --metadata-file digests.json
# The digests of the environment's profile are the `containerimage.digest` of the metadata file.

variable "BASE" {
  # No default: which bytes you build on is yours to say.
  validation {
    condition     = can(regex("@sha256:[0-9a-f]{64}$", BASE))
    error_message = "BASE must name the Python image by digest: name@sha256:..."
  }
}
variable "REGISTRY" {
  default = "localhost"
}
variable "VERSION" {
  default = "unreleased"
}
variable "COMMIT" {
  default = ""
}
variable "TORCH" {
  default = "cpu"
}
variable "EXTRAS" {
  default = ""
}
variable "PIP_CONFIG" {
  # pip's configuration file: a private index, or the one that has PyTorch's CPU builds.
  default = ""
}

group "default" {
  targets = ["data", "trainer", "control"]
}

target "image" {
  name       = name
  matrix     = { name = ["data", "trainer", "control"] }
  dockerfile = "images/Dockerfile"
  target     = name
  tags       = ["${REGISTRY}/perennial-${name}:${VERSION}"]
  args = {
    BASE    = BASE
    TORCH   = TORCH
    EXTRAS  = EXTRAS
    VERSION = VERSION
    COMMIT  = COMMIT
  }
  secret = PIP_CONFIG == "" ? [] : ["id=pip,src=${PIP_CONFIG}"]
  # Not with the builder `default` of docker's classic image store: docker buildx create --use
  attest = ["type=provenance,mode=max", "type=sbom"]
}
