"""The instrument: manifests, runtimes, the load engine, the record, campaigns and the command line."""
