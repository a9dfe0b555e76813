"""The on-disk format: schema, spec, coordinates, writer, seal, reader."""
