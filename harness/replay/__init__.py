"""The load engine: pacer, connections, worker, spooler."""
