"""What a record says: clocks, outcomes, tails, gates, comparison, ranking, reports. Reads ``harness.record`` only.

For a notebook everything is in ``analysis.notebook`` (``docs/library.md`` walks through it):

- in: ``read_campaign(folder)``, ``read_run(attempt)``, ``record_from_frame(frame, ...)`` for a log of your own;
- measured: ``analyze(records)``, ``measure_run(record)``; what they return is described in ``analysis.model``;
- out, as pandas data frames: ``requests_frame``, ``figures_frame``, ``outcomes_frame``, ``checks_frame``, ``groups_frame``;
- next: ``replicates_for_power``, ``replicates_for_width``.

Units are s, req/s, tok/s and ratios; stamps in records are whole ns since the run's epoch. Formula ids (F30) and sections (0x07) in
docstrings are those of the text on continuous batching that this project is written to.
"""
