"""One module per system under test."""
