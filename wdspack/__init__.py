"""wdspack: image-text tar shards in, dense balanced packs out."""
