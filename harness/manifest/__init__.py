"""The declared measurement: schema, loading with line numbers, expansion into runs."""
